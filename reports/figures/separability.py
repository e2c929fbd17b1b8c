"""Figure of what a calibration gains, over how far apart classes are in feature space."""

from collections import defaultdict
from collections.abc import Iterator

import pandas as pd

from bench.experiments.labels import UNWRAPPED
from bench.results.grids import StoredGrid
from bench.results.store import Store
from reports.figures import registered_figure
from reports.figures.panels import Series, concat_points, done_runs, seeds_of_runs
from reports.figures.series import SeriesFigure
from reports.tables.aggregate import cell_keys
from reports.tables.layout import Table
from reports.tables.records import Records
from reports.tables.report import Report

_LEAST_POINTS = 6  # for a correlation


@registered_figure("separability")
class Separability(SeriesFigure):
    """What a method that changes the deployed model gains, over how far apart classes are in feature space.

    Attributes:
        relative: distances relative to the spread within classes, which do not depend on the scale of features.
    """

    relative: bool = False

    @property
    def name(self) -> str:
        return "separability" + "-relative" * self.relative

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        """A panel per setting and value of the axis `wrapper`, and a point per run that the table shows."""
        score = ("relative_" if self.relative else "") + "sliced_wasserstein"
        gains = pd.DataFrame(_gains(score, report, table, grid, records), columns=["panel", "line", "x", "mean"])
        gains = gains.sort_values("panel", kind="stable").assign(std=float("nan"))
        titles = {panel: f"{panel}{_correlation(points)}" for panel, points in gains.groupby("panel")}
        points = concat_points([gains.assign(panel=gains["panel"].map(titles))])
        x_label = "Mean sliced Wasserstein distance of two classes"
        if self.relative:
            x_label += ",\nrelative to the spread within classes"
        lines = tuple(dict.fromkeys(points["line"]))
        y_label = "Gain in test accuracy\n(percentage points)"
        names = {line: table.names.value("algorithm", line).plain for line in lines}
        return Series("points", x_label, y_label, lines, points, names=names, styles=table.names.styles)


def _gains(score: str, report: Report, table: Table, grid: StoredGrid, records: Records) -> Iterator[tuple]:
    """Panel, line, distance of classes and gain (percentage points) of every run of a post-hoc method with its base."""
    value = report.cells["value"].iloc[0]
    for (labels, substitute), by_wrapper in _runs_by_wrapper(report, table, grid, records).items():
        labels = dict(labels)
        method = labels.pop("algorithm", "")
        setting = table.names.together([*labels], [*labels.values()]).plain
        setting += f" ({table.names.on(substitute)})" if substitute else ""
        base = by_wrapper.pop(UNWRAPPED, {})
        distances = {
            seed: record["diagnostics"][score]
            for runs in by_wrapper.values()
            for seed, record in runs.items()
            if score in record.get("diagnostics", {})
        }
        for wrapper, runs in by_wrapper.items():
            for seed, record in runs.items():
                if "base_summary" in record and seed in base and seed in distances:
                    accuracy, of_base = (one["summary"][value][table.metric] for one in (record, base[seed]))
                    yield (
                        f"{setting}: {table.names.value('wrapper', wrapper).plain}",
                        method,
                        distances[seed],
                        100 * (accuracy - of_base),
                    )


def _runs_by_wrapper(report: Report, table: Table, grid: StoredGrid, records: Records) -> dict[tuple, dict[str, dict]]:
    """(Labels of a cell on all axes but `wrapper`, substitute) -> wrapper -> seed -> record."""
    keys, seeds = [key for key in cell_keys(grid) if key != "wrapper"], seeds_of_runs(grid)
    found: dict[tuple, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
    cells = report.cells[(report.cells["metric"] == table.metric) & (report.cells["done"] > 0)]
    for cell in cells.itertuples() if "wrapper" in cells else ():
        labels = tuple((key, getattr(cell, key)) for key in keys)
        for run_id in done_runs(cell, records):
            found[labels, cell.substitute][cell.wrapper][seeds[run_id]] = records[run_id]
    return found


def _correlation(points: pd.DataFrame) -> str:
    """Pearson's correlation as part of a title, "" with few points."""
    if len(points) < _LEAST_POINTS:
        return ""
    return f"\n(correlation {points['x'].corr(points['mean']):.2f} over {len(points)} runs)"
