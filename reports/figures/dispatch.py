"""Draws a figure that a grid lists, with the module of its kind."""

from bench.results.store import Store
from reports.figures import (
    capacities,
    client_gains,
    divergences,
    embedding,
    encoder_scatter,
    heatmaps,
    lines,
    quantities,
    series,
)
from reports.widths import FIGURES, Widths


def draw(
    figure: dict, grid: dict, records: dict, store: Store, value: str | None = None, widths: Widths = FIGURES
) -> dict:
    """The drawings of a figure as metric -> `matplotlib.figure.Figure`; arguments as in `reports.figures.series.collect`,
    widths as in `reports.api.write_figures`."""
    modules = {
        "embedding": embedding,
        "encoder-features": encoder_scatter,
        "weight-norms": heatmaps,
        "client-gains": client_gains,
        "divergences": divergences,
        "coalitions-by-capacity": capacities,
        "coalitions-by-examples": quantities,
        "cka": heatmaps if figure.get("show") == "clients" else None,
    }
    if module := modules.get(figure["kind"]):
        found = module.collect(figure, grid, records, store, value)
        return {grid["report"]["metric"]: module.draw(found, widths)} if found else {}
    by_metric = series.collect(figure, grid, records, store, value)
    return {metric: lines.draw(numbers, widths) for metric, numbers in by_metric.items()}
