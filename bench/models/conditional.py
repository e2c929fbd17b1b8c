"""Variants of a model whose features pass through a part of a client's own before they are classified."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.models.base import Model, Params, uniform_init
from bench.models.calibrated import ModelWrapper
from bench.seeding import keys_from, uniform_from_keys


@dataclass(frozen=True)
class Valved(ModelWrapper):
    """A model whose classifier reads ReLU(f (1 + gamma) + beta) in place of the features f.

    Its params are those of `inner`, and "gamma" and "beta" [feature_dim].
    """

    inner: Model

    def init(self, generator):
        return self.inner.init(generator) | {name: torch.zeros(self.feature_dim) for name in ("gamma", "beta")}

    def features(self, params, x, bound):
        return valve(super().features(params, x, bound), params["gamma"], params["beta"])


def valve(features: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Of features [B, d], with gamma and beta [d]."""
    return F.relu(features * (1 + gamma) + beta)


@dataclass(frozen=True)
class Gated(ModelWrapper):
    """A model with two classifiers, of which each reads a share of the features f: logits h(r f) + h'((1 - r) f).

    Its params are those of `inner`, whose classifier is h; those of h', which is as large ("received.weight" and
    "received.bias"); those of the gate that r depends on; and, if noisy, "noise", the key of the gate's noise.
    """

    inner: Model
    noisy: bool = False

    def init(self, generator):
        params = self.inner.init(generator)
        other = {f"received.{name}": params[f"classifier.{name}"] for name in ("weight", "bias")}
        noise = {"noise": torch.zeros((), dtype=torch.long)} if self.noisy else {}
        return {**params, **other, **init_gate(self.feature_dim, generator), **noise}

    def head(self, params, z):
        noise = gumbel(params["noise"], z) if self.noisy else None
        share = gate(params, z, context(params["classifier.weight"]), noise)
        other = F.linear((1 - share) * z, params["received.weight"], params["received.bias"])
        return self.inner.head(params, share * z) + other


def init_gate(width: int, generator: torch.Generator) -> Params:
    """Initial params of a gate of features [B, width]."""
    norm = {"gate.norm.weight": torch.ones(2 * width), "gate.norm.bias": torch.zeros(2 * width)}
    return uniform_init("gate", (2 * width, width), generator) | norm


def context(weight: Tensor) -> Tensor:
    """The direction [d] in which the rows of a classifier's weight [num_classes, d] point together."""
    return F.normalize(weight.sum(0), dim=0)


def gate(params: Params, features: Tensor, direction: Tensor, noise: Tensor | None = None) -> Tensor:
    """Shares r [B, d] of features [B, d], in [0, 1].

    Args:
        params: of the gate.
        direction: [d], with which features are multiplied at its input.
        noise: [B, 2, d], added before the softmax; None for none.
    """
    linear = F.linear(features * direction, params["gate.weight"], params["gate.bias"])
    normed = F.layer_norm(linear, linear.shape[-1:], params["gate.norm.weight"], params["gate.norm.bias"])
    pair = F.relu(normed).unflatten(1, (2, -1))
    return torch.softmax(pair if noise is None else pair + noise, 1)[:, 0]


def gumbel(key: Tensor, features: Tensor) -> Tensor:
    """Standard Gumbel noise [B, 2, d] for features [B, d], as a function of a key; that of row i does not depend on B."""
    rows, width = features.shape
    # In [2^-25, 1 - 2^-24]: the largest draw and half of a step would be 1, whose noise is infinite.
    uniform = uniform_from_keys(keys_from(key, rows), 2 * width).add(2**-25).clamp(max=1 - 2**-24)
    return -torch.log(-torch.log(uniform)).to(features.dtype).unflatten(1, (2, width))
