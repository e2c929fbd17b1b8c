"""Image folders: {train,test}/<class>/<image>."""

import os
from pathlib import Path

import numpy as np

from datasets.base import DataError, Decoded, Source
from datasets.image_size import ImageSize
from datasets.loaders.images import list_folder, list_images, read_images


def find(dataset: str, folder: Path, channels: int) -> Source | None:
    """The image folders below `folder`, or None if there is no `train` in it.

    Classes are the sub-folders in natural order; `train` and `test` must have the same ones. Other folders, such as a
    validation split, are ignored.

    Raises:
        DataError: `test` is missing, its classes differ from those of `train`, a class has no images, or images lie elsewhere.
    """
    if not (folder / "train").is_dir():
        return None
    if not (folder / "test").is_dir():
        raise DataError(
            f"{folder} has a folder train but no folder test; image folders need both, each with its classes."
        )
    classes, test_classes = list_classes(folder / "train"), list_classes(folder / "test")
    if odd := sorted(set(classes) ^ set(test_classes)):
        raise DataError(
            f"{folder}/train and {folder}/test must have the same classes, but {odd[0]!r} is only in "
            f"{'train' if odd[0] in classes else 'test'}; add or remove its folder."
        )
    return source(
        dataset, folder, list_images_of(folder / "train", classes), list_images_of(folder / "test", classes), channels
    )


def source(
    dataset: str, folder: Path, train: dict[str, list[str]], test: dict[str, list[str]], channels: int
) -> Source:
    """A source of image files.

    Args:
        train, test: class name -> paths of its images; the same classes in the same order.
    """

    def decode(image_size: ImageSize | None) -> Decoded:
        return Decoded(*_read(train, image_size), *_read(test, image_size), tuple(train))

    def _read(listing: dict[str, list[str]], image_size: ImageSize | None) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(len(listing)), [len(paths) for paths in listing.values()])
        return read_images(_flat(listing), folder, channels, image_size, dataset), labels

    return Source("image folders", folder, tuple(_flat(train) + _flat(test)), decode)


def list_classes(folder: Path) -> list[str]:
    """Names of the sub-folders, in natural order."""
    names = [os.path.basename(path) for path in list_folder(str(folder))[1]]
    if not names:
        raise DataError(f"{folder} has no folder per class; image folders are {{train,test}}/<class>/<image>.")
    return names


def list_images_of(folder: Path, classes: list[str]) -> dict[str, list[str]]:
    """Class -> paths of its images, in natural order.

    Raises:
        DataError: a class has no images, or images lie beside the folders of classes, or below them.
    """
    found = {name: list_folder(str(folder / name)) for name in classes}
    for other in [str(folder), *(path for _, below in found.values() for path in below)]:
        if paths := list_images(other):
            raise DataError(
                f"{paths[0]} would not be read, as images lie directly in the folder of their class; move it there, or out of "
                f"{folder}."
            )
    if empty := [name for name, (images, _) in found.items() if not images]:
        raise DataError(f"{folder / empty[0]} has no images; add some, or remove the class from train and test.")
    return {name: images for name, (images, _) in found.items()}


def _flat(listing: dict[str, list[str]]) -> list[str]:
    return [path for paths in listing.values() for path in paths]
