"""A report as its paper prints it: the published rows and columns, numbers and bold as there, and nothing beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench.experiments.labels import contender
from bench.results.metrics import METRICS
from reports.published.printing import Printing, printing_of
from reports.tables.aggregate import contenders_of, contest_keys, label
from reports.tables.footnotes import numbers_are
from reports.tables.layout import Cell, Row, Table, arrange, caveats_of, measured, side_by_side
from reports.tables.names import Names
from reports.tables.report import Report
from reports.tables.significance import contenders

_LIMITED, _ABSENT = "†", "–"


def as_printed(report: Report, grid: dict) -> Report:
    """The same numbers in the published layout, without published values, verdicts, tests, standings and choices.

    A number with a limit has a dagger, and a cell without one is a dash; a footnote says why.

    Args:
        report: of `reports.tables.report.build`, or of a measured table.
        grid: expanded grid.
    """
    if grid["report"].get("measured"):
        tables = tuple(map(_bare, report.tables))
        return replace(report, name=f"{report.name}-paper", tables=tables, notes=(), facts=f"Budget {grid['budget']}")
    printing, layout = printing_of(grid["mirrors"]), _printed_layout(grid)
    tables = tuple(_table(cells, grid, layout, printing) for _, cells in report.cells.groupby("metric", sort=False))
    return replace(
        report,
        name=f"{report.name}-paper",
        facts=numbers_are(grid, report.cells["value"].iloc[0]),
        tables=tables,
        combined=side_by_side(tables) if report.combined else None,
        notes=tuple(_limits(report.cells)),
        further=(),
        choices=(),
        standings=(),
    )


def _bare(table: Table) -> Table:
    """A table without what is published."""
    rows = (
        Row(row.labels, tuple(cell and replace(cell, published=(), not_significant=False) for cell in row.cells))
        for row in table.rows
    )
    return replace(table, rows=tuple(rows))


def _printed_layout(grid: dict) -> dict:
    """The grid with the rows and columns of the published table, in its order."""
    report = grid["report"]
    printed = report.get("printed") or {}
    rows, columns = printed.get("rows") or report["rows"], printed.get("columns") or report["columns"]
    if not printed:
        return grid
    places = dict.fromkeys(_place((*rows, columns), cell) for cell in grid["cells"])
    orders = []
    for axis, found in zip((*rows, columns), zip(*places, strict=True), strict=True):
        named = [id for id in printed.get("names", {}).get(axis, ()) if id in found]
        orders.append(list(dict.fromkeys([*named, *found])))
    in_order = sorted(places, key=lambda place: [order.index(id) for order, id in zip(orders, place, strict=True)])
    row_order = [list(row) for row in dict.fromkeys(tuple(place[:-1]) for place in in_order)]
    shown = report | {"rows": rows, "columns": columns}
    return grid | {"report": shown, "row_order": row_order, "column_order": orders[-1]}


def _place(axes: Sequence[str], cell: dict) -> tuple[str, ...]:
    """The ids of a cell on axes, of which each may be several."""
    return tuple(str(contender([label(cell, key) for key in axis.split(" ")])) for axis in axes)


def _table(cells: pd.DataFrame, grid: dict, layout: dict, printing: Printing) -> Table:
    """The published table of one metric's cells."""
    metric = cells["metric"].iloc[0]
    bold = _bold(cells, grid, printing)
    names = Names.of_grid(grid)
    axes = [*layout["report"]["rows"], layout["report"]["columns"]]
    for axis in axes:
        if axis not in cells:
            found = [*cells[axis.split(" ")].itertuples(index=False, name=None)]
            cells = cells.assign(**{axis: [str(contender(values)) for values in found]})
            names = names.knowing(axis.split(" "), found)
    if cells.duplicated(axes).any():
        raise ValueError(
            f"{grid['grid']} has cells that its published layout ({', '.join(axes)}) cannot tell apart; use the style check."
        )
    names = names.with_own((grid["report"].get("printed") or {}).get("names", {}))
    shown = arrange(cells.assign(bold=bold), layout, metric, show=lambda cell: _show(cell, printing))
    return replace(shown, names=names, merged=True)


def _bold(cells: pd.DataFrame, grid: dict, printing: Printing) -> pd.Series:
    """Which cells are bold: True for those."""
    if printing.bold == "best":
        return cells["best"]
    found = contenders(cells)
    if printing.bold == "none" or found.empty:
        return pd.Series(False, cells.index)
    found = found[found["partition"] != "none"]  # all data in one place competes with nobody
    contests = [found[key] for key in contest_keys(grid)]
    scores = (METRICS[cells["metric"].iloc[0]].sign * found["mean"]).round(printing.digits)
    is_own = contenders_of(found, grid).isin([str(name) for name in grid["mirrors"].get("own", ())])
    best_other = scores.where(~is_own).groupby(contests).transform("max")
    ahead = is_own & ~(scores < best_other)
    bold = ahead | (~is_own & (scores == best_other) & ~ahead.groupby(contests).transform("any"))
    return (bold & (scores.groupby(contests).transform("size") > 1)).reindex(cells.index, fill_value=False)


def _show(cell: Any, printing: Printing) -> Cell:
    about = METRICS[cell.metric]
    runs, limited = tuple(cell.run_ids.split()), _LIMITED * bool([*caveats_of(cell)])
    if not cell.done or cell.done == cell.missed:
        return Cell(measured(cell) or _ABSENT, runs=runs)
    if about.cost:
        return Cell(measured(cell) + limited, best=cell.bold, mean=cell.mean, runs=runs)
    sign = "%" * (printing.percent and not about.relative)
    text = f"{cell.mean:.{printing.digits}f}{sign}"
    if printing.std and not np.isnan(cell.std):
        text += f"{printing.between}{cell.std:.{printing.digits}f}{sign}"
    if printing.gains and not np.isnan(cell.gain):
        text += f" ({'↑' if cell.gain >= 0 else '↓'} {abs(cell.gain):.{printing.digits}f})"
    return Cell(text + limited, best=cell.bold, mean=cell.mean, runs=runs)


def _limits(cells: pd.DataFrame) -> Iterator[str]:
    """What daggers and dashes mean."""
    for mark, found in ((_LIMITED, cells[cells["done"] > 0]), (_ABSENT, cells[cells["done"] == 0])):
        said = dict.fromkeys(caveat for cell in found.itertuples() for caveat in caveats_of(cell))
        if said:
            yield f"{mark}: {'; '.join(said)}."
