"""What cells gain over another one: differences of runs of the same seed."""

import pandas as pd

from reports.tables.aggregate import cell_keys, scores_by_seed


def add_gains(cells: pd.DataFrame, runs: pd.DataFrame, grid: dict) -> pd.DataFrame:
    """Cells with two more columns: gain and gain_std, mean and std over seeds of the differences from the cell that has the
    values of the report's `gains_over` instead of its own; NaN for this one itself, and where no seed has both.

    Args:
        cells: of `reports.tables.aggregate.summarise`.
        runs: of `reports.tables.aggregate.collect_runs`.
    """
    instead = grid["report"].get("gains_over") or {}
    if not instead:
        return cells.assign(gain=float("nan"), gain_std=float("nan"))
    places = pd.MultiIndex.from_frame(cells[cell_keys(grid)])
    wanted = cells[cell_keys(grid)].assign(**{key: str(value) for key, value in instead.items()})
    baselines = pd.Series(cells.index, places).reindex(pd.MultiIndex.from_frame(wanted)).to_numpy()
    scores = scores_by_seed(cells, runs)
    differences = (scores - scores.reindex(baselines).to_numpy())[cells.index != baselines]
    ddof = {"population": 0, "sample": 1}[grid["std"]]
    spread = differences.std(axis=1, ddof=ddof).where(differences.count(axis=1) > 1)
    return cells.assign(gain=differences.mean(axis=1), gain_std=spread)
