"""Models with several encoders, whose features are concatenated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from bench.models import registered_model
from bench.models.base import BoundModel, Model, uniform_init
from bench.models.cnn import SimpleCnn


class SideBySide(Model):
    """Several encoders on the same input, of any widths; a linear classifier reads their concatenated features.

    The params and buffers of encoder k have the prefix "encoder<k>.".

    Attributes:
        encoders: the model of each encoder; its classifier is not used.
    """

    encoders: tuple[Model, ...]

    @property
    def count(self) -> int:
        """Number of encoders."""
        return len(self.encoders)

    @property
    def loop_only(self):
        return next((encoder.loop_only for encoder in self.encoders if encoder.loop_only), "")

    @property
    def smallest_batch(self):
        return max(encoder.smallest_batch for encoder in self.encoders)

    def layers(self):
        layers = {}
        for k, encoder in enumerate(self.encoders):
            own = {name: shape for name, shape in encoder.layers().items() if name != "classifier"}
            layers |= {f"encoder{k}.{name}": shape for name, shape in own.items()}
        return {**layers, "classifier": (self.num_classes, sum(encoder.feature_dim for encoder in self.encoders))}

    def init(self, generator):
        """Initial params, drawn for one encoder after another, then for the classifier."""
        params = {}
        for k, encoder in enumerate(self.encoders):
            params |= with_prefix(k, encoder_part(encoder.init(generator)))
        return params | uniform_init("classifier", self.layers()["classifier"], generator)

    def init_buffers(self):
        buffers = {}
        for k, encoder in enumerate(self.encoders):
            buffers |= with_prefix(k, encoder.init_buffers())
        return buffers

    def features(self, params, x, bound):
        def encode(k: int, encoder: Model):
            one = BoundModel(encoder, without_prefix(k, bound.buffers), bound.training, bound.generator)
            return one.features(without_prefix(k, params), x)

        return torch.cat([encode(k, encoder) for k, encoder in enumerate(self.encoders)], 1)


@dataclass(frozen=True)
class Concatenated(SideBySide):
    """The global model of FedConcat: the encoders of the models of its clusters."""

    encoders: tuple[Model, ...]


def concatenate(models: Sequence[Model]) -> Concatenated:
    """A model with the encoders of models, one or more, which take the same images and classes."""
    return Concatenated(models[0].input_shape, models[0].num_classes, tuple(models))


@registered_model("simple-cnn-concat5", title="Simple CNN, 5 encoders")
@dataclass(frozen=True)
class SimpleCnnConcat5(SideBySide):
    """Five concatenated simple CNNs, trained end to end (309,990 parameters for 3x32x32 and 10 classes)."""

    def __post_init__(self):
        self.encoders  # noqa: B018  (checks the size of the images)

    @property
    def encoders(self):
        return (SimpleCnn(self.input_shape, self.num_classes),) * 5


def encoder_part(params: dict) -> dict:
    """The params of the encoder."""
    return {name: leaf for name, leaf in params.items() if not name.startswith("classifier.")}


def classifier_part(params: dict) -> dict:
    """The params of the classifier."""
    return {name: leaf for name, leaf in params.items() if name.startswith("classifier.")}


def num_encoders(names: Iterable[str]) -> int:
    """How many encoders the model has whose params have these names."""
    return len({name.partition(".")[0] for name in names if not name.startswith("classifier.")})


def with_prefix(k: int, leaves: dict) -> dict:
    """Params or buffers of encoder k under their names in the concatenated model."""
    return {f"encoder{k}.{name}": leaf for name, leaf in leaves.items()}


def without_prefix(k: int, leaves: dict) -> dict:
    """Params or buffers of encoder k under their names in the single model; the tensors are not copied."""
    prefix = f"encoder{k}."
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
