"""Downloads of datasets by torchvision; FEMNIST is made from files that are already there."""

from pathlib import Path

from bench import references
from bench.errors import unknown
from bench.files import from_home
from datasets import femnist, of_labs
from datasets.base import DataError
from datasets.info import INFO, OF_USERS, expected, remedy

# A class of torchvision has a root below the data directory, and arguments per split.
_USUAL = "", ({"train": True}, {"train": False})
_UNUSUAL = {"SVHN": ("svhn", ({"split": "train"}, {"split": "test"}))}


def prepare(name: str, data_dir: Path | None) -> None:
    """Downloads or makes a dataset in `data_dir`, unless it is already there.

    Raises:
        ValueError: no such dataset.
        DataError: torchvision does not have it, the download failed, or files to make it from are missing.
    """
    if of_labs.entry_of(name):
        raise DataError(f"{name} is a dataset of a lab, whose function finds its files: see there how to get them.")
    if name not in INFO and not references.is_dataset(name):
        raise ValueError(unknown("dataset", name, [*INFO, *OF_USERS]))
    info = INFO.get(name)
    if info and not info.layout:
        return
    class_name = info.torchvision if info else ""
    if not class_name and name != femnist.NAME:
        raise DataError(f"torchvision does not download {name}; {remedy(name)} ({expected(name)}).")
    if data_dir is None:
        raise DataError(f"{name} needs a data directory to download to; name it with --data-dir.")
    if name == femnist.NAME:
        _make_femnist(from_home(data_dir))
        return
    from torchvision import datasets as torchvision_datasets

    folder, splits = _UNUSUAL.get(class_name, _USUAL)
    root = from_home(data_dir) / folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        for split in splits:
            getattr(torchvision_datasets, class_name)(root=str(root), download=True, **split)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"Could not download {name} to {root} ({error}); check the connection and the folder and "
            f"try again, or copy the files there ({expected(name)})."
        ) from error


def _make_femnist(data_dir: Path) -> None:
    try:
        femnist.prepare(data_dir)
    except OSError as error:
        raise DataError(f"Could not write femnist to {data_dir} ({error}); make room there and try again.") from error
