"""Metrics of what runs have cost: in all, or until their accuracy reached a target."""

import math
from collections.abc import Sequence
from typing import Literal

from bench.results.metrics import METRICS, reaches
from bench.results.records import RoundRow, StoredGrid
from bench.results.store import Store
from reports.tables.records import Records, ReportedRecord, ended_runs

NO_ACCURACY = "no accuracy of a shared model"
NOT_RECORDED = "not recorded"
EVALUATED_ONCE = "evaluated after the last round only"
_JUDGED: tuple[Literal["accuracy", "own_accuracy"], ...] = ("accuracy", "own_accuracy")  # the first that a run reports


def with_reached(grid: StoredGrid, records: Records, store: Store) -> Records:
    """Records in which, under "reached", every run that is done says where it reached each target of the report's metrics.

    That is the round's row, None if no evaluated round did, or NO_ACCURACY. Rounds are read only if a metric has a target.

    Args:
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: holds their rounds.
    """
    shown = [grid["report"]["metric"], *grid["report"].get("metrics", ())]
    targets = {target for metric in shown if metric in METRICS and (target := METRICS[metric].target) is not None}
    if not targets:
        return records
    found = dict(records)
    for run, record in records.items():
        if record["status"] == "done":
            rows = store.rows(run)
            found[run] = {**record, "reached": {target: _first(rows, target) for target in targets}}
    return found


def cost_scores(grid: StoredGrid, records: Records, metric: str) -> dict[str, float | str]:
    """Run id -> what a run that is done has cost, NaN if it did not reach the target, or why that is not known.

    Args:
        grid: expanded grid.
        records: of `with_reached`.
        metric: one with a cost.
    """
    return {run: _cost(record, metric) for run, _, record in ended_runs(grid, records) if record["status"] == "done"}


def _cost(record: ReportedRecord, metric: str) -> float | str:
    about = METRICS[metric]
    if about.cost == "minutes":
        # A run from the end of another costs both; of that one, records of earlier versions know the accuracies alone.
        parts = [record.get("seconds"), record.get("base_seconds") if "base_summary" in record else 0]
        known = [part for part in parts if part is not None]
        return sum(known) / 60 if len(known) == len(parts) else NOT_RECORDED
    if about.target is None:
        return record["bytes_per_client"] / 1e6 if "bytes_per_client" in record else NOT_RECORDED
    row = record["reached"][about.target]
    if isinstance(row, str):
        return row
    if row is None:
        return math.nan
    if about.cost == "rounds":
        return row["round"]
    return (row["bytes_down"] + row["bytes_up"]) / 1e6 if {"bytes_down", "bytes_up"} <= row.keys() else NOT_RECORDED


def _first(rows: Sequence[RoundRow], target: float) -> RoundRow | str | None:
    """The first evaluated round with the accuracy; None without one, a text if the run has no such accuracy."""
    key = next((key for key in _JUDGED if any(key in row for row in rows)), None)
    if key is None:
        return NO_ACCURACY
    if sum(key in row for row in rows) == 1 and rows[-1]["round"] > 1:
        return EVALUATED_ONCE
    return next((row for row in rows if key in row and reaches(row[key], target)), None)
