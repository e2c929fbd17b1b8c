"""Image folders without a test split, <class>/<image>, of which a share of each class is for testing."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from datasets.base import DataError, Source
from datasets.loaders.folders import list_classes, list_images_of, source


def find(dataset: str, folder: Path, share: float, channels: int) -> Source | None:
    """The images below a folder, or None if there is no such folder.

    Of the n images of a class, round(share n) are for testing, at least one and at most n - 1: those whose names, with that of
    the class, have the smallest BLAKE2b hashes. Therefore every machine draws the same, whatever the seed of a run, and a
    further image changes the split by one image at most beside itself.

    Args:
        share: of each class, in (0, 1).

    Raises:
        DataError: the folder has a split of its own, a class has fewer than two images, or there are no classes.
    """
    if not folder.is_dir():
        return None
    if splits := [name for name in ("train", "test") if (folder / name).is_dir()]:
        one = f"{folder} has a folder {splits[0]} of its own"
        if len(splits) == 2:
            raise DataError(f"{one}, and a folder test; leave ?test={share:g} out.")
        raise DataError(f"{one}; to split the images in it, name imagefolder:{folder / splits[0]}?test={share:g}.")
    train: dict[str, list[str]] = {}
    test: dict[str, list[str]] = {}
    for name, paths in list_images_of(folder, list_classes(folder)).items():
        if len(paths) < 2:
            raise DataError(
                f"{folder / name} has 1 image, but a split needs 2 of each class; add some, or remove the class."
            )
        count = min(max(round(share * len(paths)), 1), len(paths) - 1)
        drawn = {*sorted(paths, key=lambda path, name=name: _key(name, path))[:count]}
        train[name] = [path for path in paths if path not in drawn]
        test[name] = [path for path in paths if path in drawn]
    found = source(dataset, folder, train, test, channels)
    return replace(found, note=f"{share:.3g} of each class, drawn by file names, are the test images")


def _key(name: str, path: str) -> bytes:
    return hashlib.blake2b(f"test split/{name}/{os.path.basename(path)}".encode(errors="surrogateescape")).digest()
