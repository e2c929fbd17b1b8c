"""Curves of the page: accuracy over rounds, communication, time or examples, one panel per row of the table.

The numbers are those of `reports.series`, thinned and rounded; the charts are Vega-Lite's, one per accuracy and x axis,
which get the points of the panel and of the methods that the reader has chosen. In them, a point is {line, x, mean, low,
high, std}; a level that holds for every x has no x.
"""

import math

import altair as alt
import pandas as pd

from bench.store import Store
from reports import CURVES
from reports.curve_series import X_LABELS, Curve, curves_of, is_level
from reports.figures import COLOURS
from reports.panels import ACCURACIES
from reports.report import Report

AXES = {"rounds": "rounds", "communication": "bytes", "time": "seconds", "examples": "examples"}
"""x axis -> what its button says."""
_MOST_POINTS = 100  # of a line; a screen shows no more
_DASHES = [[1, 0], [6, 3], [6, 2, 1, 2], [1, 2]]
_HEIGHT = 360  # pixels
_LIGHT = {"text": "#1c2024", "muted": "#5b6570", "grid": "#e4e7ea"}
_DARK = {"text": "#e8eaed", "muted": "#a4adb6", "grid": "#30363d"}


def collect(report: Report, grid: dict, records: dict, store: Store) -> list[dict]:
    """The panels in the order of tables and rows; arguments as in `reports.html.page.render`.

    Returns:
        For each: "title", "metric", "remarks" (sentences), and "lines": name -> {x axis: [points], "mean": [points], "std":
        [points], percent}, None where there is no number. Where a line is a level over an x axis, that one is None, and
        "level" is its mean and std.
    """
    found = {}
    for table in report.tables:
        titles = dict(zip(table.columns, table.titles, strict=True))
        for curve in curves_of(report, table, grid, records, store):
            name = titles.get(curve.line, curve.line)
            title = curve.panel if len(report.tables) == 1 else f"{curve.panel} ({table.metric})"
            new = {"title": title, "metric": table.metric, "remarks": [], "lines": {}}
            panel = found.setdefault((table.metric, curve.panel), new)
            panel["lines"][name] = _numbers(curve)
            if remarks := _remarks(curve.cell):
                panel["remarks"].append(f"{name}: {remarks}")
    return list(found.values())


def specs(panels: list[dict]) -> dict[str, dict[str, dict]]:
    """Accuracy -> x axis -> Vega-Lite specification, without the points."""
    lines = _lines(panels)
    return {
        metric: {x: _spec(lines, X_LABELS[x], f"{ACCURACIES[metric]} (%)") for x in CURVES}
        for metric in dict.fromkeys(panel["metric"] for panel in panels)
    }


def themes(panels: list[dict]) -> dict[str, dict]:
    """For "light" and "dark": the "config" of all charts, and "colours" of lines, those of the figures in print."""
    lines = _lines(panels)
    light = [COLOURS[number % len(COLOURS)] for number in range(max(1, len(lines)))]
    dark = [_lighter(colour) for colour in light]
    return {
        name: {"config": _config(inks, colours), "colours": dict(zip(lines, colours, strict=False))}
        for name, inks, colours in (("light", _LIGHT, light), ("dark", _DARK, dark))
    }


def _lines(panels: list[dict]) -> list[str]:
    return list(dict.fromkeys(line for panel in panels for line in panel["lines"]))


def _numbers(curve: Curve) -> dict[str, list | None]:
    """Evenly thinned, the last point kept."""
    points = curve.points
    step = max(1, math.ceil(len(points) / _MOST_POINTS))
    kept = points.iloc[(len(points) - 1) % step :: step]
    numbers = {name: [_rounded(value) for value in kept[name]] for name in (*CURVES, "mean", "std")}
    levels = {x: None for x in CURVES if is_level(curve, x)}
    return numbers | levels | ({"level": [_rounded(curve.cell.mean), _rounded(curve.cell.std)]} if levels else {})


def _rounded(value: float) -> float | int | None:
    """Five digits; None for NaN, which is not JSON."""
    if pd.isna(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def _remarks(cell) -> str:
    parts = [f"{cell.done}/{cell.seeds} seeds"] if cell.done < cell.seeds else []
    return ", ".join([*parts, *([f"on {cell.substitute}"] if cell.substitute else [])])


def _spec(lines: list[str], x_label: str, y_label: str) -> dict:
    """A band of one std around the mean, a line, and invisible points that say their numbers."""
    x = alt.X("x:Q", title=x_label, axis=alt.Axis(tickCount=6))
    y = alt.Y("mean:Q", title=y_label, scale=alt.Scale(zero=False))
    base = alt.Chart().encode(color=alt.Color("line:N", scale=alt.Scale(domain=lines), legend=None))
    dashes = [_DASHES[number % len(_DASHES)] for number in range(len(lines))]
    dash = alt.StrokeDash("line:N", scale=alt.Scale(domain=lines, range=dashes), legend=None)
    said = [
        alt.Tooltip("line:N", title="method"),
        alt.Tooltip("x:Q", title=x_label, format=",.4~g"),
        alt.Tooltip("mean:Q", title="mean (%)", format=".1f"),
        alt.Tooltip("std:Q", title="std", format=".1f"),
    ]
    curve = base.transform_filter("isValid(datum.x)")
    level = base.transform_filter("!isValid(datum.x)")
    layers = (
        curve.transform_filter("isValid(datum.std)")
        .mark_area(opacity=0.14)
        .encode(x, alt.Y("low:Q"), alt.Y2("high:Q")),
        curve.mark_line(strokeWidth=2, clip=True).encode(x, y, dash),
        level.mark_rule(strokeWidth=2).encode(y, dash, tooltip=[said[0], *said[2:]]),
        curve.mark_point(size=120, opacity=0, filled=True).encode(x, y, tooltip=said),
    )
    chart = alt.layer(*layers, data=alt.NamedData("points"))
    return chart.properties(width="container", height=_HEIGHT).to_dict()


def _config(inks: dict, colours: list[str]) -> dict:
    """How every chart looks on the background of the page."""
    words = {"labelColor": inks["muted"], "titleColor": inks["text"]}
    axis = words | {"gridColor": inks["grid"], "domainColor": inks["muted"], "tickColor": inks["muted"]}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": axis | {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8},
        "legend": words | {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
        "range": {"category": colours},
        "point": {"color": colours[0]},
        "circle": {"color": colours[0]},
    }


def _lighter(colour: str) -> str:
    """A quarter of the way to white, for a dark background."""
    channels = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) / 4):02x}" for channel in channels)
