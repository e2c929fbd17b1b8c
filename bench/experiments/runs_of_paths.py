"""Runs that were stored when configs named image folders by their paths: found again under the digest of what lies there.

A stored run is that of a cell if their configs differ in nothing but the path that stands for the reference, and its decoded
images have the digest that those of the cell have now. It is copied under the cell's id. Its own folder stays, for the grids
that show it; the grid of the experiment shows the copy from then on. Runs that have not ended, and runs of searches, start
anew.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from bench import references
from bench.config.schema import RunConfig, run_id
from bench.experiments.cells import Cell, ordered
from bench.experiments.planning import training_of
from bench.results.copies import copy_as
from bench.results.grids import StoredCell
from bench.results.records import FINISHED
from bench.results.store import Store
from datasets import resized


def find(cells: Iterable[Cell], data_dir: Path | None, store: Store) -> dict[str, RunConfig]:
    """Id of a stored run -> config of the cell whose run it is, of cells that have none of their own.

    Raises:
        datasets.DataError: if the images of a cell cannot be read.
    """
    there = [cell for cell in cells if not cell.missing and references.read(cell.config.dataset)]
    there += [base for cell in there if (base := training_of(cell))]
    wanted = {cell.id: cell.config for cell in there if store.record(cell.id) is None}
    if not wanted:
        return {}
    stored: dict[str, list[tuple[str, str]]] = {}
    for run, before, record in store.ended():
        if references.is_path(before["dataset"]) and "data" in record:
            stored.setdefault(_without_dataset(before), []).append((record["data"]["digest"], run))
    found: dict[str, RunConfig] = {}
    for config in wanted.values():
        if alike := stored.get(_without_dataset(config.canonical())):
            images = resized.of_config(config, data_dir)
            found |= {run: config for digest, run in alike[::-1] if digest == images.digest}
    return found


def import_found(found: Mapping[str, RunConfig], grid: str, store: Store) -> None:
    """Copies runs of `find` under the ids of their cells, and makes a stored grid show the copies; the store must be locked.

    Args:
        grid: name of the grid in the store, which need not be there.
    """
    named: dict[str, str] = {}  # path -> reference
    for run, config in found.items():
        before = store.config(run)
        if before is not None:
            named[before["dataset"]] = config.dataset
            copy_as(store, run_id(config), config.canonical(), run)
    if not (stored := store.grid(grid)):
        return

    def renamed(cell: StoredCell) -> StoredCell:
        config = cell["config"]
        is_other = cell["run"] not in found and store.status(cell["run"] or "") in FINISHED
        if config["dataset"] not in named or is_other:
            return cell
        reference = named[config["dataset"]]
        config = {**config, "dataset": reference}
        dataset = reference if cell["dataset"] in named else cell["dataset"]
        return cast(StoredCell, {**cell, "dataset": dataset, "config": config, "run": cell["run"] and run_id(config)})

    cells = [renamed(cell) for cell in stored["cells"]]
    if cells != stored["cells"]:
        store.write_grid(grid, ordered(stored, cells))


def _without_dataset(config: Mapping[str, Any]) -> str:
    kind = config["dataset"].partition(":")[0]
    return json.dumps({**config, "dataset": kind}, sort_keys=True)
