"""Lookup of published numbers by dataset, partition, algorithm and setting: those of `bench/published`, and of labs."""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench.errors import ConfigError
from bench.registry import Registry

PAPERS = Registry("paper")
"""Name of a paper, as grids have it -> its file."""

# Columns that identify a published number, and those of the setting in which it was measured.
_SUBJECT = ("paper", "table", "dataset", "partition", "algorithm", "variant", "metric")
_SETTING = ("n_clients", "participation", "model")
KEY = (*_SUBJECT, *_SETTING)  # together they tell the numbers of all papers apart
COLUMNS = (*KEY, "mean", "std")
"""What the file of a paper has at least, as text; where a number has no std, variant or setting, that is empty."""

_LEFT_OPEN = {
    ("fedcat", ""): "rounds, seeds, and of which round numbers are",
    ("fedconcat", "2"): "whether rounds are doubled, and the seed",
    ("fedconcat", "3"): "the seed",
    ("fedconcat", "6"): "the epochs of the heads",
    ("fedconcat", "7"): "the epochs of the heads",
    ("fedconcat", "9"): "the large model of the baselines",
    ("fedconcat", "12"): "the seed, and how classifiers start",
    ("fedconcat", "13"): "whether rounds are doubled, and the seed",
    ("fedcollab", "1"): "the options of its rivals, and the seeds",
    ("fedcollab", "2"): "the settings of its rivals",
    ("ccvr", "1"): "the optimiser, the number of trials, and the mu of clsprox",
    (
        "ccvr",
        "2",
    ): "the optimiser, the number of trials, the mu of FedProx and MOON, the form of FedAvgM, and beyond CIFAR-10 "
    "clients, rounds and the variant of MobileNetV2",
    ("fedlab", "rounds"): "the learning rates",
    ("fedvls", "best-round"): "the rounds of FedConcat's stages, and where it has 2 or 4 clusters",
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
    return sorted(PAPERS)


def describe(paper: str) -> str:
    """How many numbers of which tables are known of a paper.

    Raises:
        ConfigError: with all that is wrong in its file.
    """
    numbers = keys_of(paper)
    tables = dict.fromkeys(table for _, table, *_ in numbers)
    return f"{len(numbers):,} published number{'s' * (len(numbers) != 1)} of table {', '.join(tables)}"


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


def _index(paper: str) -> Mapping[tuple, Mapping[tuple, dict]]:
    """Subject -> setting -> line of the CSV; all fields are text, empty ones ""."""
    return _read(paper, PAPERS.find(paper).path)


@cache
def _read(paper: str, path: Path) -> Mapping[tuple, Mapping[tuple, dict]]:
    """See `_index`.

    Raises:
        ConfigError: with all that is wrong in the file.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [*csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError([f"{path} cannot be read as CSV: {error}."]) from error
    if lacking := [column for column in COLUMNS if not lines or column not in lines[0]]:
        raise ConfigError(
            [f"{path} has no line with the columns {', '.join(lacking)}; docs/own-grid.md has an example."]
        )
    index: dict[tuple, dict[tuple, dict]] = defaultdict(dict)
    mistakes = []
    for at, line in enumerate(lines, 2):
        if wrong := _wrong(line, paper):
            mistakes.append(f"{path}, line {at}: {wrong}.")
            continue
        line |= {"participation": _normal(line["participation"]), "partition": _canonical(line["partition"])}
        subject, setting = (tuple(line[key] for key in part) for part in (_SUBJECT, _SETTING))
        if index[subject].setdefault(setting, line) is not line:
            mistakes.append(f"{path}, line {at}: its number is there already; leave one out.")
    if mistakes:
        raise ConfigError(mistakes)
    return dict(index)


def _wrong(line: dict, paper: str) -> str:
    """Why a line holds no published number of a paper; "" if it does."""
    if None in line or None in line.values():  # as csv.DictReader has fields without a column, and columns without one
        return "it has another number of fields than the first line"
    if line["paper"] != paper:
        return f"paper is {line['paper']!r}, expected {paper!r}, the name of the file"
    for column, example in (("mean", "53.6"), ("std", "0.8, or nothing"), ("participation", "0.1, or nothing")):
        if not re.fullmatch(r"-?\d+(\.\d+)?", line[column]) and (line[column] or column == "mean"):
            return f"{column} is {line[column]!r}, expected a number as printed, such as {example}"
    return ""


def _canonical(partition: str) -> str:
    """One spelling for dir-1 and dir-1.0, that of the partition's name; other names stay as they are."""
    kind, _, parameter = partition.rpartition("-")
    return f"{kind}-{_normal(parameter)}" if re.fullmatch(r"\d+(\.\d+)?", parameter) and kind else partition


def _normal(number: str) -> str:
    """One spelling for 1, 1.0 and 1.00; empty stays empty."""
    return f"{float(number):g}" if number else ""
