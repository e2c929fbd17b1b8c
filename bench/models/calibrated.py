"""Variants of a model: its classifier alone, transformed features, a normalised classifier, the nearest prototype."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.models.base import Model, Staged


@dataclass(frozen=True)
class ClassifierOnly(Model):
    """The classifier of a model; its inputs are precomputed features [B, feature_dim, 1, 1]."""

    inner: Model

    def layers(self):
        return {"classifier": self.inner.layers()["classifier"]}

    def features(self, params, x, bound):
        return x.flatten(1)

    def head(self, params, z):
        return self.inner.head(params, z)


def classifier_of(model: Model) -> ClassifierOnly:
    """The classifier of a model alone."""
    return ClassifierOnly((model.feature_dim, 1, 1), model.num_classes, model)


class ModelWrapper(Model):
    """A model that behaves as `inner`, except for the methods that a subclass overrides.

    Attributes:
        inner: the wrapped model.
    """

    inner: Model

    @property
    def loop_only(self):
        return self.inner.loop_only

    @property
    def depends_on_mode(self):
        return self.inner.depends_on_mode

    @property
    def smallest_batch(self):
        return self.inner.smallest_batch

    def layers(self):
        return self.inner.layers()

    def init(self, generator):
        return self.inner.init(generator)

    def init_buffers(self):
        return self.inner.init_buffers()

    def features(self, params, x, bound):
        return self.inner.features(params, x, bound)

    def head(self, params, z):
        return self.inner.head(params, z)


@dataclass(frozen=True)
class Transformed(ModelWrapper):
    """A model whose classifier reads transformed features (see `tukey`).

    Attributes:
        power, relu: of the transformation.
    """

    inner: Model
    power: float
    relu: bool

    def features(self, params, x, bound):
        return tukey(self.inner.features(params, x, bound), self.power, self.relu)


@dataclass(frozen=True)
class NormalisedClassifier(ModelWrapper):
    """A model whose classifier has weight rows of length 1 and no bias: logit c is w_c . z / |w_c|."""

    inner: Model

    def init(self, generator):
        params = self.inner.init(generator)
        params.pop("classifier.bias", None)
        return params

    def head(self, params, z):
        return F.linear(z, F.normalize(params["classifier.weight"], dim=1))


@dataclass(frozen=True)
class NormalisedOfStages(NormalisedClassifier, Staged):
    """The same of a model that is cut into stages."""

    @property
    def stages(self):
        return self.inner.stages

    def stage(self, name, params, x, bound):
        return self.inner.stage(name, params, x, bound)

    def activated(self, name, x, bound):
        return self.inner.activated(name, x, bound)


@dataclass(frozen=True)
class NearestPrototype(ModelWrapper):
    """A model that predicts the class whose prototype is nearest to the features: logit c is -|z - p_c|^2.

    Its params are those of `inner`, whose classifier is not used, and "prototypes" [num_classes, feature_dim] and "known"
    [num_classes], which classes have one. The logit of a class without one is 1 below the lowest.
    """

    inner: Model

    def init(self, generator):
        prototypes = torch.zeros(self.num_classes, self.feature_dim)
        return self.inner.init(generator) | {"prototypes": prototypes, "known": torch.zeros(len(prototypes)).bool()}

    def head(self, params, z):
        logits = -(z[:, None] - params["prototypes"]).square().sum(2)
        lowest = torch.where(params["known"], logits, torch.inf).amin(1, keepdim=True)
        return torch.where(params["known"], logits, torch.where(params["known"].any(), lowest - 1, 0))


def wrap(kind: type, model: Model, *options) -> Model:
    """A `ModelWrapper` of a kind around a model."""
    return kind(model.input_shape, model.num_classes, model, *options)


def tukey(z: Tensor, power: float, relu: bool) -> Tensor:
    """Tukey's ladder of powers: z ** power with power > 0; with relu, negative features are set to 0 first.

    Raises:
        ValueError: if a negative feature has no such power.
    """
    if relu:
        return z.clamp(min=0).pow(power)
    if power != int(power) and bool((z < 0).any()):
        raise ValueError(
            f"Negative features have no power {power:g}; calibrate with relu, or with a whole number as the power."
        )
    return torch.pow(z, power)
