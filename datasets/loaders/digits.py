"""The 1,797 handwritten digits that come with scikit-learn, in a fixed stratified split."""

from pathlib import Path

import numpy as np

from bench.registry import registered_dataset
from datasets.base import Decoded, Source
from datasets.image_size import ImageSize
from datasets.loaders.images import resize


@registered_dataset(
    "digits",
    title="Digits",
    description="Handwritten digits of scikit-learn; needs no download.",
    num_classes=10,
    input_shape=(1, 8, 8),
    train_size=1437,
    test_size=360,
    train_counts=(142, 146, 142, 146, 145, 145, 145, 143, 139, 144),
    model="mlp",
    layout="",
)
def find(dataset: str, data_dir: Path | None) -> Source:
    """The images of scikit-learn, which need no files."""
    return Source("images that come with scikit-learn", None, (), _decode)


def _decode(image_size: ImageSize | None) -> Decoded:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    values, labels = load_digits(return_X_y=True)  # grey levels 0..16
    images = resize(np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), image_size)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    labels = labels.astype(np.int64)
    return Decoded(images[train], labels[train], images[test], labels[test], tuple("0123456789"))
