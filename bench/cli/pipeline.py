"""What the commands that play runs share: from a request to its printed table."""

import contextlib
import secrets
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import typer

from bench.cli.console import INTERRUPTED, console, errors, name_damaged, warn


def run_request(request, results_dir, dry_run, cpus_per_trial, gpus_per_trial, max_concurrent, address) -> bool:
    """Plays a request and prints its table; returns whether no run failed."""
    from bench.execution import disk, driver, resources
    from bench.experiments.planning import make_plan, store_grid
    from bench.measurements import label_counts
    from bench.measurements import run as measurements
    from bench.results.store import Store
    from reports import api

    share = resources.choose(cpus_per_trial, gpus_per_trial, address)
    if request.tuning:
        request.tuning.validate()
    if request.tuning and share.auto:
        raise ValueError(
            "--gpus-per-trial auto finds shares for single runs, not for several seeds together; give a number, as 0.25."
        )
    machines = resources.Machines(share, max_concurrent, address)
    store = Store(results_dir)
    with contextlib.nullcontext() if dry_run else store.locked(), contextlib.ExitStack() as session:
        store.look_through()
        plan = make_plan(request, store)
        name_damaged(store, looked=True)
        if request.tuning:
            request = _tuned(request, plan, store, machines, dry_run, session)
            if dry_run:
                return True
            plan = make_plan(request, store)
        _announce(plan)
        if dry_run:
            for cell in plan.todo:
                console.print(f"{cell.id}  {driver.name_of(cell, request.grid)}", highlight=False, markup=False)
            return True
        store_grid(request, plan, store)
        ended = None
        try:
            if plan.todo:
                for sentence in disk.shortages(plan, request, store, machines):
                    warn(sentence)
                ended = driver.run_plan(request, plan, store, console, machines)
            measurements.measure(plan.selected, request.grid.report.needs, store, request.data_dir, warn)
            label_counts.measure(plan.selected, store, request.data_dir, warn)
        except KeyboardInterrupt:
            _stopped()
    name, _, label = request.label.partition("@")
    paths = api.write(store, name, label)
    sys.stdout.write("\n" + paths["md"].read_text() + "\n")
    drawn, sentences = api.write_figures(store, name, label)
    print_saved([paths["html"], *drawn], sentences)
    console.print(f"Results: {store.folder}", highlight=False, soft_wrap=True)
    if plan.no_data:
        warn(plan.no_data)
    if ended:
        console.print(", ".join(f"{count} {status}" for status, count in ended.items()) + ".", highlight=False)
        for line in driver.failures(request.grid, plan, store):
            warn(line)
    if ended and ended["failed"]:
        command = shlex.join(["python", "-m", "bench", *(word for word in sys.argv[1:] if word != "--rerun")])
        warn(f"What failed is tried again by: {command}")
    return not (ended and ended["failed"])


def _tuned(request, plan, store, machines, dry_run: bool, session: contextlib.ExitStack):
    """A request with the hyper-parameters that searches choose for the selected cells of a plan; a dry run only says which
    searches there are."""
    from bench.tuning import select

    searches = select.searches_of(request, plan.selected)
    if dry_run:
        for search in searches.values():
            _say(select.title_of(search))
        return request
    from reports.exports import search_report

    try:
        chosen = select.choose(searches, request, store, machines, console, _say, session, search_report.write)
        return replace(request, chosen=chosen)
    except KeyboardInterrupt:
        _stopped()


def _stopped() -> None:
    errors.print("Stopped. Finished runs are kept; the same command continues with the rest.")
    raise typer.Exit(INTERRUPTED) from None


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


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
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    if paths:
        console.print("Saved: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)


def _announce(plan) -> None:
    """What will be played, and what not."""
    absent = sorted({cell.missing for cell in plan.selected if cell.missing})
    for line in absent:
        console.print(line, highlight=False)
    console.print(f"{plan.finished} finished, {len(plan.todo)} to run", highlight=False)
    for run_id, reason in plan.reasons.items():
        console.print(f"{run_id} runs again: {reason}", highlight=False, soft_wrap=True)
