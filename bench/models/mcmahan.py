"""The CIFAR network of McMahan et al. (2017): that of the TensorFlow tutorial on convolutional networks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.models import registered_model
from bench.models.base import Layered

_RADIUS, _SCALE, _POWER = 4, 0.001 / 9, 0.75  # of the local response normalisation
_INIT = {  # layer -> standard deviation of the weights, value of the biases
    "conv1": (0.05, 0.0),
    "conv2": (0.05, 0.1),
    "linear1": (0.04, 0.1),
    "linear2": (0.04, 0.1),
    "classifier": (1 / 192, 0.0),
}


@registered_model("mcmahan2017-cifar-cnn", title="McMahan's CIFAR CNN")
@dataclass(frozen=True)
class McMahanCifarCnn(Layered):
    """McMahan's CNN for CIFAR, with local response normalisation (1,756,426 parameters for 3x32x32, 10 classes).

    With 24x24 pixels, the size of the crops of McMahan et al., it has 1,068,298 parameters. The layers are those of
    tutorials/image/cifar10 in https://github.com/tensorflow/models, which the paper cites (Section 3).

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    https://arxiv.org/abs/1602.05629

    Differs from the tutorial: its weight decay of 0.004 on the two hidden linear layers is not part of the model; the
    setting weight_decay applies to all layers.
    """

    def layers(self):
        channels, height, width = self.input_shape
        flat = 64 * _after_pools(height) * _after_pools(width)
        return {
            "conv1": (64, channels, 5, 5),
            "conv2": (64, 64, 5, 5),
            "linear1": (384, flat),
            "linear2": (192, 384),
            "classifier": (self.num_classes, 192),
        }

    def init(self, generator):
        """The tutorial's initial values: normal weights, truncated at two standard deviations, and constant biases."""
        params = {}
        for name, shape in self.layers().items():
            std, bias = _INIT[name]
            weight = torch.empty(shape)
            torch.nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            params |= {f"{name}.weight": weight, f"{name}.bias": torch.full(shape[:1], bias)}
        return params

    def stage(self, name, params, x, bound):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return F.conv2d(x, weight, bias, padding=2) if name[:4] == "conv" else F.linear(x.flatten(1), weight, bias)

    def activated(self, name, x, bound):
        x = super().activated(name, x, bound)
        return _normalise(_pool(x)) if name == "conv1" else _pool(_normalise(x)) if name == "conv2" else x


def _normalise(x: Tensor) -> Tensor:
    """Local response normalisation: each value over (1 + scale * sum of squares of its neighbour channels) ** power.

    Equal to `torch.nn.functional.local_response_norm`, as a product with a band matrix, which `torch.func.vmap` batches.
    """
    channel = torch.arange(x.shape[-3], device=x.device)
    band = ((channel[:, None] - channel).abs() <= _RADIUS).to(x.dtype)
    nearby = F.conv2d(x.square(), band[:, :, None, None])
    return x * (1 + _SCALE * nearby).pow(-_POWER)


def _pool(x: Tensor) -> Tensor:
    """3x3 max-pooling of stride 2 with TensorFlow's padding SAME: n pixels become ceil(n / 2)."""
    height, width = x.shape[-2:]
    return F.max_pool2d(x, 3, 2, padding=(height % 2, width % 2), ceil_mode=True)


def _after_pools(pixels: int) -> int:
    """Side of the feature map after both max-pools."""
    return -(-pixels // 4)
