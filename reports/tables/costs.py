"""Metrics of what runs have cost: in all, or until their accuracy reached a target."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS, reaches
from bench.results.records import RoundRow
from bench.results.store import Store
from reports.tables.records import Records, ReportedRecord, ended_runs

NO_ACCURACY = "no accuracy of a shared model"
NOT_RECORDED = "not recorded"
EVALUATED_ONCE = "evaluated after the last round only"
_JUDGED: tuple[Literal["accuracy", "own_accuracy"], ...] = ("accuracy", "own_accuracy")  # the first that a run reports


def with_reached(grid: StoredGrid, records: Records, store: Store) -> Records:
    """Records in which every run that is done says what the report's metrics need of its rounds: under "reached" where it
    reached each target, under "last_row" its last round.

    The former is the round's row, None if no evaluated round did, or NO_ACCURACY. Rounds are read only if a metric needs them.

    Args:
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: holds their rounds.
    """
    shown = [grid["report"]["metric"], *grid["report"].get("metrics", ())]
    targets = {target for metric in shown if metric in METRICS and (target := METRICS[metric].target) is not None}
    if not targets and not any(metric in METRICS and METRICS[metric].cost == "passes" for metric in shown):
        return records
    found, configs = dict(records), {cell["run"]: cell["config"] for cell in grid["cells"]}
    for run, record in records.items():
        if record["status"] == "done":
            rows = store.rows(run)
            found[run] = {
                **record,
                "reached": {target: _first(rows, target, configs.get(run, {})) for target in targets},
            }
            if rows:
                found[run]["last_row"] = rows[-1]
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
    if about.cost in ("minutes", "core_minutes"):
        # A run from the end of another costs both; of that one, records of earlier versions know the accuracies alone.
        own, base = ("seconds", "base_seconds") if about.cost == "minutes" else ("cpu_seconds", "base_cpu_seconds")
        known: Mapping[str, Any] = record
        parts: list[Any] = [known.get(own), known.get(base) if "base_summary" in record else 0]
        return NOT_RECORDED if None in parts else sum(parts) / 60
    if about.cost == "passes":
        last = record.get("last_row", {})
        return (last["examples"] + last.get("deploy_examples", 0)) / 1e6 if "examples" in last else NOT_RECORDED
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


def _first(rows: Sequence[RoundRow], target: float, config: Mapping[str, Any]) -> RoundRow | str | None:
    """The first evaluated round with the accuracy; None without one, a text if the run has no such accuracy.

    Args:
        config: of the run. A callback may have stopped it at the first round that was to be evaluated; any other round is
            evaluated only because it was the last.
    """
    key = next((key for key in _JUDGED if any(key in row for row in rows)), None)
    if key is None:
        return NO_ACCURACY
    last, every = rows[-1]["round"], config.get("evaluate_every")
    was_due = every is not None and last % every == 0 and last < config["rounds"]
    if sum(key in row for row in rows) == 1 and last > 1 and not was_due:
        return EVALUATED_ONCE
    return next((row for row in rows if key in row and reaches(row[key], target)), None)
