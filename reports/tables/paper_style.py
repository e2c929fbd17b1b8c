"""A report as its paper prints it: the published rows and columns, numbers and bold as there, and nothing beside them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench.experiments.labels import UNWRAPPED, competitor
from bench.published.printing import Printing, printed_of, printing_of
from bench.results.grids import StoredCell, StoredGrid
from bench.results.metrics import ACCURACIES, METRICS
from reports.tables import measured as measured_tables
from reports.tables.aggregate import (
    cell_keys,
    compared_keys,
    competitors_of,
    contest_keys,
    contest_name,
    label,
    row_keys,
    seeds_of,
    split_of,
    studies_of,
)
from reports.tables.footnotes import ROUNDS_OF, against_in_words, in_common, is_smoke, over_studies
from reports.tables.layout import (
    NOT_REACHED,
    Cell,
    Table,
    arrange,
    caveats_of,
    measured,
    side_by_side,
    span,
    which_seeds,
    with_std,
)
from reports.tables.names import Name, Names
from reports.tables.report import Report
from reports.tables.significance import about_italics, competitors, mark_best, merits
from reports.tables.tuning_notes import search_in_words

_MARKS, _ABSENT = "†‡§¶", "–"
_BEST_OTHER = "best-other"  # id of a column


def as_printed(report: Report, grid: StoredGrid) -> Report:
    """The same numbers in the published layout, without published values, verdicts, tests, standings and choices.

    A number with limits has a mark, one for each distinct set of limits, and a cell without a number is a dash; a footnote for
    each says why.

    Args:
        report: of `reports.tables.report.build`, or of a measured table.
        grid: expanded grid.
    """
    _check_axes(grid)
    report = replace(report, cells=_published_ones(report.cells, grid))
    cells, printing = report.cells, printing_of(grid)
    if grid["report"].get("measured"):
        tables = tuple(replace(_bare(cells, table, grid), merged=True) for table in report.tables)
    else:
        layout = _printed_layout(grid)
        tables = tuple(_table(of, grid, layout, printing) for _, of in cells.groupby("metric", sort=False))
    combined = _combined(tables, grid) if report.combined else None
    shown = (combined,) if combined else tables
    marks = _marks(shown)
    return replace(
        report,
        name=f"{report.name}-paper",
        title=report.title.removesuffix(f", {ROUNDS_OF[cells['value'].iloc[0]]}"),  # which the facts say
        facts=_facts(report, shown, grid, printing),
        tables=tuple(_marked(table, marks) for table in tables),
        combined=_marked(combined, marks) if combined else None,
        notes=tuple(f"{mark}: {'; '.join(limits)}." for limits, mark in marks.items()),
        further=(),
        choices=(),
        standings=(),
        spaces=(),
    )


def _combined(tables: Sequence[Table], grid: StoredGrid) -> Table:
    """The tables side by side, with the names of their metrics; the reference has a hyphen where a metric compares with it."""
    combined, metrics = side_by_side(tables), [table.metric for table in tables]
    own = printed_of(grid).get("names", {}).get("metric", {})
    titles = [own.get(metric, METRICS[metric].title) for metric in metrics] * len(combined.blocks)
    relative = [METRICS[metric].relative for metric in metrics] * len(combined.blocks)
    rows = (
        replace(
            row,
            cells=tuple(
                Cell("-") if cell is None and of else cell for cell, of in zip(row.cells, relative, strict=True)
            ),
        )
        for row in combined.rows
    )
    return replace(combined, columns=tuple(titles), rows=tuple(rows))


def _check_axes(grid: StoredGrid) -> None:
    """Raises ValueError unless the published layout that is stored with a grid is one of the axes of its report."""
    printed, known = printed_of(grid), cell_keys(grid)
    own = " ".join(filter(None, [*printed.get("rows", ()), printed.get("columns", "")])).split()
    if foreign := [axis for axis in dict.fromkeys([*own, *printed.get("without", ())]) if axis not in known]:
        raise ValueError(
            f"{grid['grid']} is stored with a published layout of {', '.join(foreign)}, but its report has {', '.join(known)} "
            "only; run it again, or use the style check."
        )


def _published_ones(cells: pd.DataFrame, grid: StoredGrid) -> pd.DataFrame:
    """The cells without those that the published table does not have; raises ValueError if none is left."""
    kept = cells
    for axis, values in printed_of(grid).get("without", {}).items():
        kept = kept[~kept[axis].isin([*map(str, values)])]
    if kept.empty and not cells.empty:
        raise ValueError(
            f"{grid['grid']} has no cell that its published table prints; run others, or use the style check."
        )
    return kept


def _marks(tables: Sequence[Table]) -> dict[tuple[str, ...], str]:
    """Limits of cells -> their mark, in the order of the tables; a dash is its own unless dashes differ in their reasons."""
    cells = [cell for table in tables for cell in table.cells if cell.caveats]
    absent = dict.fromkeys(cell.caveats for cell in cells if not cell.measured)
    limits = dict.fromkeys(cell.caveats for cell in cells if cell.measured or len(absent) > 1)
    marks = {of: _MARKS[place % len(_MARKS)] * (place // len(_MARKS) + 1) for place, of in enumerate(limits)}
    return marks | {of: _ABSENT for of in absent if of not in marks}


def _marked(table: Table, marks: dict[tuple[str, ...], str]) -> Table:
    """A table whose cells have marks instead of their limits."""

    def mark(cell: Cell | None) -> Cell | None:
        if cell is None:
            return None
        behind = marks.get(cell.caveats, "")
        text = cell.measured + behind if cell.measured else _ABSENT + behind.removeprefix(_ABSENT)
        return replace(cell, measured=text, caveats=())

    return replace(table, rows=tuple(replace(row, cells=tuple(map(mark, row.cells))) for row in table.rows))


def _facts(report: Report, tables: Sequence[Table], grid: StoredGrid, printing: Printing) -> str:
    """What the numbers are, without what the title says."""
    cells, parts, bold = report.cells, [], ""
    about = [_alike(report, tables[0], grid), in_common(grid), printed_of(grid).get("where", "")]
    if not grid["report"].get("measured"):
        parts = [*_what(report, grid), _over_seeds(cells, grid, printing.std)]
        if any(cell.best for table in tables for cell in table.cells):
            bold = printing.about_bold(_own_methods(cells, tables[0].names, grid))
        if any(cell.not_significant for table in tables for cell in table.cells):
            parts.append(about_italics(cells, contest_name(grid), against_in_words(grid, Names.of_grid(grid))))
    elif grid["report"]["measured"]["kind"] != "dataset-sizes":
        parts = [_over_seeds(cells, grid, std=True)]
    if chosen_on := " and ".join(_chosen_on(name, grid) for name in cells["chosen_on"].unique() if name):
        published = ", as published" * bool(grid["reproduces"] and not cells["searched"].any())
        parts.append(f"hyper-parameters chosen on {chosen_on}{published}")
    budget = _budget(grid)
    facts = "; ".join(filter(None, [*about, *parts, bold, budget]))
    caption = "" if budget else printed_of(grid).get("caption", "")
    return " ".join(filter(None, [facts and f"{facts[0].upper()}{facts[1:]}.", caption]))


def _alike(report: Report, table: Table, grid: StoredGrid) -> str:
    """What all cells have in common on the axes that the table does not show: "CIFAR-10, #C = 2"."""
    measured = (grid["report"].get("measured") or {}).get("kind")
    if measured == "dataset-sizes":
        return ""  # which depend on nothing else
    axes = row_keys(grid) if measured else cell_keys(grid)
    seen = " ".join([*table.row_keys, table.column_key if not table.blocks else grid["report"]["columns"]]).split()
    values = {key: report.cells[key].unique() for key in axes if key not in seen and key in report.cells}
    names = Names.of_grid(grid)
    alike = {key: found[0] for key, found in values.items() if len(found) == 1}
    alike = {key: value for key, value in alike.items() if value not in ("-", UNWRAPPED)}
    return ", ".join(names.title(key, str(value)).plain for key, value in alike.items())


def _what(report: Report, grid: StoredGrid) -> list[str]:
    """What is measured, of which split and rounds; accuracies alone are in percent."""
    value, split = report.cells["value"].iloc[0], split_of(grid)
    metrics = [*report.cells["metric"].unique()]
    others = [metric for metric in metrics if metric not in ACCURACIES]
    title_says = f"{split} accuracy" in report.title.casefold() and not others
    what = f"on the {split} split"
    if len(others) < len(metrics):
        what = "in percent" if title_says and value != "best" else f"accuracy in percent {what}"
    if not all(METRICS[metric].cost for metric in metrics):
        what += f", {ROUNDS_OF[value]}"
    explained = [metric for metric in metrics if metric != "accuracy"]
    about = [
        f"{METRICS[metric].title}: {_clause(METRICS[metric].about)}" for metric in explained if METRICS[metric].about
    ]
    if any(METRICS[metric].relative for metric in others):
        about.append(f"reference: {Names.of_grid(grid).setting(grid['report']['reference']).plain}")
    return [what, *about]


def _clause(text: str) -> str:
    """Text until its first semicolon outside parentheses."""
    return re.findall(r"(?:\([^)]*\)|[^;(])*", text)[0]


def _chosen_on(split: str, grid: StoredGrid) -> str:
    searched = search_in_words(grid) if split == "validation" else ""
    return f"the {split} split" + f" ({searched})" * bool(searched)


def _own(grid: StoredGrid) -> list[str]:
    """Ids of the paper's own methods."""
    return [str(name) for name in grid["reproduces"].get("own", ())] if grid["reproduces"] else []


def _own_methods(cells: pd.DataFrame, names: Names, grid: StoredGrid) -> list[str]:
    """Names of the paper's own methods that are in the table."""
    keys, own = compared_keys(grid), _own(grid)
    names = names.with_combined(keys, cells[keys].itertuples(index=False, name=None))
    return [names.value(" ".join(keys), name).plain for name in competitors_of(cells, grid).unique() if name in own]


def _budget(grid: StoredGrid) -> str:
    """The budget unless the grid is whole, and settings that replace those of the grid."""
    budget, names = grid["budget"].partition("+")[0], Names.of_grid(grid)
    changed = (names.title(key, str(value)).plain for key, value in grid.get("overrides", {}).items())
    called = f"budget {budget}" * (budget not in ("paper", "full")) + ", whose accuracies mean nothing" * is_smoke(grid)
    return " with ".join(filter(None, [called, ", ".join(changed)]))


def _over_seeds(cells: pd.DataFrame, grid: StoredGrid, std: bool) -> str:
    """Over how many seeds the means are, which may differ between cells; of studies what the numbers are."""
    if studies_of(grid):
        return over_studies(grid)
    seeds = seeds_of(grid)
    done = {*cells.loc[cells["done"] > 0, "done"].tolist()} or {len(seeds)}
    low, high = min(done), max(done)
    listed = f"({'of ' * (low < len(seeds))}{', '.join(map(str, seeds))})"
    if high == 1:
        spread = ", std of these rounds" if cells["std"].notna().any() else ", so no std"
        return f"1 seed {listed}{spread if std else ''}"
    mean = f"mean±std ({grid['std']})" if std else "mean"
    return f"{mean} over {span(low, high)} seeds {listed}"


def _bare(cells: pd.DataFrame, table: Table, grid: StoredGrid) -> Table:
    """A measured table without what is published; that of a paper has no axes of one value."""

    def show(cell: Any, shown: Cell) -> Cell:
        return replace(shown, published=())

    told_apart = [key for key in table.row_keys if cells[key].nunique() > 1] if grid["reproduces"] else []
    return measured_tables.arrange(cells, told_apart or table.row_keys, grid, show)


def _printed_layout(grid: StoredGrid) -> StoredGrid:
    """The grid with the rows and columns of the published table, in its order."""
    report = grid["report"]
    printed = printed_of(grid)
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


def _place(axes: Sequence[str], cell: StoredCell) -> tuple[str, ...]:
    """The ids of a cell on axes, of which each may be several."""
    return tuple(str(competitor([label(cell, key) for key in axis.split(" ")])) for axis in axes)


def _table(cells: pd.DataFrame, grid: StoredGrid, layout: StoredGrid, printing: Printing) -> Table:
    """The published table of one metric's cells."""
    metric = cells["metric"].iloc[0]
    bold = _bold(cells, grid, printing)
    names = Names.of_grid(grid)
    axes = [*layout["report"]["rows"], layout["report"]["columns"]]
    for axis in axes:
        if axis not in cells:
            found = [*cells[axis.split(" ")].itertuples(index=False, name=None)]
            cells = cells.assign(**{axis: [str(competitor(values)) for values in found]})
            names = names.with_combined(axis.split(" "), found)
    if cells.duplicated(axes).any():
        raise ValueError(
            f"{grid['grid']} has cells that its published layout ({', '.join(axes)}) cannot tell apart; use the style check."
        )
    printed, cells = printed_of(grid), cells.assign(bold=bold)
    names = names.with_own(printed.get("names", {}))
    if heading := printed.get("best_other"):
        cells, layout = _with_best_other(cells, grid, layout, printing)
        names = names.with_own({layout["report"]["columns"]: {_BEST_OTHER: heading}})
    against = bool(grid["report"].get("against"))
    shown = arrange(cells, layout, metric, show=lambda cell: _show(cell, printing, names, against))
    over = Name.of(printed["over"]) if printed.get("over") else None
    return replace(shown, names=names, over=over, merged=True)


def _with_best_other(
    cells: pd.DataFrame, grid: StoredGrid, layout: StoredGrid, printing: Printing
) -> tuple[pd.DataFrame, StoredGrid]:
    """Of all cells of a row that are not of the paper's own methods, the best alone, first and with a column of its own; and
    the layout with it. It says of how many it is the best if some have no result."""
    rows, column = layout["report"]["rows"], layout["report"]["columns"]
    is_own = competitors_of(cells, grid).isin(_own(grid))
    others = cells[~is_own]
    scores = merits(others, cells["metric"].iloc[0], printing.digits).fillna(-np.inf)
    keys = [others[key] for key in rows]
    best = others.loc[scores.groupby(keys).idxmax()]
    counts = (others["done"] > others["missed"]).groupby(keys)
    some = [f"best of {done}/{of}" * (0 < done < of) for done, of in zip(counts.sum(), counts.size(), strict=True)]
    few = ["; ".join(filter(None, both)) for both in zip(best["few"], some, strict=True)]
    found = pd.concat([best.assign(**{column: _BEST_OTHER, "few": few}), cells[is_own]])
    return found, layout | {"column_order": [_BEST_OTHER, *layout["column_order"]]}


def _bold(cells: pd.DataFrame, grid: StoredGrid, printing: Printing) -> pd.Series:
    """Which cells are bold: True for those, by the numbers as this paper prints them."""
    metric = cells["metric"].iloc[0]
    if printing.bold == "best":
        return mark_best(cells, contest_keys(grid), metric, printing.digits)
    found = competitors(cells)
    if printing.bold == "none" or found.empty:
        return pd.Series(False, cells.index)
    found = found[found["partition"] != "none"]  # all data in one place competes with nobody
    contests = [found[key] for key in contest_keys(grid)]
    scores = merits(found, metric, printing.digits)
    is_own = competitors_of(found, grid).isin(_own(grid))
    best_other = scores.where(~is_own).groupby(contests).transform("max")
    ahead = is_own & ~(scores < best_other)
    bold = ahead | (~is_own & (scores == best_other) & ~ahead.groupby(contests).transform("any"))
    bold &= (scores.groupby(contests).transform("size") > 1) & (found["missed"] < found["seeds"])
    return bold.reindex(cells.index, fill_value=False)


def _show(cell: Any, printing: Printing, names: Names, against: bool) -> Cell:
    """A cell as the paper prints it.

    Args:
        against: whether cells are tested against one that is named, which may be behind; not against the best.
    """
    about = METRICS[cell.metric]
    runs, limits = tuple(cell.run_ids.split()), tuple(caveats_of(cell, names))
    is_italic = printing.italics and bool(cell.not_significant) and (against or not cell.bold)
    if cell.done == cell.missed:
        return Cell(NOT_REACHED if cell.done else "", limits, runs=runs)
    if cell.studies:  # no paper prints a median of studies, so it has the form of the style check
        median = None if np.isnan(cell.mean) else cell.mean
        return Cell(
            measured(cell, printing.digits), limits, best=cell.bold, mean=median, not_significant=is_italic, runs=runs
        )
    sign = "%" * (printing.percent and not about.relative and about.is_share)
    text, std = with_std(cell.metric, cell.mean, cell.std, printing.digits)
    text += sign
    if printing.std and std:
        text += f"{printing.between}{std}{sign}"
    if printing.gains and about.is_share and not np.isnan(cell.gain):
        text += f" ({'↑' if cell.gain >= 0 else '↓'} {abs(cell.gain):.{printing.digits}f})"
    return Cell(text + which_seeds(cell), limits, best=cell.bold, mean=cell.mean, not_significant=is_italic, runs=runs)
