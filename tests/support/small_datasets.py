"""Small datasets of random images: folders of PNGs, and files in the formats of their sources."""

import gzip
import pickle
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
    """{train,test}/<class>/<n>.png, train and test alike."""
    for split in ("train", "test"):
        for label, name in enumerate(classes):
            for number in range(per_class):
                write_png(folder / split / name / f"{number}.png", images[label * per_class + number])


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_pickle(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(folder, per_batch=4):
    images = random_images(6 * per_batch, 3, 32)
    labels = np.arange(6 * per_batch) % 10
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for i, name in enumerate(names):
        rows = slice(i * per_batch, (i + 1) * per_batch)
        batch = {"data": images[rows].reshape(per_batch, -1), "labels": labels[rows].tolist()}
        write_pickle(folder / name, batch)
    write_pickle(folder / "batches.meta", {"label_names": [f"class-{i}" for i in range(10)]})
    return images, labels


def write_cifar100(folder):
    images = random_images(30, 3, 32)
    fine, coarse = np.arange(30) * 3, np.arange(30) % 20
    for name, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
        write_pickle(
            folder / name,
            {
                "data": images[rows].reshape(-1, 3072),
                "fine_labels": fine[rows].tolist(),
                "coarse_labels": coarse[rows].tolist(),
            },
        )
    meta = {"fine_label_names": [f"fine-{i}" for i in range(100)]}
    write_pickle(folder / "meta", meta | {"coarse_label_names": [f"coarse-{i}" for i in range(20)]})
    return images, fine, coarse


def write_idx(folder, zipped):
    folder.mkdir(parents=True)
    images, labels = random_images(15, 1, 28), np.arange(15) % 10
    for split, rows in (("train", slice(0, 10)), ("t10k", slice(10, 15))):
        for part, array in (("images-idx3", images[rows, 0]), ("labels-idx1", labels[rows])):
            if zipped:
                (folder / f"{split}-{part}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(array)))
            else:
                (folder / f"{split}-{part}-ubyte").write_bytes(idx_bytes(array))
    return images, labels


def write_svhn(folder):
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    images, labels = random_images(30, 3, 32), np.arange(30) % 10
    for name, rows in (("train", slice(0, 20)), ("test", slice(20, 30))):
        stored = np.where(labels[rows] == 0, 10, labels[rows]).astype(np.uint8)[:, None]
        savemat(folder / f"{name}_32x32.mat", {"X": images[rows].transpose(2, 3, 1, 0), "y": stored})
    return images, labels


def write_tinyimagenet(folder, wnids=("n02", "n01"), listed=("n02", "n01", "n03")):
    """The original layout; n03 is listed, and has validation images, but no training images."""
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(listed) + "\n")
    train = {wnid: random_images(11, 3, 64) for wnid in wnids}
    for wnid, images in train.items():
        for number, image in enumerate(images):
            write_png(folder / "train" / wnid / "images" / f"{wnid}_{number}.png", image)
    validation = random_images(2 * len(listed), 3, 64)
    lines = []
    for number, image in enumerate(validation):
        write_png(folder / "val" / "images" / f"val_{number}.png", image)
        lines.append(f"val_{number}.png\t{listed[number % len(listed)]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return train, validation
