"""Does the runs of a plan; their results go into the store."""

from typing import TYPE_CHECKING

from rich.console import Console

from bench.execution.resources import Machines
from bench.execution.workspace import Workspace
from bench.experiments.cells import Cell
from bench.experiments.cost import examples_to_train
from bench.experiments.grid_schema import GridSpec
from bench.experiments.labels import pairs
from bench.experiments.planning import Plan
from bench.experiments.spec import ExecutionOptions, ExperimentSpec
from bench.provenance import commit
from bench.results.store import Store

if TYPE_CHECKING:
    from bench.execution.progress import Display
    from bench.execution.tracking import Tracker


def run_plan(
    plan: Plan,
    spec: ExperimentSpec,
    options: ExecutionOptions,
    machines: Machines,
    store: Store,
    console: Console,
) -> dict[str, int]:
    """Does the runs that are left; the store must be locked.

    Returns:
        Status -> number of runs.
    """
    from bench.execution import scheduler  # Ray takes seconds to import
    from bench.execution.job import Job
    from bench.execution.progress import Display

    shown = {
        cell.id: (name_of(cell, spec.grid), 0 if cell.id in plan.bases else examples_to_train(cell.config))
        for cell in plan.todo
    }
    workspace = Workspace(store, options.storage)
    with workspace.marker(machines.address) as marker, Display(console, shown).shown() as display:
        jobs = [
            Job(
                cell.id,
                cell.config,
                workspace.run_folder(cell.id),
                plan.retention[cell.id],
                options.checkpoint_seconds,
                options.engine,
                base=workspace.base_folder(plan.bases.get(cell.id)),
                marker=marker,
            )
            for cell in plan.todo
        ]
        scheduler.run_jobs(
            jobs,
            store,
            display,
            data_dir=options.data_dir,
            machines=machines,
            storage=options.storage,
            facts={"commit": commit()},
            tracker=_tracker(plan, spec, options, store, display),
        )
    return display.ended_by


def _tracker(
    plan: Plan, spec: ExperimentSpec, options: ExecutionOptions, store: Store, display: "Display"
) -> "Tracker | None":
    """Sends the runs' rounds to a tracking service, if one is named."""
    from bench.execution.tracking import Tracker

    if options.track is None:
        return None
    names = {cell.id: name_of(cell, spec.grid) for cell in plan.todo}
    return Tracker(options.track, spec.label, names, store.folder / "tracking", display.on_message)


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


def name_of(cell: Cell, grid: GridSpec) -> str:
    """A run for people: "cifar10 label-2 fedprox mu=0.01 seed 0", with all in which it may differ from others of its grid."""
    stand_in = f"(as {cell.dataset})" if cell.substitute else ""
    chosen = cell.choice or cell.tuned.get("params", {})
    named = {"dataset", "partition", "algorithm", "wrapper", "seed", *chosen}
    others = {key: cell.setting(key) for key in grid.axes if key not in named}
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
