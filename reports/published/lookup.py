"""The numbers that the papers print, from `published/*.csv`, by what they were measured on."""

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.errors import unknown

FOLDER = Path(__file__).parent

# What a published number is about. The remaining keys describe the setting it was measured in.
_SUBJECT = ("paper", "table", "dataset", "partition", "algorithm", "variant", "metric")
_SETTING = ("n_clients", "participation", "model")


@dataclass(frozen=True)
class Published:
    """One published number.

    Attributes:
        paper, table, dataset, metric: where it stands and what it measures, as in the CSV.
        mean, std: as printed, with the paper's own number of decimals; std is "" where none is printed.
        same_setting: whether it was measured with the number of clients, participation and model asked for.
    """

    paper: str
    table: str
    dataset: str
    metric: str
    mean: str
    std: str
    same_setting: bool

    @property
    def spread(self) -> float | None:
        """The printed std as a number, None where none is printed."""
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
    """The published number on a subject, if there is one.

    A table may print a subject for several settings (numbers of clients): then only an exact match counts.
    Otherwise the one number is returned and says whether its setting is the one asked for.

    Raises:
        ValueError: if there is no file of the paper.
    """
    subject = (paper, table, dataset, partition, algorithm, variant, metric)
    setting = (n_clients, _normal(participation), model)
    settings = _index(paper).get(subject, {})
    line = settings.get(setting)
    if line is None and len(settings) == 1:
        (line,) = settings.values()
    if line is None:
        return None
    return Published(paper, table, dataset, metric, line["mean"], line["std"], same_setting=setting in settings)


def papers() -> list[str]:
    """The papers of which there are numbers."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


@cache
def _index(paper: str) -> Mapping[tuple, Mapping[tuple, dict]]:
    """Subject -> setting -> line of the CSV, everything as text: an empty field is "", never a NaN."""
    if paper not in papers():
        raise ValueError(unknown("paper", paper, papers()))
    index = defaultdict(dict)
    with (FOLDER / f"{paper}.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            line["participation"] = _normal(line["participation"])
            index[tuple(line[key] for key in _SUBJECT)][tuple(line[key] for key in _SETTING)] = line
    return dict(index)


def _normal(number: str) -> str:
    """One spelling for 1, 1.0 and 1.00; empty stays empty."""
    return f"{float(number):g}" if number else ""
