"""Curves of accuracy over rounds, communication, time or examples. Nothing here draws."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from bench.results.store import Store
from reports.figures.panels import ACCURACIES, Series, done_of, panels, points_of, series_of
from reports.tables.layout import Table
from reports.tables.report import Report

_X = {
    "rounds": ("Communication round", lambda rows: rows["round"]),
    "communication": ("Communication (MB per client)", lambda rows: (rows["bytes_down"] + rows["bytes_up"]) / 1e6),
    "time": ("Time (s)", lambda rows: rows["seconds"]),
    "examples": ("Training examples (millions)", lambda rows: rows["examples"] / 1e6),
}
_SPENT = ("round", "bytes_down", "bytes_up", "seconds", "examples")
X_LABELS = {x: label for x, (label, _) in _X.items()}


class Curve(NamedTuple):
    """What one cell has to show in its panel.

    Attributes:
        panel, line: their titles.
        cell: its line of the report's cells.
        points: in the order of rounds. Columns: rounds, communication, time, examples (what had been spent by then, mean over
            seeds; NaN where rounds do not say), mean, std (percent; std NaN below two seeds).
    """

    panel: str
    line: str
    cell: tuple
    points: pd.DataFrame


def collect(x: str, report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """Accuracy over rounds, communication, time or examples."""
    frames = []
    for curve in curves_of(report, table, grid, records, store):
        points = _level(curve) if is_level(curve, x) else curve.points.rename(columns={x: "x"}).dropna(subset="x")
        frames.append(points.assign(panel=curve.panel, line=curve.line))
    over, (x_label, _) = _partial_axis(report, table), _X[x]
    series = series_of("curves", x_label, f"{ACCURACIES[table.metric]} (%)", report, table, points_of(frames), over)
    return series if over is None else replace(series, lines=tuple(dict.fromkeys(series.points["line"])))


def curves_of(report: Report, table: Table, grid: dict, records: dict, store: Store) -> Iterator[Curve]:
    """The curves of all measured cells in the order of panels and lines. An axis that only some methods have makes lines,
    not panels."""
    over = _partial_axis(report, table)
    for panel, cells in panels(report, table, grid, over):
        for name, cell in ((name, cell) for name, found in cells.items() for cell in found):
            own = getattr(cell, over) if over else "-"
            line = name if own == "-" else f"{name}, {own} {over.replace('_', ' ')}"
            runs = [store.rows(run_id) for run_id in done_of(cell, records)]
            yield Curve(panel, line, cell, _curve(runs, table.metric, grid["std"]))


def is_level(curve: Curve, x: str) -> bool:
    """Whether a curve is a level over x: pooled data know neither rounds nor communication."""
    return curve.cell.partition == "none" and x in ("rounds", "communication")


def _level(curve: Curve) -> pd.DataFrame:
    """The one point of a level: the cell's mean and std."""
    return pd.DataFrame({"x": [None], "mean": [curve.cell.mean], "std": [curve.cell.std]})


def _partial_axis(report: Report, table: Table) -> str | None:
    """The row axis that only some methods have, if there is one."""
    cells = report.cells[report.cells["metric"] == table.metric]
    found = (key for key in table.row_keys if 0 < (cells[key] == "-").sum() < len(cells))
    return next(found, None)


def _curve(runs: list[list[dict]], metric: str, std: str) -> pd.DataFrame:
    """The mean over seeds at every round that all of them evaluated, with the means of what they had spent by then.

    Args:
        runs: the rounds of each seed; a frame of each would take most of the time that a report takes.
    """
    columns = [*_SPENT, metric]
    rows = pd.DataFrame([[row.get(name) for name in columns] for run in runs for row in run], columns=columns)
    rows = rows.astype(float).dropna(subset=metric)
    spent = {x: measure(rows) for x, (_, measure) in _X.items()}
    by_round = rows.assign(mean=100 * rows[metric], **spent).groupby("round")
    counts = by_round.size()
    curve = by_round[[*_X, "mean"]].mean()
    curve["std"] = by_round["mean"].std(ddof={"population": 0, "sample": 1}[std]).where(counts > 1)
    return curve[counts == len(runs)]
