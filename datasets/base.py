"""A loaded dataset, and the source from which a loader decodes it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from bench.files import MIB, UnusableFile, open_foreign
from datasets.image_size import ImageSize
from datasets.info import DatasetInfo, remedy

LARGEST = 1024 * MIB  # bytes of a file that holds many images; those of the datasets have up to 250 MiB
LARGEST_IMAGE = 256 * MIB
LARGEST_LIST = 64 * MIB  # names of files or classes


class DataError(Exception):
    """Images are missing or cannot be read; the message names the file and the remedy."""


class MissingData(DataError):
    """A dataset has no files in the data directory."""


@dataclass(frozen=True)
class Split:
    """Images and labels of the training or of the test split.

    Attributes:
        images: [n, C, H, W], uint8, memory-mapped and read-only.
        labels: [n], int64, 0..num_classes-1.
        groups: [n], int64, number of the writer of each image, from 0; None for datasets that do not name them.
    """

    images: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory.

    Attributes:
        name: its id, such as "cifar10".
        classes: name of each class, in label order.
        source: kind and folder of its files, as text for users.
        kind: format of its files: "pickles", "image folders", "IDX files"...
        digest: checksum of all decoded images and labels, 8 hex digits.
        note: differences from the complete dataset, as text for users; "" if there are none.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    source: str
    kind: str
    digest: str
    note: str

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_writers(self) -> int | None:
        """Writers of the training images; None if the dataset does not name them."""
        return None if self.train.groups is None else int(self.train.groups.max()) + 1

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.train.images.shape[1:]

    @property
    def facts(self) -> DatasetInfo:
        """What is known of these images, which may be fewer than those of the complete dataset."""
        return DatasetInfo(
            self.num_classes,
            self.input_shape,
            model="",
            description=self.note,
            layout="",
            train_size=len(self.train.labels),
            test_size=len(self.test.labels),
            num_writers=self.num_writers,
        )


class Decoded(NamedTuple):
    """Decoded arrays as in `Split`, and the class names; `digest` is their checksum if they come from the cache."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    digest: str = ""
    train_groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None


@dataclass(frozen=True)
class Source:
    """The files of one dataset, found but not yet read.

    Attributes:
        kind: format of the files, as text for users.
        folder: their folder; None if there are no files.
        files: all files that `decode` reads; a cached copy is valid while their sizes and times are the same.
        decode: image size (None keeps that of the files) -> arrays. Raises DataError.
        note: how the images were divided, as text for users; "" for files that are divided.
    """

    kind: str
    folder: Path | None
    files: tuple[str, ...]
    decode: Callable[[ImageSize | None], Decoded]
    note: str = ""

    @property
    def description(self) -> str:
        """Format and folder, as text for users."""
        return f"{self.kind} in {self.folder}" if self.folder else self.kind


def broken(path: object, reason: object, dataset: str) -> DataError:
    """The error for a file that exists but cannot be read."""
    return DataError(f"{path} is truncated or corrupt ({reason}); delete it and {remedy(dataset)}.")


@contextmanager
def opened(path: Path | str, folder: Path, dataset: str, largest: int = LARGEST) -> Iterator[BinaryIO]:
    """A file of a dataset, open for reading. Datasets come from others: every loader opens its files by this.

    Args:
        folder: that of the dataset; links are followed that stay in it.
        largest: bytes that such a file may have.

    Raises:
        DataError: it is missing, a pipe or another special file, too large, or a link that leads out of the folder.
        OSError: it cannot be read.
    """
    try:
        file = open_foreign(path, largest, within=folder)
    except UnusableFile as error:
        raise DataError(
            f"{path} {error.what}; put the file itself there, or remove it and {remedy(dataset)}."
        ) from error
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {remedy(dataset)}.") from error
    with file:
        yield file


def require(folder: Path, names: list[str], dataset: str) -> list[str]:
    """Paths of the files of these names.

    Raises:
        DataError: a file is missing.
    """
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; {remedy(dataset)}.")
    return [str(folder / name) for name in names]
