"""From what was asked for to the runs that are left to play."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import datasets
from bench import models
from bench.config.resolve import trained_by, with_options
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments import cells as grid_cells
from bench.experiments import expansion as grids
from bench.experiments.cells import Cell
from bench.experiments.cost import examples_to_train
from bench.experiments.figure_schema import Round
from bench.experiments.grid_schema import as_list
from bench.experiments.spec import Request
from bench.experiments.stored_grid import merge_cells
from bench.measurements.specs import needed_state, probes_of, rounds_of
from bench.results.artifacts import DamagedState, Folder
from bench.results.store import Store
from bench.simulation.retention import FINAL, Final, StateRetention
from datasets import Dataset, DatasetInfo, resized
from datasets.image_size import ImageSize


@dataclass(frozen=True)
class Plan:
    """The cells of a request.

    Attributes:
        cells: all cells of the grid.
        selected: those that were asked for.
        todo: those to play, longest first, each run once.
        reasons: run id -> why a stored run is played again.
        bases: id of a run of a method that is post-hoc -> id of the run that trains for it.
        no_data: what to do, if the images of no selected cell are there: the table then shows where they are missing.
    """

    cells: list[Cell]
    selected: list[Cell]
    todo: list[Cell]
    reasons: dict[str, str]
    bases: dict[str, str]
    no_data: str = ""

    @property
    def finished(self) -> int:
        """Selected runs that need not be played."""
        wanted = {cell.id for cell in self.selected if not cell.missing}
        return len(wanted - {cell.id for cell in self.todo})


def make_plan(request: Request, store: Store) -> Plan:
    """Expands the grid, looks which data is there, and leaves out what is finished.

    Raises:
        ConfigError: for everything that is wrong with the request.
        datasets.DataError: if a dataset is there but damaged, or none is there and no published table is mirrored.
    """
    _check_name(request, store)
    _, selected = _expand(request, [], None)
    unused = [name for name in request.substitutes if name not in {cell.dataset for cell in selected}]
    if unused:
        raise ConfigError([f"--substitute {name}=...: no selected cell uses {name}." for name in unused])
    found, absent = _look(((cell.config.dataset, *_looks(cell)) for cell in selected), request.data_dir)
    stand_ins = {request.substitutes[name] for name in absent if name in request.substitutes}
    no_data = " ".join(absent.values()) if absent and not found and not stand_ins else ""
    looked = request.data_dir is not None and request.data_dir.is_dir()
    if no_data and not (
        looked and request.grid.mirrors
    ):  # a table without any number says something only beside a paper's
        raise datasets.DataError(next(iter(absent.values())))
    looks = {_looks(cell) for cell in selected if cell.dataset in absent}
    others, without = _look(((name, *look) for name in stand_ins for look in looks), request.data_dir)
    for sentence in without.values():
        raise datasets.DataError(sentence)
    found |= others
    facts = datasets.INFO | {name: _facts(dataset) for name, dataset in found.items()}
    facts |= {name: facts[request.substitutes[name]] for name in absent if name in request.substitutes}
    cells, selected = _expand(request, list(absent), facts)
    _check_engine(request, selected)
    _check_places(request, selected)
    todo, reasons = {}, {}
    for cell in selected:
        if not cell.missing:
            reason = _reason_to_play(cell, request, store, found[cell.config.dataset].note)
            if reason is not None:
                todo[cell.id] = cell
                if reason:
                    reasons[cell.id] = reason
    bases = {}
    for cell in list(todo.values()):
        if base := training_of(cell):
            bases[cell.id] = base.id
            note = found[base.config.dataset].note
            reason = None if base.id in todo else _reason_to_train(base, request, store, note)
            if reason is not None:
                todo[base.id] = base
                if reason:
                    reasons[base.id] = reason
    order = sorted(todo.values(), key=lambda cell: (cell.id in bases, -examples_to_train(cell.config)))
    return Plan(cells, selected, order, reasons, bases, no_data)


def training_of(cell: Cell) -> Cell | None:
    """The run whose last state is all that a cell needs, if its method is post-hoc and only its end is evaluated."""
    trained = trained_by(cell.config)
    if trained is None:
        return None
    own = trained.canonical() | trained.algorithm
    params = {key: value for key, value in cell.tuned.get("params", {}).items() if key in own}
    tuned = {"params": params} if params else {}
    return replace(cell, config=trained, id=run_id(trained), choice={}, tuned=tuned, variant="", wrapper="")


def retention_of(request: Request, cell: Cell, store: Store, is_base: bool = False) -> StateRetention:
    """Which states a run keeps: those that are asked for, those that figures need, and those that it kept before, so that
    grids which need different ones do not repeat each other's runs for ever.

    Args:
        is_base: whether other runs start from its last state.
    """
    grid, stored, last = request.grid, " ".join(store.states(cell.id)), cell.config.rounds
    probes = [probe for part in grid.report.needs for probe in probes_of(part, last)]
    needed = {probe.round: needed_state(probe, cell.config) for probe in probes}
    least: Final = "deployed" if is_base or FINAL in needed.values() else "none"
    if training_of(cell):  # it starts from the end of another run, and so has neither clients nor states on the way
        return StateRetention(final=_most(least, "deployed" if request.keep == "all" else request.keep))
    asked = (
        grid.save_local_models
        if all(cell.shown(key) in as_list(value) for key, value in grid.save_when.items())
        else []
    )
    shown = [number for number, state in needed.items() if number and state]

    def rounds(kind: str, wanted: list[Round]) -> tuple[int, ...]:
        there = map(int, re.findall(rf"\b{kind}-(\d+)\.pt", stored))
        return tuple(sorted({*rounds_of(wanted, last), *there}))

    before = "none" if request.rerun else _kept(cell.id, store)
    return StateRetention(
        _most(least, request.keep, before), rounds("round", grid.save_rounds), rounds("local-models", [*asked, *shown])
    )


def _most(*amounts: Final) -> Final:
    return max(amounts, key=("none", "deployed", "all").index)


def _kept(run_id: str, store: Store) -> Final:
    """How much a run has kept of its last state; before records told it, that was all."""
    record = store.record(run_id)
    return record.get("kept", "all") if record and FINAL in store.states(run_id) else "none"


def store_grid(request: Request, plan: Plan, store: Store) -> None:
    """Stores the expanded grid: what was asked for now, and what earlier requests asked for of the same grid."""

    def ended(run_id: str) -> bool:
        return (store.record(run_id) or {}).get("status") in ("done", "diverged")

    described = grid_cells.to_json(request.grid, request.budget, request.overrides, plan.selected)
    described |= {"budget": request.budget_label, "chosen_on": "validation" if request.tuning else "test"}
    order = [cell.to_json() for cell in plan.cells]
    store.write_grid(request.label, merge_cells(described, store.grid(request.label), order, ended))


def _expand(
    request: Request, missing: list[str], facts: Mapping[str, DatasetInfo] | None
) -> tuple[list[Cell], list[Cell]]:
    """All cells, for the grid's own seeds and those asked for, and the selected ones among them."""
    cells, grid = {}, request.grid.untuned() if request.tuning else request.grid
    for seeds in dict.fromkeys((None, request.seeds and tuple(request.seeds))):
        found = grids.expand(
            grid,
            request.budget,
            overrides=request.overrides,
            seeds=seeds and list(seeds),
            missing=missing,
            substitutes=request.substitutes,
            facts=facts,
        )
        if request.tuning:
            found = [_with_chosen(cell, request) for cell in found]
        cells |= {(cell.dataset, cell.id): cell for cell in found}
    only = dict(request.only) | ({"seed": request.seeds} if request.seeds else {})
    return list(cells.values()), grid_cells.select(list(cells.values()), only)


def _with_chosen(cell: Cell, request: Request) -> Cell:
    """A cell with the hyper-parameters that a search has chosen for its place."""
    cell = replace(cell, choice={})
    tuned = request.chosen.get(grid_cells.cell_key(request.grid.report.model_dump(), cell.to_json()))
    if not tuned:
        return cell
    config = with_options(cell.config, tuned["params"])
    return replace(cell, config=config, id=run_id(config), tuned=tuned)


def _looks(cell: Cell) -> tuple[str, ImageSize | None]:
    """What the images of a cell look like: its transform, and the size to which they are resized."""
    return cell.config.transform, cell.config.image_size


def _look(
    wanted: Iterable[tuple[str, str, ImageSize | None]], data_dir: Path | None
) -> tuple[dict[str, Dataset], dict[str, str]]:
    """Datasets by name, decoded now, before workers wait for them, in the images' own size if that is wanted, too; and for
    those that are not there what to do.

    Args:
        wanted: (dataset, transform, image size).
    """
    found, absent = {}, {}
    for name, transform, image_size in sorted(dict.fromkeys(wanted), key=lambda one: one[2] is None):
        try:
            found[name] = resized.load(name, transform, data_dir, image_size)
        except datasets.MissingData as error:
            absent[name] = str(error)
    return found, absent


def _facts(dataset: Dataset) -> DatasetInfo:
    """What is known about a dataset now that it was found: all of it may not be there."""
    sizes = (dataset.num_classes, dataset.input_shape, len(dataset.train.labels), len(dataset.test.labels))
    return DatasetInfo(*sizes, model="", description=dataset.note, layout="")


def _check_name(request: Request, store: Store) -> None:
    """Raises ConfigError if another grid of the same name is stored, whose table this one would overwrite."""
    stored, grid = store.grid(request.label), request.grid
    if stored and stored.get("source", "") != grid.source and stored.get("digest") != grid.digest(request.budget):
        other = stored.get("source") or "the grid that comes with skewbench"
        own = grid.source or "the grid that comes with skewbench"
        raise ConfigError(
            [
                f"{store.folder} holds results of another grid called {grid.name} ({other}), and those of {own} would "
                "overwrite its table; rename the file, or choose another --results-dir."
            ]
        )


def _check_places(request: Request, cells: list[Cell]) -> None:
    """Raises ConfigError if two runs of one seed would stand at one place of the table."""
    layout = request.grid.report.model_dump()
    counts = Counter((grid_cells.cell_key(layout, cell.to_json()), cell.config.seed) for cell in cells)
    twice = [json.loads(key) for (key, _), count in counts.items() if count > 1]
    if twice:
        *_, labels = twice[0]
        raise ConfigError(
            [
                f"Grid {request.grid.name!r} has several runs of one seed for ({', '.join(map(str, labels))}): name the "
                "axis in which they differ among the report's rows or columns."
            ]
        )


def _check_engine(request: Request, cells: list[Cell]) -> None:
    """Raises ConfigError if the engine that was asked for cannot run the model of a cell."""
    used = {} if request.engine != "vectorised" else dict.fromkeys(cell.config.model for cell in cells)
    mistakes = [
        f"The vectorised engine cannot run {name}, which {why}; use the engine loop or auto, or leave the cells of {name} out."
        for name in used
        if (why := models.load(name)((3, 32, 32), 10).loop_only)  # whatever the images
    ]
    if mistakes:
        raise ConfigError(mistakes)


def _reason_to_play(cell: Cell, request: Request, store: Store, note: str) -> str | None:
    """None if a finished run will do; "" if it was not finished; else why it is played again.

    Args:
        note: how the images that are here differ from the complete dataset.
    """
    record = store.record(cell.id)
    if record is None:
        return "its files are damaged; they will be in superseded/" if store.is_damaged(cell.id) else ""
    if record["status"] == "failed":
        return "it failed before"
    if record["status"] == "stopped":
        return "a search had stopped it early"
    if store.outcome(cell.id)["status"] == "failed":
        return "its repetition failed"
    if request.rerun:
        return "asked for; its earlier results will be in superseded/"
    if base := training_of(cell):
        before, now = record.get("base_summary"), (store.record(base.id) or {}).get("summary")
        if before and now and before != now:
            return "its base was trained again, with other numbers"
    before = record.get("data_note", "")
    if before and before != note:
        return f"its images were incomplete ({before}), now: {note or 'all of them'}"
    wanted = replace(retention_of(request, cell, store), final="none").files()
    lacking = [name for name in wanted if name not in store.states(cell.id)]
    if request.keep == "all" and not training_of(cell) and _kept(cell.id, store) != "all":
        lacking.append(f"client states in {FINAL}" if FINAL in store.states(cell.id) else FINAL)
    return f"the stored run lacks {', '.join(lacking)}" if lacking and record["status"] == "done" else None


def _reason_to_train(base: Cell, request: Request, store: Store, note: str) -> str | None:
    """Why the run that a post-hoc method starts from is played, as `_reason_to_play`; repeating is for what was selected."""
    reason = _reason_to_play(base, replace(request, rerun=False), store, note)
    lost = reason is None and not has_last_state(store, base.id)
    return "its last state, from which others start, is gone or damaged" if lost else reason


def has_last_state(store: Store, run_id: str) -> bool:
    """Whether the last state of a finished run is there and can be read; if it is damaged, `store.damaged` names it."""
    folder = store.run_folder(run_id)
    if FINAL not in store.states(run_id):
        if os.path.lexists(folder / FINAL):
            store.damaged[folder / FINAL] = "is not a regular file"
        return False
    try:
        state = Folder(folder).load(FINAL, torch.device("cpu"))
        is_state = isinstance(state, dict) and {"round", "params"} <= state.keys()
    except DamagedState:
        is_state = False
    if not is_state:
        store.damaged[folder / FINAL] = "cannot be read as a state"
    return is_state
