"""The dataset of a run, in the image size of its config or transform."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, transforms
from datasets.image_size import ImageSize, sides_of


def load(name: str, transform: str, data_dir: Path | None, image_size: ImageSize | None = None) -> Dataset:
    """A dataset in the image size of a run; a process opens each one once.

    Args:
        image_size: as in `bench.config.schema.RunConfig`.

    Raises:
        datasets.MissingData: if it has no files.
        datasets.DataError: if they are damaged.
    """
    dataset = _load(name, data_dir, image_size or transforms.recipe(transform, name).image_size)
    if image_size is None:
        return dataset
    height, width = sides_of(image_size)
    return replace(dataset, kind=f"{dataset.kind}, resized to {height}x{width} pixels")


def of_config(config: Any, data_dir: Path | None) -> Dataset:
    """The dataset of a run as `load` gives it, which says what it raises.

    Args:
        config: a `bench.config.schema.RunConfig`, or a stored one as an object.
    """
    return load(config.dataset, config.transform, data_dir, config.image_size)


def shape_in_run(
    stored: tuple[int, int, int], name: str, transform: str, image_size: ImageSize | None
) -> tuple[int, int, int]:
    """(channels, height, width) of the images in a run.

    Args:
        stored: (channels, height, width) of the stored images.
    """
    size = image_size or transforms.recipe(transform, name).image_size
    return (stored[0], *sides_of(size)) if size else stored


@functools.lru_cache(maxsize=8)  # of memory-mapped files
def _load(name: str, data_dir: Path | None, image_size: ImageSize | None) -> Dataset:
    return datasets.load(name, data_dir, image_size=image_size)
