"""CIFAR-10 and CIFAR-100 as Python pickles, the layout that torchvision downloads."""

import pickle
from pathlib import Path

import numpy as np

from datasets.base import Decoded, Source, broken, require
from datasets.loaders.images import resize

_NUMPY_NAMES = {"_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype"}


def find(dataset: str, data_dir: Path) -> Source | None:
    """cifar-10-batches-py or cifar-100-python, in `data_dir` or in a folder named as the dataset.

    Raises:
        DataError: one of its files is missing.
    """
    if dataset == "cifar10":
        folder_name, train_names, meta_name = (
            "cifar-10-batches-py",
            [f"data_batch_{i}" for i in range(1, 6)],
            "batches.meta",
        )
        test_name, labels_key, classes_key = "test_batch", "labels", "label_names"
    else:
        folder_name, train_names, meta_name = "cifar-100-python", ["train"], "meta"
        kind = "coarse" if dataset == "cifar100-coarse" else "fine"
        test_name, labels_key, classes_key = "test", f"{kind}_labels", f"{kind}_label_names"

    for folder in (data_dir / folder_name, data_dir / dataset / folder_name):
        if folder.is_dir():
            *train_files, test_file, meta_file = files = require(folder, [*train_names, test_name, meta_name], dataset)
            break
    else:
        return None

    def decode(image_size: int | None) -> Decoded:
        batches = [_read_batch(file, labels_key, dataset) for file in [*train_files, test_file]]
        images = [resize(batch[0], image_size) for batch in batches]
        labels = [batch[1] for batch in batches]
        meta = _unpickle(meta_file, dataset)
        if classes_key not in meta:
            raise broken(meta_file, f"no {classes_key}", dataset)
        return Decoded(
            np.concatenate(images[:-1]),
            np.concatenate(labels[:-1]),
            images[-1],
            labels[-1],
            tuple(meta[classes_key]),
        )

    return Source("pickles", folder, tuple(files), decode)


def _read_batch(path: str, labels_key: str, dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 3, 32, 32] and labels [n] of one file."""
    batch = _unpickle(path, dataset)
    try:
        images = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[labels_key], dtype=np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise broken(path, error, dataset) from error
    if len(images) != len(labels):
        raise broken(path, f"{len(images)} images but {len(labels)} labels", dataset)
    return images, labels


def _unpickle(path: str, dataset: str) -> dict:
    try:
        with open(path, "rb") as file:
            return _ArrayUnpickler(file, encoding="latin1").load()
    except Exception as error:  # damaged pickles can raise almost anything
        raise broken(path, error, dataset) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Builds arrays and nothing else, so that a file cannot run code."""

    def find_class(self, module: str, name: str):
        if (module.split(".")[0] == "numpy" and name in _NUMPY_NAMES) or (module, name) == (
            "_codecs",
            "encode",
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
