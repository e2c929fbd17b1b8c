"""From the cells of an experiment to the runs that are left to do."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from bench import models
from bench.config.methods import named_models
from bench.config.parts import Round
from bench.config.resolve import trained_by
from bench.config.schema import RunConfig, run_id
from bench.config.stale import changes, why_repeated
from bench.errors import ConfigError
from bench.experiments import cells as grid_cells
from bench.experiments.cells import Cell
from bench.experiments.cost import examples_to_train
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.grid_schema import GridSpec
from bench.experiments.images import Images, View, view_of
from bench.experiments.selection import Selection
from bench.experiments.settings_schema import is_among
from bench.experiments.spec import ExperimentSpec
from bench.experiments.stored_grid import cells_left_out, merge_cells, merge_titles, styles_of_labs, titles_of_labs
from bench.measurements.specs import rounds_of
from bench.results.artifacts import DamagedState, Folder
from bench.results.records import FINISHED
from bench.results.store import Store
from bench.simulation.retention import FINAL, Final, StateRetention


@dataclass(frozen=True)
class Plan:
    """The runs of an experiment that are left to do.

    Attributes:
        cells: all cells of the grid.
        selected: those of the experiment.
        todo: those to run, longest first, each run once.
        reasons: run id -> why a stored run is repeated.
        bases: id of a run of a post-hoc method -> id of the run that trains for it.
        retention: run id of one in `todo` -> which states it keeps.
    """

    cells: list[Cell]
    selected: list[Cell]
    todo: list[Cell]
    reasons: Mapping[str, str]
    bases: Mapping[str, str]
    retention: Mapping[str, StateRetention]

    @property
    def finished(self) -> int:
        """Selected runs that are finished already."""
        wanted = {cell.id for cell in self.selected if not cell.missing}
        return len(wanted - {cell.id for cell in self.todo})


def make_plan(
    selection: Selection, grid: GridSpec, options: ExecutionOptions, images: Images | None, store: Store
) -> Plan:
    """Leaves out what is finished, and adds the runs from whose last states others start.

    Args:
        images: None where they are on another machine: whether they are complete is then not asked.
    """
    notes = {name: dataset.note for name, dataset in images.found.items()} if images else {}
    todo: dict[str, Cell] = {}
    reasons: dict[str, str] = {}
    for cell in (cell for cell in selection.selected if not cell.missing):
        if (reason := _reason_to_run(cell, grid, options, store, notes.get(cell.config.dataset))) is not None:
            todo[cell.id], reasons[cell.id] = cell, reason
    bases = {cell.id: base for cell in todo.values() if (base := training_of(cell))}
    for base in (base for base in bases.values() if base.id not in todo):
        if (reason := _reason_to_train(base, grid, options, store, notes.get(base.config.dataset))) is not None:
            todo[base.id], reasons[base.id] = base, reason
    reasons = {run: reason for run, reason in reasons.items() if reason}
    base_ids = {run: base.id for run, base in bases.items()}
    order = sorted(todo.values(), key=lambda cell: (cell.id in bases, -examples_to_train(cell.config)))
    retention = {cell.id: retention_of(cell, grid, options, store, cell.id in base_ids.values()) for cell in order}
    return Plan(*selection, order, reasons, base_ids, retention)


def training_of(cell: Cell) -> Cell | None:
    """The run whose last state is all that a cell needs, if its method is post-hoc and only its end is evaluated."""
    trained = trained_by(cell.config)
    if trained is None:
        return None
    own = trained.canonical() | trained.algorithm
    params = {key: value for key, value in cell.tuned.get("hparams", {}).items() if key in own}
    tuned = {"hparams": params} if params else {}
    return replace(cell, config=trained, id=run_id(trained), choice={}, tuned=tuned, variant="", wrapper="")


def retention_of(
    cell: Cell, grid: GridSpec, options: ExecutionOptions, store: Store, is_base: bool = False
) -> StateRetention:
    """Which states a run keeps: those that its grid names, those that figures need, and those that it kept before, so that
    two grids which need different states do not repeat each other's runs for ever.

    Args:
        is_base: whether other runs start from its last state.
    """
    stored, last = " ".join(store.states(cell.id)), cell.config.rounds
    probes = [(part, probe) for part in grid.report.needs for probe in part.probes(last)]
    needed = [(probe.round, part.state_of(probe, cell.config)) for part, probe in probes]
    least: Final = "deployed" if is_base or FINAL in (state for _, state in needed) else "none"
    if training_of(cell):  # it starts from the end of another run, so it has neither client states nor rounds before
        return StateRetention(final=_most(least, "deployed" if options.keep == "all" else options.keep))
    matches = all(is_among(key, cell.shown(key), value) for key, value in grid.save_when.items())
    named = grid.save_local_models if matches else []
    shown = [number for number, state in needed if number and state]

    def rounds(kind: str, wanted: list[Round]) -> tuple[int, ...]:
        there = map(int, re.findall(rf"\b{kind}-(\d+)\.pt", stored))
        return tuple(sorted({*rounds_of(wanted, last), *there}))

    before = "none" if options.rerun else _kept(cell.id, store)
    return StateRetention(
        _most(least, options.keep, before), rounds("round", grid.save_rounds), rounds("local-models", [*named, *shown])
    )


def _most(*amounts: Final) -> Final:
    return max(amounts, key=("none", "deployed", "all").index)


def _kept(run_id: str, store: Store) -> Final:
    """How much a run has kept of its last state; everything, where its record is too old to say."""
    record = store.record(run_id)
    return record.get("kept", "all") if record and FINAL in store.states(run_id) else "none"


def kept_of_other_files(plan: Plan, images: Images, store: Store) -> list[str]:
    """What to know of finished runs that have read other images or weights than those that are here, one sentence per file.

    They are not repeated: those that others have trained, on their copies of the images, would be lost.
    """
    todo = {cell.id for cell in plan.todo}
    used = [*plan.selected, *filter(None, map(training_of, plan.todo))]
    finished = {cell.id: cell.config for cell in used if not cell.missing and cell.id not in todo}
    advice = "to train again on this one, add --rerun, or name another --results-dir."
    return [f"{sentence}; {advice}" for sentence in used_other_files(finished, images.digests, store)]


def used_other_files(
    runs: Mapping[str, RunConfig], digests: Mapping[View | str, str], store: Store, which: str = ""
) -> list[str]:
    """Which finished runs have read another file than the one that is here: for each file the begin of a sentence.

    Args:
        runs: by their ids.
        digests: as of `bench.experiments.images.Images`.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for run, config in runs.items():
        record: Mapping[str, Any] = store.record(run) or {}
        then = {view_of(config): record.get("data", {}).get("digest"), **record.get("weights", {})}
        for file, digest in then.items():
            here = digests.get(file, digest)
            if digest and digest != here:
                name = file if isinstance(file, str) else config.dataset
                found.setdefault((name, digest[:8], here[:8]), []).append(run)
    return [
        f"{f'The finished run {ids[0]}' if len(ids) == 1 else f'{len(ids)} finished runs'}{which} used another {name} (digest "
        f"{then}) than the one that is here ({here})"
        for (name, then, here), ids in found.items()
    ]


def store_grid(spec: ExperimentSpec, plan: Plan, store: Store) -> int | None:
    """Stores the expanded grid: the cells of this experiment, merged with those of earlier ones on the same grid. If the
    earlier grid of that name is another one, returns how many of its table cells are no longer stored; their runs stay."""

    def ended(run_id: str) -> bool:
        return store.status(run_id) in FINISHED

    described = grid_cells.to_json(spec.grid, spec.budget, spec.overrides, plan.selected)
    described |= {"budget": spec.budget_label, "chosen_on": "validation" if spec.tuning else "test"}
    if spec.ruleset:
        studies = [[*study] for study in spec.tuning.studies] if spec.tuning else []
        samples = (spec.tuning and spec.tuning.samples) or 0
        described["ruleset"] = {"name": cast(Any, spec.ruleset), "studies": studies, "samples": samples}
    order = [cell.to_json() for cell in plan.cells]
    earlier = store.grid(spec.label)
    merged = merge_cells(described, earlier, order, ended)
    planned = (earlier.get("planned_examples", {}) if earlier else {}) | _planned_examples(plan.selected)
    runs = [cell["run"] for cell in merged["cells"]]
    merged["planned_examples"] = {run: planned[run] for run in runs if run and run in planned}
    if titles := merge_titles(merged.get("titles", {}), titles_of_labs(merged["cells"])):
        merged["titles"] = titles
    if styles := {**merged.get("styles", {}), **styles_of_labs(merged["cells"])}:
        merged["styles"] = styles
    if merged != earlier:
        store.write_grid(spec.label, merged)
    return cells_left_out(merged, earlier)


def _planned_examples(cells: Iterable[Cell]) -> dict[str, int]:
    """Run id -> examples to train on; without runs that train nothing, and those of datasets of an unknown size."""
    planned = {cell.id: examples_to_train(cell.config) for cell in cells if not cell.missing and not training_of(cell)}
    return {run: examples for run, examples in planned.items() if examples}


def as_stored(spec: ExperimentSpec, store: Store) -> ExperimentSpec:
    """The same under the name that a store has for it."""
    named = next((label for label in (spec.label, *spec.earlier_labels) if store.grid(label)), "")
    return replace(spec, stored_as=named)


def check_name(spec: ExperimentSpec, store: Store) -> None:
    """Raises ConfigError if another grid of the same name is stored, whose table this one would overwrite."""
    stored, grid = store.grid(spec.label), spec.grid
    if stored and stored.get("source", "") != grid.source and stored.get("digest") != grid.digest(spec.budget):
        other = stored.get("source") or "the grid that comes with skewbench"
        own = grid.source or "the grid that comes with skewbench"
        mistake = (
            f"{store.folder} holds results of another grid called {grid.name} ({other}), and those of {own} would overwrite "
            "its table; rename the file, or choose another --results-dir."
        )
        raise ConfigError([mistake])


def check_engine(engine: str, cells: Iterable[Cell]) -> None:
    """Raises ConfigError if the engine cannot run the model of a cell."""
    trained = ([cell.config.model, *named_models(cell.config)] for cell in cells)
    used = {} if engine != "vectorised" else dict.fromkeys(name for names in trained for name in names)
    mistakes = [
        f"The vectorised engine cannot run {name}, which {why}; use the engine loop or auto, or leave the cells of {name} out."
        for name in used
        if (model := models.of_any_size(name)) and (why := model.loop_only)
    ]
    if mistakes:
        raise ConfigError(mistakes)


def _reason_to_run(cell: Cell, grid: GridSpec, options: ExecutionOptions, store: Store, note: str | None) -> str | None:
    """None if the finished run is enough; "" if there is none; otherwise why the run is repeated. The note says how the
    images that are here differ from the complete dataset; None if that is not known."""
    record = store.record(cell.id)
    if record is None:
        return "its files are damaged; they will be in superseded/" if store.is_damaged(cell.id) else ""
    if record["status"] == "failed":
        return "failed before"
    if record["status"] == "stopped":
        return "a search had stopped it early"
    changed = changes(record, cell.config, store)
    if (store.outcome(cell.id) or record)["status"] == "failed" and not (changed and options.keep_stale):
        return "its repetition failed"
    if options.rerun:
        return "--rerun; its earlier results will be in superseded/"
    if changed and not options.keep_stale:
        return why_repeated(changed, store)
    if base := training_of(cell):
        started_from, now = record.get("base_summary"), store.summary(base.id)
        if started_from and now and started_from != now:
            return "its base was trained again, with other numbers"
    before = record.get("data_note", "")
    if before and note is not None and before != note:
        return f"its images were incomplete ({before}), now: {note or 'all of them'}"
    lacking = _lacking_states(cell, grid, options, store)
    return f"the stored run lacks {', '.join(lacking)}" if lacking and record["status"] == "done" else None


def _lacking_states(cell: Cell, grid: GridSpec, options: ExecutionOptions, store: Store) -> list[str]:
    """The states that a finished run would have to keep, and does not have."""
    stored = store.states(cell.id)
    record = store.record(cell.id)
    trained = record.get("rounds") if record else None  # a callback may have ended the run early
    wanted = replace(retention_of(cell, grid, options, store), final="none").files(until=trained)
    lacking = [name for name in wanted if name not in stored]
    if options.keep == "all" and not training_of(cell) and _kept(cell.id, store) != "all":
        lacking.append(f"client states in {FINAL}" if FINAL in stored else FINAL)
    return lacking


def _reason_to_train(
    base: Cell, grid: GridSpec, options: ExecutionOptions, store: Store, note: str | None
) -> str | None:
    """`_reason_to_run` for a run from which a post-hoc method starts; only selected runs are repeated on request."""
    reason = _reason_to_run(base, grid, replace(options, rerun=False), store, note)
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
