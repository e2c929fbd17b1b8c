"""Draws series with matplotlib, in the size and fonts of a paper: no letter has less than 7 points."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from bench.files import replacing
from reports.figures.panels import Series
from reports.figures.style import line_styles
from reports.widths import FIGURES, Widths

FORMATS = ("png", "pdf", "svg")

STYLE: dict[Any, Any] = {  # of matplotlib's rcParams
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "legend.title_fontsize": 7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # TrueType; publishers refuse matplotlib's default, Type 3
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
    "svg.hashsalt": "skewbench",  # the same figure is the same file
}
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\")
_MOST_LETTERS = 40  # of the tick labels of a panel, together, before they are rotated
_NARROWEST = 1.5  # inches, of a panel
LETTER = 0.06  # inches, of a letter of 8 points


def draw(series: Series, widths: Widths = FIGURES):
    """The `matplotlib.figure.Figure` of a series: a panel per row of the table, and one legend for all."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = list(series.points["panel"].unique())
    columns, width = placed(len(panels), widths, series.columns)
    rows = -(-len(panels) // columns)
    titles = [wrapped(panel, width / columns - 0.35) for panel in panels]  # without the labels of the y axis
    lines_of_titles = max((title.count("\n") for title in titles), default=0)
    height = (min(max(0.65 * width / columns, 1.6), 2.2) + 0.13 * lines_of_titles) * rows
    with matplotlib.rc_context(STYLE):
        legend = 0.17 * -(-len(series.lines) // _legend_columns([*map(series.name_of, series.lines)], width))  # inches
        figure = Figure(figsize=(width, height + max(0.6, 0.26 + legend)), layout="constrained")
        figure.supxlabel(series.x_label, fontsize=STYLE["axes.labelsize"])
        figure.supylabel(series.y_label, fontsize=STYLE["axes.labelsize"], multialignment="center")
        handles: dict[str, Any] = {}
        above: Literal["col", "all", "none"] = (
            "col" if series.columns == columns else "all" if series.columns else "none"
        )
        shared = "all" if series.one_scale else above
        drawn = figure.subplots(rows, columns, squeeze=False, sharey=shared).flat
        for axes, panel, title in zip(drawn, panels, titles, strict=False):
            handles |= _draw_panel(axes, panel, series)
            axes.set_title(title)
            if caveats := series.caveats.get(panel):
                _write_caveats(axes, caveats, width / columns)
        for axes in figure.axes[len(panels) :]:
            axes.remove()
        _write_legend(figure, handles, series, width)
    return figure


def save(figure, stem: Path, **layout) -> list[Path]:
    """Writes a figure atomically in each of FORMATS, `<stem>.png` and so on; returns the files. They hold no date, so equal
    figures are equal files.

    Args:
        layout: further arguments of `Figure.savefig`.
    """
    import matplotlib

    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in FORMATS]
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with matplotlib.rc_context(STYLE):
        _fit_titles(figure)
        for path in paths:
            with replacing(path) as partial:
                figure.savefig(partial, format=path.suffix[1:], dpi=200, metadata=undated.get(path.suffix), **layout)
    return paths


def _fit_titles(figure) -> None:
    """Wraps the titles of panels that an edge of the figure would cut: no layout of matplotlib makes room for their width."""
    if not any(axes.get_title() for axes in figure.axes):
        return
    figure.draw_without_rendering()  # places the panels
    for axes in figure.axes:
        middle = (axes.bbox.x0 + axes.bbox.x1) / 2
        room, lines = 2 * min(middle, figure.bbox.width - middle), axes.get_title().splitlines()
        letters = max(map(len, lines), default=0)
        while letters > 1 and axes.title.get_window_extent().width > room:
            letters -= 1
            axes.title.set_text("\n".join(textwrap.fill(line, letters, break_long_words=False) for line in lines))


def _draw_panel(axes, panel: str, series: Series) -> dict:
    """Draws all lines of a panel; returns line -> its handle for the legend."""
    draw_line = {
        "curves": _draw_curves,
        "values": _draw_values,
        "numbers": _draw_numbers,
        "bars": _draw_bars,
        "points": _draw_points,
    }[series.look]
    if series.zero:
        axes.axhline(0, color="0.3", linewidth=0.8)
    of_panel = series.points[series.points["panel"] == panel]
    styles = line_styles(series.lines, series.styles)  # a method has one style in all figures of the grid
    handles = {}
    for line, points in of_panel.groupby("line", sort=False):
        is_level = series.look != "points" and points["x"].isna().all()
        handles[line] = (_draw_constant if is_level else draw_line)(axes, points, series, styles[line]._asdict())
    if series.look == "curves":
        _scale_x(axes, of_panel["x"].dropna().to_numpy(float))
    return handles


def placed(panels: int, widths: Widths, columns: int = 0) -> tuple[int, float]:
    """How many panels stand side by side, and the width of the figure in inches.

    They are up to three, or four if all rows are full, but no more than have `_NARROWEST` each. One
    alone is as wide as a column.

    Args:
        columns: how many there should be; 0 for as many as fit.
    """
    if 1 in (panels, columns):
        return 1, widths.column
    wanted = columns or (panels if panels <= 3 else 4 if panels % 4 == 0 else 3)
    most = max(1, min(wanted, int(widths.text / _NARROWEST)))
    return (most if most == columns else -(-panels // -(-panels // most))), widths.text


def _draw_curves(axes, points: pd.DataFrame, series: Series, style: dict):
    """A curve with a band of one std on both sides."""
    x, mean, std = (points[key].to_numpy(float) for key in ("x", "mean", "std"))
    if not pd.isna(std).all():
        axes.fill_between(x, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    (handle,) = axes.plot(x, mean, **style, markevery=max(1, len(x) // 6))
    return handle


def _scale_x(axes, x) -> None:
    """Starts at 0, because the cost includes what precedes the first evaluation; integer ticks for rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=bool((x % 1 == 0).all()), steps=[1, 2, 2.5, 5, 10]))


def _draw_values(axes, points: pd.DataFrame, series: Series, style: dict):
    """A mean with a bar of one std on both sides at each value of the setting; lines are shifted against each other."""
    drawn = series.points.dropna(subset="x")
    names = [*series.ticks] or list(drawn["x"].unique())
    lines = list(drawn["line"].unique())
    shift = 0.3 * ((lines.index(points["line"].iloc[0]) + 0.5) / len(lines) - 0.5)
    rotated = sum(map(len, names)) > min(_MOST_LETTERS, 0.7 * _width_of(axes) / LETTER)
    axes.set_xticks(range(len(names)), names, rotation=30 * rotated, ha="right" if rotated else "center")
    axes.set_xlim(-0.5, len(names) - 0.5)
    positions = [names.index(name) + shift for name in points["x"]]
    return axes.errorbar(positions, points["mean"], yerr=points["std"].fillna(0), **style, capsize=2)


def _draw_numbers(axes, points: pd.DataFrame, series: Series, style: dict):
    """A mean with a bar of one std on both sides at each number."""
    axes.locator_params(axis="x", nbins=5)
    x, mean, std = (points[key].to_numpy(float) for key in ("x", "mean", "std"))
    return axes.errorbar(x, mean, yerr=pd.Series(std).fillna(0), **style, capsize=2)


def _draw_points(axes, points: pd.DataFrame, series: Series, style: dict):
    """A marker per run."""
    marker = style | {"linestyle": "none", "alpha": 0.7}
    (handle,) = axes.plot(points["x"].to_numpy(float), points["mean"].to_numpy(float), **marker)
    axes.locator_params(axis="x", nbins=5)
    return handle


def _draw_constant(axes, points: pd.DataFrame, series: Series, style: dict):
    """A horizontal line: one mean for every x."""
    ((mean, std),) = points[["mean", "std"]].to_numpy(float)
    if not pd.isna(std):
        axes.axhspan(mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    return axes.axhline(mean, **{**style, "marker": ""})


def _draw_bars(axes, points: pd.DataFrame, series: Series, style: dict):
    """Bars of one line, beside those of the others."""
    line = points["line"].iloc[0]
    number, width = series.lines.index(line), 0.8 / len(series.lines)
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(0, len(points), -(-len(points) // 10)))
    return axes.bar(
        points["x"].to_numpy(float) + (number + 0.5) * width - 0.4,
        points["mean"],
        width,
        label=line,
        color=style["color"],
        hatch=_HATCHES[number % len(_HATCHES)],
        edgecolor="white",
        linewidth=0,
    )


def wrapped(text: str, width: float) -> str:
    """A text of 8 points in lines that fit into a width in inches."""
    return textwrap.fill(text, max(10, int(width / LETTER)))


def _width_of(axes) -> float:
    """The width of a panel in inches, with its margins."""
    return axes.figure.get_figwidth() / axes.get_subplotspec().get_gridspec().ncols


def _write_caveats(axes, caveats: list[str], width: float) -> None:
    """Writes caveats into the lower right corner of a panel, wrapped to its width in inches (0.6 are the y axis)."""
    letters = max(20, int((width - 0.6) / 0.052))
    box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
    corner = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    text = "\n".join(textwrap.fill(caveat, letters, subsequent_indent="  ") for caveat in caveats)
    axes.text(0.98, 0.03, text, fontsize=7, bbox=box, **corner)


def _write_legend(figure, handles: dict, series: Series, width: float) -> None:
    """A legend above all panels in the order of the table's columns; its title explains the bands."""
    lines = [line for line in series.lines if line in handles]
    spread = f"over {series.seeds} {series.units}" if series.seeds > 1 else "over the last 10 evaluated rounds"
    title = f"{series.middle} ± std {spread}" if series.points["std"].notna().any() else None
    names = [series.name_of(line) for line in lines]
    layout = {"ncols": _legend_columns(names, width), "columnspacing": 1, "frameon": False}
    figure.legend([handles[line] for line in lines], names, title=title, loc="outside upper center", **layout)


def _legend_columns(names: Sequence[str], width: float) -> int:
    """Columns of a legend that fit into a width in inches, balanced over its rows."""
    longest = max(map(len, names))
    fitting = max(1, int(width / (0.45 + LETTER * longest)))  # inches, of the line sample with margins
    return -(-len(names) // -(-len(names) // fitting))
