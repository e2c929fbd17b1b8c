"""Agreement of a measured table with the published one: the winner of each row, and the sign of the paper's gains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.results.metrics import METRICS
from reports.tables.aggregate import contenders_of, contest_keys, contest_name
from reports.tables.significance import contenders


@dataclass(frozen=True)
class Agreement:
    """In how many rows a measured table says what the published one says.

    Attributes:
        rows: how many are compared, without those whose published means are all equal: these have no winner.
        winners: those with a common winner; equal best means are all winners.
        baselines: the columns with whose best the paper's own are compared.
        signs: own column -> (rows in which its difference to the best baseline has the same sign, rows that have it).
    """

    rows: int
    winners: int
    baselines: tuple[str, ...]
    signs: dict[str, tuple[int, int]]


def footnotes(grid: dict, cells: pd.DataFrame) -> Iterator[str]:
    """One sentence per metric with published numbers: in how many rows the winner agrees, and in how many the sign of
    (method - best baseline).

    A row counts if at least two of its cells have a published number and all of these are complete. Means are compared
    with the decimals that the paper prints. Equal best means are all winners, and the tables agree on a row if they share a
    winner. Nothing is said of a table where no complete row has a winner or a method of the paper's own. The sentence names a
    budget that is not the paper's: after its few rounds another order may hold than at the end of
    training.

    Args:
        grid: expanded grid; `mirrors` names the paper's `own` columns and the `baselines` (none: all others).
        cells: compared cells of all metrics.
    """
    if not grid["mirrors"]:
        return
    own, baselines = ([str(name) for name in grid["mirrors"].get(key, ())] for key in ("own", "baselines"))
    found = competing(grid, cells)
    if baselines:
        found = found[found["contender"].isin([*own, *baselines])]
    means = contenders(found)["mean"]  # those of all others are NaN
    found = found.assign(
        expected=[float(published.mean) for published in found["published"]],
        measured=pd.Series(
            {cell: round(mean, found["published"][cell].digits) for cell, mean in means.items()}, dtype=float
        ),
    )
    for metric, lines in found.groupby("metric", sort=False):
        table = lines.pivot(index=contest_keys(grid), columns="contender", values=["expected", "measured"])
        expected, measured = (
            METRICS[metric].sign * table[of][lines["contender"].unique()] for of in ("expected", "measured")
        )
        rivals = expected.notna().sum(axis=1) > 1
        complete = rivals & (measured.notna() | expected.isna()).all(axis=1)
        parts = "; ".join(_parts(count(expected[complete], measured[complete], own, baselines)))
        if parts:
            of = f" ({METRICS[metric].title})" if found["metric"].nunique() > 1 else ""
            of += "" if grid["budget"] == "paper" else f", measured at budget {grid['budget']} and not at the paper's,"
            yield (
                f"Agreement with the published table{of} over the complete {contest_name(grid)}s, "
                f"{complete.sum()} of {rivals.sum()}: {parts}."
            )


def competing(grid: dict, cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of a mirrored table that compete with others, with a further column, contender: those with a published number,
    but for methods on pooled data.

    Args:
        grid: expanded grid that mirrors a table.
        cells: compared cells.
    """
    found = cells[cells["published"].notna() & (cells["partition"] != "none")]
    return found.assign(contender=contenders_of(found, grid))


def count(
    expected: pd.DataFrame, measured: pd.DataFrame, own: Sequence[str] = (), baselines: Sequence[str] = ()
) -> Agreement:
    """The agreement of two tables.

    Args:
        expected, measured: published and measured means, [rows, columns], the larger the better; both miss the same cells.
        own, baselines: columns; no baselines are all others.
    """
    winners = _winners(expected) & _winners(measured)
    others = [name for name in expected if name in baselines or not baselines and name not in own]
    signs = {}
    for name in (name for name in own if name in expected and others):
        found = [np.sign(means[name] - means[others].max(axis=1)).dropna() for means in (expected, measured)]
        signs[name] = int((found[0] == found[1]).sum()), len(found[0])
    rows = _winners(expected).any(axis=1).sum()
    return Agreement(int(rows), int(winners.any(axis=1).sum()), tuple(others), signs)


def _parts(found: Agreement) -> Iterator[str]:
    """The parts of the sentence."""
    if found.rows:
        yield f"same winner in {found.winners} of {found.rows}"
    if found.signs:
        counts = ", ".join(f"{same} of {rows} for {name}" for name, (same, rows) in found.signs.items())
        yield f"same sign of (method - best of {', '.join(found.baselines)}) in {counts}"


def _winners(means: pd.DataFrame) -> pd.DataFrame:
    best = means.eq(means.max(axis=1), axis=0)
    return best[best.sum(axis=1) < means.notna().sum(axis=1)].reindex(means.index, fill_value=False)
