"""Curves of the page: an accuracy, or another metric of rounds, over rounds, communication, time or examples, one panel per row
of the table.

The numbers are those of `reports.figures.curves`, rounded, and thinned to what a screen shows: see `_shown`. Exports and the
figures of a paper have all of them. There is one Vega-Lite chart per accuracy and x axis;
`charts.js` passes it the points of the selected panel and methods. A point is {line, x, mean, low, high, std, alone}. A
horizontal line has one point without x; `alone` marks the only point of a line.
"""

import math
from typing import Any

import numpy as np

from bench.experiments.figure_names import CURVES
from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS, is_of_rounds
from bench.results.store import Store
from reports.figures.curves import X_LABELS, Curve, curves_of, is_constant
from reports.figures.panels import name_of_line, names_of_lines, y_label
from reports.figures.style import COLOURS, LineStyle, line_styles
from reports.tables.names import Names
from reports.tables.records import Records
from reports.tables.report import Report

AXES = {"rounds": "rounds", "communication": "bytes", "time": "seconds", "examples": "examples"}
"""x axis -> text of its button."""
_MOST_POINTS = 100  # of a line; more cannot be distinguished on a screen
_LEAST_POINTS = 20  # of a line
_MOST_OF_PAGE = 20_000  # points of all lines together, as far as each may have `_LEAST_POINTS`; about 1 MB
_DASHES = {"-": [1, 0], "--": [6, 3], "-.": [6, 2, 1, 2], (0, (1, 1)): [1, 2]}  # of `reports.figures.style`, in pixels
_FURTHER_DASHES = ([12, 3], [12, 2, 2, 2], [3, 5])
_HEIGHT = 360  # pixels
_THINNED = "long lines have fewer points than rounds: first, last, and the highest and lowest between"
_LIGHT = {"text": "#1c2024", "muted": "#5b6570", "grid": "#e4e7ea"}
_DARK = {"text": "#e8eaed", "muted": "#a4adb6", "grid": "#30363d"}
_LEAST_LUMINANCE = 0.13  # contrast of 3:1 to the dark background, as the guidelines require of graphics


def collect(report: Report, grid: StoredGrid, records: Records, store: Store) -> list[dict]:
    """The panels in the order of tables and rows; arguments as in `reports.html.page.render`.

    Returns:
        For each: "title", "metric", "caveats" (sentences), and "lines": id -> {x axis: [points], "mean": [points], "std":
        [points]}, in percent if tables print them so, None for a missing number. If a line is horizontal over an x axis, its
        entry for that axis is None, and "level" is its mean and std.
    """
    found, wanted, names = dict[tuple[str, str], dict[str, Any]](), [], _names(report)
    tables = [table for table in report.tables if is_of_rounds(table.metric)]
    for table in tables:
        lines = dict(zip(table.columns, table.lines, strict=True))
        for curve in curves_of(report, table, grid, records, store):
            line = lines.get(curve.line, curve.line)
            title = curve.panel if len(tables) == 1 else f"{curve.panel} ({table.heading})"
            new = {"title": title, "metric": table.metric, "caveats": [], "lines": {}}
            panel = found.setdefault((table.metric, curve.panel), new)
            wanted.append((panel, line, curve))
            if caveats := _caveats(curve.cell, table.names):
                panel["caveats"].append(f"{name_of_line(line, names)}: {caveats}")
    most = min(_MOST_POINTS, max(_LEAST_POINTS, _MOST_OF_PAGE // max(1, len(wanted))))
    for panel, line, curve in wanted:
        shown = _shown(curve.points["mean"], most)
        panel["lines"][line] = _numbers(curve, shown)
        if len(shown) < len(curve.points["mean"]) and _THINNED not in panel["caveats"]:
            panel["caveats"].append(_THINNED)
    return list(found.values())


def named(report: Report, panels: list[dict]) -> list[dict]:
    """The panels with lines by their names, as the page shows them."""
    names = _names(report)
    return [
        panel | {"lines": {name_of_line(line, names): numbers for line, numbers in panel["lines"].items()}}
        for panel in panels
    ]


def specs(report: Report, panels: list[dict]) -> dict[str, dict[str, dict]]:
    """Accuracy -> x axis -> Vega-Lite specification, without the points."""
    lines = dashes(report, panels)
    return {
        metric: {x: _spec(lines, X_LABELS[x], metric) for x in CURVES}
        for metric in dict.fromkeys(panel["metric"] for panel in panels)
    }


def dashes(report: Report, panels: list[dict]) -> dict[str, list[int]]:
    """Names of lines -> their dashes: those of the printed figures, or others where a line of the same colour has them, which
    only its marker tells apart there: curves of a page have none."""
    found: dict[str, list[int]] = {}
    looks: set[tuple] = set()
    for line, style in _styles(report, panels).items():
        usual = _DASHES[style.linestyle]
        choice = (usual, *_FURTHER_DASHES, *_DASHES.values())
        found[line] = next((one for one in choice if (style.color, *one) not in looks), usual)
        looks.add((style.color, *found[line]))
    return found


def themes(report: Report, panels: list[dict], leaders: list[str]) -> dict[str, dict]:
    """For "light" and "dark": the "config" of all charts, and the "colours" of lines as in the printed figures.

    Args:
        leaders: colours of the first methods of a board.
    """
    light = {line: style.color for line, style in _styles(report, panels).items()}
    dark = {line: _readable(colour) for line, colour in light.items()}
    return {
        "light": {"config": _config(_LIGHT, [*light.values()], leaders), "colours": light},
        "dark": {"config": _config(_DARK, [*dark.values()], [*map(_readable, leaders)]), "colours": dark},
    }


def _styles(report: Report, panels: list[dict]) -> dict[str, LineStyle]:
    """Names of lines -> their styles in the printed figures, which also depend on columns without a curve."""
    drawn = dict.fromkeys(line for panel in panels for line in panel["lines"])
    columns = dict.fromkeys(line for table in report.tables for line in table.lines)
    found = line_styles([*(columns if drawn.keys() <= columns.keys() else drawn)], report.styles)
    names = _names(report)
    return {name_of_line(line, names): found[line] for line in drawn}


def _names(report: Report) -> dict[str, str]:
    """Ids of lines -> their names."""
    return {line: name for table in report.tables for line, name in names_of_lines(table).items()}


def _numbers(curve: Curve, shown: np.ndarray) -> dict[str, list | None]:
    """The numbers of a curve at some of its points."""
    numbers = {
        name: [_rounded(value) for value in curve.points[name][shown].tolist()] for name in (*CURVES, "mean", "std")
    }
    levels = {x: None for x in CURVES if is_constant(curve, x)}
    return numbers | levels | ({"level": [_rounded(curve.cell.mean), _rounded(curve.cell.std)]} if levels else {})


def _shown(means: np.ndarray, most: int) -> np.ndarray:
    """Which points of a line are drawn: all, if these are no more than `most`.

    Else the first and the last, and of equal parts between them the lowest and the highest each, so that thinning hides no
    peak and no dip.

    Args:
        means: [points], without NaN.
        most: at least 4.

    Returns:
        Indices in rising order, at most `most` of them.
    """
    if len(means) <= most:
        return np.arange(len(means))
    parts = np.array_split(np.arange(1, len(means) - 1), (most - 2) // 2)
    extremes = [part[index] for part in parts for index in (means[part].argmin(), means[part].argmax())]
    return np.unique([0, *extremes, len(means) - 1])


def _rounded(value: float) -> float | int | None:
    """Five digits; None for what is no JSON: NaN, and infinity, as the percentage of a number of others may be."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def _caveats(cell, names: Names) -> str:
    parts = [f"{cell.done}/{cell.seeds} {'studies' if cell.studies else 'seeds'}"] if cell.done < cell.seeds else []
    return ", ".join(filter(None, [*parts, names.on(cell.substitute)]))


def _spec(lines: dict[str, list[int]], x_label: str, metric: str) -> dict:
    """A band of one std around the mean, a line, and points with tooltips; a point is visible if it has no line.

    Args:
        lines: of `dashes`.
    """
    names, share = [*lines], METRICS[metric].is_share
    form = ".1f" if share else ".3~g"
    axis = {"tickCount": 6, **({"tickMinStep": 1} if x_label == X_LABELS["rounds"] else {})}
    x = {"field": "x", "type": "quantitative", "title": x_label, "axis": axis}
    y = {"field": "mean", "type": "quantitative", "title": y_label(metric), "scale": {"zero": False}}
    line = {"field": "line", "type": "nominal", "legend": None}
    colour = line | {"scale": {"domain": names}}  # in the colours of the theme
    dash = line | {"scale": {"domain": names, "range": [*lines.values()]}}
    tooltip = [
        {"field": "line", "type": "nominal", "title": "method"},
        {"field": "x", "type": "quantitative", "title": x_label, "format": ",.4~g"},
        {"field": "mean", "type": "quantitative", "title": "mean (%)" if share else "mean", "format": form},
        {"field": "std", "type": "quantitative", "title": "std", "format": form},
    ]

    def layer(points: str, mark: dict, **encoding) -> dict:
        return {"transform": [{"filter": points}], "mark": mark, "encoding": {"color": colour, **encoding}}

    curve, level = "isValid(datum.x)", "!isValid(datum.x)"
    seen = {"condition": {"test": "datum.alone", "value": 1}, "value": 0}
    low, high = {"field": "low", "type": "quantitative"}, {"field": "high"}
    return {
        "data": {"name": "points"},
        "layer": [
            layer(f"{curve} && isValid(datum.std)", {"type": "area", "opacity": 0.14}, x=x, y=low, y2=high),
            layer(curve, {"type": "line", "strokeWidth": 2, "clip": True}, x=x, y=y, strokeDash=dash),
            layer(level, {"type": "rule", "strokeWidth": 2}, y=y, strokeDash=dash, tooltip=[tooltip[0], *tooltip[2:]]),
            layer(curve, {"type": "point", "size": 120, "filled": True}, x=x, y=y, opacity=seen, tooltip=tooltip),
        ],
        "width": "container",
        "height": _HEIGHT,
    }


def _config(inks: dict, colours: list[str], leaders: list[str]) -> dict:
    """Vega-Lite's config for all charts of a theme."""
    words = {"labelColor": inks["muted"], "titleColor": inks["text"]}
    axis = words | {"gridColor": inks["grid"], "domainColor": inks["muted"], "tickColor": inks["muted"]}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": axis | {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8},
        "legend": words | {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
        "range": {"category": colours, "ordinal": leaders},
        "circle": {"color": COLOURS[0]},
    }


def _readable(colour: str) -> str:
    """The colour, mixed with white until it is bright enough for a dark background."""
    white = 0.0
    while _luminance(shade := _towards_white(colour, white)) < _LEAST_LUMINANCE:
        white += 0.05
    return shade


def _towards_white(colour: str, white: float) -> str:
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) * white):02x}" for channel in channels)


def _luminance(colour: str) -> float:
    """Relative luminance, in [0, 1] (Web Content Accessibility Guidelines 2.2)."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
