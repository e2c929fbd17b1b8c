"""The numbers behind figures about features: how alike those of clients are, and how far apart classes are among them."""

import json
from collections import defaultdict

import pandas as pd

from bench.names import UNWRAPPED
from bench.probes import probes_of
from bench.store import Store
from reports.cells import label
from reports.layout import Table
from reports.panels import Series, done_of, is_done, panels, points_of, series_of
from reports.report import Report

CKA_NAMES = {"linear": "Linear CKA", "minibatch": "Unbiased minibatch CKA"}  # two numbers that are not to be mixed


def cka(figure: dict, report: Report, table: Table, grid: dict, records: dict, store: Store) -> Series:
    """The mean similarity of two different clients' local models in every layer."""
    configs = {cell["run"]: cell["config"] for cell in grid["cells"]}
    frames = []
    for panel, cells in panels(report, table, grid):
        for line, (cell,) in cells.items():
            found = [probed(figure, run_id, configs[run_id], store) for run_id in done_of(cell, records)]
            layers = [
                {name: _mean_of_pairs(pairs) for name, pairs in one["layers"].items()} for one in filter(None, found)
            ]
            if layers:
                means = pd.DataFrame(layers)
                std = means.std(ddof={"population": 0, "sample": 1}[grid["std"]]) if len(means) > 1 else float("nan")
                points = pd.DataFrame({"x": means.columns, "mean": means.mean(), "std": std})
                frames.append(points.assign(panel=panel, line=line))
    return series_of(
        "cka",
        "Layer",
        CKA_NAMES[figure["estimator"]] + ",\nmean over pairs of clients",
        report,
        table,
        points_of(frames),
    )


def _mean_of_pairs(similarities: list[list[float | None]]) -> float:
    """Mean over the pairs of different models, without those that are not defined."""
    pairs = [similarity for i, row in enumerate(similarities) for similarity in row[:i]]
    return pd.Series(pairs, dtype=float).mean()


def separability(figure: dict, report: Report, table: Table, grid: dict, records: dict) -> Series:
    """What each run of a method that changes a deployed model gains, over how far apart classes are at this model: a panel
    per change, a point per run."""
    score = f"{'relative_' * figure['relative']}sliced_wasserstein"
    runs: dict[str, dict] = defaultdict(dict)
    for cell in grid["cells"]:
        if is_done(cell["run"], records):
            config, wrapper = cell["config"], cell.get("wrapper", UNWRAPPED)
            algorithm = config["algorithm"] if wrapper == UNWRAPPED else config["algorithm"]["base"]
            trained = config | {"algorithm": algorithm, "versions": None}
            runs[json.dumps(trained, sort_keys=True)][wrapper] = cell
    lines = []
    for found in runs.values():
        of = {wrapper: records[cell["run"]] for wrapper, cell in found.items()}
        distances = (record.get("findings", {}).get(score) for record in of.values())
        distance = next(filter(None, distances), None)
        if UNWRAPPED in of and distance is not None:
            cell = found[UNWRAPPED]
            name = ", ".join(label(cell, key) for key in table.row_keys if key != "algorithm")
            accuracy = {wrapper: 100 * record["summary"]["last"][table.metric] for wrapper, record in of.items()}
            for wrapper in filter(UNWRAPPED.__ne__, of):
                gain = accuracy[wrapper] - accuracy[UNWRAPPED]
                lines.append((f"{name}: {wrapper}", label(cell, "algorithm"), distance, gain, float("nan")))
    frame = pd.DataFrame(lines, columns=["panel", "line", "x", "mean", "std"])
    points = points_of([frame.sort_values("panel", kind="stable")])
    for panel, own in points.groupby("panel", sort=False):
        if len(own) > 2:
            correlation = own["x"].astype(float).corr(own["mean"])
            title = f"{panel} (correlation {correlation:.2f} over {len(own)} runs)"
            points["panel"] = points["panel"].replace(panel, title)
    unit = ",\nrelative to the spread within classes" * figure["relative"]
    x_label = "Mean sliced Wasserstein distance of two classes" + unit
    names = tuple(dict.fromkeys(points["line"]))
    return Series("separability", x_label, "Gain in test accuracy\n(percentage points)", names, points)


def probed(figure: dict, run_id: str, config: dict, store: Store) -> dict | None:
    """What was measured of a run for a figure of one probe, or None."""
    wanted = probes_of(figure, config["rounds"])
    return ((store.probe(run_id, wanted[0].name) if wanted else None) or {}).get("result")
