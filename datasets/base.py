"""What a dataset is once it is loaded, and what a loader hands over before it is decoded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.image_size import ImageSize
from datasets.info import remedy


class DataError(Exception):
    """Images that are missing or cannot be read; the message is one sentence with the file and the remedy."""


class MissingData(DataError):
    """There is nothing of a dataset where its files belong."""


@dataclass(frozen=True)
class Split:
    """Images and labels of the training or of the test split.

    Attributes:
        images: [n, C, H, W], uint8, memory-mapped and read-only.
        labels: [n], int64, 0..num_classes-1.
    """

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory.

    Attributes:
        name: its id, such as "cifar10".
        classes: name of each class, in label order.
        source: what was found and where, for people.
        kind: what was found: "pickles", "image folders", "IDX files"...
        digest: checksum of all decoded images and labels, 8 hex digits.
        note: how it differs from the complete dataset, for people; "" if it does not.
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
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.train.images.shape[1:]


class Decoded(NamedTuple):
    """What a loader reads: arrays as in `Split`, the class names, and once it is cached the checksum of the arrays."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    digest: str = ""


@dataclass(frozen=True)
class Source:
    """The files of one dataset, found but not yet read.

    Attributes:
        kind: what was found, for people.
        folder: where it was found; None if it needs no files.
        files: every file that `decode` reads; their sizes and times tell whether a decoded copy
            is still valid.
        decode: image size, or None for the images' own -> arrays. Raises DataError.
    """

    kind: str
    folder: Path | None
    files: tuple[str, ...]
    decode: Callable[[ImageSize | None], Decoded]

    @property
    def description(self) -> str:
        """What was found and where, for people."""
        return f"{self.kind} in {self.folder}" if self.folder else self.kind


def broken(path: object, reason: object, dataset: str) -> DataError:
    """The error for a file that is there but cannot be read."""
    return DataError(f"{path} is truncated or corrupt ({reason}); delete it and {remedy(dataset)}.")


def require(folder: Path, names: list[str], dataset: str) -> list[str]:
    """The files of these names.

    Raises:
        DataError: one of them is missing.
    """
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; {remedy(dataset)}.")
    return [str(folder / name) for name in names]
