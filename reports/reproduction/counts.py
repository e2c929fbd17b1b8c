"""How much of each paper has been measured, and how far rows that are complete agree with the published ones."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

import pandas as pd

from bench.published.lookup import KEY, keys_of
from bench.results.metrics import METRICS
from reports.reproduction.measured import Measured
from reports.reproduction.planned import Contest, Plans
from reports.tables import agreement

_TABLE = KEY.index("table")


@dataclass(frozen=True)
class Count:
    """What has been measured of a table, or of several.

    Attributes:
        measured, numbers: published numbers that have been measured, and all of them.
        verdicts: verdict -> how many numbers have it.
        rows, winners: complete rows with a published winner, and those of them with the same one.
        signs, compared: differences of an own method to the best baseline with the published sign, and all of complete rows.
    """

    measured: int = 0
    numbers: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    winners: int = 0
    signs: int = 0
    compared: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def count_tables(measured: Sequence[Measured], paper: str, plans: Plans) -> dict[str, Count]:
    """Table -> its counts, for all published tables of a paper in the order of its file.

    A row is complete if each of its published numbers that compete, two at least, has been measured with at least one seed.

    Args:
        measured: of any papers.
    """
    numbers, of_tables = Counter(key[_TABLE] for key in keys_of(paper)), defaultdict(list)
    for one in measured:
        if one.published.key[0] == paper:
            of_tables[one.published.table].append(one)
    return {table: _count(of_tables[table], paper, table, numbers[table], plans) for table in numbers}


def _count(measured: Sequence[Measured], paper: str, table: str, numbers: int, plans: Plans) -> Count:
    """The counts of one table."""
    contests = plans.contests(paper, table) if len(measured) > 1 else ()
    agreements = [_agreement(measured, contest) for contest in contests]
    signs = [sign for one in agreements for sign in one.signs.values()]
    return Count(
        len(measured),
        numbers,
        Counter(one.verdict for one in measured if one.verdict),
        rows=sum(one.rows for one in agreements),
        winners=sum(one.winners for one in agreements),
        signs=sum(same for same, _ in signs),
        compared=sum(rows for _, rows in signs),
    )


def _agreement(measured: Sequence[Measured], contest: Contest) -> agreement.Agreement:
    """The agreement of a contest."""
    by_key = {one.published.key: one for one in measured}
    numbers = agreement.contenders(contest.numbers, contest.own, contest.baselines)
    found = numbers.apply(lambda row: _means(row.dropna(), by_key).reindex(row.index), axis=1)
    return agreement.count(numbers, found, contest.own, contest.baselines, METRICS[contest.metric].sign)


def _means(row: "pd.Series[Any]", measured: Mapping[tuple[str, ...], Measured]) -> "pd.Series[float]":
    """The means of a row over the seeds that all of its numbers have, because other seeds have other clients; those over all
    seeds where the scores of single seeds are not known.

    Args:
        row: competitor -> `Published`.
    """
    found = {name: measured[number.key] for name, number in row.items() if number.key in measured}
    seeds = set.intersection(*({*one.scores} for one in found.values())) if found else set()
    known = all(one.scores for one in found.values())
    means = {
        name: fmean(one.scores[seed] for seed in seeds) if seeds else math.nan if known else one.mean
        for name, one in found.items()
    }
    return pd.Series(means, dtype=float)
