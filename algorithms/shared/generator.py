"""A conditional generator of features, as pure functions of its params, and the losses that train it on classifiers.

Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.
https://arxiv.org/abs/2105.10056
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.shared.tree import Tree
from bench.models.base import Params, uniform_init

TeacherWeighting = Literal["per_label", "code"]


@dataclass(frozen=True)
class Generator:
    """Noise and one-hot label -> linear, batch normalisation, ReLU -> linear -> features, the input of a classifier.

    Attributes:
        noise_width, hidden_width, num_classes, feature_dim: number of noise values, hidden units, labels and features.
    """

    noise_width: int
    hidden_width: int
    num_classes: int
    feature_dim: int

    def init(self, generator: torch.Generator) -> Params:
        """Initial params, PyTorch's defaults."""
        return {
            **uniform_init("hidden", (self.hidden_width, self.noise_width + self.num_classes), generator),
            "norm.weight": torch.ones(self.hidden_width),
            "norm.bias": torch.zeros(self.hidden_width),
            **uniform_init("features", (self.feature_dim, self.hidden_width), generator),
        }

    def init_buffers(self) -> Params:
        """Initial running statistics."""
        return {"norm.mean": torch.zeros(self.hidden_width), "norm.variance": torch.ones(self.hidden_width)}

    def __call__(
        self, params: Params, buffers: Params, noise: Tensor, labels: Tensor, training: bool = False
    ) -> Tensor:
        """Features [B, feature_dim] for noise [B, noise_width] and labels [B].

        In training mode batch statistics normalise, and the running ones in `buffers` are moved in place.
        """
        one_hot = labels[:, None] == torch.arange(self.num_classes, device=labels.device)
        x = F.linear(torch.cat([noise, one_hot.to(noise.dtype)], 1), params["hidden.weight"], params["hidden.bias"])
        mean, variance = buffers["norm.mean"], buffers["norm.variance"]
        x = F.batch_norm(x, mean, variance, params["norm.weight"], params["norm.bias"], training)
        return F.linear(F.relu(x), params["features.weight"], params["features.bias"])


def teacher_loss(logits: Tensor, labels: Tensor, shares: Tensor, weighting: TeacherWeighting = "per_label") -> Tensor:
    """How far classifiers are from the labels of generated features: the sum over classifiers k of the mean over the batch of
    a_k(y) CE(logits, y), so that each is judged on the labels that it has seen. Scalar.

    Args:
        logits: [K, B, num_classes], of K classifiers for the same features.
        labels: [B].
        shares: [K, num_classes], a_k(y), share of client k of the examples of class y.
        weighting: "per_label" as above, or as FedGen's "code" computes it: there the product of weights [B, 1] and losses [B]
            is [B, B], so that each classifier has the mean of its a_k(y) times the mean of its CE(logits, y).
    """
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), reduction="none").view(len(logits), -1)
    weights = shares[:, labels]
    if weighting == "code":
        weights = weights.mean(1, keepdim=True)
    return (weights * losses).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """exp(- mean over all pairs of their noises' mean squared distance times their features' mean absolute distance): small if
    different noises [B, noise_width] give different features [B, feature_dim]. Scalar."""
    with torch.no_grad():
        apart = torch.cdist(noise, noise).square() / noise.shape[1]
    return torch.exp(-(apart * torch.cdist(features, features, p=1)).mean() / features.shape[1])


def adam_step(
    params: Params, gradients: Params, moments: Tree, step: int, *, lr: float, weight_decay: float
) -> tuple[Params, Tree]:
    """Params and moments after a step of Adam (Kingma and Ba, 2015; betas 0.9 and 0.999, epsilon 1e-8). Pure.

    Args:
        moments: "first" and "second", as params; zeros before the first step.
        step: of this step, from 1.
        weight_decay: times the params is added to the gradient.
    """
    first, second, new = {}, {}, {}
    for name, param in params.items():
        gradient = torch.add(gradients[name], param, alpha=weight_decay)
        first[name] = torch.lerp(moments["first"][name], gradient, 0.1)
        second[name] = torch.addcmul(0.999 * moments["second"][name], gradient, gradient, value=0.001)
        scale = (second[name] / (1 - 0.999**step)).sqrt().add(1e-8)
        new[name] = torch.addcdiv(param, first[name], scale, value=-lr / (1 - 0.9**step))
    return new, {"first": first, "second": second}
