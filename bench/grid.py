"""Grids: a YAML file of axes, conditions, tuning sets and budgets, expanded to the cells of a table.

The settings of a cell come from these layers, later ones winning: the grid's settings, the point on its axes, the point
of the method's tuning set, the budget, `--set`, and the conditions, which hold whatever the budget (centralized has one
client).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import algorithms
import datasets
from bench.config import SETTINGS, RunConfig, resolve, run_id
from bench.grid_spec import GridSpec, matches
from bench.methods import options_of
from bench.mistakes import ConfigError
from bench.names import unknown


@dataclass(frozen=True)
class Cell:
    """One run at its place in the table.

    Attributes:
        dataset: as the grid names it; the config's differs where another one stands in.
        choice: the point of the tuning set, {} if there is none.
        missing: why the cell cannot run ("no data: svhn"), or None.
        substitute: the dataset that stands in, or None.
    """

    dataset: str
    choice: dict
    config: RunConfig
    id: str
    missing: str | None = None
    substitute: str | None = None

    def setting(self, key: str) -> Any:
        """The cell's value of an axis, a setting or a method option; None if it has none of that name."""
        if key == "dataset":
            return self.dataset
        if key == "algorithm":
            return self.config.algorithm["name"]
        return getattr(self.config, key, self.config.algorithm.get(key))

    def to_json(self) -> dict:
        shown = ("dataset", "partition", "algorithm", "model", "clients", "participation", "seed")
        return {key: self.setting(key) for key in shown} | {
            "choice": self.choice,
            "run": None if self.missing else self.id,
            "missing": self.missing,
            "substitute": self.substitute,
            "config": self.config.canonical(),
        }


def expand(
    grid: GridSpec,
    budget: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    seeds: list[int] | None = None,
    missing: Iterable[str] = (),
    substitutes: Mapping[str, str] | None = None,
) -> list[Cell]:
    """Every cell of a grid at a budget.

    Args:
        overrides: settings and method options that win over the grid and the budget; an option goes to the methods that
            have it.
        seeds: replaces the seeds of grid and budget.
        missing: datasets whose images are not there.
        substitutes: missing dataset -> the one that stands in for it.

    Raises:
        ConfigError: with the mistakes of all cells.
    """
    if budget not in grid.budgets:
        raise ConfigError([unknown("budget", budget, grid.budgets)])
    overrides, substitutes = dict(overrides or {}), dict(substitutes or {})
    cells, mistakes, used = {}, _unknown_whens(grid), set()
    for flat, choice in _points(grid, budget, overrides, seeds):
        given = {key: value for key, value in overrides.items() if key in SETTINGS or key in _options(flat)}
        used |= given.keys()
        flat |= given
        for condition in grid.conditions:
            if condition.holds(flat):
                flat |= condition.set
        dataset = flat.get("dataset")
        stand_in = substitutes.get(dataset) if dataset in missing else None
        absent = f"no data: {dataset}" if dataset in missing and not stand_in else None
        try:
            config = resolve(flat | ({"dataset": stand_in} if stand_in else {}))
        except ConfigError as error:
            mistakes += error.mistakes
            continue
        choice = {key: config.algorithm[key] for key in choice}
        cell = Cell(dataset, choice, config, run_id(config), absent, stand_in)
        cells.setdefault((dataset, cell.id), cell)
    unused = [key for key in overrides if key not in used]
    if unused and not mistakes:
        options = {option for cell in cells.values() for option in cell.config.algorithm if option != "name"}
        mistakes = [unknown("setting", key, sorted({*SETTINGS, *options})) for key in unused]
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
    rows = [[cell.setting(key) for key in layout.rows] for cell in cells]
    columns = [cell.setting(layout.columns) for cell in cells]
    return {
        "grid": grid.name,
        "budget": budget_label(budget, overrides),
        "overrides": dict(overrides),
        "title": grid.title,
        "mirrors": grid.mirrors.model_dump() if grid.mirrors else None,
        "std": layout.std,
        "verdict": layout.verdict,
        "report": {"rows": layout.rows, "columns": layout.columns, "metric": layout.metric},
        "row_order": [list(row) for row in dict.fromkeys(map(tuple, rows))],
        "column_order": list(dict.fromkeys(columns)),
        "cells": [cell.to_json() for cell in cells],
    }


def budget_label(budget: str, overrides: Mapping[str, Any]) -> str:
    """A budget's name in the store and in reports: "small", or "small+rounds=3" with what was overridden."""
    return "".join([budget, *(f"+{key}={value}" for key, value in sorted(overrides.items()))]).replace("/", "_")


def _points(
    grid: GridSpec, budget_name: str, overrides: Mapping, seeds: list[int] | None
) -> Iterator[tuple[dict, dict]]:
    """(flat settings, tuning point) of every combination, before overrides and conditions."""
    budget = grid.budgets[budget_name]
    axes = {"seed": [0]} | grid.axes
    axes["seed"] = seeds or budget.seeds or axes["seed"]
    axes = {key: [overrides[key]] if key in overrides else values for key, values in axes.items()}
    axes["seed"] = axes.pop("seed")
    for values in itertools.product(*axes.values()):
        flat = grid.settings | dict(zip(axes, values, strict=True))
        if flat.get("dataset") in datasets.INFO:
            flat.setdefault("model", datasets.INFO[flat["dataset"]].model)
        sets = [tuning for tuning in grid.tuning if matches(tuning.when, flat)]
        for points in itertools.product(*(tuning.points(budget.tuning) for tuning in sets)):
            choice = {key: value for point in points for key, value in point.items()}
            played = flat | choice
            budget.apply(played)
            yield played, choice


def _options(flat: Mapping) -> list[str]:
    return options_of(flat["algorithm"]) if flat.get("algorithm") in algorithms.REGISTRY else []


def _unknown_whens(grid: GridSpec) -> list[str]:
    conditions = [
        *grid.conditions,
        *grid.tuning,
        *(item for budget in grid.budgets.values() for item in budget.conditions),
    ]
    keys = dict.fromkeys(key for condition in conditions for key in condition.when)
    return [unknown("setting", key, SETTINGS) for key in keys if key not in SETTINGS]
