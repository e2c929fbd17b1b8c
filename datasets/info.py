"""Facts about every dataset that do not need its files: sizes, defaults, location and origin of the files."""

from dataclasses import dataclass
from pathlib import Path

from bench import references
from bench.registry import Registry


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about the complete dataset.

    Attributes:
        input_shape: (channels, height, width) as stored; a transform may resize images.
        train_size, test_size: in examples; None where they depend on the files, as samples of LEAF do.
        model: the default model.
        description: one line.
        layout: paths of the original files below the data directory.
        train_counts: training examples of each class; () if all classes have the same.
        num_writers: clients of the partition `natural`; None if the dataset does not name its writers. Where sizes depend
            on the files it is that of the paper.
        title: what tables and figures call it; "" for its id.
    """

    num_classes: int
    input_shape: tuple[int, int, int]
    train_size: int | None
    test_size: int | None
    model: str
    description: str
    layout: str
    train_counts: tuple[int, ...] = ()
    num_writers: int | None = None
    title: str = ""

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Training examples of each class; () where they depend on the files."""
        if self.train_size is None:
            return ()
        return self.train_counts or (self.train_size // self.num_classes,) * self.num_classes


INFO: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(
        10, (1, 8, 8), 1437, 360, "mlp", "Handwritten digits of scikit-learn; needs no download.", "none",
        (142, 146, 142, 146, 145, 145, 145, 143, 139, 144), title="Digits",
    ),
    "cifar10": DatasetInfo(
        10, (3, 32, 32), 50_000, 10_000, "simple-cnn", "Small colour photographs of 10 kinds of things.",
        "cifar-10-batches-py/", title="CIFAR-10",
    ),
    "cifar100": DatasetInfo(
        100, (3, 32, 32), 50_000, 10_000, "resnet50", "Small colour photographs of 100 kinds of things.",
        "cifar-100-python/", title="CIFAR-100",
    ),
    "cifar100-coarse": DatasetInfo(
        20, (3, 32, 32), 50_000, 10_000, "resnet50", "cifar100 with its 20 superclasses as labels.",
        "cifar-100-python/", title="CIFAR-100 (coarse)",
    ),
    "svhn": DatasetInfo(
        10, (3, 32, 32), 73_257, 26_032, "simple-cnn", "Digits of house numbers, without the split extra.",
        "{train,test}_32x32.mat",
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659), title="SVHN",
    ),
    "fmnist": DatasetInfo(
        10, (1, 28, 28), 60_000, 10_000, "simple-cnn", "Fashion-MNIST: grey pictures of 10 kinds of clothes.",
        "FashionMNIST/raw/*-ubyte[.gz]", title="FMNIST",
    ),
    "mnist": DatasetInfo(
        10, (1, 28, 28), 60_000, 10_000, "simple-cnn", "Handwritten digits of 500 writers.",
        "MNIST/raw/*-ubyte[.gz]",
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949), title="MNIST",
    ),
    "femnist": DatasetInfo(
        62, (1, 28, 28), None, None, "mcmahan2017-mnist-cnn", "Handwritten digits and letters of about 180 writers (LEAF).",
        "femnist/{train,test}/*.json", num_writers=180, title="FEMNIST",
    ),
    "tinyimagenet": DatasetInfo(
        200, (3, 64, 64), 100_000, 10_000, "resnet50", "200 classes of ImageNet at 64x64 pixels.",
        "tiny-imagenet-200/{wnids.txt,train,val}", title="Tiny-ImageNet",
    ),
    "cinic10": DatasetInfo(
        10, (3, 32, 32), 90_000, 90_000, "simple-cnn", "CIFAR-10 and images of ImageNet, without valid.",
        "CINIC-10/{train,test}/<class>/*", title="CINIC-10",
    ),
}  # fmt: skip
"""Dataset id -> facts; datasets of users are not in it."""

OF_LABS = Registry("dataset")
"""Name -> function of a lab, see `datasets.of_labs`, which checks them."""

OF_USERS = {
    "imagefolder:PATH": "Your own images: PATH/{train,test}/<class>/*, or PATH/<class>/* and ?test=0.2; image_size resizes",
    "npz:PATH": "Your own arrays: x_train, y_train, x_test and y_test of an .npz file",
}
"""How datasets of users are named -> one line."""

_ORIGINS = {  # of datasets that torchvision does not download
    "tinyimagenet": "get tiny-imagenet-200.zip from the page of Stanford's course CS231n and unpack it there",
    "cinic10": "get CINIC-10.tar.gz from its page at Edinburgh DataShare and unpack it there into CINIC-10",
}


def title_of(dataset: str) -> str:
    """What tables and figures call a dataset; one of a user has the name of its folder or file, never its path, and one of a
    lab the title in its decorator."""
    if dataset in INFO:
        return INFO[dataset].title or dataset
    name = references.name_of(dataset) if references.is_dataset(dataset) else dataset
    of_lab = name in OF_LABS and (name == dataset or dataset.startswith(f"{references.LAB}:"))
    return OF_LABS[name].given.get("title", name) if of_lab else name


def folder_of(dataset: str) -> Path | None:
    """The path of a dataset of a user, of a reference its name alone; None for any other dataset."""
    if not references.is_dataset(dataset):
        return None
    reference = references.read(dataset)
    return Path(reference.name if reference else dataset.partition(":")[2])


def remedy(dataset: str) -> str:
    """What to do about missing or damaged files of a dataset."""
    if dataset not in INFO:
        return f"restore the images of {dataset}"
    return _ORIGINS.get(dataset, f"run 'python -m bench data prepare {dataset} --data-dir DIR'")


def expected(dataset: str) -> str:
    """The expected location of the files of a dataset."""
    if dataset.startswith("npz:"):
        return "expected an .npz file with x_train, y_train, x_test and y_test"
    if dataset not in INFO:
        return (
            "expected {train,test}/<class>/<image> in it, or <class>/<image> and the share of each class that is for testing, "
            "as imagefolder:PATH?test=0.2"
        )
    return f"expected {INFO[dataset].layout} or {dataset}/{{train,test}}/<class>/<image> in the data directory"
