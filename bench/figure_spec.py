"""The figures that a grid file may list, checked."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from bench.names import unknown
from reports import CURVES, FIGURES

Round = Annotated[int, Field(gt=0)] | Literal["last"]  # rounds beyond the end of a run are left out


def one_of(kind: str, known: Collection[str]) -> AfterValidator:
    """A text that must be one of the known names."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
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
    """Accuracy over the values of a setting or method option."""

    kind: Literal["by-setting"]
    setting: str


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
        estimator: "linear" for all test images at once, "minibatch" for the mean over batches (see `bench.similarity`).
        round: whose local training the models have just ended.
    """

    kind: Literal["cka"]
    show: Literal["clients", "layers"] = "layers"
    layers: list[str] = []
    estimator: Literal["linear", "minibatch"] = "linear"
    round: Round = "last"


class WeightNorms(Part):
    """Training examples and L2 norm of the classifier's weights of each class, at each client's local model.

    Attributes:
        rounds: whose local training the models have just ended.
    """

    kind: Literal["weight-norms"]
    rounds: list[Round] = Field(["last"], min_length=1)


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


def _has_known_kind(figure: Any) -> Any:
    if isinstance(figure, dict) and figure.get("kind") not in FIGURES:
        if "kind" not in figure:
            raise ValueError(f"The kind of a figure is missing. Known: {', '.join(FIGURES)}.")
        raise ValueError(unknown("kind of figure", figure["kind"], FIGURES))
    return figure


KINDS = {
    "curves": Curves,
    "by-setting": BySetting,
    "distributions": Distributions,
    "local-models": LocalModels,
    "cka": Cka,
    "weight-norms": WeightNorms,
    "embedding": Embedding,
    "separability": Separability,
}
Figure = Annotated[
    Annotated[
        Curves | BySetting | Distributions | LocalModels | Cka | WeightNorms | Embedding | Separability,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_has_known_kind),
]
