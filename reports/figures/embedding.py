"""Figure of test images in the plane of their features: by label, and by prediction before and after a calibration."""

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from bench.results.grids import StoredGrid
from bench.results.json_schema import is_integer, is_number, is_text
from bench.results.store import Store
from reports.figures import Figure, Probe, registered_figure
from reports.figures.lines import LETTER, STYLE, wrapped
from reports.figures.panels import first_results
from reports.figures.style import colours_of_classes
from reports.tables.records import Records
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    from bench.config.schema import RunConfig
    from bench.measurements.run import FinishedRun

_PANEL, _NARROWEST = 2.3, 1.75  # inches
_MOST_CLASSES = 20  # with more, the colours of a legend cannot be distinguished
_VIEWS = {"labels": "t-SNE, by label", "before": "predicted before", "after": "predicted after"}


@registered_figure("embedding")
class Embedding(Figure):
    """Features of test images in the plane, coloured by label and by prediction before and after a calibration.

    Attributes:
        points: test images, stratified by class, at most.
    """

    points: int = Field(2000, gt=9)

    shape = {
        "points": [[(is_number, None)]],
        "labels": [is_integer],
        "before": [is_integer],
        "after": [is_integer],
        "classes": [is_text],
    }

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind, option=self.points)]

    def fault_of(self, result: dict[str, Any]) -> str:
        known = range(len(result["classes"]))
        faults = (
            f"{view} is not a known class for each point"
            for view in _VIEWS
            if len(result[view]) != len(result["points"]) or not all(label in known for label in result[view])
        )
        of_points = (
            "" if all(len(point) == 2 for point in result["points"]) else "a point does not have two coordinates"
        )
        return of_points or next(faults, "")

    def state_of(self, probe: Probe, config: "RunConfig") -> str | None:
        """Only a method that starts from the end of another run has predictions before and after it."""
        import algorithms
        from bench.simulation.retention import FINAL

        is_post_hoc = algorithms.load(config.algorithm["name"]).post_hoc
        return FINAL if is_post_hoc and config.evaluate_every is None else None

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements import features
        from bench.simulation.retention import FINAL

        return features.embedding(run.task, run.algorithm, run.trained_state(FINAL), run.own_state(FINAL), self.points)

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> dict[str, dict]:
        """Title -> embedding of the first finished seed of each cell."""
        runs = first_results(self, grid, records, store, value)
        return {title: embedding for title, _, found in runs for embedding in found.values()}

    def draw(self, found: dict[str, dict], widths: Widths = FIGURES):
        """A row per run, the same points in three colourings."""
        import matplotlib
        from matplotlib.figure import Figure

        classes = max((one["classes"] for one in found.values()), key=len)
        colours = colours_of_classes(len(classes))
        with matplotlib.rc_context(STYLE | {"axes.grid": False}):
            columns = min(len(_VIEWS), max(1, int(widths.text / _NARROWEST)))
            blocks = -(-len(_VIEWS) // columns)  # rows of a run
            side = min(_PANEL, widths.text / columns)
            size = (side * columns, (side + 0.2) * len(found) * blocks + 0.5)
            figure = Figure(figsize=size, layout="constrained")
            handles: dict[Any, Any] = {}
            runs = figure.subplots(len(found) * blocks, columns, squeeze=False).reshape(len(found), -1)
            for axes_of_run, (title, embedding) in zip(runs, found.items(), strict=True):
                for axes, view in zip(axes_of_run, _VIEWS, strict=False):
                    handles |= _draw_view(axes, view, embedding, colours)
                for axes in axes_of_run[len(_VIEWS) :]:
                    axes.remove()
                axes_of_run[0].set_ylabel(wrapped(title, side))
            one_legend = all(one["classes"] == classes for one in found.values())
            if one_legend and len(classes) <= _MOST_CLASSES:
                _write_legend(figure, handles, classes, size[0])
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


def _write_legend(figure, handles: dict, classes: list[str], width: float) -> None:
    layout = {
        "ncols": max(1, int(width / (0.2 + LETTER * max(map(len, classes))))),
        "columnspacing": 1,
        "handletextpad": 0,
        "markerscale": 3,
        "frameon": False,
    }
    present = sorted(handles)
    names = [classes[label] for label in present]
    figure.legend([handles[label] for label in present], names, loc="outside lower center", **layout)
