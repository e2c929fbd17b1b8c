"""The numbers behind figures about features: how alike those of clients are, and how far apart classes are among them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from bench.experiments.labels import UNWRAPPED
from bench.measurements.specs import probes_of, result_of
from bench.results.store import Store
from reports.figures.panels import Series, done_of, panels, points_of, series_of
from reports.tables.aggregate import cell_keys
from reports.tables.layout import Table
from reports.tables.report import Report

_LEAST_POINTS = 6  # for a correlation
CKA_NAMES = {"linear": "Linear CKA", "minibatch": "Unbiased minibatch CKA"}  # two numbers that are not to be mixed


def cka(figure: dict, report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """The mean similarity of two different clients' local models in every layer; layers of which no run has a pair are left
    out."""
    configs = {cell["run"]: cell["config"] for cell in grid["cells"]}
    frames, caveats, most = [], defaultdict(list), 0
    for panel, cells in panels(report, table, grid):
        for line, (cell,) in cells.items():
            probes = [probed(figure, run_id, configs[run_id], store) for run_id in done_of(cell, records)]
            found = [probe for probe in probes if probe]
            layers = [{name: _mean_of_pairs(pairs) for name, pairs in one["layers"].items()} for one in found]
            means = pd.DataFrame(layers).dropna(axis="columns", how="all")
            if not means.empty:
                std = means.std(ddof={"population": 0, "sample": 1}[grid["std"]]) if len(means) > 1 else float("nan")
                points = pd.DataFrame({"x": means.columns, "mean": means.mean(), "std": std})
                frames.append(points.assign(panel=panel, line=line))
                caveats[panel] += _caveats(line, cell, found)
                most = max(most, len(means))
    made = series_of(
        "cka",
        "Layer",
        CKA_NAMES[figure["estimator"]] + ",\nmean over pairs of clients",
        report,
        table,
        points_of(frames),
    )
    return replace(made, seeds=most, caveats={panel: lines for panel, lines in caveats.items() if lines})


def _caveats(line: str, cell, found: list[dict]) -> Iterator[str]:
    """What a reader must know about a line of similarities."""
    if len(found) < cell.seeds:
        yield f"{line}: {len(found)}/{cell.seeds} seeds"
    if cell.substitute:
        yield f"{line}: on {cell.substitute}"
    shown, cohort = len(found[0]["clients"]), found[0]["cohort"]
    if shown < cohort:
        yield f"{line}: the first {shown} of {cohort} clients"


def _mean_of_pairs(similarities: list[list[float | None]]) -> float:
    """Mean over the pairs of different models, without those that are not defined."""
    pairs = [similarity for i, row in enumerate(similarities) for similarity in row[:i]]
    return pd.Series(pairs, dtype=float).mean()


def separability(figure: dict, report: Report, table: Table, grid: dict, records: dict) -> Series:
    """What each run of a method that only changes what another one deploys gains over that, by how far apart classes are at
    this one: a panel per method of the axis `wrapper`, a point per run. Runs are those that the table shows."""
    score = ("relative_" if figure["relative"] else "") + "sliced_wasserstein"
    seeds = {cell["run"]: cell["seed"] for cell in grid["cells"]}
    moment, keys = report.cells["value"].iloc[0], [key for key in cell_keys(grid) if key != "wrapper"]
    found: dict[tuple, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))  # place -> wrapper -> seed -> record
    cells = report.cells[report.cells["metric"] == table.metric]
    for cell in cells.itertuples() if "wrapper" in cells else ():
        place = tuple(getattr(cell, key) for key in keys)
        for run_id in done_of(cell, records):
            found[place, cell.substitute][cell.wrapper][seeds[run_id]] = records[run_id]
    lines = []
    for (place, substitute), by_wrapper in found.items():
        labels = dict(zip(keys, place, strict=True))
        method = labels.pop("algorithm", "")
        about = ", ".join(labels.values()) + (f" (on {substitute})" if substitute else "")
        before = by_wrapper.pop(UNWRAPPED, {})
        distances = {
            seed: record["diagnostics"][score]
            for runs in by_wrapper.values()
            for seed, record in runs.items()
            if score in record.get("diagnostics", {})
        }
        for wrapper, runs in by_wrapper.items():
            for seed, record in runs.items():
                if "base_summary" in record and seed in before and seed in distances:
                    gain = 100 * (
                        record["summary"][moment][table.metric] - before[seed]["summary"][moment][table.metric]
                    )
                    lines.append((f"{about}: {wrapper}", method, distances[seed], gain, float("nan")))
    frame = pd.DataFrame(lines, columns=["panel", "line", "x", "mean", "std"]).sort_values("panel", kind="stable")
    titles = {panel: f"{panel}{_correlation(own)}" for panel, own in frame.groupby("panel")}
    points = points_of([frame.assign(panel=frame["panel"].map(titles))])
    x_label = "Mean sliced Wasserstein distance of two classes"
    if figure["relative"]:
        x_label += ",\nrelative to the spread within classes"
    names = tuple(dict.fromkeys(points["line"]))
    return Series("separability", x_label, "Gain in test accuracy\n(percentage points)", names, points)


def _correlation(points: pd.DataFrame) -> str:
    """Pearson's, where there are enough points, as part of a title."""
    if len(points) < _LEAST_POINTS:
        return ""
    return f"\n(correlation {points['x'].corr(points['mean']):.2f} over {len(points)} runs)"


def probed(figure: dict, run_id: str, config: dict, store: Store) -> dict | None:
    """What was measured of a run for a figure of one probe, or None."""
    wanted = probes_of(figure, config["rounds"])
    return result_of(store, run_id, wanted[0]) if wanted else None
