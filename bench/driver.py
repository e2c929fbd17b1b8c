"""Runs a grid: what is there already, what is left to do, play it, say how it went."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import datasets
from bench import grid as grids
from bench.config import ConfigError, run_id
from bench.cost import examples_to_train
from bench.grid import Cell, GridSpec
from bench.resources import Resources
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
    wanted = list(dict.fromkeys(cell.dataset for cell in selected))
    findings = {name: datasets.check(name, request.data_dir) for name in wanted}
    missing = [name for name, finding in findings.items() if finding.status == "missing"]
    unknown_names = [name for name in request.substitutes if name not in wanted]
    if unknown_names:
        raise ConfigError([f"--substitute {name}=...: no selected cell uses {name}." for name in unknown_names])
    cells, selected = _expand(request, missing)
    if missing and all(cell.missing for cell in selected):
        raise datasets.DataError(findings[missing[0]].detail)
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


def play(
    request: Request,
    plan: Plan,
    store: Store,
    console: Console,
    *,
    resources: Resources,
    max_concurrent: int,
    address: str | None,
) -> dict[str, int]:
    """Plays what is left to do; the store must be locked.

    Returns:
        Status -> number of runs.
    """
    from bench import tune  # Ray takes seconds to import
    from bench.progress import Display

    keep = keep_of(request)
    jobs = []
    for cell in plan.todo:
        old = store.supersede(cell.id) if request.rerun else None
        if old:
            plan.reasons[cell.id] = f"asked for; its earlier results are in {old}"
        jobs.append(tune.Job(cell.id, cell.config, store.run_folder(cell.id), keep))
    for cell in plan.todo:
        tune.load_dataset(cell.config, request.data_dir)  # decoded once here, before many workers want it
    shown = {cell.id: (name_of(cell), examples_to_train(cell.config)) for cell in plan.todo}
    with Display(console, shown).shown() as display:
        tune.play(
            jobs,
            store,
            display,
            data_dir=request.data_dir,
            resources=resources,
            max_concurrent=max_concurrent,
            address=address,
            facts={"commit": commit()},
        )
    return display.ended_by


def name_of(cell: Cell) -> str:
    """A run for people: "cifar10 label-2 fedprox mu=0.01 seed 0"."""
    stand_in = f"(as {cell.dataset})" if cell.substitute else ""
    choice = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in cell.choice.items())
    config = cell.config
    words = [config.dataset, stand_in, config.partition, config.algorithm["name"], *choice, f"seed {config.seed}"]
    return " ".join(filter(None, words))


def commit() -> str | None:
    """The git commit of this code, with "-dirty" if it was changed; None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


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


def _reason_to_play(cell: Cell, request: Request, store: Store) -> str | None:
    """None if a finished run will do; "" if it was not finished; else why it is played again."""
    record = store.record(cell.id)
    if record is None:
        return ""
    if record["status"] == "failed":
        return "it failed before"
    if request.rerun:
        return "asked for"
    lacking = store.lacks(cell.id, replace(keep_of(request), final=False).files())
    return f"the stored run lacks {', '.join(lacking)}" if lacking and record["status"] == "done" else None
