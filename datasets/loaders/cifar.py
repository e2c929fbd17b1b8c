"""CIFAR-10 and CIFAR-100 as Python pickles, the layout that torchvision downloads."""

import pickle
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.registry import registered_dataset
from datasets.base import DataError, Decoded, Source, broken, opened, require
from datasets.image_size import ImageSize
from datasets.loaders.images import resize_splits

_NUMPY_NAMES = {"_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype"}


class _Layout(NamedTuple):
    """Names of a dataset's folder and files, and keys of labels and class names in them."""

    folder: str
    train: list[str]
    test: str
    meta: str
    labels: str
    classes: str


_LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        [f"data_batch_{i}" for i in range(1, 6)],
        "test_batch",
        "batches.meta",
        "labels",
        "label_names",
    ),
    "cifar100": _Layout("cifar-100-python", ["train"], "test", "meta", "fine_labels", "fine_label_names"),
    "cifar100-coarse": _Layout("cifar-100-python", ["train"], "test", "meta", "coarse_labels", "coarse_label_names"),
}


@registered_dataset(
    "cifar10",
    title="CIFAR-10",
    description="Small colour photographs of 10 kinds of things.",
    num_classes=10,
    input_shape=(3, 32, 32),
    train_size=50_000,
    test_size=10_000,
    model="simple-cnn",
    layout="cifar-10-batches-py/",
    torchvision="CIFAR10",
)
@registered_dataset(
    "cifar100",
    title="CIFAR-100",
    description="Small colour photographs of 100 kinds of things.",
    num_classes=100,
    input_shape=(3, 32, 32),
    train_size=50_000,
    test_size=10_000,
    model="resnet50",
    layout="cifar-100-python/",
    torchvision="CIFAR100",
)
@registered_dataset(
    "cifar100-coarse",
    title="CIFAR-100 (coarse)",
    description="cifar100 with its 20 superclasses as labels.",
    num_classes=20,
    input_shape=(3, 32, 32),
    train_size=50_000,
    test_size=10_000,
    model="resnet50",
    layout="cifar-100-python/",
    torchvision="CIFAR100",
)
def find(dataset: str, data_dir: Path) -> Source | None:
    """cifar-10-batches-py or cifar-100-python, in `data_dir` or in a folder named by the dataset.

    Raises:
        DataError: one of its files is missing.
    """
    layout = _LAYOUTS[dataset]
    for folder in (data_dir / layout.folder, data_dir / dataset / layout.folder):
        if folder.is_dir():
            files = require(folder, [*layout.train, layout.test, layout.meta], dataset)
            decode = partial(_decode, layout=layout, files=files, dataset=dataset)
            return Source("pickles", folder, tuple(files), decode)
    return None


def _decode(image_size: ImageSize | None, layout: _Layout, files: list[str], dataset: str) -> Decoded:
    *batch_files, meta_file = files
    *train, test = [_read_batch(file, layout.labels, dataset) for file in batch_files]
    train_images, train_labels = map(np.concatenate, zip(*train, strict=True))
    meta = _unpickle(meta_file, dataset)
    if layout.classes not in meta:
        raise broken(meta_file, f"no {layout.classes}", dataset)
    return resize_splits(Decoded(train_images, train_labels, *test, tuple(meta[layout.classes])), image_size)


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
        with opened(path, Path(path).parent, dataset) as file:
            return _ArrayUnpickler(file, encoding="latin1").load()
    except DataError:
        raise
    except Exception as error:  # damaged pickles can raise almost anything
        raise broken(path, error, dataset) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays only, so that a file cannot run code."""

    def find_class(self, module: str, name: str):
        if (module.split(".")[0] == "numpy" and name in _NUMPY_NAMES) or (module, name) == (
            "_codecs",
            "encode",
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}")
