"""Results of another directory, from another machine or another day, become part of this one.

A run is known by its id, the hash of its config: what is finished there and not here is copied, what is finished on both sides
stays as it is here. A run that failed there is copied where nothing of it is here, so that tables say that it failed, and `run`
repeats it. Nothing here is overwritten, and a second time nothing is left to do.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import references
from bench.errors import StoreError
from bench.experiments.cells import cell_key
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.labels import value_of
from bench.experiments.stored_grid import is_same, merge_cells
from bench.results import authors
from bench.results.columns import described
from bench.results.copies import import_runs, require_files
from bench.results.equality import differences
from bench.results.grids import StoredCell, StoredGrid
from bench.results.ids import unversioned
from bench.results.json_files import Damaged
from bench.results.records import FINISHED, RunRecord, code_of
from bench.results.store import Store
from datasets.partition_files import FOLDER, keep, kept, parse

_BATCH = 500  # runs that are copied between two waits for the disk; an interruption repeats no more


@dataclass
class Merged:
    """The result of a merge, or of a dry run; ids of runs, and names of grids as `<grid>@<budget>`.

    Attributes:
        taken: runs finished there only.
        failed: runs that failed there, and of which nothing is here.
        both: runs finished on both sides, which stay as they are here.
        disagreeing: those of `both` with other numbers there -> in what they differ.
        unfinished: runs there that have not ended, or that a search stopped.
        grids: stored grids that are here now and were not before, or have more cells.
        others: grids of the same name there that are not the grid that is stored here.
        replaced: cells of grids there that have other settings here (another substitute, an edited default, or other chosen
            hyper-parameters) -> in what they differ.
    """

    taken: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    both: list[str] = field(default_factory=list)
    disagreeing: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)


def merge_results(
    there: Store, here: Store, dry_run: bool = False, on_message: Callable[[str], None] = lambda line: None
) -> Merged:
    """Takes what has ended there, while no driver is at work on either side.

    Each run is copied completely or not at all; after an interruption the next call copies the others. Runs are copied in
    batches, and those of a batch become runs together.

    Args:
        on_message: as of `Store.locked`.

    Raises:
        StoreError: if both are one directory, a driver is at work, or a file cannot be read.
    """
    if there.folder.resolve() == here.folder.resolve():
        raise StoreError(f"{there.folder} is the results directory itself; name another one to take results from.")
    with there.unchanging(), contextlib.nullcontext() if dry_run else here.locked(on_message):
        return _merge(there, here, dry_run)


def _merge(there: Store, here: Store, dry_run: bool) -> Merged:
    named = authors.read(there)
    there.validate_all()
    here.validate_all()
    own = {run_id: record for run_id, record in here.records().items() if record["status"] in FINISHED}
    merged = Merged(unfinished=there.unfinished())
    _compare_runs(there, here, own, merged)
    if not dry_run:
        taken = [*merged.taken, *merged.failed]
        # Before the runs, which are taken only once.
        authors.add(here, {run: name for run in taken if (name := named.of(run))})
        _copy_runs(there, here, taken)
    for name in there.grids():
        if theirs := there.grid(name):
            _merge_grid(name, theirs, here, {*own, *merged.taken}, merged, dry_run)
    if not dry_run:
        _take_partitions(there, here)
    for name in there.searches():  # what they have proposed; the runs say what that has reached
        search = there.search(name)
        if search and not here.search(name) and not dry_run:
            here.write_search(name, search)
    return merged


def _take_partitions(there: Store, here: Store) -> None:
    """Copies partition files, each of which is checked first; `there.damaged` names those that are none."""
    for path in kept(there.folder):
        try:
            keep(parse(f"{references.PARTITION}:{path}"), here.folder / FOLDER)
        except ValueError as error:
            there.damaged[path] = str(error).removeprefix(str(path)).strip(" .")


def _compare_runs(there: Store, here: Store, own: Mapping[str, RunRecord], merged: Merged) -> None:
    """Finds the runs that are finished there only, or failed there, and compares those that are finished on both sides (own:
    here)."""
    for run_id, record in there.records().items():
        if record["status"] == "failed":
            if not here.run_folder(run_id).exists() and _can_be_copied(there, run_id):
                merged.failed.append(run_id)
        elif record["status"] not in FINISHED:
            merged.unfinished.append(run_id)
        elif run_id in own:
            merged.both.append(run_id)
            if difference := differences((there.rows(run_id), record), (here.rows(run_id), own[run_id])):
                merged.disagreeing[run_id] = difference
        elif _can_be_copied(there, run_id):
            merged.taken.append(run_id)


def _copy_runs(there: Store, here: Store, taken: list[str]) -> None:
    hashes = {digest for record in filter(None, map(there.record, taken)) for _, digest in code_of(record)}
    for digest in sorted(hashes):  # before the runs, which are copied only once
        if definitions := there.code(digest):
            here.write_code(digest, definitions)
    for first in range(0, len(taken), _BATCH):
        import_runs(here, {run_id: there.run_folder(run_id) for run_id in taken[first : first + _BATCH]})


def _can_be_copied(there: Store, run_id: str) -> bool:
    """Whether a run's folder holds regular files only; if not, `there.damaged` names the other one."""
    try:
        require_files(there.run_folder(run_id))
    except Damaged as error:
        there.damaged[error.path] = error.what
        return False
    return True


def _merge_grid(
    name: str, theirs: StoredGrid, here: Store, ended: Collection[str], merged: Merged, dry_run: bool
) -> None:
    """Adds the cells of a grid there to the grid of the same name here; `ended` are the runs that are finished here."""
    ours = here.grid(name)
    if ours and not is_same(ours, theirs):
        merged.others.append(name)
        return
    grid = merge_cells(ours, theirs, _order(ours, theirs), ended.__contains__) if ours else theirs
    kept = {cell["run"] for cell in grid["cells"]}
    lost = [cell for cell in theirs["cells"] if cell["run"] in ended and cell["run"] not in kept]
    for cell in lost:
        key = cell_key(theirs["report"], cell)
        alike = [one for one in grid["cells"] if cell_key(theirs["report"], one) == key]
        stays = next((one for one in alike if one["seed"] == cell["seed"]), [*alike, cell][0])
        merged.replaced.setdefault(f"{name}: {label_of(theirs, cell)}", _differing(cell, stays))
    if grid != ours:
        merged.grids.append(name)
        if not dry_run:
            here.write_grid(name, grid)


def _differing(there: StoredCell, here: StoredCell) -> str:
    """Settings and options of two runs that differ: "fedprox.mu 0.1 there and 1 here"."""
    theirs, ours = (described(cell["config"]) for cell in (there, here))
    keys = [key for key in dict.fromkeys([*theirs, *ours]) if key != "seed" and theirs.get(key) != ours.get(key)]
    return ", ".join(f"{key} {theirs.get(key, 'not set')} there and {ours.get(key, 'not set')} here" for key in keys)


def label_of(grid: StoredGrid, cell: StoredCell) -> str:
    """What a grid calls the table cell of one of its runs: "mnist, label-2, fedavg"."""
    return ", ".join(str(value_of(cell, key)) for key in (*grid["report"]["rows"], grid["report"]["columns"]))


def _order(ours: StoredGrid, theirs: StoredGrid) -> Sequence[StoredCell]:
    """All cells of a grid in the order of its tables: as its file has them where that is still the same grid, else those of
    both sides, each in its order."""
    budget = ours["budget"].partition("+")[0]
    source = ours.get("source")
    try:
        if source and not Path(source).is_file():  # a pipe would wait for a writer
            raise FileNotFoundError(source)
        spec = load_grid(source or unversioned(ours["grid"]))
        if spec.digest(budget) == ours["digest"] and ours.get("chosen_on") != "validation":
            return [cell.to_json() for cell in expand(spec, budget, overrides=ours["overrides"], facts=None)]
    except (ValueError, OSError, KeyError):
        pass  # a file that is on another machine, or a grid of one setting
    layout, cells, at = ours["report"], list(ours["cells"]), 0
    keys = [cell_key(layout, cell) for cell in cells]
    for cell in theirs["cells"]:
        key = cell_key(layout, cell)
        if key in keys:
            at = keys.index(key) + 1
        else:
            cells.insert(at, cell)
            keys.insert(at, key)
            at += 1
    return cells
