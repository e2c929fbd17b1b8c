"""Figure of test images in the plane of their features: by label, and by prediction before and after a calibration."""

import numpy as np

from bench.results.store import Store
from reports.figures.feature_series import probe_result
from reports.figures.lines import STYLE
from reports.figures.panels import first_runs
from reports.figures.style import colours_of_classes

_PANEL = 2.3  # inches
_MOST_CLASSES = 20  # with more, the colours of a legend cannot be distinguished
_VIEWS = {"labels": "t-SNE, by label", "before": "predicted before", "after": "predicted after"}


def collect(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict[str, dict]:
    """Title -> embedding of the first finished seed of each cell; arguments as in `reports.figures.series.collect`."""
    found = {title: probe_result(figure, run, config, store) for title, config, run in first_runs(grid, records, value)}
    return {title: embedding for title, embedding in found.items() if embedding}


def draw(embeddings: dict[str, dict]):
    """The `matplotlib.figure.Figure`: a row per run, the same points in three colourings."""
    import matplotlib
    from matplotlib.figure import Figure

    classes = max((one["classes"] for one in embeddings.values()), key=len)
    colours = colours_of_classes(len(classes))
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        size = (_PANEL * len(_VIEWS), (_PANEL + 0.2) * len(embeddings) + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        handles = {}
        rows = figure.subplots(len(embeddings), len(_VIEWS), squeeze=False)
        for axes_of_row, (title, embedding) in zip(rows, embeddings.items(), strict=True):
            for axes, view in zip(axes_of_row, _VIEWS, strict=True):
                handles |= _draw_view(axes, view, embedding, colours)
            axes_of_row[0].set_ylabel(title)
        one_legend = all(one["classes"] == classes for one in embeddings.values())
        if one_legend and len(classes) <= _MOST_CLASSES:
            _write_legend(figure, handles, classes)
    return figure


def _draw_view(axes, view: str, embedding: dict, colours: list[str]) -> dict:
    """Draws the points of a run coloured by one of _VIEWS; returns class -> its handle for the legend."""
    points, values = np.array(embedding["points"], dtype=float), np.array(embedding[view])
    correct = f": {np.mean(values == embedding['labels']):.1%} right" if view != "labels" else ""
    axes.set_title(f"{_VIEWS[view]}{correct}")
    axes.set(xticks=[], yticks=[])  # distances of t-SNE have no unit
    dots = {"s": 3, "alpha": 0.7, "linewidth": 0}
    return {
        label: axes.scatter(*points[values == label].T, color=colours[label], **dots)
        for label in np.unique(values).tolist()
    }


def _write_legend(figure, handles: dict, classes: list[str]) -> None:
    layout = {"ncols": 10, "columnspacing": 1, "handletextpad": 0, "markerscale": 3, "frameon": False}
    present = sorted(handles)
    names = [classes[label] for label in present]
    figure.legend([handles[label] for label in present], names, loc="outside lower center", **layout)
