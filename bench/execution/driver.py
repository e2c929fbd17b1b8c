"""Plays the runs of a plan and puts their results into the store."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.cost import examples_to_train
from bench.grid import Cell
from bench.grid_spec import GridSpec
from bench.names import pairs
from bench.plan import Plan, Request, keep_of
from bench.resources import Machines
from bench.store import Store, StoreError

if TYPE_CHECKING:
    from bench.folders import Folder
    from bench.tracking import Tracker

_MARK = "driver.pt"  # by which the machines of a cluster know that they see the storage


def play(
    request: Request,
    plan: Plan,
    store: Store,
    console: Console,
    machines: Machines,
) -> dict[str, int]:
    """Plays what is left to do; the store must be locked.

    Returns:
        Status -> number of runs.
    """
    from bench import tune  # Ray takes seconds to import
    from bench.progress import Display
    from bench.worker import Job

    shown = {
        cell.id: (name_of(cell, request.grid), 0 if cell.id in plan.bases else examples_to_train(cell.config))
        for cell in plan.todo
    }
    with mark_of(request, store, machines.address) as mark, Display(console, shown).shown() as display:
        jobs = [
            Job(
                cell.id,
                cell.config,
                folder_of(cell.id, request, store),
                keep_of(request, cell, store, is_base=cell.id in plan.bases.values()),
                request.checkpoint_seconds,
                request.engine,
                base=base_folder(plan.bases.get(cell.id), request, store),
                mark=mark,
            )
            for cell in plan.todo
        ]
        tune.play(
            jobs,
            store,
            display,
            data_dir=request.data_dir,
            machines=machines,
            storage=request.storage,
            facts={"commit": commit()},
            tracker=_tracker(request, plan, store, display),
        )
    return display.ended_by


def _tracker(request: Request, plan: Plan, store: Store, display) -> "Tracker | None":
    """Who tells a tracking service how the runs go, if that was asked for."""
    from bench.tracking import Tracker

    if request.track is None:
        return None
    names = {cell.id: name_of(cell, request.grid) for cell in plan.todo}
    return Tracker(request.track, request.label, names, store.folder / "tracking", display.said)


def failures(grid: GridSpec, plan: Plan, store: Store) -> list[str]:
    """A line for each reason for which runs of a plan have failed, with the names of some of them."""
    names: dict[str, list[str]] = {}
    for cell in plan.todo:
        record = store.outcome(cell.id)
        if record and record["status"] == "failed":
            names.setdefault(record["reason"], []).append(name_of(cell, grid))
    return [f"failed: {reason} ({_some(runs)})" for reason, runs in names.items()]


def _some(names: list[str], shown: int = 3) -> str:
    if len(names) == 1:
        return names[0]
    return f"{len(names)} runs: {'; '.join([*names[:shown], *['...'] * (len(names) > shown)])}"


def folder_of(run_id: str, request: Request, store: Store) -> str:
    """Where the worker of a run writes."""
    own = store.playing_folder(run_id)
    return str(own) if request.storage is None else f"{_storage_of(request, store)}/{run_id}"


def base_folder(run_id: str | None, request: Request, store: Store) -> str:
    """Where a worker finds the state of a finished run; "" without any."""
    from bench.worker import LENT

    if run_id is None:
        return ""
    return str(store.run_folder(run_id)) if request.storage is None else f"{_storage_of(request, store)}/{LENT}{run_id}"


def place_of(request: Request, store: Store) -> str:
    """The folder in which each run that has not ended has one of its own."""
    return str(store.folder / "runs") if request.storage is None else _storage_of(request, store)


def _storage_of(request: Request, store: Store) -> str:
    """In a storage each results directory has a place of its own."""
    return f"{request.storage.rstrip('/')}/{store.key}"


@contextlib.contextmanager
def mark_of(request: Request, store: Store, address: str | None) -> Iterator[str]:
    """A file of this driver by which machines know that they see where runs write; "" where there is no other machine. A
    storage is empty again when every run has ended."""
    from bench.folders import Folder

    if request.storage is None:
        yield str(store.mark) if address else ""
        return
    place = Folder(_storage_of(request, store))
    place.save(_MARK, {"results": str(store.folder)})
    tidy(place, store)
    try:
        yield f"{place.uri}/{_MARK}"
    finally:
        with contextlib.suppress(StoreError):  # what has happened before says more
            if not place.folders():
                place.remove()


def tidy(storage: "Folder", store: Store) -> None:
    """Removes from a storage what belongs to no run that goes on: a driver that is killed after a run's record was written,
    and before its folder was removed, leaves it there, and a repetition of the run would take it for its own."""
    for run_id in storage.folders():
        if not store.playing_folder(run_id).exists():
            (storage / run_id).remove()


def name_of(cell: Cell, grid: GridSpec) -> str:
    """A run for people: "cifar10 label-2 fedprox mu=0.01 seed 0", with all in which it may differ from others of its grid."""
    stand_in = f"(as {cell.dataset})" if cell.substitute else ""
    chosen = cell.choice or cell.tuned.get("params", {})
    told = {"dataset", "partition", "algorithm", "wrapper", "seed", *chosen}
    others = {key: cell.setting(key) for key in grid.axes if key not in told}
    differing = chosen | {key: value for key, value in others.items() if value is not None}
    config = cell.config
    words = [
        config.dataset,
        stand_in,
        config.partition,
        cell.setting("algorithm"),
        *pairs(differing),
        f"with {cell.wrapper}" if cell.is_wrapped else "",
        f"seed {config.seed}",
    ]
    return " ".join(filter(None, words))


def commit() -> str | None:
    """The git commit of this code, with "-dirty" if it was changed; None outside a repository."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
