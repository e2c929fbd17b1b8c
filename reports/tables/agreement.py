"""Agreement of a measured table with the published one: the winner of each row, and the sign of the paper's gains."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.published.lookup import Published
from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from reports.tables.aggregate import competitors_of, contest_keys, contest_name
from reports.tables.layout import half_up
from reports.tables.rankings import titles_of_competitors
from reports.tables.significance import competitors


@dataclass(frozen=True)
class Agreement:
    """In how many rows a measured table says what the published one says.

    Attributes:
        rivals, complete: rows with two published numbers at least, and those of them that have been measured.
        rows: those of the complete ones that have a winner: whose published means are not all equal.
        winners: those with a common winner; equal best means are all winners.
        baselines: the columns with whose best the paper's own are compared.
        signs: own column -> (rows in which its difference to the best baseline has the same sign, rows that have it).
    """

    rivals: int
    complete: int
    rows: int
    winners: int
    baselines: tuple[str, ...]
    signs: dict[str, tuple[int, int]]


def footnotes(grid: StoredGrid, cells: pd.DataFrame) -> Iterator[str]:
    """One sentence per metric with published numbers: in how many rows the winner agrees, and in how many the sign of
    (method - best baseline).

    A row counts if at least two of the cells that compete in it have a published number, and all of these are complete. The
    sentence names a budget that is not the paper's: after its few rounds another order may hold than at the end of training.
    Nothing is said of a table where no complete row has a winner or a method of the paper's own.

    Args:
        grid: expanded grid; `reproduces` names the paper's `own` columns and the `baselines` (none: all others).
        cells: compared cells of all metrics.
    """
    if not (reproduces := grid["reproduces"]):
        return
    own, baselines = ([*map(str, methods)] for methods in (reproduces.get("own", ()), reproduces.get("baselines", ())))
    found, named = competing(grid, cells), titles_of_competitors(grid)
    found = found.assign(measured=competitors(found)["mean"])  # NaN for all others
    for metric, lines in found.groupby("metric", sort=False):
        table = lines.pivot(index=contest_keys(grid), columns="competitor", values=["published", "measured"])
        published, measured = (table[of][lines["competitor"].unique()] for of in ("published", "measured"))
        counted = count(published, measured, own, baselines, METRICS[metric].sign)
        if parts := "; ".join(_parts(counted, named)):
            of = f" ({METRICS[metric].title})" if found["metric"].nunique() > 1 else ""
            of += "" if grid["budget"] == "paper" else f", measured at budget {grid['budget']} and not at the paper's,"
            yield (
                f"Agreement with the published table{of} over the complete {contest_name(grid)}s, "
                f"{counted.complete} of {counted.rivals}: {parts}."
            )


def competing(grid: StoredGrid, cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of a reproduced table that compete with others, with a further column, competitor: those with a published
    number, but for methods on pooled data.

    Args:
        grid: expanded grid that reproduces a table.
        cells: compared cells.
    """
    found = cells[cells["published"].notna() & (cells["partition"] != "none")]
    return found.assign(competitor=competitors_of(found, grid))


def count(
    published: pd.DataFrame,
    means: pd.DataFrame,
    own: Sequence[str] = (),
    baselines: Sequence[str] = (),
    sign: int = 1,
) -> Agreement:
    """The agreement of a table with the published one.

    Means are compared with the decimals that the paper prints. Equal best means are all winners, and the tables agree on a row
    if they share a winner.

    Args:
        published: `Published` [rows, columns]; NaN where the paper prints none.
        means: measured means [rows, columns]; NaN where there is none.
        own, baselines: columns; no baselines are all others, and columns that are neither do not compete.
        sign: -1 where less is better.
    """
    published = contenders(published, own, baselines)
    shown = {name: [*map(_as_printed, means[name], published[name])] for name in published}
    measured = sign * pd.DataFrame(shown, published.index, dtype=float)
    expected = sign * published.map(lambda number: float(number.mean), na_action="ignore").astype(float)
    rivals = expected.notna().sum(axis=1) > 1
    complete = rivals & (measured.notna() | expected.isna()).all(axis=1)
    expected, measured = expected[complete], measured[complete]
    winners = _winners(expected) & _winners(measured)
    others = [name for name in expected if name not in own]
    signs = {}
    for name in (name for name in own if name in expected and others):
        found = [np.sign(table[name] - table[others].max(axis=1)).dropna() for table in (expected, measured)]
        signs[name] = int((found[0] == found[1]).sum()), len(found[0])
    return Agreement(
        rivals=int(rivals.sum()),
        complete=int(complete.sum()),
        rows=int(_winners(expected).any(axis=1).sum()),
        winners=int(winners.any(axis=1).sum()),
        baselines=tuple(others),
        signs=signs,
    )


def contenders(published: pd.DataFrame, own: Sequence[str], baselines: Sequence[str]) -> pd.DataFrame:
    """The columns that compete, as in `count`: not, for example, an oracle."""
    return published[[name for name in published if not baselines or name in (*own, *baselines)]]


def _as_printed(mean: float, number: Published | float) -> float:
    """A measured mean with the decimals of the published number; NaN without that."""
    return round(half_up(mean), number.digits) if isinstance(number, Published) else math.nan


def _parts(found: Agreement, named: Mapping[str, str]) -> Iterator[str]:
    """The parts of the sentence; named is what columns are called."""
    if found.rows:
        yield f"same winner in {found.winners} of {found.rows}"
    if any(rows for _, rows in found.signs.values()):
        counts = ", ".join(f"{same} of {rows} for {named[name]}" for name, (same, rows) in found.signs.items() if rows)
        baselines = ", ".join(named[name] for name in found.baselines)
        yield f"same sign of (method - best of {baselines}) in {counts}"


def _winners(means: pd.DataFrame) -> pd.DataFrame:
    best = means.eq(means.max(axis=1), axis=0)
    return best[best.sum(axis=1) < means.notna().sum(axis=1)].reindex(means.index, fill_value=False)
