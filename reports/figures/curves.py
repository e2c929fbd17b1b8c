"""Curves of accuracy over rounds, communication, time or examples. Nothing here draws."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from bench.results.store import Store
from reports.figures.panels import Y_LABELS, Series, concat_points, done_runs, panels, series_of_table
from reports.tables.aggregate import DDOF
from reports.tables.layout import Table
from reports.tables.report import Report

_X = {
    "rounds": ("Communication round", lambda rows: rows["round"]),
    "communication": ("Communication (MB per client)", lambda rows: (rows["bytes_down"] + rows["bytes_up"]) / 1e6),
    "time": ("Time (s)", lambda rows: rows["seconds"]),
    "examples": ("Training examples (millions)", lambda rows: rows["examples"] / 1e6),
}
_COSTS = ("round", "bytes_down", "bytes_up", "seconds", "examples")
X_LABELS = {x: label for x, (label, _) in _X.items()}


class Curve(NamedTuple):
    """The curve of one table cell.

    Attributes:
        panel, line: titles of its panel and line.
        cell: the cell, a line of `Report.cells`.
        points: in the order of rounds. Columns: rounds, communication, time, examples (cumulative cost, mean over seeds;
            NaN where it was not recorded), mean, std (percent; std NaN below two seeds).
    """

    panel: str
    line: str
    cell: tuple
    points: pd.DataFrame


def collect(x: str, report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """Accuracy over rounds, communication, time or examples."""
    frames = []
    for curve in curves_of(report, table, grid, records, store):
        points = _constant(curve) if is_constant(curve, x) else curve.points.rename(columns={x: "x"}).dropna(subset="x")
        frames.append(points.assign(panel=curve.panel, line=curve.line))
    over, (x_label, _) = _partial_axis(report, table), _X[x]
    series = series_of_table("curves", x_label, Y_LABELS[table.metric], report, table, concat_points(frames), over)
    return series if over is None else replace(series, lines=tuple(dict.fromkeys(series.points["line"])))


def curves_of(report: Report, table: Table, grid: dict, records: dict, store: Store) -> Iterator[Curve]:
    """The curves of all measured cells in the order of panels and lines.

    Values of an axis that only some methods have are separate lines of one panel.
    """
    over = _partial_axis(report, table)
    for panel, cells in panels(report, table, grid, over):
        for name, cell in ((name, cell) for name, found in cells.items() for cell in found):
            own = getattr(cell, over) if over else "-"
            line = name if own == "-" else f"{name}, {own} {over.replace('_', ' ')}"
            runs = [store.rows(run_id) for run_id in done_runs(cell, records)]
            yield Curve(panel, line, cell, _curve(runs, table.metric, grid["std"]))


def is_constant(curve: Curve, x: str) -> bool:
    """Whether a curve is a horizontal line over x: centralized training has neither rounds nor communication."""
    return curve.cell.partition == "none" and x in ("rounds", "communication")


def _constant(curve: Curve) -> pd.DataFrame:
    """The one point of a horizontal line: the cell's mean and std."""
    return pd.DataFrame({"x": [None], "mean": [curve.cell.mean], "std": [curve.cell.std]})


def _partial_axis(report: Report, table: Table) -> str | None:
    """The row axis that only some methods have, if there is one."""
    cells = report.cells[report.cells["metric"] == table.metric]
    found = (key for key in table.row_keys if 0 < (cells[key] == "-").sum() < len(cells))
    return next(found, None)


def _curve(runs: list[list[dict]], metric: str, std: str) -> pd.DataFrame:
    """Mean accuracy and mean cumulative costs over seeds, at every round that all seeds evaluated.

    Args:
        runs: the round rows of each seed. They become one frame, because one frame per seed dominates a report's time.
    """
    columns = [*_COSTS, metric]
    rows = pd.DataFrame([[row.get(name) for name in columns] for run in runs for row in run], columns=columns)
    rows = rows.astype(float).dropna(subset=metric)
    costs = {x: measure(rows) for x, (_, measure) in _X.items()}
    by_round = rows.assign(mean=100 * rows[metric], **costs).groupby("round")
    counts = by_round.size()
    curve = by_round[[*_X, "mean"]].mean()
    curve["std"] = by_round["mean"].std(ddof=DDOF[std]).where(counts > 1)
    return curve[counts == len(runs)]
