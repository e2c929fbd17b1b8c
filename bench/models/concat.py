"""Models with several encoders, whose features are concatenated."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from bench.models import registered_model
from bench.models.base import BoundModel, Model, uniform_init
from bench.models.cnn import SimpleCnn


class SideBySide(Model):
    """Several encoders of one architecture on the same input; a linear classifier reads their concatenated features.

    The params and buffers of encoder k have the prefix "encoder<k>.".

    Attributes:
        encoder: the model of each encoder; its classifier is not used.
        count: number of encoders.
    """

    encoder: Model
    count: int

    @property
    def loop_only(self):
        return self.encoder.loop_only

    def layers(self):
        own = {name: shape for name, shape in self.encoder.layers().items() if name != "classifier"}
        layers = {f"encoder{k}.{name}": shape for k in range(self.count) for name, shape in own.items()}
        return {**layers, "classifier": (self.num_classes, self.count * self.encoder.feature_dim)}

    def init(self, generator):
        """Initial params, drawn for one encoder after another, then for the classifier."""
        params = {}
        for k in range(self.count):
            params |= with_prefix(k, encoder_part(self.encoder.init(generator)))
        return params | uniform_init("classifier", self.layers()["classifier"], generator)

    def init_buffers(self):
        buffers = {}
        for k in range(self.count):
            buffers |= with_prefix(k, self.encoder.init_buffers())
        return buffers

    def features(self, params, x, bound):
        def encode(k: int):
            one = BoundModel(self.encoder, without_prefix(k, bound.buffers), bound.training, bound.generator)
            return one.features(without_prefix(k, params), x)

        return torch.cat([encode(k) for k in range(self.count)], 1)


@dataclass(frozen=True)
class Concatenated(SideBySide):
    """The global model of FedConcat: the encoders of `count` models."""

    encoder: Model
    count: int


def concatenate(spec: Model, count: int) -> Concatenated:
    """A model with `count` encoders of a model."""
    return Concatenated(spec.input_shape, spec.num_classes, spec, count)


@registered_model("simple-cnn-concat5", title="Simple CNN, 5 encoders")
@dataclass(frozen=True)
class SimpleCnnConcat5(SideBySide):
    """Five concatenated simple CNNs, trained end to end (309,990 parameters for 3x32x32 and 10 classes)."""

    count: ClassVar[int] = 5

    def __post_init__(self):
        self.encoder  # noqa: B018  (checks the size of the images)

    @property
    def encoder(self):
        return SimpleCnn(self.input_shape, self.num_classes)


def encoder_part(params: dict) -> dict:
    """The params of the encoder."""
    return {name: leaf for name, leaf in params.items() if not name.startswith("classifier.")}


def classifier_part(params: dict) -> dict:
    """The params of the classifier."""
    return {name: leaf for name, leaf in params.items() if name.startswith("classifier.")}


def with_prefix(k: int, leaves: dict) -> dict:
    """Params or buffers of encoder k under their names in the concatenated model."""
    return {f"encoder{k}.{name}": leaf for name, leaf in leaves.items()}


def without_prefix(k: int, leaves: dict) -> dict:
    """Params or buffers of encoder k under their names in the single model; the tensors are not copied."""
    prefix = f"encoder{k}."
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
