"""What a run costs, and whether it can be built at all: found out before it starts, without its images."""

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import algorithms
import datasets
from bench import models
from bench.config.compatibility import shift_sizes
from bench.config.methods import in_sentences
from bench.config.schema import RunConfig
from bench.errors import ConfigError
from datasets import Dataset, Split, partitions
from datasets.partition_files import FilePartition
from datasets.partitions.shift import Shift
from datasets.resized import shape_in_run

if TYPE_CHECKING:
    from algorithms.shared.base import Algorithm, State
    from bench.simulation.task import Task


def examples_to_train(config: RunConfig) -> int:
    """Training examples of a run, summed over clients, epochs and rounds, with those of which clients and the server compute
    gradients in order to deploy; 0 where the size of the dataset is unknown.

    As if all clients were of one size, or all classes where they are not, and each set its share of examples for validation
    aside; under partial participation the mean over cohorts.
    """
    info = datasets.facts_of_loaded(config.dataset)
    examples = config.train_examples or _train_size(config)
    if not examples:
        return 0
    from algorithms.shared.types import Settings  # imports torch

    partition = partitions.parse(config.partition)
    if isinstance(partition, Shift) and info and (parts := shift_sizes(config, partition, info)):
        found = parts[0]
    elif isinstance(partition, FilePartition):
        found = [*map(len, partition.content.train)]
    else:
        each, more = divmod(examples, config.clients)
        found = [each + 1] * more + [each] * (config.clients - more)
    held = config.validation_share or 0
    sizes = Counter(max(1, size - math.ceil(held * size - 0.5)) for size in found[: config.population] if size)
    method = _method(json.dumps(config.algorithm)).for_model(models.has_buffers(config.model))
    # Cohorts are of whole clients.
    settings = replace(Settings.of(config), participation=config.cohort_size / config.population)
    of_all = sum(clients * method.workload(settings, size) for size, clients in sizes.items())
    deploying = sum(clients * method.deploy_workload(settings, size) for size, clients in sizes.items())
    in_cohort = round(config.cohort_size * (of_all + (0 if method.personal else deploying)) / config.population)
    of_server = method.server_examples(sum(sizes.elements()), info.num_classes if info else 0)
    return in_cohort + (deploying if method.personal else 0) + of_server


def heads_to_train(config: RunConfig, measured: dict[str, Any]) -> tuple[int, int]:
    """Heads that are trained on the frozen encoders of a run once it is done, and their training examples over all epochs.

    As if all clients were of one size; 0 examples where the size of the dataset is unknown.

    Args:
        measured: a table of the kind encoder-heads or encoder-information, as its grid has it.
    """
    from algorithms.shared.types import Settings  # imports torch
    from bench.measurements.encoders import examples_of_heads  # imports torch

    each = (config.train_examples or _train_size(config)) // config.clients
    settings = Settings.of(config)
    one, both = (sum(map(sum, settings.passes(count))) if count else 0 for count in (each, 2 * each))
    return examples_of_heads(measured["examples"], (one, one, both), decoders=measured["kind"] == "encoder-heads")


def _train_size(config: RunConfig) -> int:
    """Training images of a dataset; 0 where that is unknown."""
    info = datasets.facts_of_loaded(config.dataset)
    return (info.train_size or 0) if info else 0


def bytes_per_client(config: RunConfig) -> int | None:
    """Bytes that a client sends and receives in a run, mean over the population; None where that is not known before: for a
    dataset that is not known, and a number of clusters that depends on the clients."""
    described = without_numbers(config)
    return None if described is None else _traffic(described)


def is_bound(config: RunConfig) -> bool:
    """Whether `bytes_per_client` is an upper bound."""
    return _method(json.dumps(config.algorithm)).traffic_is_bound


def examples_are_bound(config: RunConfig) -> bool:
    """Whether `examples_to_train` is an upper bound."""
    return _method(json.dumps(config.algorithm)).workload_is_bound


def without_numbers(config: RunConfig) -> str | None:
    """What sizes depend on, as the JSON of a config: runs that differ in other settings are described alike. None where sizes
    are not known before: for a dataset that is not known, and a number of clusters that depends on the clients."""
    if datasets.facts_of_loaded(config.dataset) is None or _innermost(config.algorithm).get("num_clusters") == "elbow":
        return None
    blank = {
        "seed": 0,
        "lr": 0.01,
        "lr_decay": 1.0,
        "max_gradient_norm": None,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "evaluate_every": None,
        "partition": config.partition if config.partition in ("none", "natural") else "iid",
        "train_examples": None,
        "test_examples": None,
        "dirichlet_seed_override": None,
        "weights": "none",
        "split": "test",
        "validation_share": None,
    }
    return config.model_copy(update=blank).model_dump_json()


def blank_task(described: str) -> "Task":
    """A task of blank images, as `without_numbers` describes it."""
    from bench.simulation.build import build_task

    config = RunConfig.model_validate_json(described)
    return build_task(config, _blank(config), engine="loop")


@functools.cache
def with_templates(described: str) -> "tuple[Task, list[State]]":
    """A blank task on the device `meta`, on which states take no memory, and its method's `state_templates`.

    Raises:
        ValueError: if the method cannot have the model or the clients, or its code fails.
    """
    task = blank_task(described)
    task = replace(task, federation=replace(task.federation, images=task.federation.images.to("meta")))
    with in_sentences("algorithm", _methods_in(described)):
        return task, method_of(described).state_templates(task)


def refusals(configs: Iterable[RunConfig]) -> list[str]:
    """Why methods cannot have the models or the clients of runs, one sentence each, which names the method; of runs whose sizes
    are not known before, nothing is found out."""
    found = (_refusal(described) for config in configs if (described := without_numbers(config)))
    return list(dict.fromkeys(sentence for one in found for sentence in one))


@functools.cache
def _refusal(described: str) -> tuple[str, ...]:
    try:
        with_templates(described)
    except ValueError as error:
        name = json.loads(described)["algorithm"]["name"]
        lines = error.mistakes if isinstance(error, ConfigError) else [str(error)]
        return tuple(line if name in line else f"{name}: {line}" for line in lines)
    return ()


def method_of(described: str) -> "Algorithm":
    """The method of what `without_numbers` describes."""
    return _method(json.dumps(json.loads(described)["algorithm"]))


def _methods_in(described: str) -> list[str]:
    """Names of the method of what `without_numbers` describes and of those that it wraps."""
    return [name for _, name in algorithms.methods_in(json.loads(described)["algorithm"])]


def _innermost(algorithm: dict[str, Any]) -> dict[str, Any]:
    """The method that a wrapper, or a wrapper of one, is around, if clusters may depend on it."""
    while "num_clusters" not in algorithm and isinstance(algorithm.get("base"), dict):
        algorithm = algorithm["base"]
    return algorithm


@functools.cache
def _traffic(described: str) -> int:
    """What a method says about a task of blank images."""
    with in_sentences("algorithm", _methods_in(described)):
        return method_of(described).traffic(blank_task(described))


@functools.cache
def _method(algorithm: str) -> "Algorithm":
    from bench.simulation.build import build_algorithm

    return build_algorithm(json.loads(algorithm))


def _blank(config: RunConfig) -> Dataset:
    """At least two black images for each client and for each class, in the shape in which a run sees the dataset's."""
    name = config.dataset
    info = datasets.facts_of_loaded(name)
    assert info  # else `without_numbers` is None
    labels = np.arange(2 * max(config.clients, info.num_classes), dtype=np.int64) % info.num_classes
    shape = shape_in_run(info.input_shape, name, config.transform, config.image_size)
    split = Split(np.zeros((len(labels), *shape), np.uint8), labels, np.arange(len(labels)) % config.clients)
    return Dataset(name, split, split, tuple(map(str, range(info.num_classes))), "blank images", "blank images", "", "")
