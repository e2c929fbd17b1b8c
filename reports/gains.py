"""What cells gain over another one: differences of runs of the same seed."""

import pandas as pd

from reports.cells import cell_keys


def add_gains(cells: pd.DataFrame, runs: pd.DataFrame, grid: dict) -> pd.DataFrame:
    """Cells with two more columns: gain and gain_std, mean and std over seeds of the differences from the cell that has the
    values of the report's `gains_over` instead of its own; NaN for this one itself, and where no seed has both.

    Args:
        cells: of `reports.cells.summarise`.
        runs: of `reports.cells.collect_runs`.
    """
    keys, instead = cell_keys(grid), grid["report"].get("gains_over") or {}
    # One run may stand in several cells, where a dataset stands in for others.
    scores = runs.dropna(subset=["run", "score"]).drop_duplicates("run").set_index("run")[["seed", "score"]]
    ddof = {"population": 0, "sample": 1}[grid["std"]]

    def by_seed(cell: dict) -> pd.Series:
        return scores[scores.index.isin(cell["run_ids"].split())].set_index("seed")["score"]

    lines = cells.to_dict("records")
    places = {tuple(cell[key] for key in keys): cell for cell in lines}
    gains = []
    for cell in lines:
        baseline = places.get(tuple(str(instead.get(key, cell[key])) for key in keys))
        own = baseline is None or baseline is cell or not instead
        differences = pd.Series(dtype=float) if own else (by_seed(cell) - by_seed(baseline)).dropna()
        gains.append((differences.mean(), differences.std(ddof=ddof) if len(differences) > 1 else float("nan")))
    return cells.assign(gain=[gain for gain, _ in gains], gain_std=[std for _, std in gains])
