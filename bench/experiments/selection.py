"""From what an experiment is to its cells: all cells of the grid, and those that are selected."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from bench.config.compatibility import validate_config
from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments import cells as grid_cells
from bench.experiments import expansion
from bench.experiments.cells import Cell
from bench.experiments.grid_schema import GridSpec
from bench.experiments.images import Images
from bench.experiments.reference import find_references
from bench.experiments.spec import ExperimentSpec


class Selection(NamedTuple):
    """The cells of an experiment.

    Attributes:
        cells: all cells of the grid.
        selected: those of the seeds and the values of `only` that the experiment names, and those with which the report
            compares them.
    """

    cells: list[Cell]
    selected: list[Cell]


def select_cells(spec: ExperimentSpec) -> Selection:
    """The cells of an experiment, checked as far as that is possible without images.

    Raises:
        ConfigError: with all mistakes.
    """
    selection = _expand(spec, missing=(), facts=None)
    used = {cell.dataset for cell in selection.selected}
    unused = [name for name in spec.substitutes if name not in used]
    if unused:
        raise ConfigError([f"--substitute {name}=...: no selected cell uses {name}." for name in unused])
    return selection


def fit_to_images(selection: Selection, spec: ExperimentSpec, images: Images) -> Selection:
    """The same cells, checked against the images. Only where images are incomplete, absent or replaced by others are the
    cells expanded again: their number of examples and of clients may depend on it.

    Raises:
        ConfigError: with all mistakes.
    """
    if not images.are_complete:
        selection = _expand(spec, missing=images.absent, missing_weights=images.absent_weights, facts=images.facts)
    else:
        mistakes = [line for cell in selection.cells for line in validate_config(cell.config, images.facts)]
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


def with_chosen(selection: Selection, spec: ExperimentSpec, chosen: Mapping[str, Mapping[str, Any]]) -> Selection:
    """The same cells with the hyper-parameters that searches have chosen.

    Args:
        chosen: key of a cell (see `bench.experiments.cells.cell_key`) -> what was chosen for it and how, as
            `bench.tuning.select.describe_choice` returns it.
    """
    layout = spec.grid.report.model_dump()

    def tuned(cells: list[Cell]) -> list[Cell]:
        found = [_with_chosen(cell, chosen.get(grid_cells.cell_key(layout, cell.to_json()))) for cell in cells]
        return list({(cell.dataset, cell.id): cell for cell in found}.values())  # without repetitions

    return Selection(tuned(selection.cells), tuned(selection.selected))


def _expand(spec: ExperimentSpec, **about_images) -> Selection:
    cells = expansion.expand(
        spec.grid.untuned() if spec.tuning else spec.grid,
        spec.budget,
        overrides=spec.overrides,
        seeds=spec.all_seeds,
        substitutes=spec.substitutes,
        **about_images,
    )
    if spec.tuning:
        cells = [replace(cell, choice={}) for cell in cells]
    only = dict(spec.only) | ({"seed": spec.seeds} if spec.seeds else {})
    selected = with_references(grid_cells.select(cells, only), cells, spec.grid)
    _check_keys(selected, spec)
    return Selection(cells, selected)


def _with_chosen(cell: Cell, choice: Mapping[str, Any] | None) -> Cell:
    if not choice:
        return cell
    config = with_options(cell.config, choice["params"])
    return replace(cell, config=config, id=run_id(config), tuned=choice)


def _check_keys(cells: list[Cell], spec: ExperimentSpec) -> None:
    """Raises ConfigError if two runs of one seed belong to the same cell of the table."""
    layout = spec.grid.report.model_dump()
    counts = Counter((grid_cells.cell_key(layout, cell.to_json()), cell.config.seed) for cell in cells)
    twice = [json.loads(key) for (key, _), count in counts.items() if count > 1]
    if twice:
        *_, labels = twice[0]
        mistake = (
            f"Grid {spec.grid.name!r} has several runs of one seed for ({', '.join(map(str, labels))}): name the axis in "
            "which they differ among the report's rows or columns."
        )
        raise ConfigError([mistake])
