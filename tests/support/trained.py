"""Results directories with runs that were really trained, in this process: small ones, on digits."""

import functools
import json
from typing import Any

from bench.api import RunResult, run
from bench.config.resolve import trained_by
from bench.config.schema import run_id
from bench.experiments.cells import Cell
from bench.experiments.grid_loading import single
from bench.experiments.grid_schema import PAPER
from bench.experiments.spec import ExperimentSpec
from bench.results.metrics import summarise
from bench.results.store import Store
from bench.simulation.run import Run
from datasets import resized
from tests.support.stored_experiments import store_cells

SMALL = {"dataset": "digits", "partition": "label-2", "clients": 5, "rounds": 4, "local_epochs": 1}


@functools.cache
def _trained(settings: str) -> RunResult:
    return run(json.loads(settings))


def trained(**settings: Any) -> RunResult:
    """A small run, trained once in a process."""
    return _trained(json.dumps(SMALL | settings, sort_keys=True))


def to_end(run: Run) -> Run:
    """The run, trained to its end."""
    while not run.finished:
        run.step()
    return run


def store_run(store: Store, cell: Cell, run: Run) -> None:
    """Trains the run of a cell to its end, and stores what comes out."""
    store.start(cell.id, cell.config.canonical())
    to_end(run)
    store.finish(cell.id, run.rows, run.result() | {"id": cell.id, "rounds": len(run.rows)})


def without_times(rows: list[dict]) -> list[dict]:
    """Rounds without what another machine would need."""
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def keep(store: Store, found: RunResult, rows: list[dict] | None = None, config: dict | None = None, **record) -> str:
    """Stores a run as a driver does, sealed; returns its id.

    Args:
        rows, config, record: what its author wrote instead; the exchanged bytes follow from the rounds.
    """
    config = config or found.config.canonical()
    name = run_id(config)
    rows = [*found.run.rows] if rows is None else rows
    exchanged = sum(rows[-1].get(key, 0) for key in ("bytes_down", "bytes_up")) if rows else 0
    record = {**found.record, "rounds": len(rows), "bytes_per_client": exchanged, **record, "id": name}
    with store.locked():
        store.start(name, config)
        store.finish(name, rows, {key: value for key, value in record.items() if value is not None})
    return name


def rewrite(store: Store, found: RunResult, change, **record) -> str:
    """Stores a run whose author has changed its rounds in place, and let its summary follow from them; returns its id."""
    rows = [dict(row) for row in found.run.rows]
    rows = change(rows) or rows
    return keep(store, found, rows, **{"summary": summarise(rows)} | record)


def keep_grid(store: Store, found: RunResult) -> str:
    """Stores the grid of one run, as the command line makes it, and returns its name."""
    config = found.config
    setting = {"algorithm": config.algorithm["name"], "dataset": config.dataset, "partition": config.partition}
    options = {key: value for key, value in config.algorithm.items() if key != "name"}
    overrides = {key: value for key, value in SMALL.items() if key not in setting} | options
    return store_cells(store, ExperimentSpec(single(setting, [config.seed]), PAPER, overrides=overrides))


def from_base(engine: str = "auto", **settings: Any) -> tuple[RunResult, dict[str, Any]]:
    """A run of a post-hoc method that has started from the end of another one, and its summary, as a record has it.

    Args:
        engine: of both.
    """
    found = trained(**settings)
    base_config = trained_by(found.config)
    images = resized.load("digits", found.config.transform, None)
    base, after = Run(base_config, images, engine=engine), Run(found.config, images, engine=engine)
    after.start_from_base(to_end(base).state)
    record = {**found.record, **after.result()}
    return RunResult(found.config, record, found.rounds, after), base.result()["summary"]
