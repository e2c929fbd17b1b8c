"""Runs that were trained before the code on which their numbers depend changed."""

from collections.abc import Mapping

from bench.config.stale import stale_runs
from bench.results.grids import StoredGrid
from bench.results.records import RunRecord
from bench.results.store import Store
from reports.tables.records import ReportedRecord, distinct_runs


def with_changes(grid: StoredGrid, records: Mapping[str, RunRecord], store: Store) -> dict[str, ReportedRecord]:
    """Records in which, under "changed", every stale run says what has changed since it was trained.

    Args:
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: knows the code that they had.
    """
    reported: dict[str, ReportedRecord] = {run: {**record} for run, record in records.items()}
    for changed, stale in stale_runs(distinct_runs(grid, records), store).items():
        for run in stale:
            reported[run]["changed"] = changed
    return reported
