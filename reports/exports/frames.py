"""A results directory as tables for pandas: its runs, their rounds, and the cells of a report."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.errors import StoreError
from bench.experiments.labels import UNWRAPPED
from bench.results import columns
from bench.results.grids import StoredCell
from bench.results.ids import is_metric_name
from bench.results.metrics import ACCURACIES
from bench.results.records import RoundRow, RunRecord
from bench.results.store import Store
from datasets.skew import Skew
from reports.tables.aggregate import current_cells, with_tried
from reports.tables.report import Report

_SETTINGS = ("dataset", "partition", "algorithm", "base", "model", "clients", "participation", "seed")
_DESCRIBED = ("run", *_SETTINGS, "partition_kind", *columns.PARTITION)
_ROUND = ("round", *ACCURACIES, "loss", "bytes_down", "bytes_up", "examples", "seconds")
_SUMMARY = ("last", "best", "last10", "last10_std")
_COST = ("seconds", "base_seconds", "cpu_seconds", "base_cpu_seconds", "bytes_per_client")
_MACHINE = ("engine", "device", "threads", "peak_memory_mb", "commit", "data_note", "started", "finished")
_CELL = ("dataset", "partition", "algorithm", "model", "clients", "participation", "metric", "value")
_NUMBERS = (
    *("mean", "std", "seeds", "done", "missed", "diverged", "failed", "choice", "chosen_on", "tried", "settings"),
    *("gain", "gain_std", "best", "not_significant", "p_value", "published_mean", "published_std", "difference"),
    *("verdict", "missing", "substitute", "run_ids"),
)


def runs_frame(store: Store) -> pd.DataFrame:
    """One line per run that has ended, with the columns that `bench.api.load_runs` describes."""
    described, runs = _described_runs(store)
    grids = _grids_by_run(store)
    lines = [_ended(record) | {"grids": grids.get(run_id, [])} for run_id, record in runs.items()]
    ended = pd.DataFrame(lines).dropna(axis=1, how="all")
    for key in ended.columns.intersection(["started", "finished"]):
        ended[key] = pd.to_datetime(ended[key], utc=True, errors="coerce")
    return pd.concat([described, ended], axis=1)


def rounds_frame(store: Store, grids: Sequence[str] | None = None) -> pd.DataFrame:
    """One line per round of every run that has ended, for each grid that shows it, with the columns that
    `bench.api.load_rounds` describes.

    Args:
        grids: the stored `<grid>@<budget>` whose runs are wanted; None for all runs, also those that no grid shows.
    """
    places: dict[str, list[dict[str, Any]]] = {}
    for label in store.grids() if grids is None else grids:
        grid, _, budget = label.partition("@")
        for run, cell in _shown_cells(store, label).items():
            replaced = {"substitute_for": cell["dataset"]} if cell["substitute"] else {}
            places.setdefault(run, []).append({"grid": grid, "budget": budget} | replaced)
    described, runs = _described_runs(store, None if grids is None else places)
    described["status"] = [record["status"] for record in runs.values()]
    shown = [(number, place) for number, run_id in enumerate(runs) for place in places.get(run_id, [{}])]
    by_run = [store.rows(run_id) for run_id in runs]
    numbers = np.repeat(np.arange(len(shown)), [len(by_run[number]) for number, _ in shown])
    about = described.take([number for number, _ in shown]).reset_index(drop=True)
    replaces = ["substitute_for"] * any("substitute_for" in place for _, place in shown)
    named = pd.DataFrame([place for _, place in shown], columns=["grid", "budget", *replaces], dtype=object)
    about = pd.concat([named, about], axis=1).take(numbers).reset_index(drop=True)
    return pd.concat([about, rows_frame([row for number, _ in shown for row in by_run[number]])], axis=1)


def rows_frame(rows: Sequence[RoundRow]) -> pd.DataFrame:
    """What was measured in rounds, one line each; only numbers."""
    flat = [
        {key: value for key, value in (row | row.get("metrics", {})).items() if not isinstance(value, dict | list)}
        for row in rows
    ]
    return _first(pd.DataFrame(flat, columns=None if flat else ["round"]), _ROUND)


def cells_frame(report: Report) -> pd.DataFrame:
    """One line per cell and metric of a report, with the columns that `bench.api.table` describes."""
    axes = [key for table in report.tables for key in (*table.row_keys, table.column_key) if key in report.cells]
    published = report.cells["published"]
    cells = (
        with_tried(report.cells)
        .assign(
            published_mean=[float(number.mean) if number else None for number in published],
            published_std=[number.spread if number else None for number in published],
            run_ids=report.cells["run_ids"].str.split(),
        )
        .astype({"published_mean": float, "published_std": float})
    )
    keys = list(dict.fromkeys([*axes, *(key for key in _CELL if key in cells)]))
    return pd.concat([cells[keys].apply(_numeric), cells[[name for name in _NUMBERS if name in cells]]], axis=1)


def _described_runs(store: Store, wanted: Collection[str] | None = None) -> tuple[pd.DataFrame, dict[str, RunRecord]]:
    """What was run, one line per run that has ended: its id, settings and options. And run id -> record, in the same order.

    Args:
        wanted: ids of the runs; None for all.

    Raises:
        StoreError: if no run has ended.
    """
    if wanted is None:
        records = store.records()
    else:  # read what is wanted alone, whatever else the directory holds
        records = {run_id: record for run_id in wanted if (record := store.record(run_id))}
    configs = {run_id: config for run_id in records if (config := store.config(run_id))}
    if not configs:
        raise StoreError(
            f"No run has ended in {store.folder}; `python -m bench run` continues, or starts, those of a grid."
        )
    about = pd.DataFrame({"base": UNWRAPPED, **columns.described(config)} for config in configs.values())
    about = about[sorted(about, key=lambda name: name.rpartition(".")[0])]  # settings, then options, method by method
    described = pd.concat([pd.Series([*configs], name="run", dtype=object), about], axis=1)
    order = [key for key in (*_SETTINGS, "run") if key in described]
    described = _first(described, _DESCRIBED).sort_values(order, ignore_index=True)
    return described, {run_id: records[run_id] for run_id in described["run"]}


def _ended(record: Mapping[str, Any]) -> dict[str, Any]:
    """How a run ended, in one flat mapping; None for what its record does not say."""
    named = (name for of in record["summary"].values() for name in of if is_metric_name(name))
    scores = {
        f"{name}_{value}": record["summary"].get(value, {}).get(name)
        for name in (*ACCURACIES, *dict.fromkeys(named))
        for value in _SUMMARY
    }
    skew = {key: record.get("skew", {}).get(key) for key in Skew._fields}
    others = {key: record.get(key) for key in (*_COST, "client_accuracies", *_MACHINE)}
    first = {"status": record["status"], "reason": record.get("reason", ""), "rounds_trained": record.get("rounds")}
    return first | scores | skew | others


def _grids_by_run(store: Store) -> dict[str, list[str]]:
    """Run id -> the `<grid>@<budget>` of the stored grids that show it."""
    found: dict[str, list[str]] = {}
    for name in store.grids():
        for run in _shown_cells(store, name):
            found.setdefault(run, []).append(name)
    return found


def _shown_cells(store: Store, label: str) -> dict[str, StoredCell]:
    """Run id -> its cell, of the runs that have ended and that tables of a stored grid show."""
    if (grid := store.grid(label)) is None:
        return {}
    records = store.records_of(grid)
    return {run: cell for cell in current_cells(grid, records) if (run := cell["run"]) and run in records}


def _first(frame: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    """The same columns, those with these names first."""
    first = [name for name in names if name in frame]
    return frame[[*first, *(name for name in frame if name not in names)]]


def _numeric(column: pd.Series) -> pd.Series:
    """Labels of a table as numbers, if all of them are."""
    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        return column
