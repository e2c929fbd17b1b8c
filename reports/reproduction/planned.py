"""How many seeds and points of tuning sets the grids that come with skewbench plan at the paper's budget."""

import math
from collections.abc import Mapping
from typing import Any

from bench.experiments import grid_files
from bench.experiments.grid_loading import load_grid
from bench.experiments.grid_schema import GridSpec, matches
from bench.experiments.labels import value_of

PAPER = "paper"
PLAYED = ("done", "diverged")  # status of runs that have reached their end


class Plans:
    """The grids that mirror published tables, read once."""

    def __init__(self) -> None:
        specs = {name: load_grid(name) for name in grid_files.names() if _may_mirror(name)}
        self._specs = {name: spec for name, spec in specs.items() if spec.mirrors}

    def layout(self, paper: str, table: str) -> dict[str, Any] | None:
        """Report and mirrors of the grid that mirrors a published table, as a stored grid has them; None without one. Grids of
        figures mirror the tables whose numbers they draw, too, with fewer of the paper's methods."""
        found = [
            spec for spec in self._specs.values() if (spec.mirrors.paper, str(spec.mirrors.table)) == (paper, table)
        ]
        spec = max(found, key=lambda spec: len(spec.mirrors.own), default=None)
        parts = {"report": spec.report, "mirrors": spec.mirrors} if spec else {}
        return {key: part.model_dump(exclude_none=True) for key, part in parts.items()} or None

    def own_seeds(self, grid: Mapping[str, Any]) -> list[int] | None:
        """The seeds that a stored grid has by itself, sorted; None for a grid that is not one of these."""
        spec = self._spec(grid)
        return sorted(_seeds(spec)) if spec else None

    def seeds(self, mirrors: Mapping[str, Any]) -> int:
        """The number of seeds of a published table: the largest of all grids that mirror it; a figure's may have fewer."""
        table = mirrors["paper"], str(mirrors["table"])
        specs = [spec for spec in self._specs.values() if (spec.mirrors.paper, str(spec.mirrors.table)) == table]
        return max((len(_seeds(spec)) for spec in specs), default=0)

    def settings(self, grid: Mapping[str, Any], cell: Mapping[str, Any]) -> int:
        """The number of points of the tuning sets that hold for a cell of a stored grid; 1 without any, and for a grid that is
        not one of these."""
        spec = self._spec(grid)
        if not spec:
            return 1
        sets = [one for one in spec.tuning if matches(one.when, {key: value_of(cell, key) for key in one.when})]
        return math.prod(len(one.points(spec.budgets[PAPER].tuning)) for one in sets)

    def _spec(self, grid: Mapping[str, Any]) -> GridSpec | None:
        return None if grid.get("source") else self._specs.get(grid["grid"])


def _may_mirror(name: str) -> bool:
    """Whether a grid file names a published table, or leaves it to the grid that it extends. The check of some others needs
    torch."""
    content = grid_files.read(name)
    return content.get("mirrors", content.get("extends")) is not None


def _seeds(spec: GridSpec) -> list[int]:
    return spec.budgets[PAPER].seeds or spec.axes.get("seed", [0])
