"""Pictures of features: training images of two clients as points of a plane, coloured by class, one panel per encoder."""

from typing import Any, NamedTuple

import numpy as np

from bench.measurements.specs import probes_of, result_of
from bench.results.store import Store
from reports.figures.lines import LETTER, STYLE, wrapped
from reports.figures.panels import first_runs
from reports.figures.style import colours_of_classes
from reports.widths import FIGURES, Widths

_MARKERS = "o^"  # of clients, so that a picture can be read without colours too
_NARROWEST = 2.0  # inches, of a panel
_COLUMNS = 3  # panels side by side, at most
_LEGEND = {"title": "class (client)", "frameon": False, "markerscale": 2}
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

    @property
    def shown(self) -> dict[tuple[int, int], str]:
        """Client and label of images -> what the legend calls them."""
        pairs = sorted({*zip(self.owners.tolist(), self.labels.tolist(), strict=True)})
        return {(client, label): f"{self.classes[label]} (client {client})" for client, label in pairs}


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


def draw(shown: list[Panels], widths: Widths = FIGURES):
    """The `matplotlib.figure.Figure`: a block per run, of at most three panels in a row."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(max(len(one.panels) for one in shown), _COLUMNS, max(1, int(widths.text / _NARROWEST)))
    width = widths.text if columns > 1 else widths.column
    names_of = [[*one.shown.values()] for one in shown]
    ncols = max(1, int(width / (0.3 + LETTER * max(len(name) for names in names_of for name in names))))
    legends = [0.3 + 0.15 * -(-len(names) // ncols) for names in names_of]
    heights = [
        (width / columns) * -(-len(one.panels) // columns) + 0.3 + of for one, of in zip(shown, legends, strict=True)
    ]
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        blocks = figure.subfigures(len(shown), 1, squeeze=False, height_ratios=heights).flatten()
        for block, one in zip(blocks, shown, strict=True):
            grid = block.subplots(-(-len(one.panels) // columns), columns, squeeze=False).flatten()
            for axes, (title, panel) in zip(grid, one.panels.items(), strict=False):
                _scatter(axes, np.array(panel["points"], dtype=float), one)
                axes.set_title(title)
                axes.set_xlabel(panel["axes"][0])
                axes.set_ylabel(panel["axes"][1])
                if "t-SNE" in panel["axes"][0]:  # its distances have no unit
                    axes.set(xticks=[], yticks=[])
            for axes in grid[len(one.panels) :]:
                axes.set_axis_off()
            about = wrapped(f"Features of both clients' images: {one.title}", width)
            block.suptitle(about, fontsize=STYLE["axes.titlesize"])
            handles, names = grid[0].get_legend_handles_labels()
            block.legend(handles, names, loc="outside lower center", ncols=min(len(names), ncols), **_LEGEND)
    return figure


def _scatter(axes, points: np.ndarray, one: Panels) -> None:
    """One colour per class, one marker per client."""
    colours = colours_of_classes(len(np.unique(one.labels)))
    for (client, label), name in one.shown.items():
        marker = _MARKERS[np.unique(one.owners).tolist().index(client)]
        colour = colours[np.unique(one.labels).tolist().index(label)]
        chosen = (one.owners == client) & (one.labels == label)
        axes.scatter(*points[chosen].T, s=9, marker=marker, color=colour, alpha=0.6, linewidth=0, label=name)
