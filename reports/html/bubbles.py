"""Bubble plots of the page: which client holds how many examples of which class, one plot per partition."""

import altair as alt

from bench.label_counts import NAME, partition_of
from bench.store import Store

_STEP, _MOST = 24, 520  # pixels of a class, and of all


def collect(grid: dict, store: Store) -> list[dict]:
    """The partitions of a grid whose examples have been counted, in its order.

    Returns:
        For each: "title", "classes" (names), "counts" [clients][classes], "height" in pixels.
    """
    plots = {}
    for cell in grid["cells"]:
        config = cell["config"]
        key = partition_of(config)
        if config["partition"] == "none" or not cell["run"] or key in plots:
            continue
        if found := store.probe(cell["run"], NAME):
            counts, classes = found["result"]["label_counts"], found["result"]["classes"]
            title = f"{config['dataset']}, {config['partition']}, {len(counts)} clients, seed {cell['seed']}"
            height = min(_STEP * len(classes), _MOST)
            plots[key] = {"title": title, "classes": classes, "counts": counts, "height": height}
    return list(plots.values())


def spec() -> dict:
    """The Vega-Lite specification, without the points: {client, class, examples}."""
    client = alt.X("client:O", title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True, grid=True))
    label = alt.Y("class:N", title="class", sort=None, axis=alt.Axis(labelOverlap=True, grid=True))
    size = alt.Size("examples:Q", title="examples", scale=alt.Scale(rangeMin=4, rangeMax=420))
    chart = alt.Chart(alt.NamedData("points")).mark_circle(opacity=0.75, clip=False)
    chart = chart.encode(
        client, label, size.legend(orient="bottom", tickCount=3), tooltip=["client:O", "class:N", "examples:Q"]
    )
    return chart.properties(width="container").to_dict()
