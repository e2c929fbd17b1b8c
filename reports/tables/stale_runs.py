"""Runs that were trained before the code on which their numbers depend changed."""

from bench.config.stale import changes, stale_runs
from bench.results.store import UNFINISHED, Store


def with_changes(grid: dict, records: dict[str, dict], store: Store) -> dict[str, dict]:
    """Records in which, under "changed", every stale run says what has changed since it was trained.

    Args:
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: knows the code that they had.
    """
    configs = {cell["run"]: cell["config"] for cell in grid["cells"] if cell["run"] in records}
    ended = {run: config for run, config in configs.items() if records[run]["status"] not in UNFINISHED}
    found = stale_runs({run: changes(records[run], config) for run, config in ended.items()}, store)
    return records | {run: records[run] | {"changed": changed} for changed, runs in found.items() for run in runs}
