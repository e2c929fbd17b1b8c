"""Runs that have ended, as reports read them: their stored records, and what reports add."""

from collections.abc import Iterator, Mapping
from typing import NotRequired, TypeVar

import algorithms
from bench.results.grids import StoredCell, StoredGrid
from bench.results.records import Config, RoundRow, RunRecord


class ReportedRecord(RunRecord):
    """The record of a run in a report.

    Attributes:
        changed: what has changed since it was trained, see `reports.tables.stale_runs.with_changes`; missing if nothing has.
        reached, last_row: target -> the round that reached it, and the last round, see `reports.tables.costs.with_reached`;
            missing where no metric needs them.
    """

    changed: NotRequired[str]
    reached: NotRequired[dict[float, RoundRow | str | None]]
    last_row: NotRequired[RoundRow]


Records = Mapping[str, ReportedRecord]
"""Run id -> record of the runs that have ended."""

Record = TypeVar("Record", bound=RunRecord)


def left_behind(config: Config) -> Iterator[tuple[str, int]]:
    """The methods of a run, with those that they wrap, whose files are at a later version now, and the version of the run."""
    for path, name in algorithms.methods_in(config["algorithm"]):
        version = config["versions"].get(path, 1)
        if name in algorithms.REGISTRY and version < algorithms.version_of(name)[0]:
            yield name, version


def ended_runs(grid: StoredGrid, records: Mapping[str, Record]) -> Iterator[tuple[str, StoredCell, Record]]:
    """Id, cell and record of each run of a grid that has ended, in the grid's order; a run of several cells comes with each."""
    for cell in grid["cells"]:
        run = cell["run"]
        if run is not None and run in records:
            yield run, cell, records[run]


def distinct_runs(grid: StoredGrid, records: Mapping[str, Record]) -> dict[str, tuple[Record, Config]]:
    """Run id -> record and config of the runs of a grid that have ended, each once."""
    return {run: (record, cell["config"]) for run, cell, record in ended_runs(grid, records)}
