"""The cells of a grid: one run each, with its row and column of the table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from pydantic import ValidationError

from bench import references
from bench.config.schema import SETTINGS, RunConfig
from bench.errors import ConfigError, suggestion, unknown
from bench.experiments.grid_schema import GridSpec
from bench.experiments.labels import UNWRAPPED, shown, value_of
from bench.experiments.layout_data import with_names_of_data
from bench.experiments.report_schema import Layout
from bench.files import file_name
from bench.results.grids import (
    ChosenParams,
    GridDescription,
    StoredCell,
    StoredGrid,
    StoredLayout,
    StoredReproduces,
)


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        dataset: as the grid names it; the config's differs where a substitute is used.
        choice: the point of the tuning set, {} if there is none.
        missing: why the cell cannot run ("no data: svhn"), or None.
        substitute: the dataset that is used instead of a missing one, or None.
        wrapper: the method around the one of the axis `algorithm`, on the axis `wrapper`, or UNWRAPPED; "" without such an
            axis.
        variant: what the mirrored table calls the published counterpart, beside its method; "" for nothing.
        published_as: what it calls the method; "" for the name that it has here.
        tuned: hyper-parameters that a search on validation data has chosen, and how: the result of
            `bench.tuning.select.describe_choice`.
    """

    dataset: str
    choice: dict[str, Any]
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
        """Whether the method of the axis `algorithm` is the base of the one that is run."""
        return self.wrapper not in ("", UNWRAPPED)

    def key(self, layout: Mapping[str, Any]) -> str:
        """Identifies the cell among those of its grid, but for its seed: dataset, point of a tuning set, row and column."""
        labels = [shown(self.setting(key)) for key in (*layout["rows"], layout["columns"])]
        return json.dumps([self.dataset, self.choice, labels], sort_keys=True)

    def to_json(self) -> StoredCell:
        """The cell as a stored grid holds it."""
        config = self.config
        stored: StoredCell = {
            "dataset": self.dataset,
            "partition": config.partition,
            "algorithm": self.setting("algorithm"),
            "model": config.model,
            "clients": config.clients,
            "participation": config.participation,
            "seed": config.seed,
            "choice": self.choice,
            "run": None if self.missing else self.id,
            "missing": self.missing,
            "substitute": self.substitute,
            "variant": self.variant,
            "config": config.canonical(),
        }
        if self.wrapper:
            stored["wrapper"] = self.wrapper
        if self.published_as:
            stored["published_as"] = self.published_as
        if self.tuned:
            stored["tuned"] = cast(ChosenParams, self.tuned)
        return stored


class _Point(Protocol):
    def setting(self, key: str) -> Any: ...


def select(cells: list[Cell], only: Mapping[str, Sequence[Any]], refused: Sequence[_Point] = ()) -> list[Cell]:
    """The cells whose settings are among the values of `only`.

    Args:
        refused: points of the grid that make no cell, whose values are known ones all the same.

    Raises:
        ConfigError: for a key that no cell has and a value that no cell has.
    """
    mistakes = []
    points: list[_Point] = [*cells, *refused]
    for key, values in only.items():
        found: list[Any] = []  # some values cannot be hashed
        for point in points:
            if (value := _selected_by(point, key)) is not None and value not in found:
                found.append(value)
        if not found:
            known = {*SETTINGS, *(key for cell in cells for key in cell.choice)}
            nowhere = f"No cell has a {key}, which neither the axes nor the settings of the grid name."
            mistakes.append(nowhere if key in known else unknown("setting", key, sorted(known)))
            continue
        there = list(map(str, found))
        mistakes += [
            f"No cell has {key}={value}.{_elsewhere(value, points) or suggestion(value, there)} "
            f"The cells have: {', '.join(there)}."
            for value in values
            if value not in found
        ]
    if mistakes:
        raise ConfigError(mistakes)
    return [cell for cell in cells if all(_selected_by(cell, key) in values for key, values in only.items())]


def _selected_by(point: _Point, key: str) -> Any:
    """What `--only` calls the value of a setting: a method inside another by its name. Nothing is selected by lists."""
    value = point.setting(key)
    return value.get("name") if isinstance(value, Mapping) else None if isinstance(value, list) else value


def _elsewhere(value: Any, points: Sequence[_Point]) -> str:
    """ " Did you mean wrapper=fedcollab?" where a name is the value of another setting; "" where it is of none."""
    keys = [key for key in ("wrapper", *SETTINGS) if any(point.setting(key) == value for point in points)]
    return f" Did you mean {keys[0]}={value}?" if isinstance(value, str) and keys else ""


def to_json(grid: GridSpec, budget: str, overrides: Mapping[str, Any], cells: Sequence[Cell]) -> StoredGrid:
    """The expanded grid as the report reads it."""
    layout = grid.report
    described: GridDescription = {
        "grid": grid.stored_name,
        "source": grid.source,
        "digest": grid.digest(budget),
        "budget": budget_label(budget, overrides),
        "overrides": dict(overrides),
        "title": grid.stored_title,
        "reproduces": cast(StoredReproduces, grid.reproduces.model_dump()) if grid.reproduces else None,
        "std": layout.std,
        "verdict": layout.verdict,
        "report": cast(StoredLayout, layout.model_dump(exclude={"std", "verdict"}, exclude_none=True)),
    }
    return ordered(described, [cell.to_json() for cell in cells])


def is_laid_out_as(grid: GridSpec, stored: StoredGrid) -> bool:
    """Whether a stored grid has the title and the layout of the table that the grid has now. What layouts did not always have
    counts as left out, a layout that is none any more as the same. Data of users are the same if they have one name: their
    files may not be here."""
    report = stored["report"]
    axes = [*report["rows"], report["columns"]]
    try:
        before = Layout.model_validate(
            {**report, "std": stored["std"], "verdict": stored["verdict"]}, context={"axes": axes}
        )
    except ValidationError:
        return True
    layouts = [with_names_of_data(layout.model_dump()) for layout in (before, grid.report)]
    return stored["title"] == grid.stored_title and layouts[0] == layouts[1]


def ordered(described: GridDescription, cells: list[StoredCell]) -> StoredGrid:
    """An expanded grid with these cells, and the order of its rows and columns in which they come."""
    layout = described["report"]
    rows = [tuple(value_of(cell, key) for key in layout["rows"]) for cell in cells]
    columns = [value_of(cell, layout["columns"]) for cell in cells]
    return {
        **described,
        "row_order": [list(row) for row in dict.fromkeys(rows)],
        "column_order": list(dict.fromkeys(columns)),
        "cells": cells,
    }


def cell_key(layout: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """Identifies a stored cell among those of its grid, as `Cell.key` does; the two may differ."""
    labels = [value_of(cell, key) for key in (*layout["rows"], layout["columns"])]
    return json.dumps([cell["dataset"], cell["choice"], labels], sort_keys=True)


def budget_label(budget: str, overrides: Mapping[str, Any]) -> str:
    """A budget's name in the store and in reports: "small", or "small+rounds=3" with what was overridden."""
    named = {
        key: references.in_file_names(value) if isinstance(value, str) else value for key, value in overrides.items()
    }
    return file_name("".join([budget, *(f"+{key}={value}" for key, value in sorted(named.items()))]))
