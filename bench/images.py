"""The images of a run, resized as its transform wants them."""

import functools
from pathlib import Path

import datasets
from datasets import Dataset, transforms


def load(name: str, transform: str, data_dir: Path | None) -> Dataset:
    """A dataset in the size that a transform wants; a process opens each one once.

    Raises:
        datasets.MissingData: if its files are not there.
        datasets.DataError: if they are damaged.
    """
    return _load(name, data_dir, transforms.recipe(transform, name).image_size)


@functools.lru_cache(maxsize=8)  # of memory-mapped files
def _load(name: str, data_dir: Path | None, image_size: int | None) -> Dataset:
    return datasets.load(name, data_dir, image_size=image_size)
