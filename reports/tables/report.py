"""A report: the tables of a grid, one per metric, with footnotes and unrounded numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd

from bench.errors import unknown
from bench.experiments.figure_names import VALUES
from bench.results.metrics import METRICS
from reports.tables import rankings, tuning_notes
from reports.tables.aggregate import cell_keys, collect_runs, current_cells, label, row_keys, summarise
from reports.tables.footnotes import ROUNDS_OF, footnotes
from reports.tables.gains import add_gains
from reports.tables.layout import Table, arrange
from reports.tables.published_comparison import compare, further_values, own_value
from reports.tables.significance import compare_with_best


@dataclass(frozen=True)
class Report:
    """The content that every output format renders.

    Attributes:
        name: `<grid>@<budget>`, with `-<value>` if the value is not the grid's own; the stem of the files' names.
        title: of the grid; its name if it has no title.
        tables: one per metric; a column never mixes shared and per-client models.
        notes: footnotes, plain sentences.
        cells: one line per cell and metric, accuracies in percent, not rounded.
        choices: tables of chosen hyper-parameters, one per metric with a choice.
        further: tables of the same accuracies of other rounds, one per value and metric.
        further_cells: their cells; None without them.
        standings: tables of mean ranks and wins, one per metric that has them.
        standings_data: the numbers of these tables; its columns are `reports.tables.rankings.COLUMNS`.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    cells: pd.DataFrame
    further: tuple[Table, ...] = ()
    further_cells: pd.DataFrame | None = None
    choices: tuple[Table, ...] = ()
    standings: tuple[Table, ...] = ()
    standings_data: pd.DataFrame | None = None

    @property
    def secondary(self) -> tuple[Table, ...]:
        """The tables below the main ones, each with a title."""
        return (*self.further, *self.choices, *self.standings)


def build(grid: dict, records: dict[str, dict], value: str | None = None) -> Report:
    """The report of an expanded grid.

    Args:
        grid: expanded grid, as stored by `run`.
        records: run id -> record of the runs that have ended.
        value: `last`, `best` or `last10`; None is the grid's own.

    Raises:
        ValueError: if value, metric, axis, paper or verdict rule is unknown, or two runs of one seed belong to one table cell.
    """
    grid = grid | {"cells": current_cells(grid, records)}
    value = value or own_value(grid)
    _validate(grid, value)
    columns_by_metric = _columns_by_metric(grid, records, value)
    by_metric = {
        metric: _compared_cells(grid, records, metric, columns, value) for metric, columns in columns_by_metric.items()
    }
    tables = {metric: arrange(cells, grid, metric) for metric, cells in by_metric.items()}
    further = [
        (metric, other, _compared_cells(grid, records, metric, columns, other))
        for other in further_values(grid, value)
        for metric, columns in columns_by_metric.items()
    ]
    standings, ranked = _standings(by_metric, tables, grid), ()
    cells = pd.concat(by_metric.values(), ignore_index=True)
    notes = [*footnotes(grid, records, cells, value)]
    if standings is not None:
        notes += rankings.footnotes(standings, cells, grid)
        by_name = standings.groupby("metric", sort=False)
        ranked = tuple(rankings.arrange(lines, grid, metric) for metric, lines in by_name)
    return Report(
        name=f"{grid['grid']}@{grid['budget']}" + (f"-{value}" if value != own_value(grid) else ""),
        title=(grid["title"] or grid["grid"]) + (f", {ROUNDS_OF[value]}" if further else ""),
        tables=tuple(tables.values()),
        notes=tuple(notes),
        cells=cells,
        further=tuple(
            replace(arrange(found, grid, metric), title=f"Accuracy, {ROUNDS_OF[other]}")
            for metric, other, found in further
        ),
        further_cells=pd.concat([found for *_, found in further], ignore_index=True) if further else None,
        choices=tuple(_choices(by_metric, columns_by_metric, grid)),
        standings=ranked,
        standings_data=standings,
    )


def _validate(grid: dict, value: str) -> None:
    if value not in VALUES:
        raise ValueError(unknown("value", value, VALUES))
    if grid["report"]["metric"] not in METRICS:
        raise ValueError(unknown("metric", grid["report"]["metric"], METRICS))
    for key in cell_keys(grid):
        if all(label(cell, key) == "-" for cell in grid["cells"]):
            raise ValueError(f"The report names {key!r}, but no cell of the grid has a setting of that name.")


def _compared_cells(grid: dict, records: dict[str, dict], metric: str, columns: set[str], value: str) -> pd.DataFrame:
    """The cells of one metric's table with gains, published numbers and tests."""
    runs = collect_runs(grid, records, metric, value)
    runs = runs[runs[grid["report"]["columns"]].isin(columns)]
    cells = add_gains(summarise(runs, cell_keys(grid), grid["std"]), runs, grid)
    cells = compare(cells, grid, metric, value)
    cells = compare_with_best(cells, runs, row_keys(grid))
    return cells.assign(metric=metric, value=value, chosen_on=tuning_notes.chosen_on(cells, grid))


def _choices(by_metric: dict[str, pd.DataFrame], columns: dict[str, set[str]], grid: dict) -> Iterator[Table]:
    """Tables of chosen hyper-parameters; a column with several metrics is only in the first metric's table."""
    listed = set()
    for metric, cells in by_metric.items():
        if table := tuning_notes.table(cells[~cells[grid["report"]["columns"]].isin(listed)], grid, metric):
            yield table
        listed |= columns[metric]


def _standings(by_metric: dict[str, pd.DataFrame], tables: dict[str, Table], grid: dict) -> pd.DataFrame | None:
    """Mean ranks and wins of all metrics, lines of `rankings.COLUMNS`; None if the grid does not request them."""
    if not grid["report"].get("standings"):
        return None
    found = [
        rankings.standings(cells, grid, tables[metric].columns).assign(metric=metric)[list(rankings.COLUMNS)]
        for metric, cells in by_metric.items()
    ]
    return pd.concat([lines for lines in found if len(lines)] or found[:1], ignore_index=True)


def _columns_by_metric(grid: dict, records: dict[str, dict], value: str) -> dict[str, set[str]]:
    """Metric -> columns of its table, the grid's own metric first.

    A column is in the table of every accuracy that its runs report, and without any result in that of the grid's metric.
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
