"""FEMNIST from the files of LEAF or of NIST, sampled as LEAF's `preprocess.sh -s niid --sf 0.05 -k 100 -t sample` does.

In every group of 100 writers, whole writers are drawn at random until 5 % of the images of the group are reached; the last
one keeps as many images as are missing. Writers with fewer than 100 images are left out. Of each writer, 90 % of the images
are for training. LEAF seeds its draws by the clock, unless it is told otherwise; here the draws are always the same.

Differs from LEAF: its first image of every writer but the first appears twice; here once.
"""

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.base import LARGEST_IMAGE, DataError, broken, opened
from datasets.loaders.images import list_images, natural_order
from datasets.loaders.leaf import CLASSES, FOLDERS, SIDE, find, json_files, read_writers

NAME = "femnist"
FRACTION = 0.05  # of the images of a group of writers
SMALLEST_WRITER = 100  # images
TRAIN_SHARE = 0.9
WRITERS_PER_GROUP = 100
SEED = 0

Writers = dict[str, list[Any]]  # writer -> examples


def prepare(data_dir: Path) -> None:
    """Writes `femnist/{train,test}/*.json` below `data_dir`, unless such files are there, and complete.

    The sources are `all_data/*.json` of LEAF, or the unpacked folders `by_class` and `by_write` of NIST Special Database 19,
    in `femnist` or where LEAF has them.

    Raises:
        DataError: there is neither, or their files are damaged.
    """
    with suppress(DataError):  # files of which some are missing or damaged are made again
        if find(NAME, data_dir):
            return
    for folder in (data_dir / name for name in FOLDERS):
        if files := json_files(folder / "all_data"):
            _write(data_dir / NAME, _groups_of_leaf(files))
            return
    for folder in (data_dir / name / raw for name in FOLDERS for raw in ("", "raw_data")):
        if (folder / "by_class").is_dir() and (folder / "by_write").is_dir():
            _write(data_dir / NAME, _groups_of_nist(folder))
            return
    raise DataError(
        f"femnist is made from files that are not in {data_dir}: download by_class.zip and by_write.zip of NIST Special "
        f"Database 19 (https://www.nist.gov/srd/nist-special-database-19), unpack both in {data_dir / NAME} and try again, "
        f"or copy the folders train and test of LEAF's data/femnist/data there."
    )


def sample(writers: Writers, rng: random.Random) -> Writers:
    """Whole writers drawn at random until `FRACTION` of all examples; the last one may lose some of its own."""
    missing = int(FRACTION * sum(map(len, writers.values())))
    chosen = {}
    for writer in rng.sample(list(writers), len(writers)):
        if missing <= 0:
            break
        kept = min(missing, len(writers[writer]))
        complete = kept == len(writers[writer])
        chosen[writer] = writers[writer] if complete else rng.sample(writers[writer], kept)
        missing -= kept
    return chosen


def split(examples: list[Any], rng: random.Random) -> tuple[list[Any], list[Any]]:
    """Training and test examples of one writer, in their order; both have at least one if there are two."""
    size = 1 if len(examples) == 2 else max(1, int(TRAIN_SHARE * len(examples)))
    chosen = set(rng.sample(range(len(examples)), size))
    train = [example for index, example in enumerate(examples) if index in chosen]
    return train, [example for index, example in enumerate(examples) if index not in chosen]


def _groups_of_leaf(files: list[Path]) -> Iterator[Writers]:
    """Examples (grey levels, label) of the writers of each file."""
    for path in files:
        content = read_writers(path, NAME)
        try:
            yield {writer: list(zip(data["x"], data["y"], strict=True)) for writer, data in content.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise broken(path, error, NAME) from error


def _groups_of_nist(folder: Path) -> Iterator[Writers]:
    """Examples (path, label) of the writers of `by_write`, whose labels are those of the same images in `by_class`."""
    labels = {}
    for class_folder in _folders(folder / "by_class"):
        for part in _folders(class_folder):
            if part.name.startswith("hsf") and "mit" not in part.name:
                for path in list_images(str(part)):
                    labels[_checksum(path)] = _label(class_folder)
    writers: Writers = {}
    for part in _folders(folder / "by_write"):
        for writer in _folders(part):
            paths = [path for kind in _folders(writer) for path in list_images(str(kind))]
            examples = writers.setdefault(writer.name, [])
            for path in paths:
                if (checksum := _checksum(path)) not in labels:
                    raise DataError(
                        f"{path} is not among the images of {folder / 'by_class'}; unpack both archives again."
                    )
                examples.append((path, labels[checksum]))
    names = list(writers)
    for start in range(0, len(names), WRITERS_PER_GROUP):
        yield {name: writers[name] for name in names[start : start + WRITERS_PER_GROUP]}


def _write(folder: Path, groups: Iterator[Writers]) -> None:
    """Writes the training and test file of each group. Those for training appear last, when all others are there: what an
    interruption has left is never taken for the whole."""
    rng, texts = random.Random(SEED), dict[str, dict[str, str]]({"test": {}, "train": {}})
    for number, group in enumerate(groups):
        kept = {name: own for name, own in sample(group, rng).items() if len(own) >= SMALLEST_WRITER}
        if not kept:
            continue
        parts = {name: split(own, rng) for name, own in kept.items()}
        for index, part in enumerate(("train", "test")):
            chosen = {name: [_pixels(*example) for example in own[index]] for name, own in parts.items()}
            content = {
                "users": list(chosen),
                "num_samples": list(map(len, chosen.values())),
                "user_data": {
                    name: {"x": [x for x, _ in own], "y": [y for _, y in own]} for name, own in chosen.items()
                },
            }
            texts[part][f"all_data_{number}_niid_05_keep_100_{part}_9.json"] = json.dumps(content)
    if not texts["train"]:
        raise DataError(
            f"No writer of {NAME} with at least {SMALLEST_WRITER} images is among the {FRACTION:.0%} that LEAF draws; "
            "the files are incomplete: download and unpack them again."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".made-", dir=folder) as workspace:
        for files in texts.values():
            for name, text in files.items():
                Path(workspace, name).write_text(text)
        for part, files in texts.items():
            (folder / part).mkdir(exist_ok=True)
            for name in files:
                os.replace(Path(workspace, name), folder / part / name)


def _pixels(image: Any, label: int) -> tuple[list[float], int]:
    """Grey levels [784] in [0, 1] of an image, which is the path of a file or already a list, and its label."""
    if not isinstance(image, str):
        return image, label
    import numpy as np
    from PIL import Image

    try:
        with opened(image, _folder_of(image), NAME, LARGEST_IMAGE) as file, Image.open(file) as found:
            grey = found.convert("L")
    except DataError:
        raise
    except Exception as error:  # a damaged file can make a decoder fail in almost any way
        raise broken(image, error, NAME) from error
    grey.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return (np.asarray(grey).reshape(-1) / 255).tolist(), label


def _label(folder: Path) -> int:
    """The label of a folder of `by_class`, whose name is the code of a character: "30" is the digit 0."""
    try:
        return CLASSES.index(chr(int(folder.name, 16)))
    except ValueError as error:
        raise DataError(
            f"{folder} is not the code of a digit or letter; unpack by_class.zip into a folder of its own."
        ) from error


def _folders(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: natural_order(path.name))


def _checksum(path: str) -> str:
    with opened(path, _folder_of(path), NAME, LARGEST_IMAGE) as file:
        return hashlib.md5(file.read(), usedforsecurity=False).hexdigest()


def _folder_of(image: str) -> Path:
    """The folder of NIST's files that holds an image: by_class/30/hsf_0/x.png or by_write/hsf_0/f0000_00/x/x.png lies in it."""
    path = Path(image)
    return next(parent.parent for parent in path.parents if parent.name in ("by_class", "by_write"))
