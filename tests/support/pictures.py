"""Images and their files: folders of PNGs, and IDX."""

import struct

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def random_images(count, channels, size):
    return RNG.integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def write_png(path, image):
    """image: [C, H, W]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(path)


def write_folders(folder, classes, images, per_class=2):
    """{train,test}/<class>/<n>.png, train and test alike; returns nothing to hide in the names' order."""
    for split in ("train", "test"):
        for label, name in enumerate(classes):
            for number in range(per_class):
                write_png(folder / split / name / f"{number}.png", images[label * per_class + number])


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
