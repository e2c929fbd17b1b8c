"""One run, described completely: every setting checked, and named by the hash of them all."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bench.config.plain import Sizes
from bench.results.ids import hash_of
from bench.results.omitted_defaults import shorten
from bench.results.records import Config
from datasets.image_size import ImageSize, read_image_size

MAX_SEED = 2**32 - 1  # of the legacy generators that draw partitions
LARGEST = 3.4e38  # in numbers of 32 bits, in which models are trained
_MOST = 10**9  # more than any run has; what is much larger overflows, or fills the memory with lists
_MOST_PASSES = 10**7  # likewise, of one client in one round


class RunConfig(Sizes, BaseModel):
    """The resolved config of one run; two runs with equal configs are one run. Types are strict, but 1 is a number.

    Attributes:
        algorithm: the method's name and every one of its options; a wrapper's base is nested the same way.
        clients: size of the population.
        first_clients: only the first so many clients of the partition exist; None is all of them.
        image_size: to which images are resized (bilinear) when they are decoded: 32, or height and width "24x32", which may be
            given as [24, 32]; in pixels. None is what the transform says, mostly their own size.
        model_width: factor on the channels of models that have a `width`.
        weights: with which a ResNet-18 starts: "none" are random ones, else those of ImageNet from a file of that name in the
            data directory, or of that absolute path (see `bench.models.pretrained`).
        rounds: communication rounds; for methods with rounds of their own (stages) their sum, whatever was set.
        lr_decay: factor on lr from one round to the next: round r, from 0, trains at lr lr_decay^r.
        max_gradient_norm: largest norm of a client's gradient on a batch, over all params that the step moves, before weight
            decay and momentum; longer ones are shortened to it. None shortens none.
        participation: share of the population that trains in a round, in (0, 1].
        last_batch: whether a client's last, partial batch trains (`keep`) or not if it has a full one as well.
        evaluate_every: rounds between evaluations; None is 1 for shared models, the last round for per-client ones and
            for methods that calibrate after training.
        split: on what models are evaluated: "test" images, or "validation": training images that clients have set aside (see
            `bench.simulation.validation_split`); then no test image is read.
        validation_share: of each class of each client, in (0, 1); None for the split "test".
        train_examples: size of the stratified subset of the training data that is used; None is all of it.
        trace_local_models: true adds to evaluated rounds how each local model of the cohort got on, epoch by epoch; this
            trains them (local_epochs + 1) / 2 times more, outside of the run's seconds and examples.
        callbacks: what looks at the run after each round (see `bench.callbacks`): {"name": ..., every option}, in their order.
        dirichlet_seed_override: draws a Dirichlet partition with this seed whatever the run's seed is.
        versions: the `version` of everything whose change may change the numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    algorithm: dict[str, Any]
    dataset: str
    partition: str
    model: str
    versions: dict[str, int]
    clients: int = Field(40, gt=0, le=_MOST)
    model_width: float = Field(1.0, gt=0, le=1)
    transform: str = "fedconcat"
    image_size: int | str | None = None
    rounds: int = Field(50, gt=0, le=_MOST)
    local_epochs: int | None = Field(None, gt=0, le=_MOST_PASSES)
    local_steps: int | None = Field(None, gt=0, le=_MOST_PASSES)
    batch_size: int = Field(64, gt=0, le=_MOST)
    lr: float = Field(0.01, gt=0, le=LARGEST, allow_inf_nan=False)
    lr_decay: float = Field(1.0, gt=0, le=1)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0, le=LARGEST, allow_inf_nan=False)
    max_gradient_norm: float | None = Field(None, gt=0, le=LARGEST)
    participation: float = Field(1.0, gt=0, le=1)
    last_batch: Literal["keep", "drop-if-full"] = "keep"
    evaluate_every: int | None = Field(None, gt=0, le=_MOST)
    seed: int = Field(0, ge=0, le=MAX_SEED)
    split: Literal["test", "validation"] = "test"
    validation_share: float | None = Field(None, gt=0, lt=1)
    train_examples: int | None = Field(None, gt=0, le=_MOST)
    test_examples: int | None = Field(None, gt=0, le=_MOST)
    dirichlet_seed_override: int | None = Field(None, ge=0, le=MAX_SEED)
    first_clients: int | None = Field(None, gt=0, le=_MOST)
    trace_local_models: Literal[True] | None = None
    weights: str = Field("none", min_length=1)
    callbacks: list[dict[str, Any]] = []

    @field_validator("image_size", mode="before")
    @classmethod
    def _is_a_size(cls, value: Any) -> ImageSize | None:
        return None if value is None else read_image_size(value)

    @field_validator("weights")
    @classmethod
    def _is_the_name_of_a_file(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError(f"weights must be none or the name of a file, but got {value!r}.")
        return value

    def canonical(self) -> Config:
        """The config as JSON values. A setting that is None does not apply and is left out. So is what
        `omitted_defaults` lists: settings and options that are added later do not rename the runs that they do not concern."""
        return shorten(self.model_dump(mode="json", exclude_none=True))


SETTINGS = tuple(name for name in RunConfig.model_fields if name != "versions")
DEFAULT_VALIDATION_SHARE = 0.15  # of CCVR (Luo et al., NeurIPS 2021, Section 5.1)


def settings_of(config: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a resolved or stored config, as `bench.config.resolve.resolve` takes them."""
    stored = config.canonical() if isinstance(config, RunConfig) else config
    return {key: value for key, value in stored.items() if key != "versions"}


def run_id(config: RunConfig | Mapping[str, Any]) -> str:
    """The name of a run: 16 hex digits of the hash of its canonical config, whatever the order of the keys."""
    canonical = config.canonical() if isinstance(config, RunConfig) else dict(config)
    return hash_of(canonical)
