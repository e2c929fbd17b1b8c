"""The files of an experiment: which datasets and weights are there, which are absent, and which replace absent datasets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import datasets
from bench.config.resolve import weights_files
from bench.config.schema import RunConfig
from bench.experiments.cells import Cell
from bench.experiments.spec import ExperimentSpec
from datasets import Dataset, DatasetInfo, resized
from datasets.image_size import ImageSize

View = tuple[str, str, ImageSize | None]  # dataset, transform, image size


def view_of(config: RunConfig) -> View:
    """The images that a run reads."""
    return config.dataset, config.transform, config.image_size


@dataclass(frozen=True)
class Images:
    """The datasets of an experiment, and its files with weights.

    Attributes:
        found: name -> images, also of the datasets that replace absent ones.
        absent: name -> what to do to get them.
        substitutes: name of an absent dataset -> the one that replaces it.
        absent_weights: name of a file that is not there -> what to do to get it.
        digests: dataset, transform and image size of a run -> digest of its images; name of a file with weights -> its sha256.
    """

    found: Mapping[str, Dataset]
    absent: Mapping[str, str]
    substitutes: Mapping[str, str]
    absent_weights: Mapping[str, str]
    digests: Mapping[View | str, str] = field(default_factory=dict)

    @property
    def none_found(self) -> str:
        """What to do, if no dataset has images; "" if one has."""
        return "" if self.found else " ".join(self.absent.values())

    def suffice_for(self, cell: Cell) -> bool:
        """Whether the files of a cell are there."""
        has_images = {cell.dataset, self.substitutes.get(cell.dataset)} & self.found.keys()
        return bool(has_images) and not self.absent_weights.keys() & weights_files(cell.config)

    @property
    def facts(self) -> dict[str, DatasetInfo]:
        """Dataset -> its sizes: those of the images that are there, also under the name of the dataset that they replace;
        those of the complete dataset where there are none."""
        facts = {**datasets.INFO} | {name: dataset.facts for name, dataset in self.found.items()}
        return facts | {name: facts[other] for name, other in self.substitutes.items()}

    @property
    def are_complete(self) -> bool:
        """Whether every file is there, and every dataset with the sizes of the complete one; never if these depend on the
        files."""
        sizes = {name: _sizes(dataset.facts) for name, dataset in self.found.items()}
        known = {name: _sizes(datasets.INFO[name]) for name in sizes if name in datasets.INFO}
        return not self.absent and not self.absent_weights and sizes == known


def locate(spec: ExperimentSpec, cells: Iterable[Cell], data_dir: Path | None) -> Images:
    """Finds and decodes the images of cells, before workers would wait for them.

    Raises:
        datasets.DataError: if a dataset is there but damaged, or one that is to replace another is absent; or if no cell
            has its files and the grid repeats no published table, beside which the lack of numbers would say something.
        ValueError: if weights are there but damaged, or not those of a ResNet-18.
    """
    cells = list(cells)
    weights, absent_weights = _weights(cells, data_dir)
    views = dict.fromkeys(view_of(cell.config) for cell in cells)
    found, absent = _load(views, data_dir)
    used = {name: spec.substitutes[name] for name in absent if name in spec.substitutes}
    replacing = [(used[name], transform, size) for name, transform, size in views if name in used]
    others, without = _load(replacing, data_dir)
    for sentence in without.values():
        raise datasets.DataError(sentence)
    loaded = found | others
    digests = {view: dataset.digest for view, dataset in loaded.items()} | weights
    images = Images({view[0]: dataset for view, dataset in loaded.items()}, absent, used, absent_weights, digests)
    has_folder = data_dir is not None and data_dir.is_dir()
    lacking = [*absent.values(), *absent_weights.values()]
    if lacking and not any(map(images.suffice_for, cells)) and not (has_folder and spec.grid.reproduces):
        raise datasets.DataError(lacking[0])
    return images


def _load(views: Iterable[View], data_dir: Path | None) -> tuple[dict[View, Dataset], dict[str, str]]:
    """Datasets by view, those in their own size last; and the absent ones by name, with what to do."""
    found, absent = {}, {}
    for name, transform, image_size in sorted(views, key=lambda view: view[2] is None):
        try:
            found[name, transform, image_size] = resized.load(name, transform, data_dir, image_size)
        except datasets.MissingData as error:
            absent[name] = str(error)
    return found, absent


def _weights(cells: Iterable[Cell], data_dir: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Name of each file with weights -> its sha256; and of each that is not there -> what to do. Reading checks them."""
    from bench.models import pretrained  # imports torch

    found, absent = {}, {}
    for name in dict.fromkeys(name for cell in cells for name in weights_files(cell.config)):
        try:
            found[name] = pretrained.load(name, data_dir).digest
        except pretrained.MissingWeights as error:
            absent[name] = str(error)
    return found, absent


def _sizes(info: DatasetInfo) -> tuple:
    return info.num_classes, info.input_shape, info.train_size, info.test_size
