"""Figure of accuracy over the values of a setting or method option."""

from dataclasses import replace
from itertools import compress
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator

from bench.errors import require_known
from bench.experiments.report_schema import TABLE_COLUMNS, no_axis
from bench.results.grids import StoredGrid
from bench.results.ids import is_name
from bench.results.metrics import METRICS
from bench.results.store import Store
from datasets.skew import LABELS as SKEW_LABELS
from datasets.skew import MEASURES
from reports.figures import one_of, registered_figure
from reports.figures.panels import (
    Series,
    concat_points,
    done_runs,
    panels,
    series_of_table,
    y_label,
)
from reports.figures.series import SeriesFigure
from reports.tables.aggregate import label, studies_of
from reports.tables.layout import Table, measured
from reports.tables.names import axis_label
from reports.tables.records import Records
from reports.tables.report import Report

_VALUES = {"last": "last round", "best": "best round", "last10": "mean of the last 10 evaluated rounds"}
_SETTINGS = {"virtual_per_class": "Virtual features of each class ($M_c$)", "fraction": "Share of the real features"}


def _part_of_a_file_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"setting must be the name of a setting or option, but got {text!r}.")
    return text


@registered_figure("by-setting")
class BySetting(SeriesFigure):
    """Accuracy over the values of a setting or method option.

    Attributes:
        x: where the values stand on the axis: at this measure of the skew of their partitions, one point per cell; None for
            one after another.
    """

    setting: Annotated[str, AfterValidator(_part_of_a_file_name)]
    x: Annotated[str, one_of("x of by-setting", MEASURES)] | None = None

    @property
    def name(self) -> str:
        return f"by-{self.setting}" + (f"-{self.x}" if self.x else "")

    def check(self, grid: Any) -> None:
        require_known("setting of a figure", [self.setting], grid.known_settings)
        if self.setting in TABLE_COLUMNS:
            raise ValueError(no_axis(self.setting))

    def shows(self, metric: str) -> bool:
        return True

    def layout(self, grid: StoredGrid) -> StoredGrid:
        return _with_rows_by(self.setting, super().layout(grid))

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> dict[str, Series]:
        if all(label(cell, self.setting) == "-" for cell in grid["cells"]):
            return {}
        return super().collect(grid, records, store, value)

    def series(self, report: Report, table: Table, grid: StoredGrid, records: Records, store: Store) -> Series:
        """In the grid's order, or over the skew of partitions; a method without the setting is a horizontal line."""
        setting, measure = self.setting, self.x
        value = report.cells["value"].iloc[0]
        order = list(dict.fromkeys(label(cell, setting) for cell in grid["cells"]))
        frames, lacking = [], dict[str, list[str]]()

        def x_name(x: object) -> object:  # of a horizontal line there is none
            return table.names.value(setting, x).plain if isinstance(x, str) else x

        for panel, cells in panels(report, table, grid, over=setting):
            lacking[panel] = []
            for line, found in cells.items():
                name = table.names.title(table.column_key, line).plain
                found = sorted(found, key=lambda cell: order.index(getattr(cell, setting)))
                is_level = len(found) == 1 and found[0].partition == "none"
                values = [None if is_level else getattr(cell, setting) for cell in found]
                points = [(None if x == "-" else x, cell.mean, cell.std) for x, cell in zip(values, found, strict=True)]
                points = pd.DataFrame(points, columns=["x", "mean", "std"])
                if measure and points["x"].notna().any():
                    points["x"] = [_mean_skew(measure, cell, records) for cell in found]
                    unknown = compress(values, points["x"].isna())
                    lacking[panel] += [f"{name} at {x_name(x)}: skew not recorded" for x in unknown]
                    points = points.dropna(subset="x").sort_values("x", kind="stable")
                missed = (cell for cell in found if cell.missed)
                lacking[panel] += [f"{name} at {x_name(getattr(cell, setting))}: {measured(cell)}" for cell in missed]
                frames.append(points.dropna(subset="mean").assign(panel=panel, line=line))
        y = y_label(table.metric) + ("" if METRICS[table.metric].cost else f",\n{_VALUES[value]}")
        x_label = _SETTINGS.get(setting, axis_label(setting))
        x_label = SKEW_LABELS[measure] if measure else x_label
        points = concat_points(frames)
        if not measure:
            points["x"] = points["x"].map(x_name)
        series = series_of_table("numbers" if measure else "values", x_label, y, report, table, points, over=setting)
        caveats = {panel: [*series.caveats.get(panel, []), *more] for panel, more in lacking.items() if more}
        shown = {*points["x"]}
        ticks = [] if measure else [str(name) for name in map(x_name, order) if name in shown]
        series = replace(series, caveats=series.caveats | caveats, ticks=tuple(dict.fromkeys(ticks)))
        return replace(series, units="studies", middle="median") if studies_of(grid) else series


def _mean_skew(measure: str, cell, records: Records) -> float:
    """A measure of the skew of a cell's partitions, mean over its finished runs; NaN where none has recorded it."""
    skews = [records[run_id].get("skew", {}) for run_id in done_runs(cell, records)]
    return pd.Series([skew[measure] for skew in skews if measure in skew], dtype=float).mean()


def _with_rows_by(setting: str, grid: StoredGrid) -> StoredGrid:
    """The grid with a table that has one row per value of a setting and one column per method."""
    layout = grid["report"]
    line = layout["columns"] if layout["columns"] != setting else "algorithm"
    rows = [key for key in layout["rows"] if key not in (setting, line)]
    return grid | {
        "report": layout | {"rows": [*rows, setting], "columns": line},
        "row_order": [],
        "column_order": grid["column_order"] if line == layout["columns"] else [],
    }
