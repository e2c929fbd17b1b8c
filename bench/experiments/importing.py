"""Results of another directory, from another machine or another day, become part of this one.

A run is known by its id, the hash of its config: what is finished there and not here is copied, what is finished on both sides
stays as it is here. Nothing here is overwritten, and a second time nothing is left to do.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.config.schema import run_id as id_of
from bench.errors import StoreError
from bench.experiments.cells import cell_key
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.labels import value_of
from bench.experiments.stored_grid import merge_cells
from bench.results.equality import differences
from bench.results.json_files import Damaged
from bench.results.store import Store, require_files

_FINISHED = ("done", "diverged")


@dataclass
class Merged:
    """What came of a merge, or would come of it; ids of runs, and names of grids as `<grid>@<budget>`.

    Attributes:
        taken: runs finished there only.
        both: runs finished on both sides, which stay as they are here.
        disagreeing: those of `both` with other numbers there -> in what they differ.
        unfinished: runs there that failed or have not ended.
        grids: stored grids that are here now and were not before, or have more cells.
        others: grids of the same name there that are not the grid that is stored here.
        replaced: cells of grids there that have other settings here, where others stood in, or searches have chosen otherwise.
    """

    taken: list[str] = field(default_factory=list)
    both: list[str] = field(default_factory=list)
    disagreeing: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


def merge_results(there: Store, here: Store, dry_run: bool = False) -> Merged:
    """Takes what is finished there, while no driver is at work on either side.

    Interrupted, it has taken some runs whole and others not at all, and goes on when it is called again.

    Raises:
        StoreError: if both are one directory, a driver is at work, or a file cannot be read.
    """
    if there.folder.resolve() == here.folder.resolve():
        raise StoreError(f"{there.folder} is the results directory itself; name another one to take results from.")
    with there.unchanging(), contextlib.nullcontext() if dry_run else here.locked():
        return _merge(there, here, dry_run)


def _merge(there: Store, here: Store, dry_run: bool) -> Merged:
    there.look_through()
    here.look_through()
    found, records, own = Merged(), there.records(), here.records()
    found.unfinished = [run for run in there.unfinished() if run not in records]
    for name, record in records.items():
        config = there.run_folder(name) / "config.json"
        if record["status"] not in _FINISHED:
            found.unfinished.append(name)
        elif id_of(there.config(name) or {}) != name:  # a seal of one's own making would not tell
            there.damaged.setdefault(config, "is the config of another run: the folder is not named after it")
        elif own.get(name, {}).get("status") in _FINISHED:
            found.both.append(name)
            if difference := differences((there.rows(name), record), (here.rows(name), own[name])):
                found.disagreeing[name] = difference
        else:
            try:
                require_files(there.run_folder(name))
            except Damaged as error:
                there.damaged[error.path] = error.what
                continue
            found.taken.append(name)
            if not dry_run:
                here.adopt(name, there.run_folder(name))
    ended = {name for name, record in own.items() if record["status"] in _FINISHED} | set(found.taken)
    for name in there.grids():
        theirs, ours = there.grid(name), here.grid(name)
        if ours and ours["digest"] != theirs["digest"]:
            found.others.append(name)
            continue
        merged = merge_cells(ours, theirs, _order(ours, theirs), ended.__contains__) if ours else theirs
        kept = {cell["run"] for cell in merged["cells"]}
        lost = [cell for cell in theirs["cells"] if cell["run"] in ended and cell["run"] not in kept]
        found.replaced += dict.fromkeys(f"{name}: {_where(theirs, cell)}" for cell in lost)
        if merged != ours:
            found.grids.append(name)
            if not dry_run:
                here.write_grid(name, merged)
    # What searches have proposed; the runs say what it has reached.
    for name in there.searches():
        if not here.search(name) and not dry_run:
            here.write_search(name, there.search(name))
    return found


def _where(grid: dict, cell: dict) -> str:
    """Where a cell stands in its table, for people."""
    keys = [*grid["report"]["rows"], grid["report"]["columns"]]
    return ", ".join(str(value_of(cell, key)) for key in keys)


def _order(ours: dict, theirs: dict) -> Sequence[dict]:
    """All cells of a grid in the order of its tables: as its file has them where that is still the same grid, else those of
    both sides, each in its order."""
    budget = ours["budget"].partition("+")[0]
    source = ours.get("source")
    try:
        if source and not Path(source).is_file():  # a pipe would wait for a writer
            raise FileNotFoundError(source)
        spec = load_grid(source or ours["grid"])
        if spec.digest(budget) == ours["digest"] and ours.get("chosen_on") != "validation":
            return [cell.to_json() for cell in expand(spec, budget, overrides=ours["overrides"], facts=None)]
    except (ValueError, OSError, KeyError):
        pass  # a file that is on another machine, or a grid of one setting
    layout, cells = ours["report"], list(ours["cells"])
    keys, at = [cell_key(layout, cell) for cell in cells], 0
    for cell in theirs["cells"]:
        key = cell_key(layout, cell)
        if key in keys:
            at = keys.index(key) + 1
        else:
            cells.insert(at, cell)
            keys.insert(at, key)
            at += 1
    return cells
