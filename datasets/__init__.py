"""Datasets by name: their facts, the search for their files, and their decoded images.

This module imports neither torch nor an image library; functions that decode images import them.
"""

import functools
from pathlib import Path
from typing import NamedTuple

from bench import references
from bench.errors import unknown
from bench.files import from_home
from bench.registry import registered_dataset
from datasets import cache, of_labs, own_data
from datasets.base import DataError, Dataset, MissingData, Source, Split
from datasets.download import prepare
from datasets.image_size import ImageSize
from datasets.info import INFO, OF_USERS, REGISTRY, DatasetInfo, expected, remedy
from datasets.loaders import folders
from datasets.transforms import recipe

__all__ = [
    "INFO",
    "DataError",
    "Dataset",
    "DatasetInfo",
    "Finding",
    "MissingData",
    "Split",
    "check",
    "facts_of",
    "facts_of_loaded",
    "load",
    "names",
    "prepare",
    "registered_dataset",
]

_loaded: dict[str, DatasetInfo] = {}  # of datasets of users that this process has loaded


def load(
    name: str, data_dir: Path | None, *, cache_dir: Path | None = None, image_size: ImageSize | None = None
) -> Dataset:
    """The images and labels of a dataset, decoded at the first call on a machine and memory-mapped afterwards.

    Args:
        name: an id of `INFO`, or a dataset of a user (see `datasets.own_data.find`).
        data_dir: the folder of all datasets; may be None for digits, and datasets of users that do not need it.
        cache_dir: folder of decoded images; None is `cache.default_dir()`.
        image_size: size of the decoded images (see `datasets.image_size`); None keeps that of the files.

    Raises:
        ValueError: no such dataset.
        MissingData: it has no files.
        DataError: its files are incomplete or damaged, or the cache cannot be written.
    """
    if entry := None if name in INFO or references.is_dataset(name) else of_labs.entry_of(name):
        name = of_labs.canonical(entry, data_dir)
    source = _find(name, data_dir)
    decoded = cache.load(name, source, image_size, cache_dir)
    dataset = Dataset(
        name,
        Split(decoded.train_images, decoded.train_labels, decoded.train_groups),
        Split(decoded.test_images, decoded.test_labels, decoded.test_groups),
        decoded.classes,
        source.description,
        source.kind,
        decoded.digest,
        source.note or _note(name, len(decoded.classes), len(decoded.train_labels), len(decoded.test_labels)),
    )
    if name not in INFO:
        _loaded[name] = dataset.facts
    return dataset


class Finding(NamedTuple):
    """Result of `check`.

    Attributes:
        status: "found", "incomplete" (or damaged) or "missing".
        detail: what was found and where, or what to do.
    """

    name: str
    status: str
    detail: str


def check(
    name: str, data_dir: Path | None, *, cache_dir: Path | None = None, image_size: ImageSize | None = None
) -> Finding:
    """Loads a dataset as a run with the default transform does, and checks whether it is complete.

    Args:
        image_size: the setting of the run; None for that of the transform.

    Raises:
        ValueError: no such dataset.
    """
    try:
        image_size = image_size or recipe("fedconcat", name).image_size
        dataset = load(name, data_dir, cache_dir=cache_dir, image_size=image_size)
    except MissingData as error:
        return Finding(name, "missing", str(error))
    except DataError as error:
        return Finding(name, "incomplete", str(error))
    if name not in INFO:
        return Finding(name, "found", ": ".join(filter(None, (dataset.source, dataset.note))))
    if dataset.note:
        detail = f"{dataset.source}: {dataset.note}; usable as it is; for the complete dataset {remedy(name)}."
        return Finding(name, "incomplete", detail)
    return Finding(name, "found", dataset.source)


def names() -> list[str]:
    """The datasets that have a name of their own: those of the harness, then those of labs."""
    return [*INFO, *of_labs.entries()]


def facts_of(dataset: str) -> DatasetInfo | None:
    """What is known of a dataset before a run looks for its images: of one of the harness, and of a reference to arrays of a
    user, which are decoded for that; None for others, and for image folders, which may be large and of several sizes."""
    reference = references.read(dataset)
    if reference is None or reference.kind not in (references.LAB, "npz"):
        return INFO.get(dataset)
    try:
        return _facts_of_arrays(dataset)
    except MissingData:  # which may be there the next time
        return None


def facts_of_loaded(dataset: str) -> DatasetInfo | None:
    """`facts_of`; of image folders what is known of their images once this process has loaded them, in the size in which it has
    done so last."""
    return facts_of(dataset) or _loaded.get(dataset)


@functools.cache
def _facts_of_arrays(dataset: str) -> DatasetInfo | None:
    try:
        return load(dataset, None).facts
    except MissingData:
        raise
    except DataError:  # said where the images are read
        return None


def usual_model(dataset: str) -> str | None:
    """The model of a dataset where a config names none; None where it must name one."""
    entry = REGISTRY[dataset] if dataset in INFO else of_labs.entry_of(dataset)
    return entry.options.get("model") if entry else None


def _find(name: str, data_dir: Path | None) -> Source:
    """Original files first, then image folders."""
    if references.is_dataset(name):
        return own_data.find(name, data_dir)
    if name not in INFO:
        raise ValueError(unknown("dataset", name, [*names(), *OF_USERS]))
    find = REGISTRY[name].load()
    if not INFO[name].layout:
        return find(name, data_dir)
    if data_dir is None:
        raise MissingData(f"{name} needs a data directory; name it with --data-dir, or set SKEWBENCH_DATA.")
    data_dir = from_home(data_dir).absolute()
    if not data_dir.is_dir():
        raise MissingData(
            f"The data directory {data_dir} does not exist; {remedy(name)}, or name another with --data-dir."
        )
    source = find(name, data_dir) or folders.find(name, data_dir / name, INFO[name].input_shape[0])
    if source is None:
        raise MissingData(f"No {name} in {data_dir}: {expected(name)}; {remedy(name)}.")
    return source


def _note(name: str, num_classes: int, train_size: int, test_size: int) -> str:
    """Differences between the images that were found and the complete dataset."""
    info = INFO.get(name)
    differences = []
    if info and num_classes != info.num_classes:
        differences.append(f"{num_classes} of {info.num_classes} classes")
    if info and info.train_size and train_size != info.train_size:
        differences.append(f"{train_size:,} training images")
    if info and info.test_size and test_size != info.test_size:
        differences.append(f"{test_size:,} test images")
    return ", ".join(differences)
