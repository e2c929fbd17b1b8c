"""Metrics that compare the accuracies of a run's clients with those of the same clients in a reference run."""

import json
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from bench.experiments.reference import find_references, is_reference
from bench.results.grids import StoredCell, StoredGrid
from bench.results.metrics import METRICS, compare_clients
from reports.tables.records import Records, ended_runs

NO_REFERENCE = "no reference"
NO_TEST_DATA = "no test data of clients"


def relative_scores(grid: StoredGrid, records: Records, metric: str) -> dict[str, float | str]:
    """Run id -> the metric of a run that is done, as a share, or why it has none. Reference runs themselves are left out.

    Args:
        grid: expanded grid, whose layout names the reference.
        records: run id -> record of the runs that have ended.
        metric: a relative one.
    """
    pairs = clients_beside_reference(grid, records)
    return {run: pair if isinstance(pair, str) else compare_clients(metric, *pair) for run, pair in pairs.items()}


def clients_beside_reference(grid: StoredGrid, records: Records) -> dict[str, tuple[list[float], list[float]] | str]:
    """Run id -> accuracies of the clients of a run that is done and of the same clients in its reference run, or why there are
    none; arguments as in `relative_scores`."""
    found: dict[str, tuple[list[float], list[float]] | str] = {}
    reference_of = _choose(grid, records)
    for run, cell, record in ended_runs(grid, records):
        if record["status"] != "done" or is_reference(grid["report"], cell):
            continue
        own, reference = record.get("client_accuracies"), reference_of(cell)
        if own is None:
            found[run] = NO_TEST_DATA
        elif reference is None or len(reference) != len(own):
            found[run] = NO_REFERENCE
        else:
            found[run] = (own, reference)
    return found


def is_shown(grid: StoredGrid, cell: StoredCell, metric: str) -> bool:
    """Whether a table of the metric has the cell: one of a relative metric has none for the reference itself."""
    return not (METRICS[metric].relative and is_reference(grid["report"], cell))


def _choose(grid: StoredGrid, records: Records) -> Callable[[StoredCell], list[float] | None]:
    """Cell -> accuracies of the clients in its reference run; None without one that is done.

    Of the points of a tuning set, the one with the best mean accuracy over seeds counts, as elsewhere in tables.
    """
    find = find_references(grid["report"], grid["cells"])
    reached: dict[str, list[float]] = {}
    by_point: dict[str, list[float]] = defaultdict(list)
    for run, cell, record in ended_runs(grid, records):
        if is_reference(grid["report"], cell) and record["status"] == "done" and "client_accuracies" in record:
            reached[run] = record["client_accuracies"]
            by_point[_point(cell)].append(float(np.mean(record["client_accuracies"])))

    def accuracies(cell: StoredCell) -> list[float] | None:
        done = [(run, by_point[_point(reference)]) for reference in find(cell) if (run := reference["run"]) in reached]
        if not done:
            return None
        means = [(len(of_seeds), np.mean(of_seeds)) for _, of_seeds in done]
        return reached[done[means.index(max(means))][0]]

    return accuracies


def _point(reference: StoredCell) -> str:
    """Identifies the runs of a reference that differ in their seeds only."""
    settings = {key: value for key, value in reference["config"].items() if key not in ("seed", "versions")}
    return json.dumps(settings, sort_keys=True)
