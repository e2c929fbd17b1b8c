"""Figure of accuracy over rounds, communication, time or training examples."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS, is_of_rounds
from bench.results.records import RoundRow
from bench.results.store import Store
from reports.figures import one_of, registered_figure
from reports.figures.panels import Series, concat_points, done_runs, panels, series_of_table, y_label
from reports.figures.series import SeriesFigure
from reports.tables.aggregate import BETWEEN_RUNS, DDOF, units_of
from reports.tables.layout import Table
from reports.tables.records import Records
from reports.tables.report import Report

X_LABELS = {
    "rounds": "Communication round",
    "communication": "Communication (MB per client)",
    "time": "Time (s)",
    "examples": "Training examples (millions)",
}
_COSTS = ("round", "bytes_down", "bytes_up", "seconds", "examples")


class Curve(NamedTuple):
    """The curve of one table cell.

    Attributes:
        panel, line: titles of its panel and line.
        cell: the cell, a line of `Report.cells`.
        points: name -> [points] in the order of rounds: rounds, communication, time, examples (cumulative cost, mean over
            seeds; NaN where it was not recorded), mean, std (percent; std NaN below two seeds). Seeds are studies where the
            table is over these: the mean of a study's runs counts once, and a study that was missed does not.
    """

    panel: str
    line: str
    cell: Any
    points: dict[str, np.ndarray]


@registered_figure("curves")
class Curves(SeriesFigure):
    """Accuracy, or a metric of rounds, over rounds, communication, time or training examples."""

    x: Annotated[str, one_of("x of curves", X_LABELS)]

    @property
    def name(self) -> str:
        return self.x

    def shows(self, metric: str) -> bool:
        return is_of_rounds(metric)

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        frames = []
        for curve in curves_of(report, table, grid, records, store):
            points = _constant(curve) if is_constant(curve, self.x) else _over(curve, self.x)
            frames.append(points.assign(panel=curve.panel, line=curve.line))
        over, labels = _partial_axis(report, table), (X_LABELS[self.x], y_label(table.metric))
        series = series_of_table("curves", *labels, report, table, concat_points(frames), over)
        series = replace(series, units=units_of(grid))
        return series if over is None else replace(series, lines=tuple(dict.fromkeys(series.points["line"])))


def curves_of(report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Iterator[Curve]:
    """The curves of all measured cells in the order of panels and lines.

    Values of an axis that only some methods have are separate lines of one panel.
    """
    over = _partial_axis(report, table)
    for panel, cells in panels(report, table, grid, over):
        for name, cell in ((name, cell) for name, found in cells.items() for cell in found):
            own = getattr(cell, over) if over else "-"
            line = f"{name}, {own} {over.replace('_', ' ')}" if over and own != "-" else name
            done = [run for run in done_runs(cell, records) if table.metric in records[run]["summary"]["last"]]
            units = [unit.split(BETWEEN_RUNS) for unit in cell.units.split()]
            rows = [[*map(store.rows, unit)] for unit in units if {*unit} <= {*done}]
            yield Curve(panel, line, cell, _curve(rows, table.metric, grid["std"]))


def is_constant(curve: Curve, x: str) -> bool:
    """Whether a curve is a horizontal line over x: centralized training has neither rounds nor communication."""
    return curve.cell.partition == "none" and x in ("rounds", "communication")


def _constant(curve: Curve) -> pd.DataFrame:
    """The one point of a horizontal line: the cell's mean and std."""
    return pd.DataFrame({"x": [None], "mean": [curve.cell.mean], "std": [curve.cell.std]})


def _over(curve: Curve, x: str) -> pd.DataFrame:
    """The points of a curve of which the cost is known."""
    points = pd.DataFrame({"x": curve.points[x], "mean": curve.points["mean"], "std": curve.points["std"]})
    return points.dropna(subset="x")


def _partial_axis(report: Report, table: Table) -> str | None:
    """The row axis that only some methods have, if there is one."""
    cells = report.cells[report.cells["metric"] == table.metric]
    found = (key for key in table.row_keys if 0 < (cells[key] == "-").sum() < len(cells))
    return next(found, None)


def _curve(units: list[list[list[RoundRow]]], metric: str, std: str) -> dict[str, np.ndarray]:
    """Mean of an accuracy, or another metric of rounds, and mean cumulative costs over seeds, at every round in which all seeds
    have it.

    Args:
        units: the round rows of each seed, or of each run of each study.

    Returns:
        As `Curve.points`.
    """
    columns = [*_COSTS, metric]
    runs = [
        np.array([[(row | row.get("metrics", {})).get(name) for name in columns] for row in rows], float)
        for rows in itertools.chain.from_iterable(units)
    ]
    runs = [rows.reshape(-1, len(columns)) for rows in runs]
    runs = [rows[~np.isnan(rows[:, -1])] for rows in runs]
    common = functools.reduce(np.intersect1d, [rows[:, 0] for rows in runs])
    of_runs = np.stack([rows[np.isin(rows[:, 0], common)] for rows in runs])  # [runs, points, columns]
    ends = np.cumsum([len(unit) for unit in units])
    values = np.stack([*map(_mean, np.split(of_runs, ends[:-1]))])  # [seeds, points, columns]
    rounds, down, up, seconds, examples, accuracy = np.moveaxis(values, -1, 0)
    accuracy = METRICS[metric].scale * accuracy
    unknown = np.full(len(common), np.nan)
    return {
        "rounds": _mean(rounds),
        "communication": _mean((down + up) / 1e6),
        "time": _mean(seconds),
        "examples": _mean(examples / 1e6),
        "mean": _mean(accuracy),
        "std": accuracy.std(axis=0, ddof=DDOF[std]) if len(units) > 1 else unknown,
    }


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean over the seeds that have a number; [seeds, ...] -> [...], NaN where none has."""
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    return np.where(known, values, 0).sum(axis=0) / np.where(counts, counts, np.nan)
