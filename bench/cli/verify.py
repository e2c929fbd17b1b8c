"""`verify`: trains runs of a results directory again, and compares."""

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bench.cli import options as given
from bench.cli.console import explained, meant_grids, name_damaged, say, warn

if TYPE_CHECKING:
    from bench.execution.verification import Limits
    from bench.results.store import Store


def verify(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A results directory, a folder in which some lie, or a bundle that `export --bundle` has made.",
        ),
    ],
    sample: Annotated[
        int | None, typer.Option(help="So many runs, drawn by --seed; 20 if neither --sample nor --all is given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draws the same runs again; a new one, which is printed, if left out.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All runs.")] = False,
    grid: Annotated[
        str | None,
        typer.Option(help="Only this grid: NAME, NAME@BUDGET, or its YAML file, against which its cells are compared."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(help="A run that would take longer here, by its first rounds, is trained for these only."),
    ] = 5.0,
    rounds: Annotated[int, typer.Option(help="How many first rounds these are.")] = 3,
    whole: Annotated[
        bool, typer.Option("--whole", help="Train every run to its end, however long that takes.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Largest difference of an accuracy, in points, where the processor, the device or a library is another; "
            "where all are the same, numbers must be equal bit for bit."
        ),
    ] = 2.0,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also add what came out to this file, for `board`.")
    ] = None,
    author: Annotated[str | None, typer.Option(help="Who verifies; of --write.")] = None,
    data_dir: given.DataOption = None,
) -> None:
    """Train stored runs again and compare them, round by round: equal, within a tolerance, or different, and why. Of each
    stored grid, say whether its cells and the choices of its searches follow from its file.

    Exit status 0 if runs were compared and nothing differs, 1 if a run or a grid does or a file is damaged, 2 if no run could
    be compared.
    """
    with explained():
        _check(sample, all_, rounds, minutes, tolerance, write, author)
        from bench.results.bundles import opened

        with opened(results) as first:
            stores = _stores(first)
            runs, damaged = _runs(stores, grid, results)
            from bench.execution.verification import WHOLE, Limits

            differing = _audit(stores, grid)
            drawn, by = _draw(runs, None if all_ else 20 if sample is None else sample, seed, results)
            limits = WHOLE if whole else Limits(minutes, rounds)
            counts = _verify(drawn, limits, tolerance / 100, data_dir, _Writing(write, author or "", by))
            _say_facts(drawn)
    from bench.results.verified import CONFIRMED, DIFFERS

    counts |= {"damaged": len(damaged)} if damaged else {}
    say((", ".join(f"{count} {result}" for result, count in counts.items()) or "no run compared") + ".")
    if counts[DIFFERS] or damaged or differing:
        raise typer.Exit(1)
    if not any(counts[result] for result in CONFIRMED):
        warn("error: No run could be compared; the lines above say why.")
        raise typer.Exit(2)


class _Writing(NamedTuple):
    """What is written of each run, and where; by which seed it was drawn."""

    file: Path | None
    author: str
    seed: int | None


def _check(
    sample: int | None,
    all_: bool,
    rounds: int,
    minutes: float,
    tolerance: float,
    write: Path | None,
    author: str | None,
) -> None:
    """Raises ValueError if options do not go together, or one is out of its range."""
    from bench.results.json_schema import is_line

    if all_ and sample is not None:
        raise ValueError("Set either --sample or --all, but not both.")
    for name, value, least in (("--sample", sample, 1), ("--rounds", rounds, 1), ("--minutes", minutes, 0)):
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, but got {value:g}.")
    if not 0 <= tolerance <= 100:
        raise ValueError(f"--tolerance is in points, between 0 and 100, but got {tolerance:g}.")
    if (write is None) != (author is None):
        raise ValueError("--write and --author go together: the file says who has verified.")
    if author is not None and not is_line(author):
        raise ValueError(f"--author must be a name in one line, but got {author!r}.")


def _stores(first: "Store") -> "list[Store]":
    """The results directory, or those that lie in it; raises StoreError if there is none."""
    from bench.results.store import Store

    inside = sorted(path.parent for path in first.folder.glob("*/runs")) if first.folder.is_dir() else []
    stores = [first] if (first.folder / "runs").exists() or not inside else [*map(Store, inside)]
    for store in stores:
        store.check_exists()
    return stores


def _look_into(store: "Store", grid: str | None, runs: "dict[str, Store]") -> set[Path]:
    """Adds the runs of a directory that have ended and not failed, of one grid or all; returns its damaged files."""
    name, budget = given.stored_name(grid, None)
    labels = meant_grids(store, name, budget) if grid else []
    if not grid:
        name_damaged(store)
    records = [store.records_of(found) for label in labels if (found := store.grid(label))]
    for run, record in {
        run: record for one in (records if grid else [store.records()]) for run, record in one.items()
    }.items():
        if record["status"] != "failed":
            runs.setdefault(run, store)
    return {*store.damaged}


def _runs(stores: "list[Store]", grid: str | None, results: Path) -> "tuple[dict[str, Store], set[Path]]":
    """The runs that may be drawn, of two directories that hold one the first, and the damaged files.

    Raises:
        ValueError: if there is neither.
    """
    runs: dict[str, Store] = {}
    damaged: set[Path] = set()
    for store in stores:
        damaged |= _look_into(store, grid, runs)
    if not runs and not damaged:
        raise ValueError(f"No run{f' of {grid}' if grid else ''} has ended in {results}; there is nothing to verify.")
    return runs, damaged


def _audit(stores: "list[Store]", grid: str | None) -> bool:
    """Says of each grid whether it follows from its file; returns whether one does not."""
    from bench.tuning.audit import audit

    name, budget = given.stored_name(grid, None)
    file = Path(grid) if grid and grid.endswith((".yaml", ".yml")) else None
    differing = False
    for store in stores:
        for label in meant_grids(store, name, budget):
            stored = store.grid(label)
            if stored:
                found = audit(store, stored, file)
                say(f"{label}: {found.says}")
                differing |= found.differs
    return differing


def _draw(
    runs: "dict[str, Store]", number: int | None, seed: int | None, results: Path
) -> "tuple[dict[str, Store], int | None]":
    """So many of the runs, all for None, and the seed that has drawn them, None if all were taken; says so."""
    from bench.execution.verification import draw

    if number is None or number >= len(runs):
        drawn, by = sorted(runs), None
    else:  # a known seed would say which runs nobody looks at
        by = secrets.randbelow(2**32) if seed is None else seed
        drawn = draw([*runs], number, by)
    searched = sum((runs[run].config(run) or {}).get("split") == "validation" for run in drawn)
    of_searches = f", {searched} of them of searches, which boards do not list" if searched else ""
    say(
        f"{len(drawn)} of {len(runs)} runs of {results}{of_searches}"
        + ("" if by is None else f", drawn by --seed {by}")
    )
    return {run: runs[run] for run in drawn}, by


def _verify(
    runs: "Mapping[str, Store]", limits: "Limits", tolerance: float, data_dir: Path | None, writing: _Writing
) -> "Counter[str]":
    """Trains runs of stores again, says what came out of each, and writes it; returns result -> number of runs."""
    from bench.config.code_version import facts_of
    from bench.execution.verification import Verifier
    from bench.references import without_digest
    from bench.results import verified

    folder = data_dir and data_dir.absolute()
    verifiers = {store.folder: Verifier(store, folder, limits, tolerance) for store in runs.values()}
    counts: Counter[str] = Counter()
    for run, store in runs.items():
        config, verdict = store.config(run), verifiers[store.folder].verify(run)
        if config is None:  # changed since it was drawn
            continue
        counts[verdict.result] += 1
        names = [without_digest(config[key]) for key in ("dataset", "partition")]
        say(f"{run}  {' '.join(names)} {config['algorithm']['name']} seed {config['seed']}: {verdict.says}")
        if writing.file:
            try:
                code = facts_of(config)["commit"]
            except (LookupError, ValueError, OSError, SyntaxError):  # of a method that is not here
                code = "unknown"
            about: dict[str, Any] = {"by": writing.author, "when": time.strftime("%Y-%m-%d"), "code": code}
            about |= {} if writing.seed is None else {"seed": writing.seed}
            numbers = {"result": verdict.result, "rounds": verdict.rounds, "of": verdict.of, **verdict.numbers}
            verified.write(writing.file, {run: {**numbers, **about, "files": verified.digest_of(store, run)}})
    return counts


def _say_facts(runs: "Mapping[str, Store]") -> None:
    """In what code, machine and libraries of the runs differ from those here."""
    import platform

    import numpy as np
    import torch

    import bench
    from bench.profiling import processor_name
    from bench.provenance import commits_of
    from reports.exports.results_diff import facts_of

    here = {
        **commits_of([], []),
        "processor": processor_name(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "skewbench": bench.__version__,
    }
    there = facts_of({run: {**record} for run, store in runs.items() if (record := store.record(run))})
    for name, now in here.items():
        then = there.get(name, [])
        if then != [now]:
            say(f"{name}: {', '.join(then) or 'not said'} in the results, {now} here")
