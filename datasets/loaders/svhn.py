"""SVHN cropped digits as MATLAB files; the split `extra` is not used."""

from functools import partial
from pathlib import Path

import numpy as np

from bench.registry import registered_dataset
from datasets.base import DataError, Decoded, Source, broken, opened, require
from datasets.image_size import ImageSize
from datasets.loaders.images import resize_splits


@registered_dataset(
    "svhn",
    title="SVHN",
    description="Digits of house numbers, without the split extra.",
    num_classes=10,
    input_shape=(3, 32, 32),
    train_size=73_257,
    test_size=26_032,
    train_counts=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    model="simple-cnn",
    layout="{train,test}_32x32.mat",
    torchvision="SVHN",
)
def find(dataset: str, data_dir: Path) -> Source | None:
    """train_32x32.mat and test_32x32.mat, in `data_dir` or in a folder named svhn or SVHN.

    Raises:
        DataError: one of the two is missing.
    """
    names = ["train_32x32.mat", "test_32x32.mat"]
    for folder in (data_dir, data_dir / "svhn", data_dir / "SVHN"):
        if any((folder / name).is_file() for name in names):
            files = require(folder, names, dataset)
            return Source("MATLAB files", folder, tuple(files), partial(_decode, files=files, dataset=dataset))
    return None


def _decode(image_size: ImageSize | None, files: list[str], dataset: str) -> Decoded:
    train, test = (_read_mat(file, dataset) for file in files)
    return resize_splits(Decoded(*train, *test, tuple("0123456789")), image_size)


def _read_mat(path: str, dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 3, 32, 32] and labels [n]."""
    from scipy.io import loadmat

    try:
        with opened(path, Path(path).parent, dataset) as file:
            content = loadmat(file)
        images = content["X"].transpose(3, 2, 0, 1)
        labels = content["y"].astype(np.int64).reshape(-1)
    except DataError:
        raise
    except Exception as error:  # damaged MATLAB files can raise almost anything
        raise broken(path, error, dataset) from error
    if len(images) != len(labels) or images.dtype != np.uint8:
        raise broken(path, f"{len(images)} images of {images.dtype} but {len(labels)} labels", dataset)
    labels[labels == 10] = 0  # class 10 in the files is the digit 0
    return images, labels
