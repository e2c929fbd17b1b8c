"""The figures and the measured table that a grid file may list, checked."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bench.errors import require_known
from bench.experiments.figure_names import CURVES, FIGURES, TABLES
from datasets.skew import MEASURES


def _round(value: Any) -> int | str:
    if value == "last" or (type(value) is int and value > 0):
        return value
    raise ValueError(f"A round must be a positive integer or last, but got {value!r}.")


Round = Annotated[int | Literal["last"], BeforeValidator(_round)]  # rounds beyond the end of a run are left out


def one_of(kind: str, known: Collection[str]) -> AfterValidator:
    """A text that must be one of the known names."""

    def check(name: str) -> str:
        require_known(kind, [name], known)
        return name

    return AfterValidator(check)


class Part(BaseModel):
    """A part of a grid file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Curves(Part):
    """Accuracy over rounds, communication, time or training examples."""

    kind: Literal["curves"]
    x: Annotated[str, one_of("x of curves", CURVES)]


class BySetting(Part):
    """Accuracy over the values of a setting or method option.

    Attributes:
        x: where the values stand on the axis: at this measure of the skew of their partitions, one point per cell; None for
            one after another.
    """

    kind: Literal["by-setting"]
    setting: str
    x: Annotated[str, one_of("x of by-setting", MEASURES)] | None = None


class Distributions(Part):
    """The label distribution of a client, true and as methods inferred it."""

    kind: Literal["distributions"]
    client: int = Field(0, ge=0)


class LocalModels(Part):
    """Accuracy of each client's model, epoch by epoch, for runs that trace their local models."""

    kind: Literal["local-models"]


class Cka(Part):
    """How alike the outputs of each layer are at two clients' local models: for each two of them, or the mean over all pairs
    for every layer.

    Attributes:
        show: "clients" for a panel of all pairs per layer, "layers" for a line over layers.
        layers: those of which `clients` shows a panel; all if none is named.
        estimator: "linear" for all test images at once, "minibatch" for the mean over batches (see `bench.measurements.cka`).
        round: whose local training the models have just ended.
    """

    kind: Literal["cka"]
    show: Literal["clients", "layers"] = "layers"
    layers: list[str] = []
    estimator: Literal["linear", "minibatch"] = "linear"
    round: Round = "last"

    @model_validator(mode="after")
    def _layers_exist(self) -> "Cka":
        if self.layers and self.show != "clients":
            raise ValueError(
                f"layers chooses panels of a figure that shows clients, but this one shows {self.show}; leave it out."
            )
        if self.layers:
            require_known("layer", self.layers, _all_layers())
        return self


class WeightNorms(Part):
    """Training examples and L2 norm of the classifier's weights of each class, at each client's local model.

    Attributes:
        rounds: whose local training the models have just ended.
    """

    kind: Literal["weight-norms"]
    rounds: list[Round] = ["last"]

    @model_validator(mode="after")
    def _has_rounds(self) -> "WeightNorms":
        if not self.rounds:
            raise ValueError("rounds must name at least one round, such as 1 or last.")
        return self


class Embedding(Part):
    """Features of test images in the plane, coloured by label and by prediction before and after a calibration.

    Attributes:
        points: test images, stratified by class, at most.
    """

    kind: Literal["embedding"]
    points: int = Field(2000, gt=9)


class Separability(Part):
    """What a method that changes the deployed model gains, over how far apart classes are in feature space.

    Attributes:
        relative: distances relative to the spread within classes, which do not depend on the scale of features.
    """

    kind: Literal["separability"]
    relative: bool = False


class EncoderFeatures(Part):
    """Features of the training images of two clients in the plane, under encoders that these have trained.

    Attributes:
        encoders: those of either client ("fe1", "fe2"), their average ("favg") and both side by side ("fe").
        rounds: whose local training the encoders have just ended.
        view: "pca" keeps distances, "tsne" neighbourhoods (see `bench.measurements.encoders.project`).
        points: images of each client, at most.
    """

    kind: Literal["encoder-features"]
    encoders: Annotated[list[Literal["fe1", "fe2", "favg", "fe"]], Field(min_length=1)] = ["fe1", "fe2", "fe"]
    rounds: Annotated[list[Round], Field(min_length=1)] = ["last"]
    view: Literal["pca", "tsne"] = "pca"
    points: int = Field(1000, gt=1)


class ClientGains(Part):
    """What each client gains over the run that the report names as the reference, clients sorted by their gain."""

    kind: Literal["client-gains"]


class Divergences(Part):
    """How much the data of any two clients differ, with the coalitions that FedCollab made of them."""

    kind: Literal["divergences"]


class CoalitionsByCapacity(Part):
    """The best coalitions that a search finds for every C of FedCollab (its option `capacity`) in a range.

    Attributes:
        smallest, largest: ends of the range.
    """

    kind: Literal["coalitions-by-capacity"]
    smallest: float = Field(0.5, gt=0)
    largest: float = Field(50.0, gt=0)

    @model_validator(mode="after")
    def _is_a_range(self) -> "CoalitionsByCapacity":
        if self.smallest >= self.largest:
            raise ValueError(f"smallest must be less than largest ({self.largest:g}), but got {self.smallest:g}.")
        return self


class CoalitionsByExamples(Part):
    """How many others clients train with in FedCollab, over their numbers of training examples.

    Attributes:
        y: "clients" for the clients of a coalition, "weight" for the weight of all others in the mean of a client's coalition.
    """

    kind: Literal["coalitions-by-examples"]
    y: Literal["clients", "weight"] = "clients"


class EncoderHeads(Part):
    """Table of the losses of heads on the frozen encoders of two clients (see `bench.measurements.encoders`).

    Attributes:
        examples: on which heads are trained: "exchange" for those of either client, "pooled" for those of both.
        decoder_width: hidden units of the decoder; 0 is a linear one.
    """

    kind: Literal["encoder-heads"]
    examples: Literal["exchange", "pooled"]
    decoder_width: int = Field(256, ge=0)


class EncoderInformation(Part):
    """Table of how much the features of two clients' frozen encoders tell about labels (see `bench.measurements.encoders`).

    Attributes:
        examples: as of `EncoderHeads`.
    """

    kind: Literal["encoder-information"]
    examples: Literal["exchange", "pooled"]


class DatasetSizes(Part):
    """Table of the sizes of datasets."""

    kind: Literal["dataset-sizes"]


def _all_layers() -> list[str]:
    """Names of the layers of all models."""
    from bench import models  # imports torch

    of_each = (model.layers() for name in models.REGISTRY if (model := models.of_any_size(name)))
    return [*dict.fromkeys(["features", *(layer for layers in of_each for layer in layers)])]


def _of_kind(what: str, known: Collection[str]) -> BeforeValidator:
    def check(part: Any) -> Any:
        if isinstance(part, dict):
            if "kind" not in part:
                raise ValueError(f"The kind of a {what} is missing. Known: {', '.join(known)}.")
            require_known(f"kind of {what}", [part["kind"]], known)
        return part

    return BeforeValidator(check)


_AnyFigure = (
    Curves
    | BySetting
    | Distributions
    | LocalModels
    | Cka
    | WeightNorms
    | Embedding
    | Separability
    | EncoderFeatures
    | ClientGains
    | Divergences
    | CoalitionsByCapacity
    | CoalitionsByExamples
)
_AnyMeasured = EncoderHeads | EncoderInformation | DatasetSizes
Figure = Annotated[_AnyFigure, Field(discriminator="kind"), _of_kind("figure", FIGURES)]
Measured = Annotated[_AnyMeasured, Field(discriminator="kind"), _of_kind("measured table", TABLES)]
KINDS: Mapping[str, type[Part]] = {
    get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in (*get_args(_AnyFigure), *get_args(_AnyMeasured))
}
