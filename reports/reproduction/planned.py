"""What the grids that come with skewbench plan at the paper's budget: seeds, points of tuning sets, and what competes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.experiments import grid_files
from bench.experiments.cells import Cell, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.grid_schema import GridSpec
from bench.experiments.labels import value_of
from bench.experiments.settings_schema import matches
from bench.results.grids import StoredGrid
from bench.results.ids import unversioned
from reports.tables import agreement, report
from reports.tables.aggregate import contest_keys

PAPER = "paper"


@dataclass(frozen=True)
class Contest:
    """The published numbers of one metric that compete in the rows of a table.

    Attributes:
        metric: as run records call it.
        numbers: `Published` by row and competitor, NaN where a row has none.
        own, baselines: which competitors are the paper's own, and with which these are compared (none: all others).
    """

    metric: str
    numbers: pd.DataFrame
    own: tuple[str, ...]
    baselines: tuple[str, ...]


class Plans:
    """The grids that mirror published tables, read once."""

    def __init__(self) -> None:
        specs = {name: load_grid(name) for name in grid_files.names() if _may_mirror(name)}
        self._specs = {name: spec for name, spec in specs.items() if spec.reproduces}
        self._contests: dict[tuple[str, str], tuple[Contest, ...]] = {}

    def contests(self, paper: str, table: str) -> tuple[Contest, ...]:
        """What competes in a published table, as the grid lays it out that has most of its cells; nothing where none mirrors
        it, or where it shows measurements of runs."""
        if (paper, table) not in self._contests:
            expanded = [(spec, expand(spec, PAPER)) for spec in self._reproducing(paper, table)]
            largest = max(expanded, key=lambda both: len(both[1]), default=None)
            self._contests[paper, table] = tuple(_contests(*largest)) if largest else ()
        return self._contests[paper, table]

    def own_seeds(self, grid: StoredGrid) -> list[int] | None:
        """The seeds that a stored grid has by itself, sorted; None for a grid that is not one of these."""
        spec = self._spec(grid)
        return sorted(spec.seeds_at(PAPER)) if spec else None

    def seeds(self, reproduces: Mapping[str, Any]) -> int:
        """The number of seeds of a published table: the largest of all grids that mirror it; a figure's may have fewer."""
        specs = self._reproducing(reproduces["paper"], str(reproduces["table"]))
        return max((len(spec.seeds_at(PAPER)) for spec in specs), default=0)

    def settings(self, grid: StoredGrid, cell: Mapping[str, Any]) -> int:
        """The number of points of the tuning sets that hold for a cell of a stored grid; 1 without any, and for a grid that is
        not one of these."""
        spec = self._spec(grid)
        if not spec:
            return 1
        sets = [one for one in spec.tuning if matches(one.when, {key: value_of(cell, key) for key in one.when})]
        return math.prod(len(one.points(spec.budgets[PAPER].tuning)) for one in sets)

    def _reproducing(self, paper: str, table: str) -> list[GridSpec]:
        """The grids that mirror a published table: its own, and those of figures that draw its numbers."""
        return [
            spec
            for spec in self._specs.values()
            if spec.reproduces and (spec.reproduces.paper, str(spec.reproduces.table)) == (paper, table)
        ]

    def _spec(self, grid: StoredGrid) -> GridSpec | None:
        return None if grid.get("source") else self._specs.get(unversioned(grid["grid"]))


def _contests(spec: GridSpec, cells: list[Cell]) -> Iterator[Contest]:
    """What competes in the table of a grid, a contest for each metric."""
    grid = to_json(spec, PAPER, {}, cells)
    reproduces = grid["reproduces"]
    if "measured" in grid["report"] or not reproduces:
        return
    found = agreement.competing(grid, report.build(grid, {}).cells)
    for metric, lines in found.groupby("metric", sort=False):
        table = lines.pivot(index=contest_keys(grid), columns="competitor", values="published")
        own, baselines = reproduces.get("own", ()), reproduces.get("baselines", ())
        yield Contest(metric, table[lines["competitor"].unique()], tuple(map(str, own)), tuple(map(str, baselines)))


def _may_mirror(name: str) -> bool:
    """Whether a grid file names a published table, or leaves it to the grid that it extends. The check of some others needs
    torch."""
    content: Any = grid_files.read(name)
    return content.get("reproduces", content.get("extends")) is not None
