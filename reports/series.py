"""The numbers behind a grid's figures: one panel per row of its table, one line per column. Nothing here draws.

As in the table, a line shows the tuning choice with the best mean over seeds, and only runs that are done count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pandas as pd

from bench.names import unknown
from reports import FIGURES
from reports.cells import cell_keys, label
from reports.layout import Table
from reports.report import Report, build

_NAMES = {
    "accuracy": "Test accuracy",
    "global_accuracy": "Global test accuracy",
    "local_accuracy": "Local test accuracy",
}
_MOMENTS = {"last": "last round", "best": "best round", "last10": "mean of the last 10 evaluated rounds"}
_X = {
    "rounds": ("Communication round", lambda rows: rows["round"]),
    "communication": ("Communication (MB per client)", lambda rows: (rows["bytes_down"] + rows["bytes_up"]) / 1e6),
    "time": ("Time (s)", lambda rows: rows["seconds"]),
    "examples": ("Training examples (millions)", lambda rows: rows["examples"] / 1e6),
}
_TRUTHFUL = "fedconcat"  # the method whose clients report their true label distribution


@dataclass(frozen=True)
class Series:
    """What one figure shows.

    Attributes:
        kind: one of FIGURES; says how the points are drawn.
        x_label, y_label: names and units of the axes.
        lines: every column of the table, drawn or not, so that a method looks the same in all figures of a grid.
        points: one row per point in the order of panels, lines and x. Columns: panel, line (their titles), x (a number;
            a text in `by-setting`; None for a level that holds for every x), mean, std (percent; NaN below two seeds).
        seeds: number of seeds that a mean is over.
        remarks: panel -> what the reader must know about its lines ("fedrs: 1/3 seeds").
    """

    kind: str
    x_label: str
    y_label: str
    lines: tuple[str, ...]
    points: pd.DataFrame
    seeds: int = 1
    remarks: dict[str, list[str]] = field(default_factory=dict)


def figure_name(figure: dict) -> str:
    """What a figure is called in the names of its files: "communication", "by-num_clusters", "distributions-client0"."""
    match figure["kind"]:
        case "curves":
            return figure["x"]
        case "by-setting":
            return f"by-{figure['setting']}"
        case "distributions":
            return f"distributions-client{figure['client']}"
        case "local-models":
            return "local-models"
    raise ValueError(unknown("kind of figure", figure["kind"], FIGURES))


def collect(figure: dict, grid: dict, records: dict, rows_of: Callable, value: str | None = None) -> dict[str, Series]:
    """The numbers of a figure as metric -> series, the grid's own metric first; without those that have no point yet.

    Args:
        figure: what to show: `kind`, and `x`, `setting` or `client`.
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        rows_of: run id -> its rounds.
        value: `last`, `best` or `last10`; None is the grid's own.
    """
    if figure["kind"] == "by-setting":
        if all(label(cell, figure["setting"]) == "-" for cell in grid["cells"]):
            return {}
        grid = _laid_out_by(grid, figure["setting"])
    report = build(grid, records, value)
    makers = {
        "curves": lambda table: _curves(figure["x"], report, table, grid, records, rows_of),
        "by-setting": lambda table: _by_setting(figure["setting"], report, table, grid),
        "distributions": lambda table: _distributions(figure["client"], report, table, grid, records),
        "local-models": lambda table: _local_models(report, table, grid, records, rows_of),
    }
    found = {table.metric: makers[figure["kind"]](table) for table in report.tables}
    return {metric: series for metric, series in found.items() if len(series.points)}


def _curves(x: str, report: Report, table: Table, grid: dict, records: dict, rows_of: Callable) -> Series:
    """Accuracy over rounds, communication, time or examples; pooled data know neither rounds nor communication, so there
    the accuracy of centralized training is a level. An axis that only some methods have makes lines, not panels."""
    x_label, _ = _X[x]
    frames, over = [], _partial_axis(report, table)
    for panel, cells in _panels(report, table, grid, over):
        for name, cell in ((name, cell) for name, found in cells.items() for cell in found):
            own = getattr(cell, over) if over else "-"
            line = name if own == "-" else f"{name}, {own} {over.replace('_', ' ')}"
            if cell.partition == "none" and x in ("rounds", "communication"):
                points = pd.DataFrame({"x": [None], "mean": [cell.mean], "std": [cell.std]})
            else:
                done = [run_id for run_id in cell.run_ids.split() if _is_done(run_id, records)]
                points = _curve([pd.DataFrame(rows_of(run_id)) for run_id in done], table.metric, x, grid["std"])
            frames.append(points.assign(panel=panel, line=line))
    series = _series("curves", x_label, f"{_NAMES[table.metric]} (%)", report, table, _points(frames), over)
    return series if over is None else replace(series, lines=tuple(dict.fromkeys(series.points["line"])))


def _partial_axis(report: Report, table: Table) -> str | None:
    """The row axis that only some methods have, if there is one."""
    cells = report.cells[report.cells["metric"] == table.metric]
    found = (key for key in table.row_keys if 0 < (cells[key] == "-").sum() < len(cells))
    return next(found, None)


def _curve(runs: list[pd.DataFrame], metric: str, x: str, std: str) -> pd.DataFrame:
    """The mean over seeds at every round that all of them evaluated; x is the mean of what they had spent by then."""
    _, measure = _X[x]
    lines = [run.assign(x=measure(run), score=100 * run[metric]) for run in runs]
    by_round = pd.concat(lines).dropna(subset="score").groupby("round")
    curve = by_round.agg(x=("x", "mean"), mean=("score", "mean"), seeds=("score", "size"))
    curve["std"] = by_round["score"].std(ddof={"population": 0, "sample": 1}[std]).where(curve["seeds"] > 1)
    return curve[curve["seeds"] == len(runs)].drop(columns="seeds")


def _by_setting(setting: str, report: Report, table: Table, grid: dict) -> Series:
    """The table's accuracy over the values of a setting in the grid's order; methods without it have one level."""
    value = report.cells["value"].iloc[0]
    order = list(dict.fromkeys(label(cell, setting) for cell in grid["cells"]))
    frames = []
    for panel, cells in _panels(report, table, grid, over=setting):
        for line, found in cells.items():
            found = sorted(found, key=lambda cell: order.index(getattr(cell, setting)))
            values = [None if cell.partition == "none" else getattr(cell, setting) for cell in found]
            points = [(None if x == "-" else x, cell.mean, cell.std) for x, cell in zip(values, found, strict=True)]
            frames.append(pd.DataFrame(points, columns=["x", "mean", "std"]).assign(panel=panel, line=line))
    y_label = f"{_NAMES[table.metric]} (%),\n{_MOMENTS[value]}"
    x_label = setting.replace("num_", "number of ").replace("_", " ").capitalize()
    return _series("by-setting", x_label, y_label, report, table, _points(frames), over=setting)


def _laid_out_by(grid: dict, setting: str) -> dict:
    """The grid with a table that has one row per value of a setting, methods beside each other."""
    layout = grid["report"]
    line = layout["columns"] if layout["columns"] != setting else "algorithm"
    rows = [key for key in layout["rows"] if key not in (setting, line)]
    orders = {"row_order": [], "column_order": grid["column_order"] if line == layout["columns"] else []}
    return grid | orders | {"report": layout | {"rows": [*rows, setting], "columns": line}}


def _distributions(client: int, report: Report, table: Table, grid: dict, records: dict) -> Series:
    """A client's label shares as each method's server saw them. Seeds draw other partitions, so a panel shows one seed:
    the first of those in which most methods reported."""
    seeds = {cell["run"]: cell["seed"] for cell in grid["cells"]}
    frames, remarks = [], {}
    for panel, cells in _panels(report, table, grid):
        shares = defaultdict(dict)
        for line, (cell,) in cells.items():
            for run_id in cell.run_ids.split():
                reported = records.get(run_id, {}).get("findings", {}).get("distributions", ())
                if _is_done(run_id, records) and client < len(reported):
                    name = f"{line} (true)" if cell.algorithm == _TRUTHFUL else line
                    shares[seeds[run_id]][name] = reported[client]
        if shares:
            seed = min(shares, key=lambda seed: (-len(shares[seed]), seed))
            title = f"{panel}, seed {seed}"
            substitutes = dict.fromkeys(cell.substitute for (cell,) in cells.values() if cell.substitute)
            remarks[title] = [f"on {name}" for name in substitutes]
            for line, share in shares[seed].items():
                points = pd.DataFrame({"x": range(len(share)), "mean": share, "std": float("nan")})
                points["mean"] *= 100
                frames.append(points.assign(panel=title, line=line))
    points = _points(frames)
    drawn = tuple(dict.fromkeys(points["line"]))
    return Series("distributions", "Class", f"Label share of client {client} (%)", drawn, points, remarks=remarks)


def _local_models(report: Report, table: Table, grid: dict, records: dict, rows_of: Callable) -> Series:
    """A line per client, a panel per method: accuracy on test data with the client's label shares, after every local epoch
    and, at the same place, after the models have been averaged. Seeds draw other clients, so the first one is shown."""
    seeds = {cell["run"]: cell["seed"] for cell in grid["cells"]}
    frames, lines, remarks, x_label = [], {}, {}, "Local epoch"
    for panel, cells in _panels(report, table, grid):
        for method, (cell,) in cells.items():
            run_id = next(run_id for run_id in cell.run_ids.split() if _is_done(run_id, records))
            title = f"{panel}, {method}, seed {seeds[run_id]}"
            if said := [f"on {cell.substitute}"] * bool(cell.substitute) + ["incomplete data"] * bool(cell.data_note):
                remarks[title] = said
            for row in rows_of(run_id):
                traced = row.get("local_models", {"clients": (), "accuracies": ()})
                for client, accuracies in zip(traced["clients"], traced["accuracies"], strict=True):
                    lines[f"client {client}"] = client
                    epochs = len(accuracies) - 1
                    x_label = f"Local epoch (models are averaged after every {epochs})"
                    x = [(row["round"] - 1) * epochs + epoch for epoch in (*range(1, epochs + 1), epochs)]
                    points = pd.DataFrame({"x": x, "mean": accuracies, "std": float("nan")})
                    points["mean"] *= 100
                    frames.append(points.assign(panel=title, line=f"client {client}"))
    points = _points(frames)
    y_label = "Accuracy on test data with\nthe client's label shares (%)"
    return Series("local-models", x_label, y_label, tuple(sorted(lines, key=lines.get)), points, remarks=remarks)


def _panels(report: Report, table: Table, grid: dict, over: str | None = None) -> Iterator[tuple[str, dict[str, list]]]:
    """Title and measured cells, line -> cells, of every panel in which something was measured, in the table's order.

    A cell without a partition (centralized training) belongs to the dataset: it is in all panels of it.

    Args:
        over: the axis along which the cells of a line differ; it names no panel.
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
    hosted = {pooled(panel) for panel in panels if panel != pooled(panel)}
    for panel in panels:
        if panel not in hosted and any((panel, line) in cells for line in table.columns):
            own = {line: cells.get((panel, line)) or cells.get((pooled(panel), line)) for line in table.columns}
            yield _title(panel), {line: found for line, found in own.items() if found}


def _series(
    kind: str, x_label: str, y_label: str, report: Report, table: Table, points: pd.DataFrame, over: str | None = None
) -> Series:
    found = defaultdict(dict)
    for row in table.rows:
        at = "".join(f" at {name}" for key, name in zip(table.row_keys, row.labels, strict=True) if key == over)
        for line, cell in zip(table.titles, row.cells, strict=True):
            if cell and cell.measured:
                found[_title(_panel(row.labels, table, over))][f"{line}{at}"] = ", ".join(cell.remarks)
    remarks = {panel: _said_once(of_line) for panel, of_line in found.items() if any(of_line.values())}
    seeds = int(report.cells.loc[report.cells["metric"] == table.metric, "done"].max())
    named = dict(zip(table.columns, table.titles, strict=True))
    points = points.assign(line=points["line"].replace(named))
    return Series(kind, x_label, y_label, table.titles, points, seeds, remarks)


def _said_once(remarks: dict[str, str]) -> list[str]:
    """Remarks with the lines that they are about; what holds for all lines needs no names."""
    if len(set(remarks.values())) == 1:
        return [next(iter(remarks.values()))]
    return [f"{line}: {remark}" for line, remark in remarks.items() if remark]


def _points(frames: list[pd.DataFrame]) -> pd.DataFrame:
    columns = ["panel", "line", "x", "mean", "std"]
    lines = [row for frame in frames for row in frame[columns].itertuples(index=False)]
    return pd.DataFrame(lines, columns=columns).astype({"x": object})


def _panel(labels: tuple[str, ...], table: Table, over: str | None) -> tuple[str, ...]:
    return tuple(name for key, name in zip(table.row_keys, labels, strict=True) if key != over)


def _title(panel: tuple[str, ...]) -> str:
    return ", ".join(panel)


def _is_done(run_id: str, records: dict) -> bool:
    return records.get(run_id, {}).get("status") == "done"
