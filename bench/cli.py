"""The command line. Each command imports what it needs when it runs: `--help`, `list` and `report` start in a moment."""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from bench import options as given
from bench.names import unknown
from bench.options import RESULTS

app = typer.Typer(
    help="Federated learning under label skew: runs grids of experiments, and makes tables of their results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True, soft_wrap=True, highlight=False)

INTERRUPTED = 130


@contextmanager
def explained() -> Iterator[None]:
    """A mistake of the user ends with its sentence and exit code 2, not with a traceback."""
    from bench.store import StoreError
    from datasets import DataError

    try:
        yield
    except (ValueError, DataError, StoreError, FileNotFoundError) as error:
        errors.print(f"error: {error}", markup=False)
        raise typer.Exit(2) from error


@app.command()
def run(
    grid: given.GridOption = None,
    algorithm: given.AlgorithmOption = None,
    dataset: given.DatasetOption = None,
    partition: given.PartitionOption = None,
    seeds: given.SeedsOption = None,
    budget: given.BudgetOption = "paper",
    only: given.OnlyOption = None,
    set_: given.SetOption = None,
    substitute: given.SubstituteOption = None,
    data_dir: given.DataOption = None,
    results_dir: given.ResultsOption = RESULTS,
    cpus_per_trial: Annotated[float, typer.Option(help="Cores, and torch threads, of a trial.")] = 1.0,
    gpus_per_trial: Annotated[str, typer.Option(help="Share of a GPU, or auto.")] = "0",
    max_concurrent: Annotated[int, typer.Option(min=0, help="Trials at once; 0: as many as there are cores.")] = 0,
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster.")] = None,
    keep_state: Annotated[str, typer.Option(help="final or none: whether a run keeps its last state.")] = "final",
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat finished runs; their old results are kept.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
) -> None:
    """Run what is not finished of a grid, or of one setting, and print its table."""
    from bench.driver import Request

    with explained():
        if keep_state not in ("final", "none"):
            raise ValueError(unknown("value of --keep-state", keep_state, ("final", "none")))
        request = Request(
            grid=_grid(grid, {"algorithm": algorithm, "dataset": dataset, "partition": partition}, seeds),
            budget=budget,
            only=given.read_only(only),
            overrides=given.read_set(set_),
            seeds=given.read_seeds(seeds) if grid else None,
            substitutes=dict(given.read_pairs("--substitute", substitute)),
            data_dir=data_dir,
            rerun=rerun,
            keep_final=keep_state == "final",
        )
        ended_well = _run(request, results_dir, dry_run, cpus_per_trial, gpus_per_trial, max_concurrent, address)
    if not ended_well:
        raise typer.Exit(1)


@app.command()
def report(
    grid: given.GridOption = None,
    budget: Annotated[str | None, typer.Option(help="Only results of this budget.")] = None,
    value: Annotated[str | None, typer.Option(help="last, best or last10 rounds; the grid's own if left out.")] = None,
    results_dir: given.ResultsOption = RESULTS,
) -> None:
    """Print and save the tables of stored results: all of them, or those of one grid."""
    import reports
    from bench.store import Store

    with explained():
        store = Store(results_dir)
        stored = [tuple(name.split("@", 1)) for name in store.grids()]
        chosen = [(name, of) for name, of in stored if grid in (None, name) and budget in (None, of)]
        if not chosen:
            known = ", ".join("@".join(pair) for pair in stored) or "nothing yet"
            wanted = f"{grid or 'any grid'}@{budget or 'any budget'}"
            raise ValueError(f"{store.folder} holds no results of {wanted}, only: {known}.")
        for name, of in chosen:
            paths = reports.write(store.folder, name, of, value=value)
            sys.stdout.write(reports.render(store.folder, name, of, value=value) + "\n")
            console.print("Saved: " + ", ".join(str(path) for path in paths.values()), highlight=False, soft_wrap=True)


def _run(request, results_dir, dry_run, cpus_per_trial, gpus_per_trial, max_concurrent, address) -> bool:
    """Plays a request and prints its table; returns whether no run failed."""
    import reports
    from bench import driver, resources
    from bench.store import Store

    share = resources.choose(cpus_per_trial, gpus_per_trial, address)
    store = Store(results_dir)
    with contextlib.nullcontext() if dry_run else store.locked():
        plan = driver.make_plan(request, store)
        _announce(plan)
        if dry_run:
            for cell in plan.todo:
                console.print(f"{cell.id}  {driver.name_of(cell)}", highlight=False, markup=False)
            return True
        driver.store_grid(request, plan, store)
        failed = 0
        if plan.todo:
            try:
                failed = driver.play(
                    request, plan, store, console, resources=share, max_concurrent=max_concurrent, address=address
                )["failed"]
            except KeyboardInterrupt:
                console.print("Stopped. Finished runs are kept; the same command continues with the rest.")
                raise typer.Exit(INTERRUPTED) from None
    name, _, label = request.label.partition("@")
    reports.write(results_dir, name, label)
    sys.stdout.write("\n" + reports.render(results_dir, name, label))
    console.print(f"\nResults: {store.folder}", highlight=False, soft_wrap=True)
    if failed:
        errors.print(f"{failed} runs failed; their records say why, and the same command tries them again.")
    return not failed


def _announce(plan) -> None:
    """What will be played, and what not."""
    absent = sorted({cell.missing for cell in plan.selected if cell.missing})
    for line in absent:
        console.print(line, highlight=False)
    console.print(f"{plan.finished} finished, {len(plan.todo)} to run", highlight=False)
    for run_id, reason in plan.reasons.items():
        console.print(f"{run_id} runs again: {reason}", highlight=False, soft_wrap=True)


def _grid(name: str | None, settings: dict[str, str | None], seeds: str | None):
    """The grid of that name, or of the one setting that the other options describe."""
    from bench.grid import load_grid, single

    if name:
        clash = [f"--{key}" for key, value in settings.items() if value]
        if clash:
            raise ValueError(f"Use either --grid or {', '.join(clash)}; within a grid, choose cells with --only.")
        return load_grid(name)
    if settings["algorithm"] == "centralized":
        settings["partition"] = settings["partition"] or "none"
    absent = [f"--{key}" for key, value in settings.items() if not value]
    if absent:
        raise ValueError(f"Name a --grid, or one setting: {', '.join(absent)} missing.")
    return single(settings, given.read_seeds(seeds) or [0])
