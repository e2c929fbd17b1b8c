"""`verify`: trains runs of a results directory again, and compares."""

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bench.cli import options as given
from bench.cli.console import counted, explained, meant_grids, name_damaged, say, warn
from bench.experiments.labels import name_of_config, names_of_configs

if TYPE_CHECKING:
    from bench.execution.verification import Limits, Verdict
    from bench.results.records import Config
    from bench.results.store import Store
    from bench.tuning.audit import Audit

    Drawn = dict[str, list[Store]]  # run -> the directories that hold it, with other files each


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
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<RUNS>", help="These runs, by their ids, as a table's CSV and page have them: 'ID ID' or ID,ID."
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Only this grid: NAME, NAME@BUDGET, or its YAML file, against which its cells are compared."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="A run that would take longer here, by its first rounds, is trained for these only; 5 if left out."
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="How many first rounds these are; 3 if left out.")] = None,
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
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<DATASET>",
            help="Where images of the author are here: npz:PATH or imagefolder:PATH; may be repeated.",
        ),
    ] = None,
    data_dir: given.DataOption = None,
) -> None:
    """Train stored runs again and compare them, round by round: equal, within a tolerance, or different, and why. Of each
    stored grid, say whether its cells and the choices of its searches follow from its file.

    Exit status 0 if every drawn run is confirmed and every stored grid follows from its file, 1 if one differs or a file is
    damaged, 2 if nothing differs, but something could not be compared.
    """
    from bench.results.store import stores_in

    with explained():
        _check(sample, all_, run, seed, rounds, minutes, whole, tolerance, write, author)
        _find(dataset or [])
        with _opened(results) as first:
            stores = stores_in(first.folder)
            grids = [(store, label) for store in stores for label in meant_grids(store, *given.stored_name(grid, None))]
            runs = _runs(stores, grids if grid else None)
            damaged = {path for store in stores for path in store.damaged}
            if not runs and not damaged:
                of = f" of {grid}" if grid else ""
                raise ValueError(f"No run{of} has ended in {results}; there is nothing to verify.")
            from bench.execution.verification import WHOLE, Limits

            if write:
                from bench.results import verified as verdicts

                verdicts.write(write, {})  # whether that can be done is known before hours of training
            file = Path(grid) if grid and grid.endswith((".yaml", ".yml")) else None
            audits = _audit(stores, grids, file, data_dir)
            number = None if all_ or run else 20 if sample is None else sample
            drawn, by = _draw(_named(runs, _ids(run), results, grid), number, seed, results)
            limits = WHOLE if whole else Limits(Limits.minutes if minutes is None else minutes, rounds or Limits.rounds)
            verified = _verify(stores, drawn, limits, tolerance / 100, data_dir, _Writing(write, author or "", by))
            _say_facts(drawn)
            for store in stores:  # what was read after the runs were drawn
                damaged = name_damaged(store, looked=True, named=damaged)
    status, line = _outcome(verified, audits, len(damaged))
    say(line)
    if status:
        raise typer.Exit(status)


@contextlib.contextmanager
def _opened(results: Path) -> Iterator["Store"]:
    """The results; ends the command with 1, as where numbers differ, if a bundle is not what its manifest says."""
    from bench.results.bundles import ChangedBundle, opened

    try:
        with opened(results) as store:
            yield store
    except ChangedBundle as error:
        warn(f"error: {error}")
        raise typer.Exit(1) from None


def _outcome(verified: "Sequence[tuple[str, str]]", audits: "Sequence[Audit]", damaged: int) -> tuple[int, str]:
    """The exit status, and the last line.

    Args:
        verified: method and result of each run that was trained again.
        damaged: number of files.
    """
    from bench.results.verified import CONFIRMED, DIFFERS

    counts = Counter(result for _, result in verified)
    differing, left = sum(one.differs for one in audits), sum(not (one.differs or one.follows) for one in audits)
    said = [f"{count} {result}" for result, count in counts.items()] or ["no run compared"]
    said += [f"{damaged} damaged"] if damaged else []
    said += [f"{counted(differing, 'grid')} {DIFFERS}"] if differing else []
    said += [f"{counted(left, 'grid')} not confirmed"] if left else []
    line = ", ".join(said)
    if counts[DIFFERS] or damaged or differing:
        return 1, f"{line}."
    confirmed = {method for method, result in verified if result in CONFIRMED}
    if not left and confirmed and all(result in CONFIRMED for result in counts):
        return 0, f"{line}."
    without = sorted({method for method, _ in verified} - confirmed)
    return 2, line + (f"; no run of {', '.join(without)} was confirmed." if without else ".")


def _find(datasets: Sequence[str]) -> None:
    """Makes known where datasets of users are, which stored configs name by their content.

    Raises:
        ValueError, DataError: if one is no dataset of a user, or not there.
    """
    from datasets import own_data

    for dataset in datasets:
        if not dataset.startswith(("npz:", "imagefolder:")):
            raise ValueError(f"--dataset is npz:PATH or imagefolder:PATH here, but got {dataset}.")
        own_data.find(dataset)
        say(f"{dataset}: {own_data.canonical(dataset)}")


class _Writing(NamedTuple):
    """What is written of each run, and where; by which seed it was drawn."""

    file: Path | None
    author: str
    seed: int | None


def _check(
    sample: int | None,
    all_: bool,
    named: Sequence[str] | None,
    seed: int | None,
    rounds: int | None,
    minutes: float | None,
    whole: bool,
    tolerance: float,
    write: Path | None,
    author: str | None,
) -> None:
    """Raises ValueError if options do not go together, or one is out of its range."""
    if all_ and (sample is not None or seed is not None):
        raise ValueError("--all takes all runs; leave out --sample and --seed.")
    if named and (all_ or sample is not None or seed is not None):
        raise ValueError("--run names the runs; leave out --sample, --all and --seed.")
    if named and not _ids(named):
        raise ValueError("--run names runs by their ids, but got none; ids are in run_ids of a table's CSV.")
    if whole and (minutes is not None or rounds is not None):
        raise ValueError("--whole trains every run to its end; leave out --minutes and --rounds.")
    for name, value, least in (("--sample", sample, 1), ("--rounds", rounds, 1), ("--minutes", minutes, 0)):
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, but got {value:g}.")
    if not 0 <= tolerance <= 100:
        raise ValueError(f"--tolerance is in points, between 0 and 100, but got {tolerance:g}.")
    if (write is None) != (author is None):
        raise ValueError("--write and --author go together: the file says who has verified.")
    if author is not None:
        given.require_author(author)


def _runs(stores: "list[Store]", grids: "list[tuple[Store, str]] | None") -> "Drawn":
    """The runs that may be drawn: those that have ended, of some grids or all. A run that several directories hold counts once,
    with each of them where its files are others. One that was stopped before its first round has nothing to compare.
    """
    from bench.results.verified import digest_of

    runs: Drawn = {}
    held = [(store, store.records()) for store in stores] if grids is None else []
    held += [(store, store.records_of(found)) for store, label in grids or () if (found := store.grid(label))]
    for store, records in held:
        for run, record in records.items():
            if record["status"] == "stopped" and not record["rounds"]:
                continue
            copies = runs.setdefault(run, [])
            if not copies or digest_of(store, run) not in {digest_of(other, run) for other in copies}:
                copies.append(store)
    return runs


def _audit(
    stores: "list[Store]", grids: "list[tuple[Store, str]]", file: Path | None, data_dir: Path | None
) -> "list[Audit]":
    """Says of each grid whether it follows from its file."""
    from bench.tuning.audit import audit

    audits = []
    for store, label in grids:
        if stored := store.grid(label):
            audits.append(audit(store, stored, file, data_dir and data_dir.absolute()))
            say(f"{label}{_place(store, stores)}: {audits[-1].says}")
    return audits


def _place(store: "Store", stores: "Sequence[Store]") -> str:
    """ " in NAME" where several directories are looked at."""
    return f" in {store.folder.name}" if len(stores) > 1 else ""


def _ids(texts: Sequence[str] | None) -> list[str]:
    """("a b", "c,d") -> [a, b, c, d], each once."""
    return list(dict.fromkeys(" ".join(texts or ()).replace(",", " ").split()))


def _named(runs: "Drawn", named: Sequence[str], results: Path, grid: str | None) -> "Drawn":
    """The runs that are named, all if none is; raises ValueError if one is not there."""
    if absent := [run for run in named if run not in runs]:
        raise ValueError(
            f"{results} has no run {', '.join(absent)} that has ended{f' in {grid}' if grid else ''}; ids are in run_ids of a "
            "table's CSV, and are the names of the folders in runs/."
        )
    return {run: runs[run] for run in named} if named else runs


def _draw(runs: "Drawn", number: int | None, seed: int | None, results: Path) -> "tuple[Drawn, int | None]":
    """So many of the runs, all for None, and the seed that has drawn them, None if all were taken; says so."""
    from bench.execution.verification import draw

    if number is None or number >= len(runs):
        drawn, by = sorted(runs), None
    else:  # a known seed would say which runs nobody looks at
        by = secrets.randbelow(2**32) if seed is None else seed
        drawn = draw([*runs], number, by)
    searched = sum((runs[run][0].config(run) or {}).get("split") == "validation" for run in drawn)
    of_searches = f", {searched} of them of searches, which boards do not list" if searched else ""
    how = ""
    if by is not None:
        probability = _percent(len(drawn), len(runs))
        how = f" (a single changed one is among them with probability {probability}), drawn by --seed {by}"
    say(f"{len(drawn)} of {len(runs)} runs of {results}{of_searches}{how}")
    return {run: runs[run] for run in drawn}, by


def _percent(part: int, whole: int) -> str:
    """A share that is neither nothing nor all, "<1 %" to "99 %"."""
    return f"{min(99, percent)} %" if (percent := int(100 * part / whole + 0.5)) else "<1 %"


def _verify(
    stores: "Sequence[Store]",
    runs: "Drawn",
    limits: "Limits",
    tolerance: float,
    data_dir: Path | None,
    writing: _Writing,
) -> list[tuple[str, str]]:
    """Trains runs again, says what came out of each copy, and writes it; returns the method and the result of each."""
    from bench.errors import StoreError
    from bench.execution.verification import Verifier
    from bench.results import verified
    from bench.tuning.audit import stops_of_searches

    verifier = Verifier(stores, data_dir and data_dir.absolute(), limits, tolerance)
    stops = {store.folder: stops_of_searches(store) for store in stores}
    results: list[tuple[str, str]] = []
    unwritten: dict[str, Any] = {}  # while another program has the folder of the file
    names = names_of_configs({run: config for run, (store, *_) in runs.items() if (config := store.config(run))})
    for run, copies in runs.items():
        verdicts = []
        for store in copies:
            config, verdict = store.config(run), verifier.verify(store, run, stops[store.folder])
            if config is None:  # changed since it was drawn
                continue
            say(f"{run}  {names.get(run) or name_of_config(config)}{_place(store, stores)}: {verdict.says}")
            results.append((config["algorithm"]["name"], verdict.result))
            verdicts.append((verdict, store, config))
        if writing.file and verdicts:  # of several copies the one that differs, so that no other one hides it
            told = max(
                verdicts, key=lambda one: (one[0].result == verified.DIFFERS, one[0].result in verified.CONFIRMED)
            )
            unwritten[run] = _for_boards(run, *told, writing)
            with contextlib.suppress(StoreError):  # the next run tries again
                verified.write(writing.file, unwritten)
                unwritten = {}
    if writing.file and unwritten:
        verified.write(writing.file, unwritten)
    return results


def _for_boards(run: str, verdict: "Verdict", store: "Store", config: "Config", writing: _Writing) -> dict[str, Any]:
    """What the file for boards says of a run."""
    from bench.config.code_version import facts_of
    from bench.results import verified

    try:
        code = facts_of(config)["commit"]
    except (LookupError, ValueError, OSError, SyntaxError):  # of a method that is not here
        code = "unknown"
    about: dict[str, Any] = {"by": writing.author, "when": time.strftime("%Y-%m-%d"), "code": code}
    about |= {} if writing.seed is None else {"seed": writing.seed}
    numbers = {"result": verdict.result, "rounds": verdict.rounds, "of": verdict.of, **verdict.numbers}
    return {**numbers, **about, "files": verified.digest_of(store, run)}


def _say_facts(runs: "Drawn") -> None:
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
    copies = [(run, store) for run, stores in runs.items() for store in stores]
    there = facts_of({f"{store.folder}/{run}": {**record} for run, store in copies if (record := store.record(run))})
    for name, now in here.items():
        then = there.get(name, [])
        if then != [now]:
            say(f"{name}: {', '.join(then) or 'not said'} in the results, {now} here")
