"""What `run` and `tune` share: locate data, expand, tune, plan, run, report."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench.cli.console import counted, errors, name_damaged, say, stopped, warn
from bench.files import path_in_words

if TYPE_CHECKING:
    from bench.execution.resources import Machines
    from bench.execution.workspace import Workspace
    from bench.experiments.cells import Cell
    from bench.experiments.execution_options import ExecutionOptions
    from bench.experiments.grid_schema import GridSpec
    from bench.experiments.images import Images
    from bench.experiments.planning import Plan
    from bench.experiments.selection import Selection
    from bench.experiments.spec import ExperimentSpec
    from bench.results.store import Store
    from bench.tuning.search import Search


def run_experiment(
    spec: ExperimentSpec, options: ExecutionOptions, machines: Machines, results_dir: Path, dry_run: bool
) -> None:
    """Does what is left of an experiment and prints its table; a dry run only says what is left.

    The grid is expanded before its images are located: a mistake in the settings is then named before minutes of decoding,
    and only images that selected cells use are decoded. What methods refuse about the models of the runs that are left is said
    after it, before anything is trained or stored.

    Raises:
        typer.Exit: with code 1 if runs have failed, 130 after Ctrl-C, 143 after SIGTERM.
    """
    from bench.execution.workspace import Workspace
    from bench.experiments.images import locate
    from bench.experiments.planning import as_stored, check_engine, check_name, kept_of_other_files, make_plan
    from bench.experiments.selection import fit_to_images, select_cells, without_searches
    from bench.results.store import Store

    store = Store(results_dir)
    workspace = Workspace(store, machines, options)
    with contextlib.nullcontext() if dry_run else store.locked(warn), contextlib.ExitStack() as session, _stopping():
        # What is damaged of other runs of this experiment, its plan finds.
        store.validate_all([spec.label, *spec.earlier_labels])
        named = name_damaged(store, looked=True)
        spec = as_stored(spec, store)
        check_name(spec, store)
        selection = select_cells(spec)
        warn_of_rounds(selection.selected, spec.grid, spec.overrides)
        check_engine(options.engine, selection.selected)
        searches = _searches(selection, spec, store)
        images = locate(spec, selection.selected, options.data_dir)
        if (fitted := fit_to_images(selection, spec, images)) is not selection:
            selection, searches = fitted, _searches(fitted, spec, store)
        _prepare_data_of_users(selection.selected, spec, options, store, dry_run)
        lacking = 0
        if searches:
            _warn_unsearched(selection, searches, spec)
            check_models(without_searches(selection, spec, searches), selection.selected, spec.grid)
            if dry_run:
                _print_searches(searches, store, options.keep_stale)
                return
            selection, lacking = _tune(selection, searches, spec, workspace, session)
        plan = make_plan(selection, spec.grid, options, images, store)
        check_models(plan.todo, selection.selected, spec.grid)
        name_damaged(store, looked=True, named=named)
        _announce(plan)
        for sentence in kept_of_other_files(plan, images, store):
            warn(sentence)
        if dry_run:
            if spec.tuning and selection.selected and all(cell.missing for cell in selection.selected):
                warn("No search is named, because the images of all cells are missing.")
            _print_runs(plan, spec)
            _warn_absent(images)
            return
        ended = _run(plan, spec, workspace)
    _report(spec, store)
    _print_end(ended, images, lacking)


def _prepare_data_of_users(
    cells: Iterable[Cell], spec: ExperimentSpec, options: ExecutionOptions, store: Store, dry_run: bool
) -> None:
    """Keeps partition files in the results directory, says what they leave out, deals partitions of labs to check them, finds
    runs that were stored by paths."""
    import datasets
    from bench import references
    from bench.execution.dealing import check_partitions_of_labs
    from bench.experiments import runs_of_paths
    from datasets import partition_files, resized

    cells = [cell for cell in cells if not cell.missing]
    dealt = dict.fromkeys((c.dataset, c.partition, c.transform, c.image_size) for c in (cell.config for cell in cells))
    for dataset, partition, transform, image_size in dealt:
        if references.is_partition(partition):
            images: datasets.Dataset = resized.load(dataset, transform, options.data_dir, image_size)
            found = partition_files.parse(partition)
            if unused := found.describe_unused(len(images.train.labels), len(images.test.labels)):
                warn(unused)
            if not dry_run:
                partition_files.keep(found, store.folder / partition_files.FOLDER)
    check_partitions_of_labs((cell.config for cell in cells), options.data_dir)
    if earlier := runs_of_paths.find(cells, options.data_dir, store):
        warn(
            f"{len(earlier)} of the runs are stored under the path of their images, which have the same digest: found again."
        )
        if not dry_run:
            runs_of_paths.import_found(earlier, spec.label, store)


def check_models(cells: Iterable[Cell], shown: Iterable[Cell], grid: GridSpec) -> None:
    """Raises ConfigError with everything that methods refuse about the models or the clients of cells that are to be trained,
    and with methods among those shown of which the table would have no accuracy."""
    from bench.errors import ConfigError
    from bench.experiments.accuracies import without_a_number
    from bench.experiments.cost import refusals

    if refused := [*refusals(cell.config for cell in cells), *without_a_number(shown, grid.report)]:
        raise ConfigError(refused)


def _tune(
    selection: Selection,
    searches: dict[str, Search],
    spec: ExperimentSpec,
    workspace: Workspace,
    session: contextlib.ExitStack,
) -> tuple[Selection, int]:
    """The cells with the hyper-parameters that searches choose; and for how many places they cannot."""
    from bench.experiments.selection import with_chosen
    from bench.tuning import select
    from reports.exports import search_report

    chosen = select.choose(searches, spec.tuning, workspace, errors, warn, session, search_report.write)
    lacking = searches.keys() - chosen.keys()
    return with_chosen(selection, spec, chosen, lacking), len(lacking)


def _print_searches(searches: dict[str, Search], store: Store, keep_stale: bool) -> None:
    """Names the searches, before whose end nobody knows the runs, and says what is left of each."""
    from bench.tuning import select

    distinct = {search.name: search for search in searches.values()}  # table cells may share one
    for search in distinct.values():
        finished, stale = select.runs_there(search, store, keep_stale)
        left = f"{finished} of {search.wanted * len(search.configs)} runs finished" + f", {stale} to run again" * bool(
            stale
        )
        say(f"{select.title_of(search)}; {left}")
    say("After the searches, the chosen configurations are trained with all seeds, those that have not finished.")


def _warn_unsearched(selection: Selection, searches: dict[str, Search], spec: ExperimentSpec) -> None:
    """Says of which methods no option is searched, before the search has cost anything."""
    from bench.tuning.build import unsearched

    if spec.tuning:
        cells = [cell for cell in selection.selected if not cell.missing]
        fixed = {*spec.grid.axes, *spec.overrides}
        for sentence in unsearched(cells, searches, spec.grid.report.model_dump(), spec.tuning, fixed):
            warn(sentence)


def _searches(selection: Selection, spec: ExperimentSpec, store: Store) -> dict[str, Search]:
    """The searches of cells whose images are not known to be absent, in the form in which the store has begun them; {} of an
    experiment that is not tuned."""
    if not spec.tuning:
        return {}
    from bench.tuning import select

    found = select.searches_of(spec, selection.selected)
    return {
        place: next((form for form in search.forms if store.search(form.name)), search)
        for place, search in found.items()
    }


def _run(plan: Plan, spec: ExperimentSpec, workspace: Workspace) -> dict[str, int]:
    """Does the runs of a plan, and measures what tables and figures need; returns status -> number of runs."""
    from bench.execution import disk, driver
    from bench.experiments.planning import store_grid
    from bench.measurements import label_counts
    from bench.measurements import run as measurements
    from bench.results import tensorboard

    store, options = workspace.store, workspace.options
    if (left := store_grid(spec, plan, store)) is not None:
        without = f" It had {counted(left, 'cell')} that the new one has not." if left else ""
        warn(
            f"The table of {spec.label} begins anew: the stored one has other settings, or other seeds in its studies. Its "
            f"runs stay stored.{without}{' Without --only, all cells are run as they are now.' * bool(left and spec.only)}"
        )
    names = {cell.id: driver.name_of(cell, spec.grid) for cell in plan.selected if not cell.missing}
    ended: dict[str, int] = {}
    if plan.todo:
        for sentence in disk.shortages(plan, options.storage, workspace.machines, store):
            warn(sentence)
        try:
            ended = driver.run_plan(plan, spec, workspace, errors)
        finally:
            tensorboard.name_runs(store.folder, spec.label, names)
    measurements.measure(plan.selected, spec.grid.report.needs, store, options.data_dir, warn)
    label_counts.measure(plan.selected, store, options.data_dir, warn)
    return ended


def _report(spec: ExperimentSpec, store: Store) -> None:
    from reports import api

    report = api.GridReport(store, spec.grid.stored_name, spec.budget_label)
    paths = report.write()
    sys.stdout.write("\n" + paths["md"].read_text(encoding="utf-8") + "\n")
    drawn, sentences = report.write_figures()
    print_saved([paths["html"], *drawn], sentences)
    warn(f"Results: {store.folder}")


def _print_end(ended: dict[str, int], images: Images, lacking: int) -> None:
    """Prints how the runs have ended, and what to do about failed ones and absent files; exits with 1 if some have failed.

    Args:
        lacking: places of the table for which searches could not choose, whose cells were left out.
    """
    _warn_absent(images)
    if ended:
        warn(", ".join(f"{count} {status}" for status, count in ended.items()) + ".")
    if lacking:
        warn(
            f"For {counted(lacking, 'place')} of the table no configuration could be chosen: a cell is missing there, or is "
            "that of an earlier choice. The lines above say why, and what to do."
        )
    if ended.get("failed"):
        words = [word for word in sys.argv[1:] if word != "--rerun"]
        warn(f"What failed is tried again by: {shlex.join(['python', '-m', 'bench', *words])}")
    if ended.get("failed") or lacking:
        raise typer.Exit(1)


def _warn_absent(images: Images) -> None:
    """What to do about files that are not there."""
    for sentence in filter(None, [images.none_found, *images.absent_weights.values()]):
        warn(sentence)


def _announce(plan: Plan) -> None:
    """Which cells have no images, how many runs are left, and why finished ones are repeated."""
    for line in sorted({cell.missing for cell in plan.selected if cell.missing}):
        warn(line)
    warn(f"{plan.finished} finished, {len(plan.todo)} to run")
    by_reason: dict[str, list[str]] = {}
    for run_id, reason in plan.reasons.items():
        by_reason.setdefault(reason, []).append(run_id)
    for reason, runs in by_reason.items():
        warn(f"{runs[0] if len(runs) == 1 else f'{len(runs)} runs'} run{'s' * (len(runs) == 1)} again: {reason}")


def _print_runs(plan: Plan, spec: ExperimentSpec) -> None:
    """Names the runs, below the budget with all that was set: the names say only in what runs of a grid differ."""
    from bench.execution import driver

    say(spec.label)
    for cell in plan.todo:
        say(f"{cell.id}  {driver.name_of(cell, spec.grid)}")


@contextlib.contextmanager
def _stopping():
    """Ends with one sentence after Ctrl-C and SIGTERM."""
    try:
        yield
    except KeyboardInterrupt:
        raise stopped("Stopped. Finished runs are kept; the same command continues with the rest.") from None


def read_machines(
    cpus_per_trial: float,
    gpus_per_trial: str,
    max_concurrent: int,
    address: str | None,
    wait_seconds: float,
    executor: str = "ray",
    slurm: Mapping[str, str] | None = None,
) -> Machines:
    """Where runs are executed, from the options of the command line.

    Raises:
        ValueError: if there is less than they name, or they do not go together.
    """
    from bench.execution import resources

    if slurm and executor != "slurm":
        raise ValueError("--slurm is for --executor slurm; leave it out, or name that executor.")
    if executor != "ray":
        from bench.execution import submitted

        if wait_seconds or address not in (None, os.environ.get("RAY_ADDRESS")):
            raise ValueError(
                f"--address and --wait-for-machines are for --executor ray; leave them out with {executor}."
            )
        return submitted.machines(executor, cpus_per_trial, gpus_per_trial, max_concurrent, slurm or {})
    address = None if address == "local" else address  # as Ray reads RAY_ADDRESS
    if wait_seconds and not address:
        raise ValueError("--wait-for-machines is for a cluster; name it by --address.")
    share = resources.choose(cpus_per_trial, gpus_per_trial, address)
    return resources.Machines(share, max_concurrent, address, wait_seconds)


def storage_of(uri: str | None) -> str | None:
    """Where workers write, once it has been seen that something can be written there; None for the results directory.

    Raises:
        ValueError: if nothing can be.
    """
    if uri is None:
        return None
    import torch

    from bench.errors import StoreError
    from bench.results.artifacts import Folder

    uri = uri if "://" in uri else str(Path(uri).absolute())
    try:
        place, probe = Folder(uri), f"probe-{secrets.token_hex(8)}.pt"
        place.save(probe, {"probe": torch.zeros(1)})
        place.remove([probe])
    except (ValueError, StoreError, OSError) as error:
        why = str(error).rstrip(".")
        raise ValueError(
            f"--storage: {why}; name a folder that can be written, or a URI as s3://bucket/path."
        ) from error
    return uri


def print_saved(paths: list, sentences: list[str]) -> None:
    """Which files a report wrote, and which figures have nothing to show yet."""
    for sentence in sentences:
        warn(sentence)
    if paths:
        warn("Saved: " + ", ".join(map(path_in_words, paths)))


def warn_of_seeds(spec: ExperimentSpec) -> None:
    """Says where a budget leaves out seeds of the grid."""
    grid, here = spec.grid.axes.get("seed", [0]), spec.grid.seeds_at(spec.budget)
    if spec.seeds is None and any(seed not in here for seed in grid):
        own, all_ = (", ".join(map(str, seeds)) for seeds in (here, grid))
        warn(f"Budget {spec.budget}: seed{'s' * (len(here) > 1)} {own} alone; the grid has {all_}.")


def warn_of_rounds(cells: Iterable[Cell], grid: GridSpec, overrides: Mapping[str, Any]) -> None:
    """Says which methods train more rounds than others on the same data because their stages have rounds of their own, of which
    nobody has set all: they may exchange several times as much. Grids of the harness set them, unless `rounds` is replaced."""
    from dataclasses import fields

    from algorithms.shared.wrapper import Wrapper
    from bench.simulation.build import build_algorithm

    if not grid.source and "rounds" not in overrides:
        return
    usual, own = defaultdict[Any, set[int]](set), dict[Any, tuple[int, str]]()
    for config in (cell.config for cell in cells if cell.config.partition != "none"):
        method, spec, data = build_algorithm(config.algorithm), config.algorithm, (config.dataset, config.partition)
        while isinstance(method, Wrapper):
            method, spec = method.base, spec["base"]
        options = [option for option in fields(method) if option.name.endswith("_rounds")]
        if method.num_rounds(config.model_copy(update={"rounds": config.rounds + 1})) > config.rounds:
            usual[data].add(config.rounds)
        elif any(getattr(method, option.name) == option.default for option in options):
            own[spec["name"], data] = config.rounds, " and ".join(option.name for option in options)
    found = {
        f"{name} trains {rounds:,} rounds of its own, and others at most {max(usual[data]):,}. For equal terms, set "
        f"{options} by a condition of the grid, so that `describe` says about equal MB per client (docs/own-grid.md)."
        for (name, data), (rounds, options) in own.items()
        if rounds > max(usual[data], default=rounds)
    }
    for line in sorted(found):
        warn(line)
