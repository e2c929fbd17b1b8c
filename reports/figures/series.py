"""The numbers behind a grid's figures: one panel per row of its table, one line per column. Nothing here draws.

As in the table, a line shows the tuning choice with the best mean over seeds, and only runs that are done count.
"""

from collections import defaultdict

import pandas as pd

from bench.results.store import Store
from reports.figures import curves, feature_series
from reports.figures.panels import ACCURACIES, Series, done_of, is_done, panels, points_of, series_of
from reports.tables.aggregate import label
from reports.tables.layout import Table
from reports.tables.report import Report, build

_MOMENTS = {"last": "last round", "best": "best round", "last10": "mean of the last 10 evaluated rounds"}
_SETTINGS = {"virtual_per_class": "Virtual features of each class", "fraction": "Share of the real features"}
_TRUTHFUL = "fedconcat"  # the method whose clients report their true label distribution


def collect(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict[str, Series]:
    """The numbers of a figure as metric -> series, the grid's own metric first; without those that have no point yet.

    Args:
        figure: as its grid lists it (see `bench.experiments.figure_schema`).
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: where their rounds and probes are.
        value: `last`, `best` or `last10`; None is the grid's own.
    """
    if figure["kind"] == "by-setting":
        if all(label(cell, figure["setting"]) == "-" for cell in grid["cells"]):
            return {}
        grid = _laid_out_by(grid, figure["setting"])
    report = build(grid, records, value)
    makers = {
        "curves": lambda table: curves.collect(figure["x"], report, table, grid, records, store),
        "by-setting": lambda table: _by_setting(figure["setting"], report, table, grid),
        "distributions": lambda table: _distributions(figure["client"], report, table, grid, records),
        "local-models": lambda table: _local_models(report, table, grid, records, store),
        "cka": lambda table: feature_series.cka(figure, report, table, grid, records, store),
        "separability": lambda table: feature_series.separability(figure, report, table, grid, records),
    }
    found = {table.metric: makers[figure["kind"]](table) for table in report.tables}
    return {metric: series for metric, series in found.items() if len(series.points)}


def _by_setting(setting: str, report: Report, table: Table, grid: dict) -> Series:
    """The table's accuracy over the values of a setting in the grid's order; methods without it have one level."""
    value = report.cells["value"].iloc[0]
    order = list(dict.fromkeys(label(cell, setting) for cell in grid["cells"]))
    frames = []
    for panel, cells in panels(report, table, grid, over=setting):
        for line, found in cells.items():
            found = sorted(found, key=lambda cell: order.index(getattr(cell, setting)))
            values = [None if cell.partition == "none" else getattr(cell, setting) for cell in found]
            points = [(None if x == "-" else x, cell.mean, cell.std) for x, cell in zip(values, found, strict=True)]
            frames.append(pd.DataFrame(points, columns=["x", "mean", "std"]).assign(panel=panel, line=line))
    y_label = f"{ACCURACIES[table.metric]} (%),\n{_MOMENTS[value]}"
    x_label = _SETTINGS.get(setting, setting.replace("num_", "number of ").replace("_", " ").capitalize())
    return series_of("by-setting", x_label, y_label, report, table, points_of(frames), over=setting)


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
    frames, caveats = [], {}
    for panel, cells in panels(report, table, grid):
        shares = defaultdict(dict)
        for line, (cell,) in cells.items():
            for run_id in cell.run_ids.split():
                reported = records.get(run_id, {}).get("diagnostics", {}).get("distributions", ())
                if is_done(run_id, records) and client < len(reported):
                    name = f"{line} (true)" if cell.algorithm == _TRUTHFUL else line
                    shares[seeds[run_id]][name] = reported[client]
        if shares:
            seed = min(shares, key=lambda seed: (-len(shares[seed]), seed))
            title = f"{panel}, seed {seed}"
            substitutes = dict.fromkeys(cell.substitute for (cell,) in cells.values() if cell.substitute)
            caveats[title] = [f"on {name}" for name in substitutes]
            for line, share in shares[seed].items():
                points = pd.DataFrame({"x": range(len(share)), "mean": share, "std": float("nan")})
                points["mean"] *= 100
                frames.append(points.assign(panel=title, line=line))
    points = points_of(frames)
    drawn = tuple(dict.fromkeys(points["line"]))
    return Series("distributions", "Class", f"Label share of client {client} (%)", drawn, points, caveats=caveats)


def _local_models(report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """A line per client, a panel per method: accuracy on test data with the client's label shares, after every local epoch
    and, at the same place, after the models have been averaged. Seeds draw other clients, so the first one is shown."""
    seeds = {cell["run"]: cell["seed"] for cell in grid["cells"]}
    frames, lines, caveats, x_label = [], {}, {}, "Local epoch"
    for panel, cells in panels(report, table, grid):
        for method, (cell,) in cells.items():
            run_id, *_ = done_of(cell, records)
            title = f"{panel}, {method}, seed {seeds[run_id]}"
            if notes := [f"on {cell.substitute}"] * bool(cell.substitute) + ["incomplete data"] * bool(cell.data_note):
                caveats[title] = notes
            for row in store.rows(run_id):
                traced = row.get("local_models", {"clients": (), "accuracies": ()})
                for client, accuracies in zip(traced["clients"], traced["accuracies"], strict=True):
                    lines[f"client {client}"] = client
                    epochs = len(accuracies) - 1
                    x_label = f"Local epoch (models are averaged after every {epochs})"
                    x = [(row["round"] - 1) * epochs + epoch for epoch in (*range(1, epochs + 1), epochs)]
                    points = pd.DataFrame({"x": x, "mean": accuracies, "std": float("nan")})
                    points["mean"] *= 100
                    frames.append(points.assign(panel=title, line=f"client {client}"))
    points = points_of(frames)
    y_label = "Accuracy on test data with\nthe client's label shares (%)"
    return Series("local-models", x_label, y_label, tuple(sorted(lines, key=lines.get)), points, caveats=caveats)
