"""Decoding of image files to one size."""

import os
import re
from pathlib import Path

import numpy as np

from datasets.base import LARGEST_IMAGE, DataError, Decoded, broken, opened
from datasets.image_size import ImageSize, sides_of

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def list_images(folder: str) -> list[str]:
    """Paths of the images directly inside a folder, in natural order: 2.jpg before 10.jpg."""
    images, _ = list_folder(folder)
    return images


def list_folder(folder: str) -> tuple[list[str], list[str]]:
    """Paths of the images directly inside a folder, and of the folders in it, both in natural order; without hidden ones."""
    found = sorted(os.scandir(folder), key=lambda entry: (natural_order(entry.name), entry.name))
    shown = [entry for entry in found if entry.name[0] != "."]
    images = [entry.path for entry in shown if entry.name.lower().endswith(SUFFIXES)]
    return images, [entry.path for entry in shown if entry.is_dir()]


def natural_order(name: str) -> list:
    """Sort key that compares runs of digits as numbers."""
    parts = re.split(r"(\d+)", name)
    parts[1::2] = map(int, parts[1::2])
    return parts


def read_images(
    paths: list[str], folder: Path, channels: int, image_size: ImageSize | None, dataset: str
) -> np.ndarray:
    """Decodes image files.

    Args:
        paths: at least one.
        folder: that of the dataset, out of which no link leads.
        channels: 1 (grey) or 3 (RGB); images of another mode are converted.
        image_size: size to which images are resized (bilinear); None keeps their common size.
        dataset: its id, for the remedy in errors.

    Returns:
        [len(paths), channels, height, width], uint8.

    Raises:
        DataError: a file cannot be read, has pixels of more than 8 bits, or sizes differ although `image_size` is None.
    """
    first = _read_image(paths[0], folder, channels, image_size, dataset)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)

    for index, path in enumerate(paths):  # threads do not help with images this small
        image = _read_image(path, folder, channels, image_size, dataset)
        if image.shape != first.shape:
            raise DataError(
                f"Images of one dataset must have one size, but {path} has {_size(image)} pixels and "
                f"{paths[0]} has {_size(first)} (height x width); set a common size, such as image_size=32."
            )
        images[index] = image
    return images


def resize(images: np.ndarray, image_size: ImageSize | None) -> np.ndarray:
    """Images [n, C, H, W] resized to `image_size`; unchanged if it is None or their size."""
    if image_size is None or images.shape[2:] == sides_of(image_size):
        return images
    from PIL import Image

    height, width = sides_of(image_size)
    resized = np.empty((*images.shape[:2], height, width), dtype=np.uint8)
    for target, image in zip(resized, images, strict=True):
        for target_plane, plane in zip(target, image, strict=True):
            scaled = Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR)
            target_plane[:] = np.asarray(scaled)
    return resized


def resize_splits(decoded: Decoded, image_size: ImageSize | None) -> Decoded:
    """The dataset with `resize` applied to the images of both splits."""
    train, test = (resize(images, image_size) for images in (decoded.train_images, decoded.test_images))
    return decoded._replace(train_images=train, test_images=test)


def _read_image(path: str, folder: Path, channels: int, image_size: ImageSize | None, dataset: str) -> np.ndarray:
    from PIL import Image

    try:
        with opened(path, folder, dataset, LARGEST_IMAGE) as file, Image.open(file) as image:
            if image.mode[0] in "IF":  # Pillow would cut all values above 255
                raise DataError(
                    f"{path} has pixels of more than 8 bits (Pillow's mode {image.mode}); convert the images to 8 bits."
                )
            image = image.convert("L" if channels == 1 else "RGB")
    except DataError:
        raise
    except Exception as error:  # a damaged file can make a decoder fail in almost any way
        raise broken(path, error, dataset) from error
    if image_size is not None and image.size != (
        size := sides_of(image_size)[::-1]
    ):  # Pillow's sizes are (width, height)
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[2]}"
