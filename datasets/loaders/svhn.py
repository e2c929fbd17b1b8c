"""SVHN cropped digits as MATLAB files; the split `extra` is not used."""

from pathlib import Path

import numpy as np

from datasets.base import Decoded, Source, broken, require
from datasets.loaders.images import resize


def find(dataset: str, data_dir: Path) -> Source | None:
    """train_32x32.mat and test_32x32.mat, in `data_dir` or in a folder named svhn or SVHN.

    Raises:
        DataError: one of the two is missing.
    """
    names = ["train_32x32.mat", "test_32x32.mat"]
    for folder in (data_dir, data_dir / "svhn", data_dir / "SVHN"):
        if any((folder / name).is_file() for name in names):
            train_file, test_file = files = require(folder, names, dataset)
            break
    else:
        return None

    def decode(image_size: int | None) -> Decoded:
        train_images, train_labels = _read_mat(train_file, dataset)
        test_images, test_labels = _read_mat(test_file, dataset)
        return Decoded(
            resize(train_images, image_size),
            train_labels,
            resize(test_images, image_size),
            test_labels,
            tuple("0123456789"),
        )

    return Source("MATLAB files", folder, tuple(files), decode)


def _read_mat(path: str, dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 3, 32, 32] and labels [n]."""
    from scipy.io import loadmat

    try:
        content = loadmat(path)
        images = content["X"].transpose(3, 2, 0, 1)
        labels = content["y"].astype(np.int64).reshape(-1)
    except Exception as error:  # damaged MATLAB files can raise almost anything
        raise broken(path, error, dataset) from error
    if len(images) != len(labels) or images.dtype != np.uint8:
        raise broken(path, f"{len(images)} images of {images.dtype} but {len(labels)} labels", dataset)
    labels[labels == 10] = 0  # the files call the digit 0 class 10
    return images, labels
