"""Bubble plots of the page: which client holds how many examples of which class, one plot per partition."""

import altair as alt

from bench.label_counts import NAME, partition_of
from bench.store import Store
from datasets.show import legend_counts

_STEP, _MOST = 24, 520  # pixels of a class, and of all
_LARGEST = 420  # square pixels of a bubble


def collect(grid: dict, store: Store) -> list[dict]:
    """The partitions of a grid whose examples have been counted, in its order.

    Returns:
        For each: "title", "classes" (names), "counts" [clients][classes], and "spec", Vega-Lite's specification without the
        points {client, class, examples}.
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
            largest = max(map(max, counts))
            plots[key] = {"title": title, "classes": classes, "counts": counts, "spec": _spec(classes, largest)}
    return list(plots.values())


def _spec(classes: list[str], largest: int) -> dict:
    """Bubbles whose areas are proportional to the numbers of examples."""
    client = alt.X("client:O", title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True, grid=True))
    label = alt.Y("class:N", title="class", sort=classes, axis=alt.Axis(labelOverlap=True, grid=True))
    legend = alt.Legend(orient="bottom", values=legend_counts(largest))
    scale = alt.Scale(domain=[0, largest], range=[0, _LARGEST])
    size = alt.Size("examples:Q", title="examples", scale=scale, legend=legend)
    chart = alt.Chart(alt.NamedData("points")).mark_circle(opacity=0.8)
    chart = chart.encode(client, label, size, tooltip=["client:O", "class:N", "examples:Q"])
    return chart.properties(width="container", height=min(_STEP * len(classes), _MOST)).to_dict()
