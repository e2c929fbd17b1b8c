"""Results directories with runs that were really trained, in this process: small ones, on digits."""

import functools
import json
from typing import Any

from bench.api import RunResult, run
from bench.config.resolve import trained_by
from bench.config.schema import run_id
from bench.experiments.cells import Cell, ordered, to_json
from bench.experiments.grid_loading import load_grid
from bench.results.store import Store
from bench.simulation.run import Run
from datasets import resized
from tests.support.stores import GRID, LABEL

SMALL = {"dataset": "digits", "partition": "label-2", "clients": 5, "rounds": 4, "local_epochs": 1}


@functools.cache
def _trained(settings: str) -> RunResult:
    return run(json.loads(settings))


def trained(**settings: Any) -> RunResult:
    """A small run, trained once in a process."""
    return _trained(json.dumps(SMALL | settings, sort_keys=True))


def keep(store: Store, found: RunResult, rows: list[dict] | None = None, config: dict | None = None, **record) -> str:
    """Stores a run as a driver does, sealed; returns its id.

    Args:
        rows, config, record: what its author wrote instead.
    """
    config = config or found.config.canonical()
    name = run_id(config)
    rows = [*found.run.rows] if rows is None else rows
    with store.locked():
        store.start(name, config)
        store.finish(name, rows, {**found.record, "rounds": len(rows), **record, "id": name})
    return name


def keep_grid(store: Store, found: RunResult, grid: str = LABEL) -> None:
    """Stores a grid with the cell of one run."""
    cell = Cell(found.config.dataset, {}, found.config, run_id(found.config))
    with store.locked():
        described = to_json(load_grid(GRID), "paper", {}, [cell])
        store.write_grid(grid, ordered(described, described["cells"]))


def from_base(**settings: Any) -> tuple[RunResult, dict[str, Any]]:
    """A run of a post-hoc method that has started from the end of another one, and its summary, as a record has it."""
    found = trained(**settings)
    base_config = trained_by(found.config)
    images = resized.load("digits", found.config.transform, None)
    base, after = Run(base_config, images), Run(found.config, images)
    while not base.finished:
        base.step()
    after.start_from_base(base.state)
    record = {**found.record, **after.result()}
    return RunResult(found.config, record, found.rounds, after), base.result()["summary"]
