"""Does the runs of a plan; their results go into the store."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from bench import references
from bench.config.code_version import code_version
from bench.config.schema import RunConfig
from bench.execution.job import Inputs, Job
from bench.execution.progress import Display
from bench.execution.tracking import Tracker
from bench.execution.workspace import Workspace
from bench.experiments.cells import Cell
from bench.experiments.cost import examples_to_train
from bench.experiments.grid_schema import GridSpec
from bench.experiments.labels import pairs
from bench.experiments.planning import Plan
from bench.experiments.spec import ExperimentSpec
from bench.simulation.retention import StateRetention
from datasets import own_data, resized


def run_plan(plan: Plan, spec: ExperimentSpec, workspace: Workspace, console: Console) -> dict[str, int]:
    """Does the runs that are left.

    Returns:
        Status -> number of runs.
    """
    configs = {cell.id: cell.config for cell in plan.todo}
    names = {cell.id: name_of(cell, spec.grid) for cell in plan.todo}
    return run_configs(configs, names, plan.retention, plan.bases, workspace, console, tracked_as=spec.label)


def run_configs(
    configs: Mapping[str, RunConfig],
    names: Mapping[str, str],
    retention: Mapping[str, StateRetention],
    bases: Mapping[str, str],
    workspace: Workspace,
    console: Console,
    tracked_as: str = "",
) -> dict[str, int]:
    """Trains runs, with their progress on the console.

    Args:
        configs, names, retention: by run id.
        bases: id of a run of a post-hoc method -> id of the run from whose last state it starts.
        tracked_as: what the tracking service calls all of them; "" tracks none.

    Returns:
        Status -> number of runs.
    """
    if workspace.machines.executor == "ray":
        from bench.execution.scheduler import run_jobs  # Ray takes seconds to import, and may not be able to start
    else:
        from bench.execution.submitted import run_jobs

    shown = {run: (names[run], 0 if run in bases else examples_to_train(config)) for run, config in configs.items()}
    options = workspace.options
    with workspace.marker() as marker, Display(console, shown).shown() as display:
        jobs = [
            Job(
                run,
                config,
                workspace.run_folder(run),
                retention[run],
                options.checkpoint_seconds,
                options.engine,
                options.tf32,
                base=workspace.base_folder(bases.get(run)),
                marker=marker,
                inputs=inputs_of(config, options.data_dir),
            )
            for run, config in configs.items()
        ]
        tracker = None
        if options.track and tracked_as:
            tracker = Tracker(options.track, tracked_as, names, workspace.store, display.on_message)
        run_jobs(jobs, workspace, display, tracker)
    return display.ended_by


def inputs_of(config: RunConfig, data_dir: Path | None) -> Inputs:
    """What this process has of a run, whose images have been found."""
    images = resized.of_config(config, data_dir)
    return Inputs(code_version(config), images.digest, own_data.of_config(config))


def name_of(cell: Cell, grid: GridSpec) -> str:
    """A run for people: "cifar10 label-2 fedprox mu=0.01 seed 0", with all in which it may differ from others of its grid."""
    stand_in = f"(as {cell.dataset})" if cell.substitute else ""
    chosen = cell.choice or cell.tuned.get("hparams", {})
    named = {"dataset", "partition", "algorithm", "wrapper", "seed", *chosen}
    others = {key: cell.setting(key) for key in grid.axes if key not in named}
    differing = chosen | {key: value for key, value in others.items() if value is not None}
    config = cell.config
    words = [
        references.without_digest(config.dataset),
        stand_in,
        references.without_digest(config.partition),
        cell.setting("algorithm"),
        *pairs(differing),
        f"with {cell.wrapper}" if cell.is_wrapped else "",
        f"seed {config.seed}",
    ]
    return " ".join(filter(None, words))
