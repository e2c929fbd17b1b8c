"""FEMNIST as JSON files of LEAF, whose training and test images are those of the same writers.

A file holds "users", the names of its writers, and "user_data": name -> "x", images as lists of 784 grey levels in [0, 1],
and "y", their labels: 0 to 9 digits, 10 to 35 upper case, 36 to 61 lower case.

Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. https://arxiv.org/abs/1812.01097
"""

import json
import string
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.registry import registered_dataset
from datasets.base import DataError, Decoded, Source, broken, opened
from datasets.image_size import ImageSize
from datasets.info import remedy
from datasets.loaders.images import natural_order, resize_splits

CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
SIDE = 28  # pixels
FOLDERS = ("femnist", "femnist/data", "leaf/data/femnist/data")  # the last two are those of a checkout of LEAF


@registered_dataset(
    "femnist",
    title="FEMNIST",
    description="Handwritten digits and letters of about 180 writers (LEAF).",
    num_classes=62,
    input_shape=(1, 28, 28),
    num_writers=180,
    model="mcmahan2017-mnist-cnn",
    layout="femnist/{train,test}/*.json",
)
def find(dataset: str, data_dir: Path) -> Source | None:
    """train/*.json and test/*.json in one of `FOLDERS`; None if there are no such files.

    Raises:
        DataError: a file of one split has no counterpart in the other.
    """
    for folder in (data_dir / name for name in FOLDERS):
        train, test = (json_files(folder / split) for split in ("train", "test"))
        if train or test:
            break
    else:
        return None
    wanted = {path.name.replace("_train_", "_test_"): path for path in train}
    present = {path.name: path for path in test}
    for name in sorted({*wanted, *present}, key=natural_order):
        if name not in present:
            raise DataError(f"{folder / 'test' / name} is missing beside {wanted[name]}; {remedy(dataset)}.")
        if name not in wanted:
            missing = folder / "train" / name.replace("_test_", "_train_")
            raise DataError(f"{missing} is missing beside {present[name]}; {remedy(dataset)}.")
    decode = partial(_decode, train=train, test=test, dataset=dataset)
    return Source("JSON files of LEAF", folder, tuple(map(str, train + test)), decode)


def json_files(folder: Path) -> list[Path]:
    """The JSON files directly inside a folder, in natural order."""
    return sorted(folder.glob("*.json"), key=lambda path: natural_order(path.name))


def read_writers(path: Path, dataset: str) -> dict[str, dict[str, list[Any]]]:
    """Writer -> "x" and "y" of one file.

    Raises:
        DataError: it is damaged, lacks a writer that it names, or has one that it does not name.
    """
    try:
        with opened(path, path.parent.parent, dataset) as file:
            content = json.loads(file.read(), object_pairs_hook=_without_repetition)
        users, data = content["users"], dict(content["user_data"])
        if not (isinstance(users, list) and all(isinstance(user, str) for user in users)):
            raise ValueError("users is not a list of names")
        if twice := [user for user, times in Counter(users).items() if times > 1]:
            raise ValueError(f"it names the writer {twice[0]!r} twice")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise broken(path, error, dataset) from error
    for writer in users:
        if writer not in data:
            raise DataError(f"{path} names the writer {writer!r}, but has no images of that writer; {remedy(dataset)}.")
    for writer in data:
        if writer not in users:
            raise DataError(
                f"{path} has images of {writer!r}, who is not among the writers that it names; {remedy(dataset)}."
            )
    return {writer: data[writer] for writer in users}


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; raises ValueError if it has a key twice, of which only the last would be seen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return found


def _decode(image_size: ImageSize | None, train: list[Path], test: list[Path], dataset: str) -> Decoded:
    ids: dict[str, int] = {}  # writer -> client, in the order of the training files
    train_images, train_labels, train_groups = _read(train, ids, dataset, new=True)
    test_images, test_labels, test_groups = _read(test, ids, dataset, new=False)
    decoded = Decoded(train_images, train_labels, test_images, test_labels, CLASSES)
    return resize_splits(decoded._replace(train_groups=train_groups, test_groups=test_groups), image_size)


def _read(paths: list[Path], ids: dict[str, int], dataset: str, new: bool) -> list[np.ndarray]:
    """Images [n, 1, 28, 28], labels [n] and writers [n] of one split.

    Args:
        ids: number of each writer; new writers are added.
        new: whether there may be new writers.
    """
    parts = []
    for path in paths:
        for writer, data in read_writers(path, dataset).items():
            if not new and writer not in ids:
                raise DataError(
                    f"{path} has the writer {writer!r}, who has no training images; {remedy(dataset)}, or run LEAF's "
                    "preprocess.sh with -t sample."
                )
            images, labels = _read_writer(path, writer, data, dataset)
            client = ids.setdefault(writer, len(ids))
            parts.append((images, labels, np.full(len(labels), client, dtype=np.int64)))
    if not parts:
        raise broken(paths[0], "it names no writers", dataset)
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def _read_writer(path: Path, writer: str, data: dict[str, list[Any]], dataset: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        for image in data["x"]:
            if len(image) != SIDE**2:
                raise DataError(
                    f"{path} has an image of the writer {writer!r} with {len(image)} pixels, but FEMNIST has "
                    f"{SIDE}x{SIDE} = {SIDE**2}; {remedy(dataset)}."
                )
        if odd := [label for label in data["y"] if type(label) is not int]:
            raise ValueError(f"the writer {writer!r} has the label {odd[0]!r:.40}, which is no whole number")
        grey = np.asarray(data["x"])
        if grey.dtype.kind not in "iuf" and data["x"]:
            raise ValueError(f"grey levels of the writer {writer!r} are no numbers")
        grey = grey.astype(np.float64).reshape(-1, 1, SIDE, SIDE)
        labels = np.asarray(data["y"], dtype=np.int64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise broken(path, error, dataset) from error
    if len(grey) != len(labels):
        raise broken(path, f"{len(grey)} images but {len(labels)} labels of the writer {writer!r}", dataset)
    if not ((grey >= 0) & (grey <= 1)).all():
        raise broken(path, f"grey levels of the writer {writer!r} are outside [0, 1]", dataset)
    return np.rint(255 * grey).astype(np.uint8), labels
