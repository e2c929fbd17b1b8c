"""Checks of values that are valid by themselves and do not fit together; they need no images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from bench import models
from bench.config.methods import named_models
from datasets import DatasetInfo, partitions
from datasets.partition_files import FilePartition
from datasets.partitions import Partition
from datasets.partitions.shift import Shift
from datasets.resized import shape_in_run

if TYPE_CHECKING:
    from bench.config.schema import RunConfig


def validate_config(config: RunConfig, facts: Mapping[str, DatasetInfo] | None) -> list[str]:
    """Why a config whose values are all valid by themselves cannot work: sentences, [] if it can.

    Args:
        facts: dataset -> what is known about it; None leaves out what depends on it.
    """
    info = (facts or {}).get(config.dataset)
    partition = partitions.parse(config.partition)
    mistakes = [*_validate_placement(config, partition)]
    name = config.algorithm["name"]
    if name == "centralized" and (config.partition, config.clients) != ("none", 1):
        mistakes.append(
            "centralized pools all training data: partition must be 'none' and clients 1, "
            f"but got partition {config.partition!r} and clients {config.clients}."
        )
    elif name != "centralized" and config.partition == "none":
        mistakes.append(f"partition 'none' gives one client everything and is for centralized only, but got {name}.")
    elif info:
        mistakes += [*_validate_model(config, info), *_validate_sizes(config, info)]
        if not mistakes and config.partition != "none":
            mistakes += _validate_partition(config, partition, info)
    return mistakes


def subset(wanted: int, size: int, num_classes: int) -> int:
    """The largest stratified subset of up to `wanted` of `size` examples: classes keep an example on both sides."""
    return wanted if wanted <= size - num_classes else size


def _validate_placement(config: RunConfig, partition: Partition) -> list[str]:
    """Settings that name a run of their own although nothing reads them."""
    mistakes = []
    if config.model_width != 1 and not _width(config):
        mistakes.append(
            f"model_width must be 1 for {config.model}, which has no width, but got {config.model_width:g}."
        )
    if config.weights != "none" and not models.load(config.model).takes_weights:
        taking = " or ".join(name for name in models.REGISTRY if models.load(name).takes_weights)
        mistakes.append(
            f"weights must be none for {config.model}, which takes no ImageNet weights as {taking} does, but got "
            f"{config.weights}."
        )
    if config.first_clients is not None and config.first_clients >= config.clients:
        mistakes.append(
            f"first_clients must be less than clients ({config.clients}) or left out, but got {config.first_clients}."
        )
    if config.validation_share is not None and config.split != "validation":
        mistakes.append(f"validation_share is for the split validation only, but the split is {config.split}.")
    is_shift = isinstance(partition, Shift)  # its test examples are among those that clients set aside from
    if config.split == "validation" and config.test_examples is not None and not is_shift:
        mistakes.append("test_examples is for the split test only, but the split is validation; leave it out.")
    if config.dirichlet_seed_override is not None and not partition.takes_seed_override:
        mistakes.append(f"dirichlet_seed_override is for partitions dir-b only, but the partition is {partition.name}.")
    return mistakes


def _validate_model(config: RunConfig, info: DatasetInfo) -> list[str]:
    """Why models cannot take the images."""
    shape = shape_in_run(info.input_shape, config.dataset, config.transform, config.image_size)
    if config.weights != "none" and shape[0] != 3:
        return [
            f"ImageNet weights are for images of 3 channels, but {config.dataset} has {shape[0]}; set weights to none."
        ]
    mistakes = []
    for name in dict.fromkeys([config.model, *named_models(config)]):
        try:
            width = _width(config) if name == config.model else {}
            least = models.load(name)(shape, info.num_classes, **width).smallest_batch
        except ValueError as error:
            mistakes.append(str(error))
            continue
        if config.batch_size < least:
            mistakes.append(
                f"batch_size must be at least {least} for {name}, which takes batch statistics, but got {config.batch_size}."
            )
    return mistakes


def _width(config: RunConfig) -> dict[str, float]:
    """The argument `width` of the model of a run; {} if that has none."""
    names = {field.name for field in dataclasses.fields(models.load(config.model))}
    return {"width": config.model_width} if "width" in names else {}


def _validate_sizes(config: RunConfig, info: DatasetInfo) -> list[str]:
    mistakes = []
    for key, size in (("train_examples", info.train_size), ("test_examples", info.test_size)):
        wanted = getattr(config, key)
        if size is None or wanted == size:
            continue
        if wanted is not None and (wanted < info.num_classes or subset(wanted, size, info.num_classes) != wanted):
            mistakes.append(
                f"{key} must be between {info.num_classes} and {size - info.num_classes} so that each of the "
                f"{info.num_classes} classes of {config.dataset} can be in it and outside it, or {size} for all, but "
                f"got {wanted}."
            )
    return mistakes


def _validate_partition(config: RunConfig, partition: Partition, info: DatasetInfo) -> list[str]:
    """Why a partition cannot deal this many examples of this many classes to this many clients."""
    if config.partition == "natural":
        return _validate_writers(config, info)
    if isinstance(partition, FilePartition):
        return _validate_file(config, partition, info)
    num_train = config.train_examples or info.train_size
    mistakes = partition.validate(config.clients, info.num_classes, num_train, info.test_size)
    return _validate_shift(config, partition, info) if isinstance(partition, Shift) and not mistakes else mistakes


def shift_sizes(config: RunConfig, partition: Shift, info: DatasetInfo) -> list[list[int]]:
    """Training examples of each client, and test examples, as if all classes had equally many; [] where the sizes of the
    dataset depend on its files."""
    train, test = config.train_examples or info.train_size, config.test_examples or info.test_size
    if train is None or test is None:
        return []
    per_class = np.full(info.num_classes, (train + test) // info.num_classes)
    return partition.counts(per_class, config.clients, test / (train + test)).sum(2).tolist()


def _validate_shift(config: RunConfig, partition: Shift, info: DatasetInfo) -> list[str]:
    """Why a shift leaves a client without examples."""
    total = (config.train_examples or info.train_size or 0) + (config.test_examples or info.test_size or 0)
    found = (partition.empty_client(sizes, total) for sizes in shift_sizes(config, partition, info))
    return [mistake for mistake in found if mistake][:1]


def _validate_file(config: RunConfig, partition: FilePartition, info: DatasetInfo) -> list[str]:
    """Why a partition file does not fit the dataset."""
    try:
        counted = {"train_examples": info.train_size} | (
            {"test_examples": info.test_size} if partition.has_own_tests else {}
        )
        mistakes = partition.validate(config.clients, info.num_classes, info.train_size, info.test_size)
    except ValueError as error:  # its content is not known
        return [str(error)]
    return mistakes + [
        f"{key} must be left out: the indices of the partition {partition.label} count through all examples, but got {value}."
        for key, size in counted.items()
        if (value := getattr(config, key)) not in (None, size)
    ]


def _validate_writers(config: RunConfig, info: DatasetInfo) -> list[str]:
    """Why the writers of a dataset cannot be the clients."""
    if info.num_writers is None:
        return [
            f"Partition natural makes every writer a client, but {config.dataset} does not name its writers; use femnist, or "
            "another partition."
        ]
    if info.train_size is not None and config.clients != info.num_writers:
        return [
            f"Partition natural makes every writer a client: leave clients out, or set it to the {info.num_writers} writers of "
            f"{config.dataset}, but got {config.clients}."
        ]
    return []
