"""Figure of test images in the plane of their features: by label, and by prediction before and after a calibration."""

import numpy as np

from bench.results.store import Store
from reports.figures.feature_series import probed
from reports.figures.lines import STYLE
from reports.figures.panels import first_runs
from reports.figures.style import colours_of_classes

_PANEL = 2.3  # inches
_MOST_CLASSES = 20  # whose colours can be told apart in a legend
_VIEWS = {"labels": "t-SNE, by label", "before": "predicted before", "after": "predicted after"}


def collect(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> dict[str, dict]:
    """Title -> what was measured, of the first seed that is done of each cell; arguments as in
    `reports.figures.series.collect`."""
    found = {title: probed(figure, run, config, store) for title, config, run in first_runs(grid, records, value)}
    return {title: measured for title, measured in found.items() if measured}


def draw(shown: dict[str, dict]):
    """The `matplotlib.figure.Figure`: a row per run, the same points in three colourings."""
    import matplotlib
    from matplotlib.figure import Figure

    of_each = [one["classes"] for one in shown.values()]
    classes = max(of_each, key=len)
    colours = colours_of_classes(len(classes))
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(_PANEL * len(_VIEWS), (_PANEL + 0.2) * len(shown) + 0.5), layout="constrained")
        handles = {}
        rows = figure.subplots(len(shown), len(_VIEWS), squeeze=False)
        for axes_of_row, (title, one) in zip(rows, shown.items(), strict=True):
            points = np.array(one["points"], dtype=float)
            for axes, (view, name) in zip(axes_of_row, _VIEWS.items(), strict=True):
                values = np.array(one[view])
                for label in np.unique(values).tolist():
                    handles[label] = axes.scatter(
                        *points[values == label].T, s=3, color=colours[label], alpha=0.7, linewidth=0
                    )
                right = f": {np.mean(values == one['labels']):.1%} right" if view != "labels" else ""
                axes.set_title(f"{name}{right}")
                axes.set(xticks=[], yticks=[])  # distances of t-SNE have no unit
            axes_of_row[0].set_ylabel(title)
        if len(classes) <= _MOST_CLASSES and all(
            one == classes for one in of_each
        ):  # else no legend would hold for all rows
            present = sorted(handles)
            figure.legend(
                [handles[label] for label in present],
                [classes[label] for label in present],
                loc="outside lower center",
                ncols=10,
                columnspacing=1,
                handletextpad=0,
                markerscale=3,
                frameon=False,
            )
    return figure
