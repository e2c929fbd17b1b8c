"""From what an experiment is to its cells: all cells of the grid, and those that are selected."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from bench.config.compatibility import validate_config
from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments import cells as grid_cells
from bench.experiments import expansion
from bench.experiments.cells import Cell
from bench.experiments.expansion import Refused
from bench.experiments.grid_schema import GridSpec
from bench.experiments.images import Images
from bench.experiments.reference import find_references
from bench.experiments.spec import ExperimentSpec, TuningOptions
from bench.results.records import DATA_SETTINGS
from datasets import DatasetInfo


class Selection(NamedTuple):
    """The cells of an experiment.

    Attributes:
        cells: all cells of the grid, but for those with mistakes that are not selected.
        selected: those of the seeds and the values of `only` that the experiment names, and those with which the report
            compares them.
    """

    cells: list[Cell]
    selected: list[Cell]


def select_cells(spec: ExperimentSpec, facts: Mapping[str, DatasetInfo] | None = None) -> Selection:
    """The cells of an experiment, checked as far as that is possible without images.

    Args:
        facts: dataset -> what is known about it; None leaves unchecked whether a cell fits its dataset.

    Raises:
        ConfigError: with all mistakes of selected cells.
    """
    selection = _expand(spec, missing=(), facts=facts)
    used = {cell.dataset for cell in selection.selected}
    unused = [name for name in spec.substitutes if name not in used]
    if unused:
        raise ConfigError([f"--substitute {name}=...: no selected cell uses {name}." for name in unused])
    return selection


def fit_to_images(selection: Selection, spec: ExperimentSpec, images: Images) -> Selection:
    """The same cells, checked against the images. Only where images are incomplete, absent or replaced by others are the
    cells expanded again: their number of examples and of clients may depend on it.

    Raises:
        ConfigError: with all mistakes of selected cells.
    """
    if not images.are_complete:
        selection = _expand(spec, missing=images.absent, missing_weights=images.absent_weights, facts=images.facts)
    else:
        mistakes = [line for cell in selection.selected for line in validate_config(cell.config, images.facts)]
        if mistakes:
            raise ConfigError(list(dict.fromkeys(mistakes)))
    return selection


def with_references(selected: list[Cell], cells: list[Cell], grid: GridSpec) -> list[Cell]:
    """Selected cells and those with which the report compares their clients, in the order of all cells."""
    if not grid.report.reference:
        return selected
    find = find_references(grid.report.model_dump(), [cell.to_json() for cell in cells])
    keys = {(cell.dataset, cell.id) for cell in selected}
    keys |= {(found["dataset"], run_id(found["config"])) for cell in selected for found in find(cell.to_json())}
    return [cell for cell in cells if (cell.dataset, cell.id) in keys]


def without_searches(selection: Selection, spec: ExperimentSpec, searched: Collection[str]) -> list[Cell]:
    """The selected cells that are run as they are, if their images are there.

    Args:
        searched: places (see `TuningOptions.place`) of cells whose hyper-parameters are searched.
    """
    layout, tuning = spec.grid.report.model_dump(), spec.tuning or TuningOptions()
    there = (cell for cell in selection.selected if not cell.missing)
    return [cell for cell in there if tuning.place(cell, layout) not in searched]


def with_chosen(
    selection: Selection,
    spec: ExperimentSpec,
    chosen: Mapping[str, Mapping[str, Any]],
    lacking: Collection[str] = (),
) -> Selection:
    """The same cells with the hyper-parameters that searches have chosen.

    Args:
        chosen: place of a cell -> what was chosen for it and how, as `bench.tuning.select.describe_choice` returns it.
        lacking: places for which nothing could be chosen; their cells are not selected.
    """
    layout, tuning = spec.grid.report.model_dump(), spec.tuning or TuningOptions()

    def tuned(cells: list[Cell], lacking: Collection[str] = ()) -> list[Cell]:
        places = [(cell, tuning.place(cell, layout)) for cell in cells]
        found = [_with_chosen(cell, chosen.get(place)) for cell, place in places if place not in lacking]
        return list({(cell.dataset, cell.id): cell for cell in found}.values())  # without repetitions

    return Selection(tuned(selection.cells), tuned(selection.selected, lacking))


def _expand(spec: ExperimentSpec, **about_images: Any) -> Selection:
    refused: list[Refused] = []
    cells = expansion.expand(
        spec.grid.untuned() if spec.tuning else spec.grid,
        spec.budget,
        overrides=spec.overrides,
        seeds=spec.all_seeds,
        substitutes=spec.substitutes,
        refused=refused,
        **about_images,
    )
    only = dict(spec.only) | ({"seed": spec.seeds} if spec.seeds else {})
    mistakes = [line for point in refused if _is_needed(point, only, spec.grid) for line in point.mistakes]
    if mistakes and not cells:  # nothing to choose from
        raise ConfigError(mistakes)
    if spec.tuning:
        cells = [replace(cell, choice={}) for cell in cells]
    selected = with_references(grid_cells.select(cells, only, refused), cells, spec.grid)
    if mistakes:
        raise ConfigError(mistakes)
    _check_keys(selected, spec)
    return Selection(cells, selected)


def _is_needed(point: Refused, only: Mapping[str, list], grid: GridSpec) -> bool:
    """Whether a point without a cell may be one of `only`, or one with which the report would compare these. What a point
    leaves open may be anything."""

    def may_have(key: str, values: Collection[Any]) -> bool:
        return point.setting(key) is None or point.setting(key) in values

    if all(may_have(key, values) for key, values in only.items()):
        return True
    named = grid.report.reference or {}
    shared = {*DATA_SETTINGS, "seed", *grid.report.rows, grid.report.columns}.difference(named)
    return (
        bool(named)
        and all(may_have(key, [value]) for key, value in named.items())
        and all(may_have(key, values) for key, values in only.items() if key in shared)
    )


def _with_chosen(cell: Cell, choice: Mapping[str, Any] | None) -> Cell:
    if not choice:
        return cell
    config = with_options(cell.config, choice["hparams"])
    return replace(cell, config=config, id=run_id(config), tuned=choice)


def _check_keys(cells: list[Cell], spec: ExperimentSpec) -> None:
    """Raises ConfigError if two runs of one seed belong to the same cell of the table."""
    layout = spec.grid.report.model_dump()
    counts = Counter((cell.key(layout), cell.config.seed) for cell in cells)
    twice = [json.loads(key) for (key, _), count in counts.items() if count > 1]
    if twice:
        *_, labels = twice[0]
        mistake = (
            f"Grid {spec.grid.name!r} has several runs of one seed for ({', '.join(map(str, labels))}): name the axis in "
            "which they differ among the report's rows or columns."
        )
        raise ConfigError([mistake])
