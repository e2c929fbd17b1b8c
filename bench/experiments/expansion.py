"""Grids: a YAML file of axes, conditions, tuning sets and budgets, expanded to the cells of a table.

The settings of a cell come from these layers, later ones winning: the grid's settings, the budget, the point on the axes,
the point of the method's tuning set, `--set`, and the conditions, which hold whatever the budget (centralized has one
client).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import datasets
from bench.config.methods import is_method, options_of
from bench.config.resolve import resolve, wrapped
from bench.config.schema import SETTINGS, run_id
from bench.errors import ConfigError, unknown
from bench.experiments.cells import Cell
from bench.experiments.grid_schema import GridSpec, matches
from bench.experiments.labels import UNWRAPPED
from datasets import DatasetInfo


def expand(
    grid: GridSpec,
    budget: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    seeds: list[int] | None = None,
    missing: Iterable[str] = (),
    substitutes: Mapping[str, str] | None = None,
    facts: Mapping[str, DatasetInfo] | None = datasets.INFO,
) -> list[Cell]:
    """Every cell of a grid at a budget.

    Args:
        overrides: settings and method options that win over the grid and the budget; an option goes to the methods that
            have it.
        seeds: replaces the seeds of grid and budget.
        missing: datasets whose images are not there.
        substitutes: missing dataset -> the one that stands in for it.
        facts: dataset -> what is known about it; None takes those of the complete datasets for the budgets, and leaves
            unchecked whether a cell fits its dataset.

    Raises:
        ConfigError: with the mistakes of all cells.
    """
    if budget not in grid.budgets:
        raise ConfigError([unknown("budget", budget, grid.budgets)])
    overrides, substitutes = dict(overrides or {}), dict(substitutes or {})
    cells, mistakes, used, options = {}, _unknown_whens(grid), set(), set()
    for flat, choice, given in _points(grid, budget, overrides, seeds, datasets.INFO if facts is None else facts):
        used |= given - {"rounds"}
        options |= {*_options(flat)}
        for condition in grid.conditions:
            if condition.holds(flat):
                flat |= condition.set
        dataset = flat.get("dataset")
        stand_in = substitutes.get(dataset) if dataset in missing else None
        absent = f"no data: {dataset}" if dataset in missing and not stand_in else None
        counterpart = grid.mirrors.variant_of(flat) if grid.mirrors else None
        published = (counterpart.variant, counterpart.algorithm) if counterpart else ("", "")
        wrapper, method = flat.pop("wrapper", ""), flat.get("algorithm")
        around = {"name": wrapper} | {key: flat.pop(key) for key in _wrapper_options(wrapper) if key in flat}
        try:
            trained = config = resolve(flat | ({"dataset": stand_in} if stand_in else {}), facts)
            if wrapper not in ("", UNWRAPPED):
                config = wrapped(trained, around, facts)
        except ConfigError as error:
            mistakes += error.mistakes
            is_known = is_method(method) and (wrapper in ("", UNWRAPPED) or is_method(wrapper))
            used |= {"rounds"} if is_known else overrides.keys()  # nobody knows whether they are options of it
            continue
        if "rounds" in given and config.rounds == overrides["rounds"]:
            used.add("rounds")
        played = trained.algorithm | config.algorithm
        choice = {key: played.get(key, getattr(trained, key, None)) for key in choice}
        cell = Cell(dataset, choice, config, run_id(config), absent, stand_in, *published, wrapper)
        cells.setdefault((dataset, cell.id), cell)
    unused = [key for key in overrides if key not in used]
    names = ", ".join(dict.fromkeys(cell.setting("algorithm") for cell in cells.values()))
    mistakes += [
        f"rounds is not a setting of {names}, which has stages with rounds of their own."
        if key == "rounds"
        else unknown("setting", key, sorted({*SETTINGS, *options}))
        for key in unused
    ]
    if mistakes:
        raise ConfigError(mistakes)
    return list(cells.values())


def _points(
    grid: GridSpec, budget_name: str, overrides: Mapping, seeds: list[int] | None, facts: Mapping[str, DatasetInfo]
) -> Iterator[tuple[dict, dict, set]]:
    """(flat settings, tuning point, names of the overrides that apply) of every combination, before conditions."""
    budget = grid.budgets[budget_name]
    axes = {"seed": [0]} | grid.axes
    options = _options_of_all(grid)
    axes["seed"] = seeds or budget.seeds or axes["seed"]
    axes = {key: [overrides[key]] if key in overrides else values for key, values in axes.items()}
    axes["seed"] = axes.pop("seed")
    for values in itertools.product(*axes.values()):
        flat = grid.settings | dict(zip(axes, values, strict=True))
        foreign = options.difference(SETTINGS, _options(flat))  # of other methods of the grid
        flat = {key: value for key, value in flat.items() if key not in foreign}
        flat |= {key: value for key, value in overrides.items() if key in SETTINGS or key == "wrapper"}
        general = {*SETTINGS, "wrapper"}
        given = {key: value for key, value in overrides.items() if key in general or key in _options(flat)}
        dataset = flat.get("dataset")
        if isinstance(dataset, str) and dataset in datasets.INFO:
            flat.setdefault("model", datasets.INFO[dataset].model)
        sets = [tuning for tuning in grid.tuning if matches(tuning.when, flat | given)]
        for points in itertools.product(*(tuning.points(budget.tuning) for tuning in sets)):
            choice = {key: value for point in points for key, value in point.items()}
            played = flat | choice | given
            info = facts.get(dataset) if isinstance(dataset, str) else None
            varied = axes.keys() - overrides.keys()
            budget.apply(played, fixed={*axes, *choice, *given}, axes=varied, info=info)
            played = {key: value for key, value in played.items() if key not in foreign}
            yield played, choice, given.keys()


def _options(flat: Mapping) -> list[str]:
    """Options of a point's method, and of the wrapper around it."""
    own = options_of(flat["algorithm"]) if is_method(flat.get("algorithm")) else []
    return [*own, *_wrapper_options(flat.get("wrapper"))]


def _wrapper_options(wrapper: object) -> list[str]:
    return [option for option in options_of(wrapper) if option != "base"] if is_method(wrapper) else []


def _options_of_all(grid: GridSpec) -> set[str]:
    """Options of the methods of a grid: on an axis or among the settings they go to the methods that have them."""
    named = [*grid.axes.get("algorithm", ()), grid.settings.get("algorithm"), *grid.axes.get("wrapper", ())]
    return {option for name in named if is_method(name) for option in options_of(name)}


def _unknown_whens(grid: GridSpec) -> list[str]:
    conditions = [
        *grid.conditions,
        *grid.tuning,
        *(item for budget in grid.budgets.values() for item in budget.conditions),
    ]
    keys = dict.fromkeys(key for condition in conditions for key in condition.when)
    known = [*SETTINGS, "wrapper", *sorted(_options_of_all(grid))]
    return [unknown("setting", key, known) for key in keys if key not in known]
