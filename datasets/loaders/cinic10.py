"""CINIC-10 as image folders; its split valid is not used."""

from pathlib import Path

from bench.registry import registered_dataset
from datasets.base import Source
from datasets.loaders import folders


@registered_dataset(
    "cinic10",
    title="CINIC-10",
    description="CIFAR-10 and images of ImageNet, without valid.",
    num_classes=10,
    input_shape=(3, 32, 32),
    train_size=90_000,
    test_size=90_000,
    model="simple-cnn",
    layout="CINIC-10/{train,test}/<class>/*",
    origin="get CINIC-10.tar.gz from its page at Edinburgh DataShare and unpack it there into CINIC-10",
)
def find(dataset: str, data_dir: Path) -> Source | None:
    """CINIC-10/{train,test}/<class>/*, or None if there is no such folder."""
    return folders.find(dataset, data_dir / "CINIC-10", channels=3)
