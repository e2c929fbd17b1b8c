"""The published number beside each measured cell, with the difference and, if the settings agree, a verdict."""

import pandas as pd

from bench.published.lookup import PAPERS, Published, find
from bench.published.tolerances import Rule, rule
from bench.results.grids import StoredGrid
from datasets.info import INFO

# The papers' names for the accuracies of the run records.
_PUBLISHED_METRICS = {
    "accuracy": ("test_accuracy", "test_accuracy_last10"),
    "local_accuracy": ("local_accuracy",),
    "own_accuracy": ("own_accuracy", "local_accuracy"),
}


def own_value(grid: StoredGrid) -> str:
    """The rounds whose accuracy the grid's paper prints: `last` unless the grid names `best` or `last10`."""
    return grid["report"].get("rounds_shown", "last")


def further_values(grid: StoredGrid, value: str) -> list[str]:
    """The other rounds of which a report with the grid's own value shows accuracies."""
    return [*grid["report"].get("also", ())] if value == own_value(grid) else []


def is_comparable(grid: StoredGrid, value: str) -> bool:
    """Whether budget and rounds are those of the paper; otherwise there is no verdict."""
    return grid["budget"] == "paper" and value == own_value(grid)


def taken_for(grid: StoredGrid) -> dict[str, str]:
    """Models of cells -> those of the published table for which the grid takes them."""
    return grid["reproduces"].get("models", {}) if grid["reproduces"] else {}


def partitions_taken_for(grid: StoredGrid) -> dict[str, str]:
    """Partitions of cells -> those of the published table for which the grid takes them."""
    return grid["reproduces"].get("partitions", {}) if grid["reproduces"] else {}


def compare(cells: pd.DataFrame, grid: StoredGrid, metric: str, value: str) -> pd.DataFrame:
    """Cells with four more columns: published (or None), difference (points, or NaN), verdict ("" if none), and the largest
    difference that is inside, band (points, NaN without a verdict).

    Cells on substituted or incomplete data have no published counterpart, and unmeasured ones no difference. A verdict
    needs all seeds, the paper's own budget, settings and rounds, and a published number for the same clients, participation
    and model (or the one for which the grid takes the cell's).
    """
    counterparts = [_counterpart(cell, grid, metric) for cell in cells.to_dict("records")]
    cells = cells.assign(
        published=pd.Series(counterparts, dtype=object),
        difference=[
            cell.mean - float(published.mean) if published else float("nan")
            for cell, published in zip(cells.itertuples(), counterparts, strict=True)
        ],
        verdict="",
        band=float("nan"),
    )
    if grid["verdict"] and is_comparable(grid, value):
        judged = [_judged(cell, rule(grid["verdict"])) for cell in cells.itertuples()]
        cells[["verdict", "band"]] = pd.DataFrame(judged, cells.index, ["verdict", "band"])
    return cells


def _counterpart(cell: dict, grid: StoredGrid, metric: str) -> Published | None:
    if not grid["reproduces"] or grid["reproduces"]["paper"] not in PAPERS or cell["substitute"] or cell["data_note"]:
        return None
    for published_metric in _PUBLISHED_METRICS.get(metric, (metric,)):
        found = find(
            paper=grid["reproduces"]["paper"],
            table=str(grid["reproduces"]["table"]),
            metric=published_metric,
            dataset=cell["dataset"],
            partition=partitions_taken_for(grid).get(cell["partition"], cell["partition"]),
            algorithm=cell["algorithm"] if cell["published_as"] == "-" else cell["published_as"],
            variant="" if cell["variant"] == "-" else cell["variant"],
            n_clients=_published_clients(cell),
            participation=cell["participation"],
            model=taken_for(grid).get(cell["model"], cell["model"]),
        )
        if found:
            return found
    return None


def _published_clients(cell: dict) -> str:
    """The number of clients of the published cell that a cell is compared with."""
    if cell["partition"] == "none":  # one client, also where the grid sets another number for all cells
        return "1"
    info = INFO.get(cell["dataset"])
    if cell["partition"] == "natural" and info and info.num_writers:  # each draw of LEAF has other writers
        return str(info.num_writers)
    return cell["clients"]


def _judged(cell, by: Rule) -> tuple[str, float]:
    if not (cell.complete and cell.published and cell.published.same_setting):
        return "", float("nan")
    return by.judge(cell.published, cell.mean, None if pd.isna(cell.std) else cell.std, cell.seeds)
