"""From what was asked for to the runs that are left to play."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from bench import grid as grids
from bench import images
from bench.config import run_id
from bench.cost import examples_to_train
from bench.grid import Cell
from bench.grid_spec import GridSpec
from bench.mistakes import ConfigError
from bench.run import Keep
from bench.store import Store


@dataclass(frozen=True)
class Request:
    """What `run` was asked for.

    Attributes:
        only: restricts the cells; setting -> values.
        overrides: settings and method options that win over grid and budget.
        seeds: replaces the grid's seeds, or None.
        substitutes: dataset without images -> dataset that stands in.
        rerun: play finished runs again and keep their old results aside.
        keep_final: keep each run's last state.
    """

    grid: GridSpec
    budget: str
    only: Mapping[str, list]
    overrides: Mapping[str, Any]
    seeds: list[int] | None
    substitutes: Mapping[str, str]
    data_dir: Path | None
    rerun: bool = False
    keep_final: bool = True

    @property
    def label(self) -> str:
        """Its name in the store."""
        return f"{self.grid.name}@{grids.budget_label(self.budget, self.overrides)}"


@dataclass(frozen=True)
class Plan:
    """The cells of a request.

    Attributes:
        cells: all cells of the grid.
        selected: those that were asked for.
        todo: those to play, longest first, each run once.
        reasons: run id -> why a stored run is played again.
    """

    cells: list[Cell]
    selected: list[Cell]
    todo: list[Cell]
    reasons: dict[str, str]

    @property
    def finished(self) -> int:
        """Selected runs that need not be played."""
        return len({cell.id for cell in self.selected if not cell.missing}) - len(self.todo)


def make_plan(request: Request, store: Store) -> Plan:
    """Expands the grid, looks which data is there, and leaves out what is finished.

    Raises:
        ConfigError: for everything that is wrong with the request.
        datasets.DataError: if a dataset is there but damaged, or none is there.
    """
    _, selected = _expand(request, [])
    unused = [name for name in request.substitutes if name not in {cell.dataset for cell in selected}]
    if unused:
        raise ConfigError([f"--substitute {name}=...: no selected cell uses {name}." for name in unused])
    absent = _absent(selected, request.data_dir)
    cells, selected = _expand(request, list(absent))
    if absent and all(cell.missing for cell in selected):
        raise datasets.DataError(next(iter(absent.values())))
    for sentence in _absent([cell for cell in selected if cell.substitute], request.data_dir).values():
        raise datasets.DataError(sentence)
    todo, reasons = {}, {}
    for cell in selected:
        if not cell.missing:
            reason = _reason_to_play(cell, request, store)
            if reason is not None:
                todo[cell.id] = cell
                if reason:
                    reasons[cell.id] = reason
    longest_first = sorted(todo.values(), key=lambda cell: -examples_to_train(cell.config))
    return Plan(cells, selected, longest_first, reasons)


def keep_of(request: Request) -> Keep:
    """Which states the runs of a request keep."""
    grid = request.grid
    return Keep(request.keep_final, tuple(grid.save_rounds), tuple(grid.save_local_models))


def store_grid(request: Request, plan: Plan, store: Store) -> None:
    """Stores the expanded grid: what was asked for now, and what earlier requests asked for of the same grid."""
    earlier = store.grid(request.label) or {"cells": []}
    asked = {cell.id for cell in plan.selected} | {run_id(cell["config"]) for cell in earlier["cells"]}
    cells = [cell for cell in plan.cells if cell.id in asked]
    store.write_grid(request.label, grids.to_json(request.grid, request.budget, request.overrides, cells))


def _expand(request: Request, missing: list[str]) -> tuple[list[Cell], list[Cell]]:
    """All cells, for the grid's own seeds and those asked for, and the selected ones among them."""
    cells = {}
    for seeds in dict.fromkeys((None, request.seeds and tuple(request.seeds))):
        found = grids.expand(
            request.grid,
            request.budget,
            overrides=request.overrides,
            seeds=seeds and list(seeds),
            missing=missing,
            substitutes=request.substitutes,
        )
        cells |= {(cell.dataset, cell.id): cell for cell in found}
    only = dict(request.only) | ({"seed": request.seeds} if request.seeds else {})
    return list(cells.values()), grids.select(list(cells.values()), only)


def _absent(cells: list[Cell], data_dir: Path | None) -> dict[str, str]:
    """Datasets of the cells that are not there, with what to do. The others are decoded now, before workers wait."""
    sentences = {}
    for cell in {(cell.config.dataset, cell.config.transform): cell for cell in cells}.values():
        try:
            images.load(cell.config, data_dir)
        except datasets.MissingData as error:
            sentences[cell.config.dataset] = str(error)
    return sentences


def _reason_to_play(cell: Cell, request: Request, store: Store) -> str | None:
    """None if a finished run will do; "" if it was not finished; else why it is played again."""
    record = store.record(cell.id)
    if record is None:
        return ""
    if record["status"] == "failed":
        return "it failed before"
    if request.rerun:
        return "asked for; its earlier results will be in superseded/"
    lacking = store.lacks(cell.id, replace(keep_of(request), final=False).files())
    return f"the stored run lacks {', '.join(lacking)}" if lacking and record["status"] == "done" else None
