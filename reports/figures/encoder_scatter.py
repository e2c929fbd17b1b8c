"""Pictures of features: training images of two clients as points of a plane, coloured by class, one panel per encoder."""

from typing import Any, NamedTuple

import numpy as np

from bench.measurements.specs import probes_of, result_of
from bench.results.store import Store
from reports.figures.panels import first_runs
from reports.figures.style import colours_of_classes

_MARKERS = "o^"  # of clients, so that a picture can be read without colours too
_PANEL = 3.1  # inches
_COLUMNS = 3  # panels side by side, at most
_LEGEND = {"title": "class (client)", "frameon": False, "fontsize": 9, "title_fontsize": 9, "markerscale": 2}
_TITLES = {
    "fe1": "$f_{{e1}}$: client {0} alone",
    "fe2": "$f_{{e2}}$: client {1} alone",
    "fe": "$f_e$: both concatenated",
    "favg": "$f_{{avg}}$: both averaged",
}


class Panels(NamedTuple):
    """The panels of one run, all of the same images.

    Attributes:
        title: of the run.
        panels: title -> "points" [n][2] and "axes".
        labels, owners: class and client of each image, [n].
        classes: name of each class.
    """

    title: str
    panels: dict[str, dict[str, Any]]
    labels: np.ndarray
    owners: np.ndarray
    classes: list[str]


def collect(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> list[Panels]:
    """What was measured, of the first seed that is done of each cell; arguments as in `reports.figures.series.collect`."""
    shown = []
    for title, config, run in first_runs(grid, records, value):
        measured = [(probe, result_of(store, run, probe)) for probe in probes_of(figure, config["rounds"])]
        found = [(probe.round, result) for probe, result in measured if result]
        panels = {}
        for number, result in found:
            clients = dict.fromkeys(result["owners"])
            for encoder, panel in result["panels"].items():
                of_round = f", round {number}" if len(measured) > 1 else ""
                panels[_TITLES[encoder].format(*clients) + of_round] = panel
        if found:
            first = found[0][1]
            shown.append(Panels(title, panels, np.array(first["labels"]), np.array(first["owners"]), first["classes"]))
    return shown


def draw(shown: list[Panels]):
    """The `matplotlib.figure.Figure`: a block per run, of at most three panels in a row."""
    from matplotlib.figure import Figure

    columns = min(max(len(one.panels) for one in shown), _COLUMNS)
    heights = [_PANEL * -(-len(one.panels) // columns) + 0.9 for one in shown]
    figure = Figure(figsize=(_PANEL * columns, sum(heights)), layout="constrained")
    blocks = figure.subfigures(len(shown), 1, squeeze=False, height_ratios=heights).flatten()
    for block, one in zip(blocks, shown, strict=True):
        grid = block.subplots(-(-len(one.panels) // columns), columns, squeeze=False).flatten()
        for axes, (title, panel) in zip(grid, one.panels.items(), strict=False):
            _scatter(axes, np.array(panel["points"], dtype=float), one)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(panel["axes"][0], fontsize=8)
            axes.set_ylabel(panel["axes"][1], fontsize=8)
            axes.tick_params(labelsize=7)
            if "t-SNE" in panel["axes"][0]:  # its distances have no unit
                axes.set(xticks=[], yticks=[])
        for axes in grid[len(one.panels) :]:
            axes.set_axis_off()
        block.suptitle(f"Features of both clients' images: {one.title}", fontsize=11)
        handles, names = grid[0].get_legend_handles_labels()
        block.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4), **_LEGEND)
    return figure


def _scatter(axes, points: np.ndarray, one: Panels) -> None:
    """One colour per class, one marker per client."""
    present = np.unique(one.labels).tolist()
    colours = colours_of_classes(len(present))
    for client, marker in zip(np.unique(one.owners).tolist(), _MARKERS, strict=True):
        for label, colour in zip(present, colours, strict=False):
            chosen = (one.owners == client) & (one.labels == label)
            if chosen.any():
                name = f"{one.classes[label]} (client {client})"
                axes.scatter(*points[chosen].T, s=9, marker=marker, color=colour, alpha=0.6, linewidth=0, label=name)
