"""The page: its template, filled with a report and the stored data of its runs.

Text of users (titles, names, reasons) enters the page through the template, which escapes it, or as JSON that cannot end
its script element; scripts only show it as text.
"""

import functools
import re
from dataclasses import replace
from pathlib import Path

import jinja2
from markupsafe import Markup

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS, is_of_rounds
from bench.results.store import Store
from reports.figures.panels import with_figure_layout
from reports.html import board, bubbles, curves, runs, vega
from reports.tables.aggregate import cell_keys, current_cells
from reports.tables.footnotes import without_paths
from reports.tables.names import Names
from reports.tables.records import Records
from reports.tables.report import Report, build

_FOLDER = Path(__file__).parent
_SCRIPTS = ("tables.js", "charts.js", "runs.js")


def render(report: Report, grid: StoredGrid, records: Records, store: Store) -> str:
    """The page of a report.

    Args:
        report: of `reports.tables.report.build` for grid and records.
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: holds their rounds and label counts.
    """
    grid = grid | {"cells": current_cells(grid, records)}
    details = runs.collect(grid, records)
    value = report.cells["value"].iloc[0]
    of_figures = with_figure_layout(grid)
    as_tables = of_figures is grid and not report.facts or grid["report"].get("measured")
    figures = report if as_tables else build(_for_curves(of_figures), records, value)
    panels = curves.collect(figures, of_figures, records, store)
    partitions = bubbles.collect(grid, store)
    themes = curves.themes(figures, panels, board.colours(report, grid))
    charts = board.collect(report, grid)
    shown = [table.metric for table in report.tables if table.metric in METRICS] or [grid["report"]["metric"]]
    data = {
        "themes": themes,
        "board": charts,
        "curves": {
            "panels": [panel | {"name": METRICS[panel["metric"]].title} for panel in curves.named(figures, panels)],
            "axes": curves.AXES,
            "specs": curves.specs(figures, panels),
            "dashes": curves.dashes(figures, panels),
        },
        "partitions": partitions,
        "runs": {"runs": details.runs, "shared": details.shared},
    }
    # Style and scripts are our own files and are not escaped; the template escapes everything else.
    template = _environment().get_template("page.html.jinja")
    return template.render(
        report=replace(report, name=re.sub("imagefolder:[^@]*", "imagefolder", without_paths(grid)(report.name))),
        metrics=METRICS,
        value=value,
        shown=shown,
        axes=[Names.of_grid(grid).heading(key).plain for key in cell_keys(grid)],
        details=details,
        lines=runs.lines(shown, value, grid, records),
        data=data,
        style=_part("page.css"),
        vega=Markup(vega.script()) if charts or panels or partitions else "",
        scripts=[_part(name) for name in _SCRIPTS],
        chosen=_chosen(report) if charts else {},
    )


def _for_curves(grid: StoredGrid) -> StoredGrid:
    """A grid with no more in its report than curves need; ranks, costs and other rounds take several times as long."""
    metrics = [metric for metric in grid["report"].get("metrics", ()) if is_of_rounds(metric)]
    return grid | {"report": {**grid["report"], "standings": False, "metrics": metrics, "also": []}}


def _chosen(report: Report) -> dict[tuple[str, ...], list[tuple[str, str]]]:
    """Labels of a row -> the chosen hyper-parameters of its cells, with the names of their columns."""
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for table in report.choices:
        for row in table.rows:
            *labels, column = row.labels
            for cell in filter(None, row.cells):
                name = table.names.value(table.row_keys[-1], column).plain
                found.setdefault(tuple(labels), []).append((name, cell.measured))
    return found


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` escapes < > & ', so that no text ends the script element; NaN would not be JSON.
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return found


def _part(name: str) -> Markup:
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))
