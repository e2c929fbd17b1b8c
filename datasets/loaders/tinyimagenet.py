"""Tiny-ImageNet in its original layout; the labelled validation images are the test split."""

from pathlib import Path

from bench.registry import registered_dataset
from datasets.base import LARGEST_LIST, DataError, Source, broken, opened, require
from datasets.info import remedy
from datasets.loaders import folders
from datasets.loaders.images import list_images, natural_order

_LONGEST_NAME = 255  # letters of a file name


@registered_dataset(
    "tinyimagenet",
    title="Tiny-ImageNet",
    description="200 classes of ImageNet at 64x64 pixels.",
    num_classes=200,
    input_shape=(3, 64, 64),
    train_size=100_000,
    test_size=10_000,
    model="resnet50",
    layout="tiny-imagenet-200/{wnids.txt,train,val}",
    origin="get tiny-imagenet-200.zip from the page of Stanford's course CS231n and unpack it there",
)
def find(dataset: str, data_dir: Path) -> Source | None:
    """wnids.txt, train/<wnid>/images/* and val/{val_annotations.txt,images/*}; None if there is no wnids.txt.

    A copy with fewer than 200 classes is usable; its classes are those with training images.

    Raises:
        DataError: the annotations are missing or damaged, or a class lacks images in one split.
    """
    for folder in (data_dir / "tiny-imagenet-200", data_dir / dataset):
        if (folder / "wnids.txt").is_file():
            train = _list_train(folder, dataset)
            return folders.source(dataset, folder, train, _list_validation(folder, list(train), dataset), channels=3)
    return None


def _list_train(folder: Path, dataset: str) -> dict[str, list[str]]:
    train = {}
    for wnid in sorted(_text(folder / "wnids.txt", folder, dataset).split()):
        _require_name(wnid, folder / "wnids.txt", "a class", dataset)
        images = folder / "train" / wnid / "images"
        if images.is_dir() and (paths := list_images(str(images))):
            train[wnid] = paths
    if not train:
        raise DataError(f"{folder / 'train'} has no images of the classes in wnids.txt; restore {dataset}.")
    return train


def _list_validation(folder: Path, classes: list[str], dataset: str) -> dict[str, list[str]]:
    (annotations,) = require(folder / "val", ["val_annotations.txt"], dataset)
    listing: dict[str, list[str]] = {wnid: [] for wnid in classes}
    seen: set[str] = set()
    for line in _text(Path(annotations), folder, dataset).splitlines():
        fields = line.split("\t")
        if len(fields) < 2:
            raise broken(annotations, f"line {line!r} has no class", dataset)
        _require_name(fields[0], annotations, "an image in val/images", dataset)
        if fields[0] in seen:
            raise broken(annotations, f"it names the image {fields[0]!r} twice", dataset)
        seen.add(fields[0])
        if fields[1] in listing:
            listing[fields[1]].append(str(folder / "val" / "images" / fields[0]))
    for wnid, paths in listing.items():
        if not paths:
            raise DataError(f"{annotations} names no image of class {wnid}, which has training images; restore it.")
        paths.sort(key=natural_order)
    return listing


def _require_name(text: str, path: object, of: str, dataset: str) -> None:
    """Raises DataError if a text in a file leads out of the folder in which it names something."""
    if text != Path(text).name or "\0" in text or text == ".." or len(text) > _LONGEST_NAME:
        raise DataError(f"{path} has {text[:_LONGEST_NAME]!r}, which is not the name of {of}; {remedy(dataset)}.")


def _text(path: Path, folder: Path, dataset: str) -> str:
    try:
        with opened(path, folder, dataset, LARGEST_LIST) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise broken(path, error, dataset) from error
