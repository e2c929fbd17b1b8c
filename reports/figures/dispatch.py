"""From a figure that a grid lists to a drawing, whatever its kind."""

from bench.results.store import Store
from reports.figures import embedding, encoder_scatter, heatmaps, lines, series


def draw(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict:
    """The drawings of a figure as metric -> `matplotlib.figure.Figure`; arguments as in `reports.figures.series.collect`."""
    makers = {
        "embedding": embedding,
        "encoder-features": encoder_scatter,
        "weight-norms": heatmaps,
        "cka": heatmaps if figure.get("show") == "clients" else None,
    }
    if of_one_run := makers.get(figure["kind"]):
        found = of_one_run.collect(figure, grid, records, store, value)
        return {grid["report"]["metric"]: of_one_run.draw(found)} if found else {}
    return {of: lines.draw(numbers) for of, numbers in series.collect(figure, grid, records, store, value).items()}
