"""One run, described completely: checked, resolved, and named by the hash of what was resolved.

A config starts as a flat dict (`{"algorithm": "fedprox", "mu": 0.01, "dataset": "cifar10", ...}`: settings and the
method's options in one namespace) and `resolve` turns it into a `RunConfig` in which every default stands explicitly.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import algorithms
import datasets
from bench import models
from bench.feasible import impossible
from bench.methods import build, describe_method, options_of, versions_of
from bench.mistakes import ConfigError, sentences
from bench.names import unknown
from bench.participation import cohort_size
from bench.stored import hash_of
from datasets import DatasetInfo, partitions, transforms
from datasets.image_size import ImageSize, read_image_size

MAX_SEED = 2**32 - 1  # of the legacy generators that draw partitions


class RunConfig(BaseModel):
    """The resolved config of one run; two runs with equal configs are one run. Types are strict, but 1 is a number.

    Attributes:
        algorithm: the method's name and every one of its options; a wrapper's base is nested the same way.
        clients: size of the population.
        first_clients: only the first so many clients of the partition exist; None is all of them.
        image_size: to which images are resized (bilinear) when they are decoded: 32, or height and width "24x32", which may be
            given as [24, 32]; in pixels. None is what the transform says, mostly their own size.
        model_width: factor on the channels of models that have a `width`.
        rounds: communication rounds; for methods with rounds of their own (stages) their sum, whatever was asked for.
        participation: share of the population that trains in a round, in (0, 1].
        last_batch: whether a client's last, partial batch trains (`keep`) or not if it has a full one as well.
        evaluate_every: rounds between evaluations; None is 1 for shared models, the last round for per-client ones and
            for methods that calibrate after training.
        split: on what models are evaluated: "test" images, or "validation": training images that clients have set aside (see
            `bench.validation`); then no test image is read.
        validation_share: of each class of each client, in (0, 1); None for the split "test".
        train_examples: size of the stratified subset of the training data that is used; None is all of it.
        trace_local_models: true adds to evaluated rounds how each local model of the cohort got on, epoch by epoch; this
            trains them (local_epochs + 1) / 2 times more, outside of the run's seconds and examples.
        dirichlet_seed_override: draws a Dirichlet partition with this seed whatever the run's seed is.
        versions: the `version` of everything whose change may change the numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    algorithm: dict[str, Any]
    dataset: str
    partition: str
    model: str
    versions: dict[str, int]
    clients: int = Field(40, gt=0)
    model_width: float = Field(1.0, gt=0, le=1)
    transform: str = "fedconcat"
    image_size: int | str | None = None
    rounds: int = Field(50, gt=0)
    local_epochs: int | None = Field(None, gt=0)
    local_steps: int | None = Field(None, gt=0)
    batch_size: int = Field(64, gt=0)
    lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0, allow_inf_nan=False)
    participation: float = Field(1.0, gt=0, le=1)
    last_batch: Literal["keep", "drop-if-full"] = "keep"
    evaluate_every: int | None = Field(None, gt=0)
    seed: int = Field(0, ge=0, le=MAX_SEED)
    split: Literal["test", "validation"] = "test"
    validation_share: float | None = Field(None, gt=0, lt=1)
    train_examples: int | None = Field(None, gt=0)
    test_examples: int | None = Field(None, gt=0)
    dirichlet_seed_override: int | None = Field(None, ge=0, le=MAX_SEED)
    first_clients: int | None = Field(None, gt=0)
    trace_local_models: Literal[True] | None = None

    @field_validator("image_size", mode="before")
    @classmethod
    def _is_a_size(cls, value: Any) -> ImageSize | None:
        return None if value is None else read_image_size(value)

    @property
    def population(self) -> int:
        """Clients that there are."""
        return self.first_clients or self.clients

    @property
    def cohort_size(self) -> int:
        """Clients of a round."""
        return cohort_size(self.population, self.participation)

    def canonical(self) -> dict:
        """The config as JSON values. A setting that is None does not apply and is left out, so that settings which are
        added later do not rename the runs that they do not concern."""
        return self.model_dump(mode="json", exclude_none=True)


SETTINGS = tuple(name for name in RunConfig.model_fields if name != "versions")
DEFAULT_LOCAL_EPOCHS = 10
DEFAULT_VALIDATION_SHARE = 0.15  # of CCVR (Luo et al., NeurIPS 2021, Section 5.1)


def run_id(config: RunConfig | Mapping) -> str:
    """The name of a run: 16 hex digits of the hash of its canonical config, whatever the order of the keys."""
    canonical = config.canonical() if isinstance(config, RunConfig) else dict(config)
    return hash_of(canonical)


def resolve(flat: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None = datasets.INFO) -> RunConfig:
    """Check a flat dict of settings and method options, and fill in every default.

    Args:
        facts: dataset -> what is known about it; None leaves unchecked whether the config fits its dataset.

    Raises:
        ConfigError: with all mistakes, each with the nearest valid name or the range that holds.
    """
    config, method = read(flat)
    mistakes = [*impossible(config, facts), *method.mistakes(config), *_untraceable(config, method)]
    if mistakes:
        raise ConfigError(mistakes)
    # Methods with rounds of their own do not read the setting: without this, one run would have many names.
    return config.model_copy(update={"rounds": method.num_rounds(config)})


def read(flat: Mapping[str, Any]) -> tuple[RunConfig, Any]:
    """The config and the method object of a flat dict; its values are valid by themselves, which need not fit together.

    Raises:
        ConfigError: with all mistakes, as in `resolve`.
    """
    flat, mistakes = dict(flat), []
    method, options = _method(flat, mistakes)
    settings = {key: value for key, value in flat.items() if key in SETTINGS}
    for key in flat:
        if key not in SETTINGS and key not in options:
            mistakes.append(unknown("setting", key, sorted([*SETTINGS, *options])))
    if settings.get("local_epochs") is None and settings.get("local_steps") is None:
        settings["local_epochs"] = DEFAULT_LOCAL_EPOCHS
    elif settings.get("local_epochs") is not None and settings.get("local_steps") is not None:
        mistakes.append("Set either local_epochs or local_steps, but not both.")
    if settings.get("split") == "validation":
        settings = {"validation_share": DEFAULT_VALIDATION_SHARE} | settings
    versions = _check_names(settings, mistakes)
    if method is not None:
        versions |= versions_of(method)
    settings |= {"algorithm": describe_method(method) if method else {}, "versions": versions}
    try:
        config = RunConfig(**settings)
    except ValidationError as error:
        raise ConfigError(mistakes + sentences(error)) from error
    if mistakes:
        raise ConfigError(mistakes)
    return config, method


def base_of(config: RunConfig) -> RunConfig | None:
    """The run whose state a wrapper can start from: the same settings, with its base as the method; None for others."""
    base = config.algorithm.get("base")
    if not isinstance(base, Mapping):
        return None
    settings = {key: value for key, value in config.canonical().items() if key in SETTINGS}
    return resolve(settings | {"algorithm": dict(base)}, facts=None)  # it fits where the wrapper does


def wrapped(
    config: RunConfig, wrapper: Mapping[str, Any], facts: Mapping[str, DatasetInfo] | None = datasets.INFO
) -> RunConfig:
    """The run in which a wrapper {"name": ..., options} is around the method of a config: `base_of` undone.

    Raises:
        ConfigError: if there is no such wrapper, or it does not fit.
    """
    if wrapper["name"] not in wrappers():
        raise ConfigError([unknown("wrapper", wrapper["name"], wrappers())])
    settings = {key: value for key, value in config.canonical().items() if key in SETTINGS}
    return resolve(settings | {"algorithm": {**wrapper, "base": config.algorithm}}, facts)


def wrappers() -> list[str]:
    """Names of the methods that go around another one."""
    return [name for name in algorithms.REGISTRY if "base" in options_of(name)]


def with_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """A config with other values of settings, options of its method, or options of the method inside a wrapper.

    Whether it fits its dataset is not asked again: that of a grid was compared with what is there of it.

    Raises:
        ConfigError: if one does not exist, or a value does not hold.
    """
    settings = {key: value for key, value in config.canonical().items() if key in SETTINGS}
    for key, value in options.items():
        if key in SETTINGS:
            settings[key] = value
        else:
            settings["algorithm"] = _with_option(settings["algorithm"], key, value)
    return resolve(settings, facts=None)


def _with_option(method: Mapping[str, Any], key: str, value: Any) -> dict:
    """A method as a dict with another value of an option, of its own or of the outermost method inside that has it."""
    base = method.get("base")
    if key in method or not isinstance(base, Mapping):
        return {**method, key: value}
    return {**method, "base": _with_option(base, key, value)}


def _method(flat: dict, mistakes: list[str]):
    """The method object of a flat dict (None if that failed) and the names of its options."""
    given = flat.get("algorithm")
    if isinstance(given, Mapping):
        flat.update({key: value for key, value in given.items() if key != "name"})
        given = given.get("name")
    if not (isinstance(given, str) and given in algorithms.REGISTRY):
        mistakes.append("algorithm is missing." if given is None else unknown("algorithm", given, algorithms.REGISTRY))
        return None, [key for key in flat if key not in SETTINGS]
    options = options_of(given)
    try:
        return build(given, {key: flat[key] for key in options if key in flat}), options
    except ConfigError as error:
        mistakes += error.mistakes
    return None, options


def _untraceable(config: RunConfig, method) -> list[str]:
    """Why the local models of a run cannot be traced."""
    if not config.trace_local_models:
        return []
    from algorithms.base import RoundBased  # imports torch, which only a method needs

    mistakes = []
    if not isinstance(method, RoundBased):
        name = config.algorithm["name"]
        mistakes.append(
            f"{name} does not train one model in rounds, so trace_local_models has no local models of a round; leave it out."
        )
    if config.local_epochs is None:
        mistakes.append(
            f"trace_local_models looks at models after every local epoch: set local_epochs, not local_steps "
            f"({config.local_steps})."
        )
    return mistakes


def _check_names(settings: dict, mistakes: list[str]) -> dict[str, int]:
    """Check the names of dataset, partition, model and transform, fill in the model, and collect the versions."""
    versions = {"transform": transforms.VERSION}
    named = {key: value for key, value in settings.items() if isinstance(value, str)}  # `RunConfig` tells of the others
    dataset, partition, model = (named.get(key) for key in ("dataset", "partition", "model"))
    if dataset in datasets.INFO:
        model = settings.setdefault("model", datasets.INFO[dataset].model)
    elif "dataset" in settings and not (dataset or "").startswith("imagefolder:"):
        if dataset is not None:
            mistakes.append(unknown("dataset", dataset, [*datasets.INFO, "imagefolder:PATH"]))
        settings.setdefault("model", next(iter(models.REGISTRY)))  # not a second mistake
    if partition is not None:
        try:
            found = partitions.parse(partition)
            settings["partition"], versions["partition"] = found.name, found.version
        except ValueError as error:
            mistakes.append(str(error))
    if model in models.REGISTRY:
        versions["model"] = models.load(model).version
    elif model is not None:
        mistakes.append(unknown("model", model, models.REGISTRY))
    try:
        transforms.recipe(named.get("transform", RunConfig.model_fields["transform"].default), str(dataset))
    except ValueError as error:
        mistakes.append(str(error))
    return versions
