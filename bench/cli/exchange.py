"""Results for other tools, from other machines, and beside other results: `export`, `import` and `compare`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options as given
from bench.cli.console import counted, explained, meant_grids, name_damaged, require_grids, say, say_stale, warn
from bench.experiments.labels import chosen_in, pairs
from bench.files import file_name, make_folder
from bench.results.grids import StoredGrid
from bench.results.records import RunRecord

if TYPE_CHECKING:
    from bench.results.store import Store


def export(
    grid: Annotated[
        str | None,
        typer.Option("--grid", help="Name of a grid that was run; only a bundle may leave it out, and has all."),
    ] = None,
    budget: given.StoredBudgetOption = None,
    to: Annotated[Path | None, typer.Option("--to", help="All rounds as a table: FILE.csv or FILE.parquet.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="A folder for TensorBoard: one event file per run, named after its setting.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.zip", help="Records, rounds and grids in one file, to share: others import or verify it."
        ),
    ] = None,
    author: Annotated[str | None, typer.Option(help="Of a bundle: who trained the runs.")] = None,
    results_dir: given.ResultsOption = given.RESULTS,
) -> None:
    """Write all rounds of all runs of a grid as one table, or for TensorBoard; or a bundle of results to share."""
    from bench.results.store import Store

    with explained():
        if sum(place is not None for place in (to, tensorboard, bundle)) != 1:
            raise ValueError(
                "Name either a table by --to FILE.csv or FILE.parquet, or a folder by --tensorboard, or a bundle by --bundle."
            )
        if (bundle is None) != (author is None):
            raise ValueError('A bundle says who trained its runs: --bundle FILE.zip --author "NAME".')
        store = Store(results_dir)
        if bundle and author:
            _write_bundle(bundle, author, store, grid, budget)
            return
        if not grid:
            raise ValueError("Name a grid by --grid; only a bundle may have all of them.")
        label = _stored_name(store, grid, budget)
        expanded = store.grid(label)
        ids = {cell["run"] for cell in expanded["cells"] if cell["run"]}
        records = store.records_of(expanded)
        if not records:
            raise ValueError(f"No run of {grid} has ended in {store.folder}; there is nothing to export.")
        if to:
            _write_table(to, label, store)
        else:
            _write_events(tensorboard, expanded, records, store)
        if len(ids) > len(records):
            left = len(ids) - len(records)
            has, is_ = ("has", "is") if left == 1 else ("have", "are")
            why = f"{has} not ended, or {is_} damaged," if store.damaged else f"{has} not ended"
            warn(f"{counted(left, 'run')} {why} and {is_} not in it.")


def import_(
    other: Annotated[Path, typer.Argument(help="A results directory, of another machine for example, or a bundle.")],
    dry_run: given.DryRunOption = False,
    results_dir: given.ResultsOption = given.RESULTS,
) -> None:
    """Take runs that have ended, and grids, from another results directory; what is finished here stays as it is.

    A run that failed there is taken if nothing of it is here, and the next `run` repeats it.

    Exit status 1 if runs that both directories hold differ in their numbers, or cells in their settings.
    """
    with explained():
        from bench.experiments.importing import merge_results
        from bench.results.bundles import opened
        from bench.results.store import Store

        here = Store(results_dir)
        with opened(other) as there:
            found = merge_results(there, here, dry_run, warn)
            name_damaged(there, looked=True)
        name_damaged(here, looked=True)
    verb = "would be taken" if dry_run else "taken"
    here_already = "was here already and stays" if len(found.both) == 1 else "were here already and stay"
    left_out = "has not finished there and is" if len(found.unfinished) == 1 else "have not finished there and are"
    say(
        f"{counted(len(found.taken), 'run')} {verb}, {len(found.both):,} {here_already}, {len(found.unfinished):,} {left_out} "
        "left out."
    )
    if found.failed:
        are, them = ("is", "it") if len(found.failed) == 1 else ("are", "them")
        taken = verb if dry_run else f"{are} taken"
        say(f"{counted(len(found.failed), 'run')} that failed there {taken}, too; the next `run` repeats {them}.")
    for name in found.grids:
        say(f"Grid {name}: cells {'would be ' * dry_run}merged.")
    for name in found.others:
        are = "would be" if dry_run else "are"
        warn(
            f"Grid {name} is another grid there, with other settings, axes or studies; its runs {are} taken, its cells are not."
        )
    for name, difference in found.disagreeing.items():
        warn(f"{name} has other numbers there ({difference}, there and here); those that are here stay.")
    for cell, difference in found.replaced.items():
        warn(f"{cell} has other settings there ({difference}); the cell that is here stays.")
    if found.disagreeing or found.replaced:
        raise typer.Exit(1)


def compare(
    one: Annotated[Path, typer.Argument(metavar="A", help="A results directory or a bundle.")],
    other: Annotated[Path, typer.Argument(metavar="B", help="Another one, of other code for example.")],
    grid: given.StoredGridOption = None,
) -> None:
    """Compare the grids that two results directories hold, cell by cell.

    Exit status 0 if each grid that both hold has runs in both, all of these with identical numbers, bit for bit, and searches
    have chosen the same; else 1. What only one of them holds is named.
    """
    from bench.results.bundles import opened

    with explained(), opened(one) as first, opened(other) as second:
        stores, held = [first, second], []
        for store in stores:
            store.check_exists()
            held.append(meant_grids(store, *given.stored_name(grid, None)))
        names = [name for name in held[0] if name in held[1]]
        if not names:
            what = f"results of {grid}" if grid else "a grid"
            sides = zip((one, other), stores, strict=True)
            some = "; ".join(f"{side} holds {', '.join(store.grids()) or 'none'}" for side, store in sides)
            raise ValueError(f"A and B do not both hold {what}: {some}.")
        from reports.exports import results_diff as sides

        found = [sides.compare(name, *stores) for name in names]
        sys.stdout.write(f"A: {one}\nB: {other}\n\n" + "\n".join(map(sides.render, found)))
        for side, own, others in (("A", *held), ("B", *reversed(held))):
            if alone := [name for name in own if name not in others]:
                say(f"Only in {side}: {', '.join(alone)}")
    if any(each.differing or each.choices or not each.shared for each in found):
        raise typer.Exit(1)


def _stored_name(store, grid: str, budget: str | None) -> str:
    """The `<grid>@<budget>` that is meant, and names what is damaged of it; raises ValueError if there is none, or more than
    one."""
    names = require_grids(store, *given.stored_name(grid, budget))
    if len(names) > 1 and grid in names:
        return grid  # "mine@paper" also means its later versions
    if len(names) > 1:
        versions = {name.partition("@")[0] for name in names}
        by = "--budget" if len(versions) == 1 else f"--grid {names[0]!r}"
        raise ValueError(f"{store.folder} holds {', '.join(names)}; choose one with {by}.")
    return names[0]


def _write_bundle(path: Path, author: str, store: "Store", grid: str | None, budget: str | None) -> None:
    from bench.config.stale import stale_runs
    from bench.experiments import bundling
    from reports.tables.records import distinct_runs, left_behind

    if path.suffix != ".zip":
        raise ValueError(f"A bundle is a zip file: give {path} a name that ends in .zip.")
    given.require_author(author)
    store.check_exists()
    name_damaged(store)
    labels = require_grids(store, *given.stored_name(grid, budget))
    ended = {}
    for stored in filter(None, map(store.grid, labels)):
        ended |= distinct_runs(stored, store.records_of(stored))
    say_stale(stale_runs(ended, store))  # as others will find them
    if earlier := sum(any(left_behind(config)) for _, config in ended.values()):
        warn(
            f"{counted(earlier, 'run')} of a version that the method has left behind: who has its file as it is now cannot "
            "verify them; share the file of that version, or run the grid again."
        )
    make_folder(path.parent)
    written = bundling.write(store, labels, path, author)
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    warn(f"Saved: {path} ({counted(written.runs, 'run')} of {counted(len(labels), 'grid')}, {size})")
    if written.needed:
        warn(f"Who verifies it also needs what is not in it: {'; '.join(written.needed)}.")
    if written.uncommitted:
        warn(
            f"{counted(written.uncommitted, 'run')} of code that had changes which were not committed: commit them before you "
            "train what you share, so that others can have it."
        )


def _write_table(path: Path, label: str, store) -> None:
    """Writes the rounds of a stored grid to a file, or as CSV to the standard output if the path is "-"."""
    from reports.exports import rounds
    from reports.exports.frames import rounds_frame
    from reports.formats.csv import to_csv

    to_pipe = str(path) == "-"
    if not to_pipe:
        rounds.check_suffix(path)
        make_folder(path.parent)
    table = rounds_frame(store, [label])
    if to_pipe:
        sys.stdout.write(to_csv(table))
        return
    rounds.write(table, path)
    warn(f"Saved: {path} ({counted(len(table), 'round')} of {counted(table['run'].nunique(), 'run')})")


def _write_events(folder: Path, expanded: StoredGrid, records: Mapping[str, RunRecord], store: "Store") -> None:
    from bench.results.tensorboard import write_events
    from reports.tables.aggregate import cell_keys, current_cells, label

    make_folder(folder)
    keys = cell_keys(expanded)
    for cell in current_cells(expanded, records):
        if (run_id := cell["run"]) and run_id in records:
            words = [*(label(cell, key) for key in keys), f"seed {cell['seed']}", *pairs(chosen_in(cell))]
            own = folder / file_name(" ".join(words))
            own.mkdir(exist_ok=True)
            write_events(own, cell["config"], store.rows(run_id), records[run_id].get("started"))
    warn(f"Saved: {folder}; look at it by: tensorboard --logdir {folder}")
