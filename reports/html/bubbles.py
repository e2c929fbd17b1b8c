"""Bubble plots of the page: examples of each class at each client, one plot per partition."""

from bench.measurements.label_counts import NAME, partition_of
from bench.results.grids import StoredGrid
from bench.results.store import Store
from datasets.show import legend_counts
from reports.tables.names import Names

_STEP, _MOST = 24, 520  # pixels per class, and at most in all
_LARGEST = 420  # square pixels of a bubble


def collect(grid: StoredGrid, store: Store) -> list[dict]:
    """The partitions of a grid with stored label counts, in the grid's order.

    Returns:
        For each: "title", "classes" (names), "counts" [clients][classes], and "spec": a Vega-Lite specification without
        its points {client, class, examples}.
    """
    plots, names = {}, Names.of_grid(grid)
    for cell in grid["cells"]:
        config = cell["config"]
        key = partition_of(config)
        if config["partition"] == "none" or not cell["run"] or key in plots:
            continue
        if found := store.probe(cell["run"], NAME):
            counts, classes = found["result"]["label_counts"], found["result"]["classes"]
            setting = names.together(("dataset", "partition"), (config["dataset"], config["partition"])).plain
            title = f"{setting}, {len(counts)} clients, seed {cell['seed']}"
            largest = max(map(max, counts))
            plots[key] = {"title": title, "classes": classes, "counts": counts, "spec": _spec(classes, largest)}
    return list(plots.values())


def _spec(classes: list[str], largest: int) -> dict:
    """Bubbles whose areas are proportional to the numbers of examples."""
    client = {"field": "client", "type": "ordinal", "title": "client"}
    label = {"field": "class", "type": "nominal", "title": "class", "sort": classes}
    legend = {"orient": "bottom", "values": legend_counts(largest)}
    scale = {"domain": [0, largest], "range": [0, _LARGEST]}
    examples = {"field": "examples", "type": "quantitative"}
    return {
        "data": {"name": "points"},
        "mark": {"type": "circle", "opacity": 0.8},
        "encoding": {
            "x": client | {"axis": {"labelAngle": 0, "labelOverlap": True, "grid": True}},
            "y": label | {"axis": {"labelOverlap": True, "grid": True}},
            "size": examples | {"title": "examples", "scale": scale, "legend": legend},
            "tooltip": [client, {"field": "class", "type": "nominal"}, examples],
        },
        "width": "container",
        "height": min(_STEP * len(classes), _MOST),
    }
