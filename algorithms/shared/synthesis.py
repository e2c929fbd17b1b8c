"""Images without data: a generator is trained on what models say of its images. The losses of DENSE, DAFL and Co-Boosting."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bench.models.base import Params, uniform_init


def init_generator(shape: tuple[int, int, int], width: int, channels: int, generator: torch.Generator) -> Params:
    """Params of the network of `generate` for images of a shape (2,328,899 for 3x32x32, noise of 256 and 64 channels).

    Args:
        width: of a noise.
        channels: of the last hidden layer; those before have twice as many.
    """
    colours, height, _ = shape
    side, wide = -(-height // 4), 2 * channels
    sizes = {
        "linear": (wide * side * -(-shape[2] // 4), width),
        "conv1": (wide, wide, 3, 3),
        "conv2": (channels, wide, 3, 3),
        "conv3": (colours, channels, 3, 3),
    }
    params: Params = {}
    for layer, size in sizes.items():
        params |= uniform_init(layer, size, generator)
    del params["conv1.bias"], params["conv2.bias"]  # a normalisation follows
    for layer, count in (("norm0", wide), ("norm1", wide), ("norm2", channels)):
        params |= {f"{layer}.weight": torch.ones(count), f"{layer}.bias": torch.zeros(count)}
    return params


def generate(params: Params, noise: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images [B, C, H, W] in (0, 1) of noises [B, width]: a linear layer, then three convolutions, the size doubled before the
    first two, all normalised by their batch."""

    def normalised(x: Tensor, layer: str) -> Tensor:
        return F.batch_norm(x, None, None, params[f"{layer}.weight"], params[f"{layer}.bias"], True)

    _, height, width = shape
    x = F.linear(noise, params["linear.weight"], params["linear.bias"])
    x = normalised(x.view(len(x), -1, -(-height // 4), -(-width // 4)), "norm0")
    for layer, norm in (("conv1", "norm1"), ("conv2", "norm2")):
        x = F.conv2d(F.interpolate(x, scale_factor=2), params[f"{layer}.weight"], padding=1)
        x = F.leaky_relu(normalised(x, norm), 0.2)
    x = F.conv2d(x, params["conv3.weight"], params["conv3.bias"], padding=1)
    return torch.sigmoid(x)[:, :, :height, :width]


class Normalisations(TorchFunctionMode):
    """Within it, `distance` adds up how far what batch normalisations in evaluation mode get is from their running statistics:
    the norms, over channels, of the differences of variances and of means."""

    def __init__(self) -> None:
        super().__init__()
        self.distance: Tensor | float = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm and args[1] is not None:
            self.distance = self.distance + bn_distance(*args[:3])
        return func(*args, **(kwargs or {}))


def bn_distance(x: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
    """Of one normalisation, with inputs x [B, channels, ...]. Scalar."""
    values = x.transpose(0, 1).flatten(1)
    mean, variance = values.mean(1), values.var(1, unbiased=False)
    return (variance - running_var).norm() + (mean - running_mean).norm()


def teacher_of(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum_i w_i z_i / sum_i w_i of logits [m, B, C]; by default the mean."""
    return logits.mean(0) if weights is None else torch.einsum("m,mbc->bc", weights / weights.sum(), logits)


def label_loss(teacher: Tensor, labels: Tensor, hardness: float = 0.0) -> Tensor:
    """Mean cross-entropy of the labels, each weighed by (1 - p_y)^hardness, through which no gradient goes. Scalar."""
    losses = F.cross_entropy(teacher, labels, reduction="none")
    return ((1 - (-losses.detach()).exp()) ** hardness * losses).mean() if hardness else losses.mean()


def adversarial_loss(teacher: Tensor, student: Tensor, temperature: float = 1.0, masked: bool = True) -> Tensor:
    """Minus the mean divergence of student from teacher; if masked, where they name different classes. Scalar."""
    apart = divergences(teacher, student, temperature)
    return -(apart * (teacher.argmax(1) != student.argmax(1)) if masked else apart).mean()


def divergences(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) of each row, [B]."""
    told, learned = (F.log_softmax(logits / temperature, 1) for logits in (teacher, student))
    return temperature**2 * F.kl_div(learned, told, reduction="none", log_target=True).sum(1)


def dafl_loss(teacher: Tensor, features: Tensor, activation: float = 0.1, balance: float = 5.0) -> Tensor:
    """CE(t, argmax t) - activation mean|f| + balance sum_c q_c log q_c, with q the mean of the softmaxes. Scalar."""
    shares = F.softmax(teacher, 1).mean(0)
    shares = shares.clamp(min=torch.finfo(shares.dtype).tiny)  # at 0 the entropy has no finite gradient
    entropy = torch.special.entr(shares).sum()
    return F.cross_entropy(teacher, teacher.argmax(1)) - activation * features.abs().mean() - balance * entropy


def reweighed(weights: Tensor, logits: Tensor, labels: Tensor, step: float) -> Tensor:
    """w [m] after a step against the sign of the gradient of the teacher's cross-entropy, within [0, 1]; as it was if all would
    be 0, as where one is left, whose gradient is rounding."""
    if not step:
        return weights
    own = weights.detach().requires_grad_()
    slope = torch.autograd.grad(F.cross_entropy(teacher_of(logits, own), labels), own)[0]
    moved = (weights - step * slope.sign()).clamp(0, 1)
    return torch.where(moved.any(), moved, weights)


def shifted(
    x: Tensor, teacher: Callable[[Tensor], Tensor], towards: Tensor, length: Tensor | float, temperature: float = 4.0
) -> Tensor:
    """x + length sign(gradient of <u, softmax(teacher(x) / T)>), with u [B, C]."""
    own = x.detach().requires_grad_()
    said = (towards * F.softmax(teacher(own) / temperature, 1)).sum()
    return x + length * torch.autograd.grad(said, own)[0].sign()
