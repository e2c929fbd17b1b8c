"""Agreement of a measured table with the published one: the winner of each row, and the sign of the paper's gains."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from bench.results.metrics import METRICS
from reports.tables.aggregate import contenders_of, contest_keys, contest_name
from reports.tables.significance import contenders, printed


def footnotes(grid: dict, cells: pd.DataFrame) -> Iterator[str]:
    """One sentence per metric with published numbers: in how many rows the winner agrees, and in how many the sign of
    (method - best baseline).

    A row counts if at least two of its cells have a published number and all of these are complete. Means are compared
    as printed. Equal best means are all winners, and the tables agree on a row if they share a winner. A row whose means
    are all equal has no winner. The sentence names a budget that is not the paper's: after its few rounds another order may
    hold than at the end of training.

    Args:
        grid: expanded grid; `mirrors` names the paper's `own` columns and the `baselines` (none: all others).
        cells: compared cells of all metrics.
    """
    if not grid["mirrors"]:
        return
    own, baselines = ([str(name) for name in grid["mirrors"].get(key, ())] for key in ("own", "baselines"))
    found = cells[cells["published"].notna() & (cells["partition"] != "none")]
    found = found.assign(contender=contenders_of(found, grid))
    if baselines:
        found = found[found["contender"].isin([*own, *baselines])]
    found = found.assign(
        expected=[float(published.mean) for published in found["published"]],
        measured=printed(contenders(found)["mean"]),  # NaN for all others
    )
    for metric, lines in found.groupby("metric", sort=False):
        table = lines.pivot(index=contest_keys(grid), columns="contender", values=["expected", "measured"])
        expected, measured = (
            METRICS[metric].sign * table[of][lines["contender"].unique()] for of in ("expected", "measured")
        )
        rivals = expected.notna().sum(axis=1) > 1
        complete = rivals & (measured.notna() | expected.isna()).all(axis=1)
        if complete.any():
            of = f" ({METRICS[metric].title})" if found["metric"].nunique() > 1 else ""
            of += "" if grid["budget"] == "paper" else f", measured at budget {grid['budget']} and not at the paper's,"
            parts, rows = _parts(expected[complete], measured[complete], own, baselines), f"{contest_name(grid)}s"
            yield (
                f"Agreement with the published table{of} over the complete {rows}, {complete.sum()} of {rivals.sum()}: "
                f"{'; '.join(parts)}."
            )


def _parts(expected: pd.DataFrame, measured: pd.DataFrame, own: list[str], baselines: list[str]) -> Iterator[str]:
    """The parts of the sentence, from published and measured means [rows, columns] that miss the same cells."""
    winners = _winners(expected) & _winners(measured)
    yield f"same winner in {winners.any(axis=1).sum()} of {len(expected)}"
    others = [name for name in expected if name in baselines or not baselines and name not in own]
    counts = []
    for name in (name for name in own if name in expected and others):
        signs = [np.sign(means[name] - means[others].max(axis=1)).dropna() for means in (expected, measured)]
        counts.append(f"{(signs[0] == signs[1]).sum()} of {len(signs[0])} for {name}")
    if counts:
        yield f"same sign of (method - best of {', '.join(others)}) in {', '.join(counts)}"


def _winners(means: pd.DataFrame) -> pd.DataFrame:
    best = means.eq(means.max(axis=1), axis=0)
    return best[best.sum(axis=1) < means.notna().sum(axis=1)].reindex(means.index, fill_value=False)
