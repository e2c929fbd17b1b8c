"""Metrics that compare the accuracies of a run's clients with those of the same clients in a reference run."""

import json
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from bench.experiments.reference import find_references, is_reference
from bench.results.metrics import METRICS, compare_clients

NO_REFERENCE = "no reference"
NO_TEST_DATA = "no test data of clients"


def relative_scores(grid: dict, records: dict[str, dict], metric: str) -> dict[str, float | str]:
    """Run id -> the metric of a run that is done, as a share, or why it has none. Reference runs themselves are left out.

    Args:
        grid: expanded grid, whose layout names the reference.
        records: run id -> record of the runs that have ended.
        metric: a relative one.
    """
    found: dict[str, float | str] = {}
    reference_of = _choose(grid, records)
    for cell in grid["cells"]:
        record = records.get(cell["run"], {})
        if record.get("status") != "done" or is_reference(grid["report"], cell):
            continue
        own, reference = record.get("client_accuracies"), reference_of(cell)
        if own is None:
            found[cell["run"]] = NO_TEST_DATA
        elif reference is None or len(reference) != len(own):
            found[cell["run"]] = NO_REFERENCE
        else:
            found[cell["run"]] = compare_clients(metric, own, reference)
    return found


def is_shown(grid: dict, cell: dict, metric: str) -> bool:
    """Whether a table of the metric has the cell: one of a relative metric has none for the reference itself."""
    return not (METRICS[metric].relative and is_reference(grid["report"], cell))


def _choose(grid: dict, records: dict[str, dict]) -> Callable[[dict], list[float] | None]:
    """Cell -> accuracies of the clients in its reference run; None without one that is done.

    Of the points of a tuning set, the one with the best mean accuracy over seeds counts, as elsewhere in tables.
    """
    find = find_references(grid["report"], grid["cells"])
    reached: dict[str, list[float]] = {}
    by_point: dict[str, list[float]] = defaultdict(list)
    for cell in filter(lambda cell: is_reference(grid["report"], cell), grid["cells"]):
        record = records.get(cell["run"], {})
        if record.get("status") == "done" and "client_accuracies" in record:
            reached[cell["run"]] = record["client_accuracies"]
            by_point[_point(cell)].append(float(np.mean(record["client_accuracies"])))

    def accuracies(cell: dict) -> list[float] | None:
        done = [reference for reference in find(cell) if reference["run"] in reached]
        if not done:
            return None
        means = [(len(by_point[_point(reference)]), np.mean(by_point[_point(reference)])) for reference in done]
        return reached[done[means.index(max(means))]["run"]]

    return accuracies


def _point(reference: dict) -> str:
    """Identifies the runs of a reference that differ in their seeds only."""
    settings = {key: value for key, value in reference["config"].items() if key not in ("seed", "versions")}
    return json.dumps(settings, sort_keys=True)
