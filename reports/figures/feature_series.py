"""The numbers of figures about features: similarity of clients' models (CKA), and gains over the separability of classes."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from bench.experiments.labels import UNWRAPPED
from bench.measurements.specs import probes_of, result_of
from bench.results.store import Store
from reports.figures.panels import Series, concat_points, done_runs, panels, seeds_of_runs, series_of_table
from reports.tables.aggregate import DDOF, cell_keys
from reports.tables.layout import Table
from reports.tables.report import Report

_LEAST_POINTS = 6  # for a correlation
CKA_NAMES = {"linear": "Linear CKA", "minibatch": "Unbiased minibatch CKA"}  # their values are not comparable


def cka(figure: dict, report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """Mean CKA over pairs of clients' local models, per layer; layers without any defined pair are left out."""
    configs = {cell["run"]: cell["config"] for cell in grid["cells"]}
    frames, caveats, num_seeds = [], defaultdict(list), 0
    for panel, cells in panels(report, table, grid):
        for line, (cell,) in cells.items():
            results = [probe_result(figure, run_id, configs[run_id], store) for run_id in done_runs(cell, records)]
            results = [result for result in results if result]
            by_layer = _means_by_layer(results)
            if not by_layer.empty:
                frames.append(_over_seeds(by_layer, grid["std"]).assign(panel=panel, line=line))
                caveats[panel] += _cka_caveats(table, line, cell, results)
                num_seeds = max(num_seeds, len(by_layer))
    y_label = CKA_NAMES[figure["estimator"]] + ",\nmean over pairs of clients"
    series = series_of_table("cka", "Layer", y_label, report, table, concat_points(frames))
    return replace(series, seeds=num_seeds, caveats={panel: lines for panel, lines in caveats.items() if lines})


def _means_by_layer(results: list[dict]) -> pd.DataFrame:
    """Means over pairs of different clients, [seeds, layers]."""
    means = [{layer: _mean_of_pairs(matrix) for layer, matrix in result["layers"].items()} for result in results]
    return pd.DataFrame(means).dropna(axis="columns", how="all")


def _mean_of_pairs(matrix: list[list[float | None]]) -> float:
    """Mean of the entries below the diagonal, without undefined ones."""
    pairs = [similarity for i, row in enumerate(matrix) for similarity in row[:i]]
    return pd.Series(pairs, dtype=float).mean()


def _over_seeds(by_layer: pd.DataFrame, std: str) -> pd.DataFrame:
    spread = by_layer.std(ddof=DDOF[std]) if len(by_layer) > 1 else float("nan")
    return pd.DataFrame({"x": by_layer.columns, "mean": by_layer.mean(), "std": spread})


def _cka_caveats(table: Table, line: str, cell, results: list[dict]) -> Iterator[str]:
    """Limits of a line: missing seeds, substitute data, clients that were left out."""
    line = table.names.title(table.column_key, line).plain
    if len(results) < cell.seeds:
        yield f"{line}: {len(results)}/{cell.seeds} seeds"
    if cell.substitute:
        yield f"{line}: on {table.names.value('dataset', cell.substitute).plain}"
    shown, cohort = len(results[0]["clients"]), results[0]["cohort"]
    if shown < cohort:
        yield f"{line}: the first {shown} of {cohort} clients"


def separability(figure: dict, report: Report, table: Table, grid: dict, records: dict) -> Series:
    """The gain of a post-hoc method over its base, over the distance between classes in the base's feature space.

    There is a panel per setting and value of the axis `wrapper`, and a point per run that the table shows.
    """
    score = ("relative_" if figure["relative"] else "") + "sliced_wasserstein"
    gains = pd.DataFrame(_gains(score, report, table, grid, records), columns=["panel", "line", "x", "mean"])
    gains = gains.sort_values("panel", kind="stable").assign(std=float("nan"))
    titles = {panel: f"{panel}{_correlation(points)}" for panel, points in gains.groupby("panel")}
    points = concat_points([gains.assign(panel=gains["panel"].map(titles))])
    x_label = "Mean sliced Wasserstein distance of two classes"
    if figure["relative"]:
        x_label += ",\nrelative to the spread within classes"
    lines = tuple(dict.fromkeys(points["line"]))
    y_label = "Gain in test accuracy\n(percentage points)"
    names = {line: table.names.value("algorithm", line).plain for line in lines}
    return Series("separability", x_label, y_label, lines, points, names=names, styles=table.names.styles)


def _gains(score: str, report: Report, table: Table, grid: dict, records: dict) -> Iterator[tuple]:
    """Panel, line, distance of classes and gain (percentage points) of every run of a post-hoc method with its base."""
    value = report.cells["value"].iloc[0]
    for (labels, substitute), by_wrapper in _runs_by_wrapper(report, table, grid, records).items():
        labels = dict(labels)
        method = labels.pop("algorithm", "")
        setting = table.names.together([*labels], [*labels.values()]).plain
        setting += f" (on {table.names.value('dataset', substitute).plain})" if substitute else ""
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


def _runs_by_wrapper(report: Report, table: Table, grid: dict, records: dict) -> dict[tuple, dict[str, dict]]:
    """(Labels of a cell on all axes but `wrapper`, substitute) -> wrapper -> seed -> record."""
    keys, seeds = [key for key in cell_keys(grid) if key != "wrapper"], seeds_of_runs(grid)
    found: dict[tuple, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
    cells = report.cells[report.cells["metric"] == table.metric]
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


def probe_result(figure: dict, run_id: str, config: dict, store: Store) -> dict | None:
    """The stored measurement of a run for a figure with a single probe, or None."""
    probes = probes_of(figure, config["rounds"])
    return result_of(store, run_id, probes[0]) if probes else None
