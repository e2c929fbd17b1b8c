"""Grids: a YAML file of axes, conditions, tuning sets and budgets, expanded to the cells of a table.

The settings of a cell come from these layers, later ones winning: the grid's settings, the budget, the point on the axes,
the point of the method's tuning set, `--set`, and the conditions, which hold whatever the budget (centralized has one
client).
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import datasets
from bench.config import SETTINGS, RunConfig, resolve, run_id, wrapped
from bench.grid_spec import GridSpec, matches
from bench.methods import is_method, options_of
from bench.mistakes import ConfigError
from bench.names import UNWRAPPED, file_name, unknown, value_of
from datasets import DatasetInfo


@dataclass(frozen=True)
class Cell:
    """One run at its place in the table.

    Attributes:
        dataset: as the grid names it; the config's differs where another one stands in.
        choice: the point of the tuning set, {} if there is none.
        missing: why the cell cannot run ("no data: svhn"), or None.
        substitute: the dataset that stands in, or None.
        wrapper: the method around the one of the axis `algorithm`, on the axis `wrapper`, or UNWRAPPED; "" without such an
            axis.
        variant: what the mirrored table calls the published counterpart, beside its method; "" for nothing.
        published_as: what it calls the method; "" for the name that it has here.
        tuned: hyper-parameters that a search on validation data has chosen, and how, as `bench.tuning.described` has it.
    """

    dataset: str
    choice: dict
    config: RunConfig
    id: str
    missing: str | None = None
    substitute: str | None = None
    variant: str = ""
    published_as: str = ""
    wrapper: str = ""
    tuned: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, key: str) -> Any:
        """The cell's value of an axis, a setting or a method option; None if it has none of that name."""
        if key in ("dataset", "wrapper"):
            return getattr(self, key)
        if key == "algorithm":
            return (self.config.algorithm["base"] if self.is_wrapped else self.config.algorithm)["name"]
        inside = self.config.algorithm["base"] if self.is_wrapped else {}
        return getattr(self.config, key, self.config.algorithm.get(key, inside.get(key)))

    def shown(self, key: str) -> Any:
        """`setting`, with the name that a table has for what is not wrapped."""
        return self.setting(key) or UNWRAPPED if key == "wrapper" else self.setting(key)

    @property
    def is_wrapped(self) -> bool:
        """Whether the method of the axis `algorithm` is the base of the one that is played."""
        return self.wrapper not in ("", UNWRAPPED)

    def to_json(self) -> dict:
        shown = ("dataset", "partition", "algorithm", "model", "clients", "participation", "seed")
        return {key: self.setting(key) for key in shown} | {
            "choice": self.choice,
            "run": None if self.missing else self.id,
            "missing": self.missing,
            "substitute": self.substitute,
            "variant": self.variant,
            "config": self.config.canonical(),
            **{key: value for key in ("wrapper", "published_as", "tuned") if (value := getattr(self, key))},
        }


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


def select(cells: list[Cell], only: Mapping[str, list]) -> list[Cell]:
    """The cells whose settings are among the values of `only`.

    Raises:
        ConfigError: for a key that no cell has and a value that no cell has.
    """
    mistakes = []
    for key, values in only.items():
        found = list(dict.fromkeys(cell.setting(key) for cell in cells if cell.setting(key) is not None))
        if not found:
            known = {*SETTINGS, *(key for cell in cells for key in cell.choice)}
            mistakes.append(unknown("setting", key, sorted(known)))
        mistakes += [unknown(key, value, map(str, found)) for value in values if value not in found]
    if mistakes:
        raise ConfigError(mistakes)
    return [cell for cell in cells if all(cell.setting(key) in values for key, values in only.items())]


def to_json(grid: GridSpec, budget: str, overrides: Mapping[str, Any], cells: list[Cell]) -> dict:
    """The expanded grid as the report reads it."""
    layout = grid.report
    described = {
        "grid": grid.name,
        "source": grid.source,
        "digest": grid.digest(budget),
        "budget": budget_label(budget, overrides),
        "overrides": dict(overrides),
        "title": grid.title,
        "mirrors": grid.mirrors.model_dump() if grid.mirrors else None,
        "std": layout.std,
        "verdict": layout.verdict,
        "report": layout.model_dump(exclude={"std", "verdict"}),
    }
    return ordered(described, [cell.to_json() for cell in cells])


def ordered(described: Mapping[str, Any], cells: list[dict]) -> dict:
    """An expanded grid with these cells, and the order of its rows and columns in which they come."""
    layout = described["report"]
    rows = [tuple(value_of(cell, key) for key in layout["rows"]) for cell in cells]
    columns = [value_of(cell, layout["columns"]) for cell in cells]
    orders = {"row_order": [list(row) for row in dict.fromkeys(rows)], "column_order": list(dict.fromkeys(columns))}
    return {**described, **orders, "cells": cells}


def place(layout: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """Where in a table a stored cell stands, whatever its seed; the points of a tuning set have places of their own."""
    labels = [value_of(cell, key) for key in (*layout["rows"], layout["columns"])]
    return json.dumps([cell["dataset"], cell["choice"], labels], sort_keys=True)


def budget_label(budget: str, overrides: Mapping[str, Any]) -> str:
    """A budget's name in the store and in reports: "small", or "small+rounds=3" with what was overridden."""
    return file_name("".join([budget, *(f"+{key}={value}" for key, value in sorted(overrides.items()))]))


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
