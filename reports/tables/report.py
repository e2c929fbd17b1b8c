"""A report: the tables of a grid, one per metric, with their footnotes and the numbers behind them."""

from dataclasses import dataclass

import pandas as pd

from bench.errors import unknown
from bench.experiments.figure_names import VALUES
from bench.results.metrics import METRICS
from reports.tables import rankings as over_rows
from reports.tables import tuning_notes
from reports.tables.aggregate import cell_keys, collect_runs, current_cells, label, row_keys, summarise
from reports.tables.footnotes import footnotes
from reports.tables.gains import add_gains
from reports.tables.layout import Table, arrange
from reports.tables.published_comparison import compare, own_value
from reports.tables.significance import compare_with_best


@dataclass(frozen=True)
class Report:
    """What every output format renders.

    Attributes:
        name: `grid@budget`, with the value where it is not the grid's own; the name of the files.
        title: what the grid says about itself, its name if nothing.
        tables: one per metric; shared models and per-client models never stand in one column.
        notes: footnotes, plain sentences.
        cells: one line per cell and metric, accuracies in percent, not rounded.
        choices: hyper-parameters that were chosen, as tables, one per metric where something was.
        standings: mean ranks and wins of the columns, as tables, one per metric that has some.
        standings_data: the numbers behind them, lines of `reports.tables.rankings.COLUMNS`.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    cells: pd.DataFrame
    choices: tuple[Table, ...] = ()
    standings: tuple[Table, ...] = ()
    standings_data: pd.DataFrame | None = None

    @property
    def below(self) -> tuple[Table, ...]:
        """What stands below the tables of numbers."""
        return (*self.choices, *self.standings)


def build(grid: dict, records: dict[str, dict], value: str | None = None) -> Report:
    """The report of an expanded grid.

    Args:
        grid: expanded grid, as stored by `run`.
        records: run id -> record of the runs that have ended.
        value: `last`, `best` or `last10`; None is the grid's own.

    Raises:
        ValueError: if value, metric, axis, paper or verdict rule is unknown, or cells cannot be told apart.
    """
    grid = grid | {"cells": current_cells(grid, records)}
    value = value or own_value(grid)
    if value not in VALUES:
        raise ValueError(unknown("value", value, VALUES))
    if grid["report"]["metric"] not in METRICS:
        raise ValueError(unknown("metric", grid["report"]["metric"], METRICS))
    for key in cell_keys(grid):
        if all(label(cell, key) == "-" for cell in grid["cells"]):
            raise ValueError(f"The report names {key!r}, but no cell of the grid has a setting of that name.")

    tables, frames, choices, ranked, seen = [], [], [], [], set()
    for metric, columns in _columns_by_metric(grid, records, value).items():
        runs = collect_runs(grid, records, metric, value)
        runs = runs[runs[grid["report"]["columns"]].isin(columns)]
        cells = add_gains(summarise(runs, cell_keys(grid), grid["std"]), runs, grid)
        cells = compare(cells, grid, metric, value)
        cells = compare_with_best(cells, runs, row_keys(grid))
        tables.append(arrange(cells, grid, metric))
        new = cells[~cells[grid["report"]["columns"]].isin(seen)]
        seen |= columns
        choices += filter(None, [tuning_notes.table(new, grid, metric)])
        frames.append(cells.assign(metric=metric, value=value, chosen_on=tuning_notes.chosen_on(cells, grid)))
        if grid["report"].get("standings"):
            found = over_rows.standings(cells, grid, tables[-1].columns)
            ranked.append(found.assign(metric=metric)[list(over_rows.COLUMNS)])
    cells = pd.concat(frames, ignore_index=True)
    notes = [*footnotes(grid, records, cells, value)]

    name = f"{grid['grid']}@{grid['budget']}" + (f"-{value}" if value != own_value(grid) else "")
    title = grid["title"] or grid["grid"]
    if not ranked:
        return Report(name, title, tuple(tables), tuple(notes), cells, tuple(choices))
    found = pd.concat([lines for lines in ranked if len(lines)] or ranked[:1], ignore_index=True)
    notes += over_rows.footnotes(found, cells, grid)
    shown = tuple(over_rows.arrange(lines, grid, metric) for metric, lines in found.groupby("metric", sort=False))
    return Report(name, title, tuple(tables), tuple(notes), cells, tuple(choices), shown, found)


def _columns_by_metric(grid: dict, records: dict[str, dict], value: str) -> dict[str, set[str]]:
    """Metric -> columns of its table, the grid's own metric first.

    A column stands under each accuracy that its runs report; one without any result yet under the grid's own.
    """
    axis = grid["report"]["columns"]
    reported = {}
    for cell in grid["cells"]:
        column = label(cell, axis)
        record = records.get(cell["run"], {})
        found = METRICS.keys() & (record["summary"][value] if record.get("status") == "done" else ())
        reported.setdefault(column, set()).update(found)
    tables = {metric: set() for metric in sorted(METRICS, key=lambda metric: metric != grid["report"]["metric"])}
    for column, metrics in reported.items():
        for metric in metrics or {grid["report"]["metric"]}:
            tables[metric].add(column)
    return {metric: columns for metric, columns in tables.items() if columns}
