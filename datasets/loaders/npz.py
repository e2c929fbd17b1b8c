"""Arrays of a user: an .npz file with x_train, y_train, x_test and y_test."""

from pathlib import Path

import numpy as np

from datasets.base import LARGEST, DataError, Decoded, Source, opened
from datasets.image_size import LARGEST as LONGEST_SIDE
from datasets.image_size import ImageSize
from datasets.loaders.images import resize_splits
from datasets.npz_files import read_arrays

NAMES = ("x_train", "y_train", "x_test", "y_test")
_CHANNELS = (1, 3)


def find(dataset: str, path: Path) -> Source | None:
    """The arrays of a file; None if there is no such file.

    Images are uint8, [n, H, W], [n, H, W, C] or [n, C, H, W] with C of 1 or 3; labels are integers from 0 on, [n] or [n, 1],
    and each up to the largest is the label of a training and of a test image. Other arrays of the file are not read.
    """
    if not path.exists():
        return None

    def decode(image_size: ImageSize | None) -> Decoded:
        try:
            with opened(path, path.parent, dataset) as file:
                arrays = read_arrays(file, LARGEST, NAMES)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} {error}; write it by numpy.savez.") from error
        train_images, train_labels, test_images, test_labels = checked(str(path), arrays)
        classes = tuple(map(str, range(int(train_labels.max()) + 1)))
        return resize_splits(Decoded(train_images, train_labels, test_images, test_labels, classes), image_size)

    return Source("arrays", path.parent, (str(path),), decode)


def checked(path: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Images uint8 [n, C, H, W] and labels int64 [n] of both splits, as they may come from users (see `find`).

    Args:
        path: of what they come from, for messages.

    Raises:
        DataError: with the first array that is not as it must be.
    """
    if lacking := [name for name in NAMES if name not in arrays]:
        raise DataError(
            f"{path} has no array {lacking[0]}; such a file holds {', '.join(NAMES)}, but this one "
            f"{', '.join(sorted(arrays)[:8]) or 'nothing'}."
        )
    found = []
    for split in ("train", "test"):
        images, labels = _images(path, f"x_{split}", arrays), _labels(path, f"y_{split}", arrays)
        if len(images) != len(labels) or not len(labels):
            raise DataError(
                f"{path} has {len(images)} images in x_{split} and {len(labels)} labels in y_{split}; each image needs one "
                "label, and each split an image."
            )
        found += [images, labels]
    if found[0].shape[1:] != found[2].shape[1:]:
        raise DataError(
            f"{path} has images of {_shape(found[0])} in x_train and of {_shape(found[2])} in x_test; both need the same "
            "channels, height and width."
        )
    known = np.unique(found[1])
    if known[-1] != len(known) - 1:
        absent = int(np.flatnonzero(known != np.arange(len(known)))[0])
        raise DataError(
            f"{path} has no training image of label {absent}, but one of label {known[-1]}; labels count from 0 without gaps."
        )
    if (largest := found[3].max()) > known[-1]:
        raise DataError(
            f"{path} has the label {largest} in y_test, but the labels of y_train end at {known[-1]}; remove these images."
        )
    untested = np.setdiff1d(known, found[3]).tolist()
    if untested:  # the local accuracy of a client that has no other labels would be 0 / 0
        raise DataError(
            f"{path} has training images but no test image of label {', '.join(map(str, untested[:8]))}; each label "
            "needs both: add some, or remove the label."
        )
    return found


def _images(path: str, name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """[n, C, H, W]."""
    images = arrays[name]
    expected = (
        "uint8 [n, height, width], [n, height, width, channels] or [n, channels, height, width], with 1 or 3 channels"
    )
    got = f"{path} has {images.dtype} of shape {images.shape} in {name}"
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(f"{got}; images are {expected}.")
    if images.ndim == 3:
        images = images[:, None]
    else:
        first, last = images.shape[1] in _CHANNELS, images.shape[3] in _CHANNELS
        if first == last:
            why = (
                "both the first and the last axis of an image may be its channels"
                if first
                else "no axis is its channels"
            )
            raise DataError(f"{got}, in which {why}; images are {expected}.")
        images = images if first else images.transpose(0, 3, 1, 2)
    if not all(0 < side <= LONGEST_SIDE for side in images.shape[2:]):
        raise DataError(f"{got}; height and width are from 1 to {LONGEST_SIDE} pixels.")
    if len(images) and images.max() == 1:  # pixels in [0, 1], converted
        raise DataError(
            f"{path} has no value above 1 in {name}, so that all images would be black; they count from 0 to 255: multiply by "
            "255, and then convert to uint8."
        )
    return np.ascontiguousarray(images)


def _labels(path: str, name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """int64 [n]."""
    labels = arrays[name]
    if labels.dtype.kind not in "iu" or not (labels.ndim == 1 or labels.shape[1:] == (1,)):
        raise DataError(
            f"{path} has {labels.dtype} of shape {labels.shape} in {name}; labels are integers of shape [n] or [n, 1]."
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= len(arrays["y_train"])):
        odd = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{path} has the label {odd} in {name}; labels count from 0 without gaps.")
    return labels.reshape(-1).astype(np.int64)


def _shape(images: np.ndarray) -> str:
    """ "1x28x28"."""
    return "x".join(map(str, images.shape[1:]))
