"""Numbers of a figure: one panel per row of a grid's table, one line per column. Nothing here draws."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bench import references
from bench.measurements.specs import Probe, Shown
from bench.results.grids import StoredGrid
from bench.results.ids import is_metric_name
from bench.results.metrics import METRICS
from bench.results.records import Config
from bench.results.store import Store
from reports.tables.aggregate import cell_keys, compared_keys, contest_keys
from reports.tables.layout import Table
from reports.tables.names import Names
from reports.tables.records import Records
from reports.tables.report import Report, build

Y_LABELS = {
    "accuracy": "Test accuracy (%)",
    "global_accuracy": "Global test accuracy (%)",
    "local_accuracy": "Local test accuracy (%)",
    "own_accuracy": "Test accuracy on own data (%)",
    "weighted_accuracy": "Test accuracy on own data (%)",
    "ipr": "Clients above the reference (%)",
    "rsd": "Std of gains over the reference (points)",
}
"""Name and unit of every metric but costs, on axes; see `y_label`."""


def y_label(metric: str) -> str:
    """Name and unit of a metric on an axis."""
    title = METRICS[metric].title
    if is_metric_name(metric):
        return title + " (%)" * METRICS[metric].percent
    return Y_LABELS.get(metric, title[0].upper() + title[1:])


@dataclass(frozen=True)
class Series:
    """The numbers of one figure.

    Attributes:
        look: how a line is drawn: "curves" with a band of one std, "values" with a bar of one std at each text, "numbers"
            with one at each number, "bars", or "points", a marker per run.
        x_label, y_label: names and units of the axes.
        lines: ids of every column of the table, drawn or not, so that a method has one style in all figures of a grid.
        points: one row per point in the order of panels, lines and x. Columns: panel, line (their titles), x (a number;
            a text of "values"; None for a constant that holds for every x), mean, std (percent, a
            similarity, or percentage points; NaN below two seeds).
        seeds: number of seeds of a mean, or of `units`.
        caveats: panel -> limits of its lines ("fedrs: 1/3 seeds").
        columns: panels side by side, where those above each other share their y axis; 0 for as many as fit.
        names: id of a line, or the method with which it begins -> what the legend calls it.
        styles: method -> how it is drawn, as in `reports.tables.names.Names`.
        zero: whether there is a line at y = 0.
        one_scale: whether all panels share their y axis.
        ticks: texts of "values" in the order of the x axis; () for that of the points.
        units, middle: what the legend says: over "seeds" or "studies", "mean" or "median".
    """

    look: str
    x_label: str
    y_label: str
    lines: tuple[str, ...]
    points: pd.DataFrame
    seeds: int = 1
    caveats: dict[str, list[str]] = field(default_factory=dict)
    columns: int = 0
    names: dict[str, str] = field(default_factory=dict)
    styles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    zero: bool = False
    one_scale: bool = False
    ticks: tuple[str, ...] = ()
    units: str = "seeds"
    middle: str = "mean"

    def name_of(self, line: str) -> str:
        """What the legend calls a line: "FedConcat (true)" for "fedconcat (true)"."""
        return name_of_line(line, self.names)


def names_of_lines(table: Table) -> dict[str, str]:
    """Ids of the lines of a table -> their names."""
    return {line: name.plain for line, name in zip(table.lines, table.titles, strict=True)}


def name_of_line(line: str, names: Mapping[str, str]) -> str:
    """The name of a line that is a column of a table, or of one that begins with it, "fedconcat, 50 encoder rounds"."""
    if line in names:
        return names[line]
    first = re.split(r"[ ,]", line, maxsplit=1)[0]
    return names.get(first, first) + line[len(first) :]


def with_figure_layout(grid: StoredGrid) -> StoredGrid:
    """The grid with the table from which its figures are drawn: a panel per setting, a line per competitor."""
    layout = grid["report"]
    if not layout.get("compared"):
        return grid
    line, *others = compared_keys(grid)
    rows = [*contest_keys(grid), *others]
    return grid | {
        "report": layout | {"rows": rows, "columns": line, "compared": []},
        "row_order": [],
        "column_order": [],
    }


def panels(
    report: Report, table: Table, grid: StoredGrid, over: str | None = None
) -> Iterator[tuple[str, dict[str, list]]]:
    """Title and measured cells (line -> cells) of every panel with a measured cell, in the table's order.

    A cell without a partition (centralized training) belongs to its dataset and is in all panels of it.

    Args:
        over: the axis along which the cells of a line differ; all others identify the panel.
    """
    keys = [key for key in table.row_keys if key != over]
    *_, line_key = cell_keys(grid)
    cells = defaultdict(list)
    measured = report.cells[(report.cells["metric"] == table.metric) & (report.cells["done"] > 0)]
    for cell in measured.itertuples():
        cells[tuple(getattr(cell, key) for key in keys), getattr(cell, line_key)].append(cell)

    def pooled(panel: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("none" if key == "partition" else name for key, name in zip(keys, panel, strict=True))

    panels = dict.fromkeys(_panel(row.labels, table, over) for row in table.rows)
    shown_in_others = {pooled(panel) for panel in panels if panel != pooled(panel)}
    for panel in panels:
        if panel not in shown_in_others and any((panel, line) in cells for line in table.columns):
            own = {line: cells.get((panel, line)) or cells.get((pooled(panel), line)) for line in table.columns}
            yield _titled(panel, keys, table, report), {line: found for line, found in own.items() if found}


def first_runs(grid: StoredGrid, records: Records, value: str | None = None) -> Iterator[tuple[str, Config, str]]:
    """Title, config and run id of the first finished seed of each table cell, for figures that show one run per cell."""
    grid = with_figure_layout(grid)
    report = build(grid, records, value)
    cells, keys, shown = {cell["run"]: cell for cell in grid["cells"]}, cell_keys(grid), set[tuple[str, ...]]()
    for table in report.tables:  # methods with a model per client are not in the table of the shared models' accuracy
        names = {column: name.plain for column, name in zip(table.columns, table.titles, strict=True)}
        for title, lines in panels(report, table, grid):
            for line, (found,) in lines.items():
                if (cell := tuple(getattr(found, key) for key in keys)) in shown:
                    continue
                shown.add(cell)
                run_id, *_ = done_runs(found, records)
                caveats = data_caveats(found, table.names)
                suffix = f" ({', '.join(caveats)})" if caveats else ""
                yield f"{title}{suffix}, {names[line]}, seed {cells[run_id]['seed']}", cells[run_id]["config"], run_id


def first_results(
    figure: Shown, grid: StoredGrid, records: Records, store: Store, value: str | None
) -> Iterator[tuple[str, Config, dict[Probe, dict]]]:
    """Title, config and what a figure has measured of each of `first_runs` of which it has."""
    for title, config, run_id in first_runs(grid, records, value):
        if found := figure.results(store, run_id, config["rounds"], records[run_id]):
            yield title, config, found


def data_caveats(cell, names: Names) -> list[str]:
    """Deviations of a cell's data from its dataset: "on CIFAR-10", "incomplete data"."""
    is_incomplete = cell.data_note and not references.is_dataset(cell.substitute or cell.dataset)
    return [*filter(None, [names.on(cell.substitute), "incomplete data" * bool(is_incomplete)])]


def done_runs(cell, records: Records) -> list[str]:
    """Ids of the finished runs of a cell, in the order of seeds."""
    return [run_id for run_id in cell.run_ids.split() if run_id in records and records[run_id]["status"] == "done"]


def seeds_of_runs(grid: StoredGrid) -> dict[str, int]:
    """Run id -> seed."""
    return {cell["run"]: cell["seed"] for cell in grid["cells"] if cell["run"]}


def concat_points(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Frames with the columns of `Series.points`, and others, as one."""
    columns = ["panel", "line", "x", "mean", "std"]
    lines = [row for frame in frames for row in frame[columns].itertuples(index=False)]
    return pd.DataFrame(lines, columns=columns).astype({"x": object})


def points_of(x: Sequence[int], shares: list[float], panel: str, line: str) -> pd.DataFrame:
    """Points without std of numbers in [0, 1], in percent."""
    points = pd.DataFrame({"x": x, "mean": shares, "std": float("nan")})
    points["mean"] *= 100
    return points.assign(panel=panel, line=line)


def series_of_table(
    look: str, x_label: str, y_label: str, report: Report, table: Table, points: pd.DataFrame, over: str | None = None
) -> Series:
    """A series whose lines are the columns of a table, with the caveats of its cells; `over` as in `panels`."""
    by_panel: dict[str, dict[str, str]] = defaultdict(dict)
    keys = [key for key in table.row_keys if key != over]
    for row in table.rows:
        labels = zip(table.row_keys, table.labels(row), strict=True)
        at = "".join(f" at {name.plain}" for key, name in labels if key == over)
        panel = _titled(_panel(row.labels, table, over), keys, table, report)
        for line, cell in zip(table.titles, row.cells, strict=True):
            if cell and cell.measured:
                by_panel[panel][f"{line.plain}{at}"] = ", ".join(cell.caveats)
    caveats = {panel: _distinct(of_lines) for panel, of_lines in by_panel.items() if any(of_lines.values())}
    seeds = int(report.cells.loc[report.cells["metric"] == table.metric, "done"].max())
    points = points.assign(line=points["line"].replace(dict(zip(table.columns, table.lines, strict=True))))
    return Series(
        look,
        x_label,
        y_label,
        table.lines,
        points,
        seeds,
        caveats,
        names=names_of_lines(table),
        styles=table.names.styles,
    )


def _distinct(caveats: dict[str, str]) -> list[str]:
    """Caveats with the names of their lines; one that all lines share is listed once, without names."""
    if len(set(caveats.values())) == 1:
        return [next(iter(caveats.values()))]
    return [f"{line}: {caveat}" for line, caveat in caveats.items() if caveat]


def _panel(labels: tuple[str, ...], table: Table, over: str | None) -> tuple[str, ...]:
    return tuple(name for key, name in zip(table.row_keys, labels, strict=True) if key != over)


def _titled(panel: tuple[str, ...], keys: Sequence[str], table: Table, report: Report) -> str:
    """The title of a panel from its values of some axes, or the datasets if it has none."""
    if keys:
        return table.names.together(keys, panel).plain
    return ", ".join(table.names.value("dataset", dataset).plain for dataset in report.cells["dataset"].unique())
