"""Lookup of published numbers in `published/*.csv` by dataset, partition, algorithm and setting."""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench.errors import unknown

FOLDER = Path(__file__).parent

# Columns that identify a published number, and those of the setting in which it was measured.
_SUBJECT = ("paper", "table", "dataset", "partition", "algorithm", "variant", "metric")
_SETTING = ("n_clients", "participation", "model")
KEY = (*_SUBJECT, *_SETTING)  # together they tell the numbers of all papers apart

_LEFT_OPEN = {
    ("fedcat", ""): "rounds, seeds, and of which round numbers are",
    ("fedconcat", "2"): "whether rounds are doubled, and the seed",
    ("fedconcat", "13"): "whether rounds are doubled, and the seed",
    ("fedcollab", "2"): "the settings of its rivals",
    ("ccvr", "1"): "the optimiser, the number of trials, and the mu of clsprox",
    (
        "ccvr",
        "2",
    ): "the optimiser, the number of trials, the mu of FedProx and MOON, and clients and rounds beyond CIFAR-10",
}


def left_open(paper: str, table: str) -> str:
    """What a paper leaves open about the budget of a table's numbers, so that "its own budget" is partly a choice of the
    grid; "" where that is not known."""
    return _LEFT_OPEN.get((paper, ""), _LEFT_OPEN.get((paper, table), ""))


@dataclass(frozen=True)
class Published:
    """One published number.

    Attributes:
        table, dataset, metric: as in the CSV.
        mean, std: as printed, with the paper's number of decimals; std is "" if none is printed.
        same_setting: whether it was measured with the requested number of clients, participation and model.
        key: its values of KEY, partition and participation in one spelling.
    """

    table: str
    dataset: str
    metric: str
    mean: str
    std: str
    same_setting: bool
    key: tuple[str, ...] = ()

    @property
    def digits(self) -> int:
        """The number of decimals of the mean."""
        return len(self.mean.partition(".")[2])

    @property
    def spread(self) -> float | None:
        """The printed std as a number; None if none is printed."""
        return float(self.std) if self.std else None

    def __str__(self) -> str:
        return f"{self.mean}±{self.std}" if self.std else self.mean


def find(
    *,
    paper: str,
    table: str,
    dataset: str,
    partition: str,
    algorithm: str,
    metric: str,
    variant: str = "",
    n_clients: str,
    participation: str,
    model: str,
) -> Published | None:
    """The published number, or None.

    If the table prints it for several settings (numbers of clients), n_clients, participation and model must match. If
    it prints one number, that one is returned, and `same_setting` tells whether they match; one that is printed without any of
    the three, as of a dataset, holds for all.

    Raises:
        ValueError: if there is no file of the paper.
    """
    subject = (paper, table, dataset, _canonical(partition), algorithm, variant, metric)
    setting = (n_clients, _normal(participation), model)
    settings = _index(paper).get(subject, {})
    if setting not in settings and len(settings) != 1:
        return None
    line = settings.get(setting) or next(iter(settings.values()))
    key = tuple(line[column] for column in KEY)
    same_setting = setting in settings or [*settings] == [("", "", "")]
    return Published(table, dataset, metric, line["mean"], line["std"], same_setting=same_setting, key=key)


def printed_again(published: Published) -> list[Published]:
    """The same number in the paper's other tables: alike in all of KEY but the table, with the same mean and std."""
    paper, table, *subject = published.key[: len(_SUBJECT)]
    setting, again = published.key[len(_SUBJECT) :], []
    for (_, other, *alike), settings in _index(paper).items():
        line = settings.get(setting) if other != table and alike == subject else None
        if line and (line["mean"], line["std"]) == (published.mean, published.std):
            key = tuple(line[column] for column in KEY)
            again.append(replace(published, table=other, key=key))
    return again


def papers() -> list[str]:
    """The papers with published numbers."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def keys_of(paper: str) -> list[tuple[str, ...]]:
    """The published numbers of a paper, each by its values of KEY, table by table in the order of the file.

    Raises:
        ValueError: if there is no file of the paper.
    """
    return [(*subject, *setting) for subject, settings in _index(paper).items() for setting in settings]


def models_of(paper: str, table: str) -> list[str]:
    """The models of a published table, as the paper calls them."""
    found = [*_index(paper).items()]
    return sorted({model for subject, lines in found if subject[1] == table for *_, model in lines})


@cache
def _index(paper: str) -> Mapping[tuple, Mapping[tuple, dict]]:
    """Subject -> setting -> line of the CSV; all fields are text, empty ones ""."""
    if paper not in papers():
        raise ValueError(unknown("paper", paper, papers()))
    index: dict[tuple, dict[tuple, dict]] = defaultdict(dict)
    with (FOLDER / f"{paper}.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            line |= {"participation": _normal(line["participation"]), "partition": _canonical(line["partition"])}
            index[tuple(line[key] for key in _SUBJECT)][tuple(line[key] for key in _SETTING)] = line
    return dict(index)


def _canonical(partition: str) -> str:
    """One spelling for dir-1 and dir-1.0, that of the partition's name; other names stay as they are."""
    kind, _, parameter = partition.rpartition("-")
    return f"{kind}-{_normal(parameter)}" if re.fullmatch(r"\d+(\.\d+)?", parameter) and kind else partition


def _normal(number: str) -> str:
    """One spelling for 1, 1.0 and 1.00; empty stays empty."""
    return f"{float(number):g}" if number else ""
