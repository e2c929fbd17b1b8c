"""A small FEMNIST in the layouts of LEAF and of NIST."""

import json
from pathlib import Path

import numpy as np
from PIL import Image


def write_leaf(folder: Path, files: dict[str, dict[str, int]], seed: int = 0) -> dict[str, dict[str, dict[str, list]]]:
    """JSON files of LEAF with random images.

    Args:
        files: path below the folder -> writer -> number of images.

    Returns:
        path -> writer -> "x" and "y".
    """
    rng = np.random.default_rng(seed)
    written = {}
    for name, sizes in files.items():
        written[name] = {
            writer: {
                "x": (rng.integers(0, 256, (size, 784)) / 255).tolist(),
                "y": rng.integers(0, 62, size).tolist(),
            }
            for writer, size in sizes.items()
        }
        content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": written[name]}
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return written


TRAIN = ("train/all_data_0_niid_05_keep_100_train_9.json", "train/all_data_1_niid_05_keep_100_train_9.json")
TEST = tuple(name.replace("train", "test") for name in TRAIN)


def write_femnist(data_dir: Path, writers: int = 4, each: int = 20) -> dict[str, dict[str, dict[str, list]]]:
    """`femnist/{train,test}` with two files each; writer k has `each` + k training images."""
    names = [f"f{number:04d}_{number}" for number in range(writers)]
    files = {}
    for part, (train, test) in enumerate(zip(TRAIN, TEST, strict=True)):
        files[train] = {name: each + number for number, name in enumerate(names) if number % 2 == part}
        files[test] = {name: 3 for number, name in enumerate(names) if number % 2 == part}
    return write_leaf(data_dir / "femnist", files)


def write_nist(folder: Path, sizes: dict[str, int], codes: tuple[str, ...] = ("30", "41", "7a")) -> None:
    """`by_class` and `by_write` of NIST with 128x128 images; image k of a writer has the class codes[k % len(codes)]."""
    rng = np.random.default_rng(0)
    for writer, size in sizes.items():
        for number in range(size):
            code = codes[number % len(codes)]
            image = Image.fromarray(rng.integers(0, 256, (128, 128), dtype=np.uint8))
            for path in (
                folder / "by_class" / code / "hsf_0" / f"hsf_0_{writer}_{number}.png",
                folder / "by_write" / "hsf_0" / writer / f"d{writer}" / f"d{writer}_{number}.png",
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path)
