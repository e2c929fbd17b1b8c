"""Datasets of users: image folders and arrays, by the path of their files or by a reference (see `bench.references`), and
functions of labs by their names (see `datasets.of_labs`).

A reference does not say where the files are. The process that turns a path into a reference, the driver, remembers the path; a
job takes it to other processes and machines (`DataOfUser`). Partition files are in `datasets.partition_files`.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import references
from bench.files import from_home
from datasets import digests, of_labs, partition_files
from datasets.base import DataError, MissingData, Source
from datasets.image_size import ImageSize
from datasets.info import expected
from datasets.loaders import folders, npz, own_split
from datasets.loaders.images import read_images

_PATHS: dict[object, str] = {}  # content, as `references.hashed` has it -> the dataset by its absolute path
_KNOWN: dict[tuple[str, tuple[int, ...]], str] = {}  # the same, and its state (see `_state`) -> reference


@dataclass(frozen=True)
class DataOfUser:
    """What a process needs to know of the references of a config.

    Attributes:
        dataset: that of the config by its absolute path; "" for a dataset that is none of a user.
        partition: the partition file and its content; None for another partition.
    """

    dataset: str = ""
    partition: partition_files.FilePartition | None = None


def is_dataset(text: object) -> bool:
    """Whether a text names a dataset of a user, by a path, a reference, or the name of a function of a lab."""
    return references.is_dataset(text) or of_labs.entry_of(text) is not None


def canonical(dataset: str) -> str:
    """The reference to a dataset of a user that is named by its path or, if a function of a lab makes it, by the name. What is
    not there keeps its path or name: nobody knows its content. All else stays as it is.

    Raises:
        DataError: if the files are there and cannot be used, as far as that shows without decoding them.
        ValueError: if the text behind the path is no option.
    """
    if references.read(dataset):
        return dataset
    if entry := of_labs.entry_of(dataset):
        try:
            return of_labs.canonical(entry)
        except MissingData:
            return dataset
    if not references.is_dataset(dataset):
        return dataset
    kind, path, share = _parts(dataset)
    key = (f"{kind}:{path}{_option(share)}", _state(path))
    if key in _KNOWN:
        return _KNOWN[key]
    try:
        source = find(dataset)
    except MissingData:
        return dataset
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    digest = digests.digest_of(dataset, source, f"{kind}{_option(share)}", names=kind == "imagefolder")
    named = Path(os.path.abspath(path))  # "." and ".." are no names
    name = named.name if kind == "imagefolder" else named.stem
    reference = str(references.make(kind, f"{name}{_option(share)}", digest))
    _PATHS[references.hashed(reference)], _KNOWN[key] = key[0], reference
    return reference


def canonical_setting(key: str, value: object) -> object:
    """The value of a setting with a reference in place of the path of a dataset or partition of a user; all others, and what
    cannot be used, as they are: that is said where the config is checked."""
    try:
        if key == "dataset" and is_dataset(value):
            return canonical(str(value))
        if key == "partition" and references.is_partition(value):
            return partition_files.parse(str(value)).name
    except (DataError, ValueError):
        pass
    return value


def find(dataset: str, data_dir: Path | None = None) -> Source:
    """The files of a dataset of a user, not yet read.

    Args:
        dataset: "imagefolder:PATH", "imagefolder:PATH?test=SHARE", "npz:PATH", or a reference: of paths those
            that this process knows.
        data_dir: what a function of a lab gets.

    Raises:
        MissingData: it has no files, or the reference is not known here.
        DataError: they are incomplete.
        ValueError: the text behind the path is no option.
    """
    if dataset.startswith(f"{references.LAB}:"):
        return of_labs.find(dataset, data_dir)
    kind, path, share = _parts(_path_of(dataset))
    if kind == "npz":
        source = npz.find(dataset, path)
        if source is None:
            raise MissingData(f"There is no file {path}: {expected(dataset)}.")
        return source
    source = (
        folders.find(dataset, path, channels=3) if share is None else own_split.find(dataset, path, share, channels=3)
    )
    if source is None:
        raise MissingData(f"{'No images in' if path.is_dir() else 'There is no folder'} {path}: {expected(dataset)}.")
    return source


def shape_of(dataset: str, image_size: ImageSize | None) -> tuple[int, int, int]:
    """(channels, height, width) of the images of a user; of a folder that of its first image, which is all that is read.

    Args:
        image_size: to which they are resized; None keeps their size.

    Raises:
        DataError, ValueError: as `find`, or if that image cannot be read.
    """
    source = find(dataset)
    if source.folder and source.kind == "image folders":
        return read_images([source.files[0]], source.folder, 3, image_size, dataset).shape[1:]
    return source.decode(image_size).train_images.shape[1:]


def of_config(config) -> DataOfUser:
    """What a process needs in order to train the run of a resolved config; `remember` takes it there."""
    partition = partition_files.parse(config.partition) if references.is_partition(config.partition) else None
    return DataOfUser(_PATHS.get(references.hashed(config.dataset), ""), partition and partition.with_content())


def remember(data: DataOfUser, dataset: str) -> None:
    """Makes known to this process what another one has sent.

    Args:
        dataset: that of the config.
    """
    if data.dataset:
        _PATHS.setdefault(references.hashed(dataset), data.dataset)
    if data.partition:
        partition_files.remember(data.partition)


def _path_of(dataset: str) -> str:
    reference = references.read(dataset)
    if reference is None:
        return dataset
    content = references.hashed(dataset)
    if content not in _PATHS:
        raise MissingData(
            f"The place of the files of {dataset} is not known: a config has their digest, not their path; name the dataset by "
            f"its path, as --dataset {reference.kind}:PATH. Files that have changed have another digest."
        )
    return _PATHS[content]


def _parts(dataset: str) -> tuple[str, Path, float | None]:
    """Kind, absolute path, and the share of each class that is for testing; None if the files are divided already."""
    kind, _, text = dataset.partition(":")
    whole = from_home(text).absolute()
    if kind != "imagefolder" or "?" not in text or whole.exists():
        return kind, whole, None
    text, _, option = text.rpartition("?")
    share = re.fullmatch(r"test=(0?\.\d+)", option)
    if not share or not float(share[1]) > 0:
        raise ValueError(
            f"An image folder takes ?test=SHARE, the share of each class for testing, between 0 and 1, but got ?{option}."
        )
    return kind, from_home(text).absolute(), float(share[1])


def _state(path: Path) -> tuple[int, ...]:
    """By what a process sees that a file, or the list of images of a folder, has changed: times of change of the folders, or
    time and size of the file. An image that is replaced by one of the same name is seen by the next process only: else a grid
    with many cells would look at all images for each."""
    try:
        status = path.stat()
        times = [status.st_mtime_ns]
        if not path.is_dir():
            return (*times, status.st_size)
        for folder in sorted(entry.path for entry in os.scandir(path) if entry.is_dir()):
            times += [os.stat(folder).st_mtime_ns]
            times += sorted(entry.stat().st_mtime_ns for entry in os.scandir(folder) if entry.is_dir())
    except (OSError, ValueError):  # not there, or no path, which is said elsewhere
        return ()
    return tuple(times)


def _option(share: float | None) -> str:
    return "" if share is None else f"?test={np.format_float_positional(share, trim='-')}"
