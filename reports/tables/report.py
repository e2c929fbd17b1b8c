"""A report: the tables of a grid, one per metric, with footnotes and unrounded numbers."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.errors import require_known
from bench.experiments.figure_names import VALUES
from bench.experiments.labels import competitor
from bench.experiments.reference import is_reference
from bench.results.grids import StoredGrid
from bench.results.metrics import ACCURACIES, METRICS, unknown_metric
from reports.tables import leader, rankings, robust, tuning_notes, versions
from reports.tables.aggregate import (
    cell_keys,
    collect_runs,
    compared_keys,
    competitors_of,
    contest_keys,
    current_cells,
    is_board,
    label,
    studies_of,
    summarise,
    with_equal_seeds,
)
from reports.tables.footnotes import ROUNDS_OF, footnotes, without_paths
from reports.tables.gains import add_gains, baselines_of
from reports.tables.layout import Table, arrange, side_by_side
from reports.tables.published_comparison import compare, further_values, own_value
from reports.tables.records import Records
from reports.tables.significance import compare_with_best


@dataclass(frozen=True)
class Report:
    """The content that every output format renders.

    Attributes:
        name: `<grid>@<budget>`, with `-<value>` if the value is not the grid's own; the stem of the files' names.
        title: of the grid; its name if it has no title.
        tables: one per metric; a column never mixes shared and per-client models.
        combined: the one that shows all these metrics side by side; None where each has a table of its own.
        notes: footnotes, plain sentences.
        first: of a board who is first, and who is not told apart from it; "" of others, and before there are ranks.
        facts: what the numbers of a published layout are, behind its title; "" where footnotes say that.
        cells: one line per cell and metric, accuracies in percent, not rounded.
        choices: tables of chosen hyper-parameters, one per metric with a choice.
        further: tables of the same accuracies of other rounds, one per value and metric.
        further_cells: their cells; None without them.
        standings: tables of mean ranks and wins, one per metric that has them; one of all metrics of a board.
        spaces: of a board the table of where hyper-parameters were searched; () of others.
        standings_data: the numbers of these tables; its columns are `reports.tables.rankings.COLUMNS`.
        scores: of a board the scores of the first metric, of `reports.tables.rankings.scores_of_pairs`; None of others.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    cells: pd.DataFrame
    combined: Table | None = None
    further: tuple[Table, ...] = ()
    further_cells: pd.DataFrame | None = None
    choices: tuple[Table, ...] = ()
    standings: tuple[Table, ...] = ()
    spaces: tuple[Table, ...] = ()
    standings_data: pd.DataFrame | None = None
    scores: pd.DataFrame | None = None
    first: str = ""
    facts: str = ""

    @property
    def styles(self) -> dict[str, Mapping[str, Any]]:
        """Method -> how figures draw it, where the grid or a lab says so; see `reports.tables.names.Names`."""
        return {name: style for table in self.tables for name, style in table.names.styles.items()}

    @property
    def main(self) -> tuple[Table, ...]:
        """The tables that the report opens with."""
        return (self.combined,) if self.combined else self.tables

    @property
    def secondary(self) -> tuple[Table, ...]:
        """The tables below the main ones, each with a title."""
        return (*self.further, *self.standings, *self.choices, *self.spaces)


def build(grid: StoredGrid, records: Records, value: str | None = None) -> Report:
    """The report of an expanded grid.

    Args:
        grid: expanded grid, as stored by `run`.
        records: run id -> record of the runs that have ended; of `reports.tables.costs.with_reached` for metrics with a
            target.
        value: `last`, `best` or `last10`; None is the grid's own.

    Raises:
        ValueError: if value, metric, axis, paper or verdict rule is unknown, or two runs of one seed belong to one table cell.
    """
    grid = grid | {"cells": current_cells(grid, records)}
    value = value or own_value(grid)
    _validate(grid, value)
    columns_by_metric = _columns_by_metric(grid, records, value)

    @functools.cache  # of thousands of runs, tables and ranks share them
    def runs_of(metric: str, value: str) -> pd.DataFrame:
        return collect_runs(grid, records, metric, value)

    by_metric = _cells_by_metric(grid, runs_of, columns_by_metric, value)
    tables = {metric: arrange(cells, grid, metric) for metric, cells in by_metric.items()}
    accuracies = {metric: columns for metric, columns in columns_by_metric.items() if metric in ACCURACIES}
    further = {other: _cells_by_metric(grid, runs_of, accuracies, other) for other in further_values(grid, value)}
    standings, scores = _standings(by_metric, tables, grid, runs_of, value)
    tables = dict(zip(tables, rankings.in_order(tables.values(), standings, grid), strict=True))
    ranked: tuple[Table, ...] = ()
    cells = pd.concat(by_metric.values(), ignore_index=True)
    notes = [*footnotes(grid, records, cells, value)]
    own_runs = functools.partial(runs_of, value=value)
    if standings is not None:
        notes += rankings.footnotes(standings, cells, grid, own_runs)
        ranked = tuple(rankings.arrange(standings, grid)) if len(standings) else ()
    return Report(
        name=f"{grid['grid']}@{grid['budget']}" + (f"-{value}" if value != own_value(grid) else ""),
        title=without_paths(grid)(versions.title_of(grid)) + (f", {ROUNDS_OF[value]}" if further else ""),
        tables=tuple(tables.values()),
        notes=tuple(notes),
        cells=cells,
        combined=side_by_side([*tables.values()]) if grid["report"].get("metrics") else None,
        further=tuple(_further_tables(further, grid)),
        further_cells=pd.concat([cells for found in further.values() for cells in found.values()], ignore_index=True)
        if any(further.values())
        else None,
        choices=tuple(rankings.in_order(_choices(by_metric, grid), standings, grid)),
        standings=ranked,
        spaces=tuple(rankings.in_order(filter(None, [tuning_notes.spaces(grid)]), standings, grid)),
        standings_data=standings,
        scores=scores,
        first=leader.sentence(standings, cells, grid, own_runs),
    )


def _validate(grid: StoredGrid, value: str) -> None:
    require_known("value", [value], VALUES)
    metrics = dict.fromkeys([grid["report"]["metric"], *grid["report"].get("metrics", ())])
    if mistakes := [unknown_metric(metric) for metric in metrics if metric not in METRICS]:
        raise ValueError(" ".join(mistakes))
    if any(METRICS[metric].relative for metric in metrics) and not grid["report"].get("reference"):
        raise ValueError(f"The report shows {', '.join(metrics)}, but names no reference.")
    if foreign := [key for key in compared_keys(grid) if key not in cell_keys(grid)]:
        raise ValueError(f"The report compares along {', '.join(foreign)}, which its table does not show.")
    if not _known_at(value, metrics):
        raise ValueError(f"{', '.join(metrics)} are known of the last round only; report the value last, not {value}.")
    for key in cell_keys(grid):
        if all(label(cell, key) == "-" for cell in grid["cells"]):
            raise ValueError(f"The report names {key!r}, but no cell of the grid has a setting of that name.")


def _known_at(value: str, metrics: Iterable[str]) -> list[str]:
    """Those of the metrics that are known of these rounds."""
    return [metric for metric in metrics if value == "last" or not METRICS[metric].relative]


def _cells_by_metric(
    grid: StoredGrid, runs_of: Callable[[str, str], pd.DataFrame], columns: dict[str, set[str]], value: str
) -> dict[str, pd.DataFrame]:
    """Metric -> the cells of its table with gains, published numbers and tests.

    Where metrics stand side by side, all are of the point of a tuning set that the first one chooses which the cell has.
    """
    keys, found = cell_keys(grid), dict[str, pd.DataFrame]()
    for metric in _known_at(value, columns):
        runs = runs_of(metric, value)
        runs = runs[runs[grid["report"]["columns"]].isin(columns[metric])]
        cells = summarise(runs, keys, grid["std"], METRICS[metric].sign, len(studies_of(grid)))
        if grid["report"].get("metrics") and found:
            cells = _of_chosen(cells, runs, pd.concat(found.values()), grid, metric)
        cells = add_gains(cells, runs, grid, metric)
        cells = compare(cells, grid, metric, value)
        cells = with_equal_seeds(cells, contest_keys(grid))
        against = grid["report"].get("against")
        others = baselines_of(cells, grid, against) if against else None
        cells = compare_with_best(cells, runs, contest_keys(grid), metric, others)
        found[metric] = cells.assign(metric=metric, value=value, chosen_on=tuning_notes.chosen_on(cells, grid))
    return found


def _of_chosen(
    cells: pd.DataFrame, runs: pd.DataFrame, earlier: pd.DataFrame, grid: StoredGrid, metric: str
) -> pd.DataFrame:
    """Cells of the settings that the first of the earlier metrics has chosen, which also tells what was tried.

    A cell that has none of the earlier metrics chooses by this one: a method with a model per client has no `accuracy`.
    """
    keys = cell_keys(grid)
    chosen = earlier[earlier["done"] > 0].drop_duplicates(keys)[[*keys, "choice", "settings", "tried"]]
    free = ~pd.MultiIndex.from_frame(cells[keys]).isin(pd.MultiIndex.from_frame(chosen[keys]))
    chosen = pd.concat([chosen, cells.loc[free, chosen.columns]])
    points = pd.MultiIndex.from_frame(chosen[[*keys, "choice"]])
    of_points = runs[pd.MultiIndex.from_frame(runs[[*keys, "choice"]]).isin(points)]
    cells = summarise(of_points, keys, grid["std"], METRICS[metric].sign, len(studies_of(grid)))
    about = cells[keys].merge(chosen, on=keys, how="left")
    complete = cells["complete"] & (about["tried"] == about["settings"])
    return cells.assign(settings=about["settings"], tried=about["tried"], complete=complete)


def _further_tables(further: dict[str, dict[str, pd.DataFrame]], grid: StoredGrid) -> Iterator[Table]:
    """Tables of other rounds, of value -> metric -> cells."""
    for value, by_metric in further.items():
        title = f"Accuracy, {ROUNDS_OF[value]}"
        tables = [replace(arrange(cells, grid, metric), title=title) for metric, cells in by_metric.items()]
        if tables and grid["report"].get("metrics"):
            yield side_by_side(tables, title)
        else:
            yield from tables


def _choices(by_metric: dict[str, pd.DataFrame], grid: StoredGrid) -> Iterator[Table]:
    """Tables of chosen hyper-parameters; a cell with several metrics is only in the first metric's table."""
    listed = pd.MultiIndex.from_tuples([], names=cell_keys(grid))
    for metric, cells in by_metric.items():
        keys = pd.MultiIndex.from_frame(cells[cell_keys(grid)])
        if table := tuning_notes.table(cells[~keys.isin(listed)], grid, metric):
            yield table
        listed = listed.append(keys[tuning_notes.have_ended(cells, grid)])


def _standings(
    by_metric: dict[str, pd.DataFrame],
    tables: dict[str, Table],
    grid: StoredGrid,
    runs_of: Callable[[str, str], pd.DataFrame],
    value: str,
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Mean ranks and wins of all metrics, lines of `rankings.COLUMNS`, and the scores of a board; None if the grid does not
    request them."""
    if not grid["report"].get("standings"):
        return None, None
    found: list[pd.DataFrame] = []
    scores = None
    for metric, cells in by_metric.items():
        if not METRICS[metric].ranked:
            continue
        runs = runs_of(metric, value)
        names = _contenders(cells, grid, tables[metric])
        lines = rankings.standings(cells, runs, grid, metric, names)
        more_is_better = METRICS[metric].is_share and METRICS[metric].sign > 0
        if is_board(grid) and not found and more_is_better and len(lines):
            scores = rankings.scores_of_pairs(cells, runs, grid, metric)[[*lines["column"]]]
            other = grid["report"].get("improvement_over", {})
            over = competitor([str(other.get(key, "")) for key in compared_keys(grid)])
            also = pd.DataFrame(robust.measures(scores, contest_keys(grid), over)).assign(rows=len(scores))
            lines = pd.concat([lines, also], ignore_index=True)
        found.append(lines.assign(metric=metric)[list(rankings.COLUMNS)])
    together = pd.concat([lines for lines in found if len(lines)] or found[:1], ignore_index=True) if found else None
    return together, scores


def _contenders(cells: pd.DataFrame, grid: StoredGrid, table: Table) -> tuple[str, ...]:
    """What competes in a table, in order."""
    if compared_keys(grid) == [grid["report"]["columns"]]:
        return table.columns
    return tuple(competitors_of(cells, grid).unique())


def _columns_by_metric(grid: StoredGrid, records: Records, value: str) -> dict[str, set[str]]:
    """Metric -> columns of its table, the grid's own metric first.

    A column is in the table of every accuracy that its runs report, and without any result in that of the grid's metric.
    Relative metrics and costs are those that the grid names. Where it names several metrics, it has no other tables, and all
    columns are in each. Of reference runs alone there is their accuracy.
    """
    axis, own = grid["report"]["columns"], grid["report"]["metric"]
    everything = {label(cell, axis) for cell in grid["cells"]}
    if all(is_reference(grid["report"], cell) for cell in grid["cells"]):
        accuracies = [metric for metric in grid["report"].get("metrics") or [own] if not METRICS[metric].relative]
        return {metric: everything for metric in accuracies or ["own_accuracy"]}
    if metrics := grid["report"].get("metrics"):
        return {metric: everything for metric in _known_at(value, metrics)}
    reported: dict[str, set[str]] = {}
    for cell in grid["cells"]:
        column = label(cell, axis)
        record: Mapping[str, Any] = records.get(cell["run"] or "", {})
        found = ACCURACIES.keys() & (record["summary"][value] if record.get("status") == "done" else ())
        reported.setdefault(column, set()).update(found)
    tables: dict[str, set[str]] = {metric: set() for metric in (own, *METRICS)}
    for column, found in reported.items():
        for metric in found | ({own} if own not in ACCURACIES or not found else set()):
            tables[metric].add(column)
    return {metric: columns for metric, columns in tables.items() if columns}
