"""Grids: a YAML file of axes, conditions, tuning sets and budgets, expanded to the cells of a table.

The settings of a cell come from these layers, later ones winning: the grid's settings, the point on its axes, the point of
the method's tuning set, the budget, `--set`, and the conditions (what holds whatever the budget: centralized has one client).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

import algorithms
import datasets
from bench.config import SETTINGS, ConfigError, RunConfig, options_of, resolve, run_id, sentences
from bench.names import unknown

FOLDER = Path(__file__).parent / "grids"
SHARED = Path(__file__).parent / "budgets.yaml"


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(Part):
    """Cells whose settings are all among the values of `when` get the settings of `set`."""

    when: dict[str, Any]
    set: dict[str, Any]

    def holds(self, flat: Mapping[str, Any]) -> bool:
        return _matches(self.when, flat)


class Tuning(Part):
    """A tuning set: one cell for every combination of the options' values.

    Attributes:
        named: the one point that the budget `small` plays; needed where the set has more than one.
    """

    when: dict[str, Any]
    options: dict[str, list]
    named: dict[str, Any] = {}

    def points(self, which: str) -> list[dict]:
        points = [dict(zip(self.options, values, strict=True)) for values in itertools.product(*self.options.values())]
        if which == "named" and self.named:
            return [self.named]
        return points if which == "all" else points[:1]


class Budget(Part):
    """How much of a grid is played.

    Attributes:
        tuning: which points of the tuning sets: all, the named one, or the first.
        seeds: replaces the grid's seeds.
        min_clients: the population becomes max(min_clients, number of classes).
        train_examples_per_client: trains on a stratified subset of this many examples per client.
    """

    tuning: Literal["all", "named", "first"] = "all"
    seeds: list[int] | None = None
    min_clients: int | None = None
    train_examples_per_client: int | None = None
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []

    def apply(self, flat: dict[str, Any]) -> None:
        flat |= self.settings
        for condition in self.conditions:
            if condition.holds(flat):
                flat |= condition.set
        if self.min_clients:
            info = datasets.INFO.get(flat["dataset"])
            flat["clients"] = max(self.min_clients, info.num_classes if info else 0)
        if self.train_examples_per_client:
            flat["train_examples"] = self.train_examples_per_client * flat["clients"]


class Mirrors(Part):
    """The published table that a grid repeats."""

    paper: str
    table: int


class Layout(Part):
    """How the report lays out the cells, and by which rule of the paper's digest it judges a difference."""

    rows: list[str] = ["dataset", "partition"]
    columns: str = "algorithm"
    metric: str = "accuracy"
    std: Literal["population", "sample"] = "population"
    verdict: str | None = None


class GridSpec(Part):
    """A grid as it stands in its file.

    Attributes:
        save_rounds, save_local_models: rounds whose state, or whose cohort's models, every run keeps on disk.
    """

    name: str
    title: str = ""
    mirrors: Mirrors | None = None
    axes: dict[str, list]
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []
    tuning: list[Tuning] = []
    budgets: dict[str, Budget]
    report: Layout = Layout()
    save_rounds: list[int] = []
    save_local_models: list[int] = []


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


def names() -> list[str]:
    """Names of the grids that come with the harness."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def title_of(name: str) -> str:
    """A grid's title, without reading the rest of it strictly."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text()).get("title", "")


def load_grid(name: str) -> GridSpec:
    """The grid of that name, or of that YAML file.

    Raises:
        ConfigError: if there is none, or with everything that is wrong in the file.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        if path.parent != FOLDER:
            raise ConfigError([f"There is no grid file {name}."])
        raise ConfigError([unknown("grid", name, names())])
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not valid YAML: {' '.join(str(error).split())}."]) from error
    if not isinstance(content, dict):
        raise ConfigError([f"{path} must hold a mapping with axes and settings."])
    return make_grid(path.stem, content)


def single(settings: Mapping[str, Any], seeds: list[int]) -> GridSpec:
    """A grid of one setting: algorithm, dataset and partition as on the command line."""
    axes = {key: [settings[key]] for key in ("dataset", "partition", "algorithm")}
    name = "-".join(str(settings[key]) for key in ("algorithm", "dataset", "partition"))
    return make_grid(name.replace("/", "_"), {"title": name, "axes": axes | {"seed": seeds}})


def make_grid(name: str, content: Mapping[str, Any]) -> GridSpec:
    """A grid from the content of its file and what all grids share."""
    shared = yaml.safe_load(SHARED.read_text())
    own = content.get("budgets") or {}
    merged = {budget: shared["budgets"].get(budget, {}) | own.get(budget, {}) for budget in shared["budgets"] | own}
    conditions = [*shared["conditions"], *(content.get("conditions") or [])]
    try:
        return GridSpec(**{**content, "name": name, "budgets": merged, "conditions": conditions})
    except ValidationError as error:
        raise ConfigError([f"grid {name}: {line}" for line in sentences(error, _keys_beside)]) from error


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


def _points(grid: GridSpec, budget_name: str, overrides: Mapping, seeds: list[int] | None) -> Iterator[tuple[dict, dict]]:
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
        sets = [tuning for tuning in grid.tuning if _matches(tuning.when, flat)]
        for points in itertools.product(*(tuning.points(budget.tuning) for tuning in sets)):
            choice = {key: value for point in points for key, value in point.items()}
            played = flat | choice
            budget.apply(played)
            yield played, choice


def _options(flat: Mapping) -> list[str]:
    return options_of(flat["algorithm"]) if flat.get("algorithm") in algorithms.REGISTRY else []


def _matches(when: Mapping[str, Any], flat: Mapping[str, Any]) -> bool:
    return all(flat.get(key) in (value if isinstance(value, list) else [value]) for key, value in when.items())


def _unknown_whens(grid: GridSpec) -> list[str]:
    conditions = [*grid.conditions, *grid.tuning, *(item for budget in grid.budgets.values() for item in budget.conditions)]
    keys = dict.fromkeys(key for condition in conditions for key in condition.when)
    return [unknown("setting", key, SETTINGS) for key in keys if key not in SETTINGS]


def _keys_beside(location: tuple) -> list[str]:
    """Valid keys at the place in a grid file where an unknown one stands."""
    part = GridSpec
    nested = {"conditions": Condition, "tuning": Tuning, "budgets": Budget, "report": Layout, "mirrors": Mirrors}
    for key in location[:-1]:
        part = nested.get(key, part)
    return list(part.model_fields)
