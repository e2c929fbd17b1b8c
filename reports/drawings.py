"""From a figure that a grid lists to a drawing, whatever its kind."""

from bench.store import Store
from reports import embedding, figures, matrices, series


def draw(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict:
    """The drawings of a figure as metric -> `matplotlib.figure.Figure`; arguments as in `reports.series.collect`."""
    kind = figure["kind"]
    if kind == "embedding" or kind == "weight-norms" or (kind == "cka" and figure["show"] == "clients"):
        made_by = embedding if kind == "embedding" else matrices
        found = made_by.collect(figure, grid, records, store, value)
        return {grid["report"]["metric"]: made_by.draw(found)} if found else {}
    return {of: figures.draw(numbers) for of, numbers in series.collect(figure, grid, records, store, value).items()}
