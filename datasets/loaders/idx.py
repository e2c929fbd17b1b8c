"""MNIST and Fashion-MNIST as IDX files, gzipped or not."""

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bench.files import MIB
from bench.registry import registered_dataset
from datasets.base import LARGEST, DataError, Decoded, Source, broken, opened
from datasets.image_size import ImageSize
from datasets.info import remedy
from datasets.loaders.images import resize_splits

_FOLDERS = {"mnist": "MNIST", "fmnist": "FashionMNIST"}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fmnist": (
        "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot",
    ),
}  # fmt: skip
_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@registered_dataset(
    "fmnist",
    title="FMNIST",
    description="Fashion-MNIST: grey pictures of 10 kinds of clothes.",
    num_classes=10,
    input_shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    model="simple-cnn",
    layout="FashionMNIST/raw/*-ubyte[.gz]",
    torchvision="FashionMNIST",
)
@registered_dataset(
    "mnist",
    title="MNIST",
    description="Handwritten digits of 500 writers.",
    num_classes=10,
    input_shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    train_counts=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    model="simple-cnn",
    layout="MNIST/raw/*-ubyte[.gz]",
    torchvision="MNIST",
)
def find(dataset: str, data_dir: Path) -> Source | None:
    """The four files of MNIST/raw or FashionMNIST/raw, or of a folder named by the dataset.

    Raises:
        DataError: only some of the four files exist.
    """
    for folder in (data_dir / _FOLDERS[dataset] / "raw", data_dir / dataset / "raw", data_dir / dataset):
        files = [_existing(folder, part) for part in _PARTS]
        if any(files):
            break
    else:
        return None
    if not all(files):
        missing = _PARTS[files.index(None)]
        raise DataError(f"{folder / missing}-ubyte is missing, gzipped or not; {remedy(dataset)}.")

    def decode(image_size: ImageSize | None) -> Decoded:
        arrays = [_read_idx(file, dataset) for file in files]
        for file, images, labels in zip(files[::2], arrays[::2], arrays[1::2], strict=True):
            if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
                raise broken(file, f"shape {images.shape} beside labels of shape {labels.shape}", dataset)
        train_images, train_labels, test_images, test_labels = arrays
        train = train_images[:, None], train_labels.astype(np.int64)
        test = test_images[:, None], test_labels.astype(np.int64)
        return resize_splits(Decoded(*train, *test, _CLASSES[dataset]), image_size)

    return Source("IDX files", folder, tuple(files), decode)


def _existing(folder: Path, part: str) -> str | None:
    for name in (f"{part}-ubyte", f"{part}-ubyte.gz"):
        if (folder / name).is_file():
            return str(folder / name)
    return None


def _read_idx(path: str, dataset: str) -> np.ndarray:
    """An array of bytes: two zero bytes, type 8, number of axes, big-endian 32-bit lengths, values."""
    try:
        with opened(path, Path(path).parent, dataset) as file:
            content = _unpacked(file) if path.endswith(".gz") else file.read()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise broken(path, error, dataset) from error
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise broken(path, "it does not start like an IDX file of bytes", dataset)
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    if len(content) - start != math.prod(shape):
        raise broken(path, f"{len(content) - start} bytes of data instead of {math.prod(shape)}", dataset)
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _unpacked(file: BinaryIO) -> bytes:
    """The content of a gzipped file; raises ValueError if that is larger than a file may be: zeros pack a thousandfold."""
    content = io.BytesIO()
    with gzip.open(file) as packed:
        while part := packed.read(MIB):
            if content.tell() + len(part) > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST:,} bytes")
            content.write(part)
    return content.getvalue()
