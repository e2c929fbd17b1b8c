"""From a figure that a grid lists to a drawing, whatever its kind."""

from bench.store import Store
from reports import embedding, figures, matrices, series


def draw(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict:
    """The drawings of a figure as metric -> `matplotlib.figure.Figure`; arguments as in `reports.series.collect`."""
    makers = {
        "embedding": embedding,
        "weight-norms": matrices,
        "cka": matrices if figure.get("show") == "clients" else None,
    }
    if of_one_run := makers.get(figure["kind"]):
        found = of_one_run.collect(figure, grid, records, store, value)
        return {grid["report"]["metric"]: of_one_run.draw(found)} if found else {}
    return {of: figures.draw(numbers) for of, numbers in series.collect(figure, grid, records, store, value).items()}
