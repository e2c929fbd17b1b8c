"""One run, described completely: checked, resolved, and named by the hash of what was resolved.

A config starts as a flat dict (`{"algorithm": "fedprox", "mu": 0.01, "dataset": "cifar10", ...}`: settings and the
method's options in one namespace) and `resolve` turns it into a `RunConfig` in which every default stands explicitly.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

import algorithms
import datasets
from bench import models
from bench.names import unknown
from datasets import partitions, transforms


class ConfigError(ValueError):
    """Everything that is wrong with a config, in one message.

    Attributes:
        mistakes: one sentence each.
    """

    def __init__(self, mistakes: list[str]):
        self.mistakes = list(dict.fromkeys(mistakes))
        if len(self.mistakes) == 1:
            message = self.mistakes[0]
        else:
            message = f"{len(self.mistakes)} mistakes:\n" + "\n".join(f"  - {line}" for line in self.mistakes)
        super().__init__(message)


class RunConfig(BaseModel):
    """The resolved config of one run; two runs with equal configs are one run.

    Attributes:
        algorithm: the method's name and every one of its options; a wrapper's base is nested the same way.
        clients: size of the population.
        model_width: factor on the channels of models that have a `width`.
        participation: share of the population that trains in a round, in (0, 1].
        last_batch: whether a client's last, partial batch trains (`keep`) or not if it has a full one as well.
        evaluate_every: rounds between evaluations; None is 1 for shared models, the last round for per-client ones.
        train_examples: size of the stratified subset of the training data that is used; None is all of it.
        dirichlet_seed_override: draws a Dirichlet partition with this seed whatever the run's seed is.
        versions: the `version` of everything whose change may change the numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    algorithm: dict[str, Any]
    dataset: str
    partition: str
    model: str
    versions: dict[str, int]
    clients: int = Field(40, gt=0)
    model_width: float = Field(1.0, gt=0, le=1)
    transform: str = "fedconcat"
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
    seed: int = Field(0, ge=0)
    split: Literal["test"] = "test"
    train_examples: int | None = Field(None, gt=0)
    test_examples: int | None = Field(None, gt=0)
    dirichlet_seed_override: int | None = Field(None, ge=0)

    def canonical(self) -> dict:
        """The config as JSON values. A setting that is None does not apply and is left out, so that settings which are
        added later do not rename the runs that they do not concern."""
        return self.model_dump(mode="json", exclude_none=True)


SETTINGS = tuple(name for name in RunConfig.model_fields if name != "versions")
DEFAULT_LOCAL_EPOCHS = 10


def run_id(config: RunConfig | Mapping) -> str:
    """The name of a run: 16 hex digits of the hash of its canonical config, whatever the order of the keys."""
    canonical = config.canonical() if isinstance(config, RunConfig) else dict(config)
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:16]


def options_of(algorithm: str) -> list[str]:
    """Names of a method's options, in the order of its fields."""
    return [field.name for field in dataclasses.fields(algorithms.load(algorithm))]


def resolve(flat: Mapping[str, Any]) -> RunConfig:
    """Check a flat dict of settings and method options, and fill in every default.

    Raises:
        ConfigError: with all mistakes, each with the nearest valid name or the range that holds.
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
    versions = _check_names(settings, mistakes)
    if method is not None:
        versions["algorithm"] = method.version
    settings |= {"algorithm": describe_method(method) if method else {}, "versions": versions}
    try:
        config = RunConfig(**settings)
    except ValidationError as error:
        raise ConfigError(mistakes + sentences(error)) from error
    if not mistakes:
        mistakes = impossible(config)
    if mistakes:
        raise ConfigError(mistakes)
    return config


def describe_method(method) -> dict:
    """A method object as a dict: its registry name and every field, a wrapper's base nested in the same way."""
    names = {path.split(":")[1]: name for name, path in algorithms.REGISTRY.items()}
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return {"name": names[type(method).__name__]} | {
        key: describe_method(value) if dataclasses.is_dataclass(value) else value for key, value in values.items()
    }


def sentences(error: ValidationError, known: Callable[[tuple], Iterable[str]] = lambda loc: ()) -> list[str]:
    """pydantic's findings, one sentence each.

    Args:
        known: the valid names beside the one at a location, for keys that do not exist.
    """
    found = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "missing":
            found.append(f"{where} is missing.")
        elif item["type"] == "extra_forbidden":
            found.append(unknown("key", where, known(item["loc"])))
        elif item["type"] == "value_error":
            found.append(str(item["ctx"]["error"]))
        else:
            wish = item["msg"].replace("Input should be", "must be", 1)
            found.append(f"{where} {wish[0].lower() + wish[1:]}, but got {item['input']!r}.")
    return found


def impossible(config: RunConfig) -> list[str]:
    """What cannot work together in a config whose values are all valid by themselves."""
    name = config.algorithm["name"]
    if name == "centralized" and (config.partition, config.clients) != ("none", 1):
        return [
            "centralized pools all training data: partition must be 'none' and clients 1, "
            f"but got partition {config.partition!r} and clients {config.clients}."
        ]
    if name != "centralized" and config.partition == "none":
        return [f"partition 'none' gives one client everything and is for centralized only, but got {name}."]
    info = datasets.INFO.get(config.dataset)
    if info is None or config.partition == "none":
        return []
    partition = partitions.parse(config.partition)
    examples = config.train_examples or info.train_size
    mistakes = []
    if isinstance(partition, partitions.LabelsPerClient):
        if partition.labels_per_client > info.num_classes:
            mistakes.append(
                f"label-k needs k between 1 and the number of classes ({config.dataset} has {info.num_classes}), "
                f"but got {config.partition}."
            )
        if config.clients < info.num_classes:
            mistakes.append(
                f"{config.partition} needs at least as many clients as classes ({config.dataset} has "
                f"{info.num_classes}), but got {config.clients} clients."
            )
    smallest = partitions.MIN_EXAMPLES
    sized = isinstance(partition, partitions.Dirichlet | partitions.Quantity)
    if sized and config.clients * smallest > examples:
        mistakes.append(
            f"{config.partition} gives every client at least {smallest} examples, but {examples} training examples "
            f"are too few for {config.clients} clients; use fewer clients."
        )
    if config.clients > examples:
        mistakes.append(f"clients must be at most the number of training examples ({examples}), but got {config.clients}.")
    return mistakes


def _method(flat: dict, mistakes: list[str]):
    """The method object of a flat dict (None if that failed) and the names of its options."""
    given = flat.get("algorithm")
    if isinstance(given, Mapping):
        flat.update({key: value for key, value in given.items() if key != "name"})
        given = given.get("name")
    if given not in algorithms.REGISTRY:
        mistakes.append(
            "algorithm is missing." if given is None else unknown("algorithm", given, algorithms.REGISTRY)
        )
        return None, [key for key in flat if key not in SETTINGS]
    options = options_of(given)
    try:
        return build(given, {key: flat[key] for key in options if key in flat}), options
    except ValidationError as error:
        mistakes += [f"{given}: {line}" for line in sentences(error)]
    except ConfigError as error:
        mistakes += error.mistakes
    return None, options


def build(algorithm: str, options: Mapping[str, Any]):
    """A method object from plain values; a wrapper's base is given as `{"name": ..., options}`."""
    if algorithm not in algorithms.REGISTRY:
        raise ConfigError([unknown("algorithm", algorithm, algorithms.REGISTRY)])
    known = options_of(algorithm)
    wrong = [unknown(f"option of {algorithm}", key, known) for key in options if key not in known]
    if wrong:
        raise ConfigError(wrong)
    values = dict(options)
    for key, value in options.items():
        if isinstance(value, Mapping) and "name" in value:
            nested = dict(value)
            values[key] = build(nested.pop("name"), nested)
    return _adapter(algorithm).validate_python(values)


@functools.cache
def _adapter(algorithm: str) -> TypeAdapter:
    return TypeAdapter(algorithms.load(algorithm))


def _check_names(settings: dict, mistakes: list[str]) -> dict[str, int]:
    """Check the names of dataset, partition, model and transform, fill in the model, and collect the versions."""
    versions = {}
    dataset, partition = settings.get("dataset"), settings.get("partition")
    if dataset is not None and dataset not in datasets.INFO and not str(dataset).startswith("imagefolder:"):
        mistakes.append(unknown("dataset", dataset, [*datasets.INFO, "imagefolder:PATH"]))
    if dataset in datasets.INFO:
        settings.setdefault("model", datasets.INFO[dataset].model)
    if partition is not None:
        try:
            found = partitions.parse(str(partition))
            settings["partition"], versions["partition"] = found.name, found.version
        except ValueError as error:
            mistakes.append(str(error))
    model = settings.get("model")
    if model in models.REGISTRY:
        versions["model"] = models.load(model).version
    elif model is not None:
        mistakes.append(unknown("model", model, models.REGISTRY))
    transform = settings.get("transform", RunConfig.model_fields["transform"].default)
    versions["transform"] = transforms.VERSION
    try:
        transforms.recipe(transform, str(dataset))
    except ValueError as error:
        mistakes.append(str(error))
    return versions
