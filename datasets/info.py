"""Facts about every dataset that do not need its files: sizes, defaults, location and origin of the files. They stand where it
is registered, in `datasets/loaders`, and are read from there without importing that."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import references
from bench.errors import ConfigError
from bench.registry import Registry


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about the complete dataset.

    Attributes:
        input_shape: (channels, height, width) as stored; a transform may resize images.
        model: the default model.
        description: one line.
        layout: paths of the original files below the data directory; "" if it needs none.
        train_size, test_size: in examples; None where they depend on the files, as samples of LEAF do.
        train_counts: training examples of each class; () if all classes have the same.
        num_writers: clients of the partition `natural`; None if the dataset does not name its writers. Where sizes depend
            on the files it is that of the paper.
        title: what tables and figures call it; "" for its id.
        torchvision: its class in torchvision, which downloads it; "" if there is none.
        origin: what to do to get the files, if the harness can do nothing.
    """

    num_classes: int
    input_shape: tuple[int, int, int]
    model: str
    description: str
    layout: str
    train_size: int | None = None
    test_size: int | None = None
    train_counts: tuple[int, ...] = ()
    num_writers: int | None = None
    title: str = ""
    torchvision: str = ""
    origin: str = ""

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Training examples of each class; () where they depend on the files."""
        if self.train_size is None:
            return ()
        return self.train_counts or (self.train_size // self.num_classes,) * self.num_classes


REGISTRY = Registry("dataset")
"""Name -> the function that finds it, in `datasets/loaders` or in the folder of a lab (see `datasets.of_labs`)."""


class _Facts(Mapping[str, DatasetInfo]):
    """What the decorators in `datasets/loaders` say."""

    def __getitem__(self, name: str) -> DatasetInfo:
        entry = REGISTRY[name]
        if entry.lab:
            raise KeyError(name)
        try:
            return DatasetInfo(**entry.given)
        except TypeError as error:
            raise ConfigError(
                [f"{entry.place}: registered_dataset of {name} has the fields of DatasetInfo: {error}."]
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name, entry in REGISTRY.items() if not entry.lab))

    def __len__(self) -> int:
        return sum(1 for _ in self)


INFO: Mapping[str, DatasetInfo] = _Facts()
"""Dataset id -> facts; datasets of users and labs are not in it."""

OF_USERS = {
    "imagefolder:PATH": "Your own images: PATH/{train,test}/<class>/*, or PATH/<class>/* and ?test=0.2; image_size resizes",
    "npz:PATH": "Your own arrays: x_train, y_train, x_test and y_test of an .npz file",
}
"""How datasets of users are named -> one line."""


def title_of(dataset: str) -> str:
    """What tables and figures call a dataset; one of a user has the name of its folder or file, never its path, and one of a
    lab the title in its decorator."""
    name = references.name_of(dataset) if references.is_dataset(dataset) else dataset
    is_ours = name in REGISTRY and (name == dataset or dataset.startswith(f"{references.LAB}:"))
    return REGISTRY[name].given.get("title", name) if is_ours else name


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
    return INFO[dataset].origin or f"run 'python -m bench data prepare {dataset} --data-dir DIR'"


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
