"""How much of each paper has been measured, and how far rows that are complete agree with the published ones."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import pandas as pd

from bench.results.metrics import METRICS
from reports.published.lookup import KEY, keys_of
from reports.reproduction.played import Played
from reports.tables import agreement
from reports.tables.significance import printed

Keys = Sequence[tuple[str, ...]]  # values of KEY

_TABLE = KEY.index("table")


@dataclass(frozen=True)
class Count:
    """What has been measured of a table, or of several.

    Attributes:
        played, numbers: published numbers that have been measured, and all of them.
        complete: those that have been measured with all seeds, and all points of a tuning set.
        verdicts: verdict -> how many numbers have it.
        rows, winners: complete rows, and those of them with the published winner.
        signs, compared: differences of an own method to the best baseline with the published sign, and all of complete rows.
    """

    played: int = 0
    numbers: int = 0
    complete: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    winners: int = 0
    signs: int = 0
    compared: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def count_tables(played: Sequence[Played], paper: str) -> dict[str, Count]:
    """Table -> its counts, for all published tables of a paper in the order of its file.

    A row is complete if every one of its published numbers has been measured with at least one seed.

    Args:
        played: of any papers.
    """
    keys = keys_of(paper)
    tables = Counter(key[_TABLE] for key in keys)
    return {
        table: _count([one for one in played if one.published.key[: _TABLE + 1] == (paper, table)], keys, numbers)
        for table, numbers in tables.items()
    }


def _count(played: Sequence[Played], keys: Keys, numbers: int) -> Count:
    """The counts of one table; keys are those of its paper."""
    agreements = [*_agreements(played, keys)]
    signs = [sign for one in agreements for sign in one.signs.values()]
    return Count(
        len(played),
        numbers,
        sum(one.seeds == one.planned_seeds and one.settings == one.planned_settings for one in played),
        Counter(one.verdict for one in played if one.verdict),
        rows=sum(one.rows for one in agreements),
        winners=sum(one.winners for one in agreements),
        signs=sum(same for same, _ in signs),
        compared=sum(rows for _, rows in signs),
    )


def _agreements(played: Sequence[Played], keys: Keys) -> Iterator[agreement.Agreement]:
    """The agreement of the complete rows, for each metric and set of own methods and baselines."""
    rows = defaultdict(list)
    for one in played:
        rows[one.row].append(one)
    alike = defaultdict(list)
    for row, found in rows.items():
        if _is_complete(row, found, keys):
            alike[found[0].metric, found[0].own, found[0].baselines] += found
    for (metric, own, baselines), found in alike.items():
        if baselines:
            found = [one for one in found if one.contender in (*own, *baselines)]
        sign, names = METRICS[metric].sign, dict.fromkeys(one.contender for one in found)
        lines = pd.DataFrame(
            {
                "row": [" ".join(map(str, one.row)) for one in found],
                "contender": [one.contender for one in found],
                "expected": [sign * float(one.published.mean) for one in found],
                "measured": sign * printed(pd.Series([one.mean for one in found]), metric),
            }
        )
        table = lines.pivot(index="row", columns="contender", values=["expected", "measured"])
        yield agreement.count(table["expected"][[*names]], table["measured"][[*names]], own, baselines)


def _is_complete(row: tuple[str | None, ...], played: Sequence[Played], keys: Keys) -> bool:
    """Whether all published numbers of a row have been measured, and there are two at least."""
    if not row:
        return False
    numbers = sum(all(own in (None, value) for own, value in zip(row, key, strict=True)) for key in keys)
    return numbers > 1 and sum(one.seeds > one.diverged for one in played) == numbers
