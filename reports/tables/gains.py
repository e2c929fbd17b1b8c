"""Gains of cells over a baseline cell: differences of runs of the same seed."""

from collections.abc import Iterator

import pandas as pd

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from reports.tables.aggregate import DDOF, cell_keys, scores_by_seed, units_of
from reports.tables.names import Names


def add_gains(cells: pd.DataFrame, runs: pd.DataFrame, grid: StoredGrid, metric: str) -> pd.DataFrame:
    """Cells with two more columns, gain and gain_std: mean and std over seeds of the differences from the baseline,
    so that a gain is positive where the cell is better.

    The baseline of a cell is the cell with the values of the report's `gains_over` on these axes and its own values on
    all others. Both columns are NaN for the baseline itself, and where no seed has a result of both cells.

    Args:
        cells: of `reports.tables.aggregate.summarise`.
        runs: of `reports.tables.aggregate.collect_runs`.
    """
    baseline = grid["report"].get("gains_over") or {}
    if not baseline:
        return cells.assign(gain=float("nan"), gain_std=float("nan"))
    baselines = baselines_of(cells, grid, baseline).to_numpy()
    scores = METRICS[metric].sign * scores_by_seed(cells, runs)
    differences = (scores - scores.reindex(baselines).to_numpy())[cells.index != baselines]
    std = differences.std(axis=1, ddof=DDOF[grid["std"]]).where(differences.count(axis=1) > 1)
    # Of seeds that reach a target, those that both cells have are a selection, whose difference would say something else.
    missed = cells["missed"] > 0
    partly = missed | missed.reindex(baselines).fillna(False).to_numpy()
    return cells.assign(gain=differences.mean(axis=1).mask(partly), gain_std=std.mask(partly))


def baselines_of(cells: pd.DataFrame, grid: StoredGrid, values: dict) -> pd.Series:
    """For each cell the index of the one with these values on their axes and its own on all others; NaN if there is none."""
    labels = cells[cell_keys(grid)]
    of_baselines = labels.assign(**{key: str(value) for key, value in values.items()})
    index_of = pd.Series(cells.index, pd.MultiIndex.from_frame(labels))
    return pd.Series(index_of.reindex(pd.MultiIndex.from_frame(of_baselines)).to_numpy(), cells.index)


def footnotes(cells: pd.DataFrame, grid: StoredGrid, names: Names) -> Iterator[str]:
    """What the numbers in brackets are."""
    if cells["gain"].notna().any():
        over = names.setting(grid["report"]["gains_over"]).plain
        has_costs = not all(METRICS[metric].is_share for metric in cells["metric"].unique())
        costs = " (costs: in their unit)" * has_costs
        yield f"In brackets: difference to {over}, mean±std over the same {units_of(grid)}, in points{costs}."
        if less := [METRICS[metric].title for metric in cells["metric"].unique() if METRICS[metric].less_is_better]:
            yield f"A positive difference in {', '.join(less)} is a decrease."
