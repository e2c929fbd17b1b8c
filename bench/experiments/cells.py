"""The cells of a grid: runs at their places in a table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.config.schema import SETTINGS, RunConfig
from bench.errors import ConfigError, unknown
from bench.experiments.grid_schema import GridSpec
from bench.experiments.labels import UNWRAPPED, value_of
from bench.files import file_name


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
        tuned: hyper-parameters that a search on validation data has chosen, and how, as `bench.tuning.select.described` has it.
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
        "report": layout.model_dump(exclude={"std", "verdict"}, exclude_none=True),
    }
    return ordered(described, [cell.to_json() for cell in cells])


def ordered(described: Mapping[str, Any], cells: list[dict]) -> dict:
    """An expanded grid with these cells, and the order of its rows and columns in which they come."""
    layout = described["report"]
    rows = [tuple(value_of(cell, key) for key in layout["rows"]) for cell in cells]
    columns = [value_of(cell, layout["columns"]) for cell in cells]
    orders = {"row_order": [list(row) for row in dict.fromkeys(rows)], "column_order": list(dict.fromkeys(columns))}
    return {**described, **orders, "cells": cells}


def cell_key(layout: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """By which a stored cell is known, whatever its seed: its place in a table, and its point of a tuning set."""
    labels = [value_of(cell, key) for key in (*layout["rows"], layout["columns"])]
    return json.dumps([cell["dataset"], cell["choice"], labels], sort_keys=True)


def budget_label(budget: str, overrides: Mapping[str, Any]) -> str:
    """A budget's name in the store and in reports: "small", or "small+rounds=3" with what was overridden."""
    return file_name("".join([budget, *(f"+{key}={value}" for key, value in sorted(overrides.items()))]))
