"""The numbers of a grid's figures: one panel per row of its table, one line per column.

As in the table, a line shows the tuning choice with the best mean over seeds, and only finished runs count.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress

import pandas as pd

from bench.results.metrics import METRICS, is_of_rounds
from bench.results.store import Store
from datasets.skew import LABELS as SKEW_LABELS
from reports.figures import curves, feature_series
from reports.figures.panels import (
    Series,
    concat_points,
    data_caveats,
    done_runs,
    names_of_lines,
    panels,
    seeds_of_runs,
    series_of_table,
    with_figure_layout,
    y_label,
)
from reports.tables.aggregate import label
from reports.tables.layout import Table, measured
from reports.tables.names import axis_label
from reports.tables.report import Report, build

_VALUES = {"last": "last round", "best": "best round", "last10": "mean of the last 10 evaluated rounds"}
_SETTINGS = {"virtual_per_class": "Virtual features of each class ($M_c$)", "fraction": "Share of the real features"}
_TRUTHFUL = "fedconcat"  # the method whose clients report their true label distribution


def collect(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict[str, Series]:
    """The numbers of a figure as metric -> series, the grid's own metric first; metrics without a point are left out.

    Args:
        figure: an entry of the grid's `figures` (see `bench.experiments.figure_schema`).
        grid: expanded grid.
        records: run id -> record of the runs that have ended.
        store: holds their rounds and probes.
        value: `last`, `best` or `last10`; None is the grid's own.
    """
    grid = with_figure_layout(grid)
    if figure["kind"] == "by-setting":
        if all(label(cell, figure["setting"]) == "-" for cell in grid["cells"]):
            return {}
        grid = _with_rows_by(figure["setting"], grid)
    report = build(grid, records, value)
    collectors = {
        "curves": lambda table: curves.collect(figure["x"], report, table, grid, records, store),
        "by-setting": lambda table: _by_setting(figure, report, table, grid, records),
        "distributions": lambda table: _distributions(figure["client"], report, table, grid, records),
        "local-models": lambda table: _local_models(report, table, grid, records, store),
        "cka": lambda table: feature_series.cka(figure, report, table, grid, records, store),
        "separability": lambda table: feature_series.separability(figure, report, table, grid, records),
    }
    of_rounds = figure["kind"] != "by-setting"  # and so of what runs report of rounds
    shown = [table for table in report.tables if is_of_rounds(table.metric) or not of_rounds]
    found = {table.metric: collectors[figure["kind"]](table) for table in shown}
    return {metric: series for metric, series in found.items() if len(series.points)}


def _by_setting(figure: dict, report: Report, table: Table, grid: dict, records: dict) -> Series:
    """Accuracy over the values of a setting, in the grid's order, or over the skew of their partitions; a method without the
    setting is a horizontal line."""
    setting, measure = figure["setting"], figure.get("x")
    value = report.cells["value"].iloc[0]
    order = list(dict.fromkeys(label(cell, setting) for cell in grid["cells"]))
    frames, lacking = [], {}

    def x_name(x: object) -> object:  # of a horizontal line there is none
        return table.names.value(setting, x).plain if isinstance(x, str) else x

    for panel, cells in panels(report, table, grid, over=setting):
        lacking[panel] = []
        for line, found in cells.items():
            name = table.names.title(table.column_key, line).plain
            found = sorted(found, key=lambda cell: order.index(getattr(cell, setting)))
            values = [None if cell.partition == "none" else getattr(cell, setting) for cell in found]
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
    kind = "by-skew" if measure else "by-setting"
    x_label = SKEW_LABELS[measure] if measure else x_label
    points = concat_points(frames)
    if not measure:  # the grid's order, whichever of the values the first line has
        ranks = {name: rank for rank, name in enumerate(order)}
        points = points.sort_values("x", key=lambda xs: xs.map(lambda x: ranks.get(x, -1)), kind="stable")
        points = points.sort_values("panel", key=lambda names: names.map([*lacking].index), kind="stable")
        points["x"] = points["x"].map(x_name)
    series = series_of_table(kind, x_label, y, report, table, points, over=setting)
    caveats = {panel: [*series.caveats.get(panel, []), *more] for panel, more in lacking.items() if more}
    return replace(series, caveats=series.caveats | caveats)


def _mean_skew(measure: str, cell, records: dict) -> float:
    """A measure of the skew of a cell's partitions, mean over its finished runs; NaN where none has recorded it."""
    skews = [records[run_id].get("skew", {}) for run_id in done_runs(cell, records)]
    return pd.Series([skew[measure] for skew in skews if measure in skew], dtype=float).mean()


def _with_rows_by(setting: str, grid: dict) -> dict:
    """The grid with a table that has one row per value of a setting and one column per method."""
    layout = grid["report"]
    line = layout["columns"] if layout["columns"] != setting else "algorithm"
    rows = [key for key in layout["rows"] if key not in (setting, line)]
    orders = {"row_order": [], "column_order": grid["column_order"] if line == layout["columns"] else []}
    return grid | orders | {"report": layout | {"rows": [*rows, setting], "columns": line}}


def _distributions(client: int, report: Report, table: Table, grid: dict, records: dict) -> Series:
    """A client's label shares as each method's server received or inferred them.

    Partitions differ between seeds, so a panel shows one seed: the first of those with results of most methods.
    """
    frames, caveats = [], {}
    for panel, cells in panels(report, table, grid):
        if shares := _label_shares(client, cells, seeds_of_runs(grid), records):
            seed = min(shares, key=lambda seed: (-len(shares[seed]), seed))
            title = f"{panel}, seed {seed}"
            substitutes = dict.fromkeys(cell.substitute for (cell,) in cells.values() if cell.substitute)
            caveats[title] = [f"on {table.names.value('dataset', name).plain}" for name in substitutes]
            frames += [_points(range(len(share)), share, title, line) for line, share in shares[seed].items()]
    points = concat_points(frames)
    lines = tuple(dict.fromkeys(points["line"]))
    y_label, names = f"Label share of client {client} (%)", names_of_lines(table)
    return Series(
        "distributions", "Class", y_label, lines, points, caveats=caveats, names=names, styles=table.names.styles
    )


def _label_shares(client: int, cells: dict[str, list], seeds: dict[str, int], records: dict) -> dict[int, dict]:
    """Seed -> line -> label shares of a client, in [0, 1], of the cells that recorded them."""
    shares = defaultdict(dict)
    for line, (cell,) in cells.items():
        for run_id in done_runs(cell, records):
            recorded = records[run_id].get("diagnostics", {}).get("distributions", ())
            if client < len(recorded):
                name = f"{line} (true)" if cell.algorithm == _TRUTHFUL else line
                shares[seeds[run_id]][name] = recorded[client]
    return shares


def _local_models(report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """Accuracy of clients' models on test data with their label shares: a panel per method, a line per client.

    There is a point after every local epoch, and a second one at the last epoch of a round, after averaging. Clients
    differ between seeds, so the first finished seed is shown.
    """
    seeds = seeds_of_runs(grid)
    frames, clients, caveats, x_label = [], set(), {}, "Local epoch"
    for panel, cells in panels(report, table, grid):
        for method, (cell,) in cells.items():
            run_id, *_ = done_runs(cell, records)
            title = f"{panel}, {table.names.title(table.column_key, method).plain}, seed {seeds[run_id]}"
            if notes := data_caveats(cell, table.names):
                caveats[title] = notes
            for round, client, accuracies in _traced_accuracies(store.rows(run_id)):
                clients.add(client)
                epochs = len(accuracies) - 1
                x_label = f"Local epoch (models are averaged after every {epochs})"
                x = [(round - 1) * epochs + epoch for epoch in (*range(1, epochs + 1), epochs)]
                frames.append(_points(x, accuracies, title, f"client {client}"))
    own = table.metric == "own_accuracy"
    data = "the client's own test data" if own else "test data with\nthe client's label shares"
    y_label = f"Accuracy on {data} (%)"
    lines = tuple(f"client {client}" for client in sorted(clients))
    return Series("local-models", x_label, y_label, lines, concat_points(frames), caveats=caveats)


def _traced_accuracies(rows: list[dict]) -> Iterator[tuple[int, int, list[float]]]:
    """Round, client and accuracies [local epochs + 1] of the rounds of a run with `trace_local_models`."""
    for row in rows:
        traced = row.get("local_models", {"clients": (), "accuracies": ()})
        for client, accuracies in zip(traced["clients"], traced["accuracies"], strict=True):
            yield row["round"], client, accuracies


def _points(x: Sequence[int], shares: list[float], panel: str, line: str) -> pd.DataFrame:
    """Points without std of numbers in [0, 1], in percent."""
    points = pd.DataFrame({"x": x, "mean": shares, "std": float("nan")})
    points["mean"] *= 100
    return points.assign(panel=panel, line=line)
