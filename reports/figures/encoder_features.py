"""Pictures of features: training images of two clients as points of a plane, coloured by class, one panel per encoder."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from bench.results.grids import StoredGrid
from bench.results.json_schema import is_integer, is_number, is_text
from bench.results.store import Store
from reports.figures import Figure, Probe, Round, registered_figure, rounds_of
from reports.figures.lines import LETTER, STYLE, wrapped
from reports.figures.panels import first_results
from reports.figures.style import colours_of_classes
from reports.tables.records import Records
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    from bench.measurements.run import FinishedRun

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


@registered_figure("encoder-features")
class EncoderFeatures(Figure):
    """Features of the training images of two clients in the plane, under encoders that these have trained.

    Attributes:
        encoders: those of either client ("fe1", "fe2"), their average ("favg") and both side by side ("fe").
        rounds: whose local training the encoders have just ended.
        view: "pca" keeps distances, "tsne" neighbourhoods (see `bench.measurements.encoders.project`).
        points: images of each client, at most.
    """

    encoders: Annotated[list[Literal["fe1", "fe2", "favg", "fe"]], Field(min_length=1)] = ["fe1", "fe2", "fe"]
    rounds: Annotated[list[Round], Field(min_length=1)] = ["last"]
    view: Literal["pca", "tsne"] = "pca"
    points: int = Field(1000, gt=1)

    shape = {
        "panels": {str: {"points": [[(is_number, None)]], "axes": [is_text]}},
        "labels": [is_integer],
        "owners": [is_integer],
        "classes": [is_text],
    }

    @property
    def name(self) -> str:
        return f"encoder-features-{self.view}"

    def probes(self, rounds: int) -> list[Probe]:
        option = (self.view, *self.encoders, self.points)
        return [Probe(self.kind, number, option) for number in rounds_of(self.rounds, rounds)]

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements import encoders

        return encoders.plane(run.local_task, run.local_models(probe), self.encoders, self.view, self.points)

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> list[Panels]:
        """What was measured, of the first seed that is done of each cell."""
        shown = []
        for title, config, found in first_results(self, grid, records, store, value):
            panels = {}
            for probe, result in found.items():
                clients = dict.fromkeys(result["owners"])
                for encoder, panel in result["panels"].items():
                    of_round = f", round {probe.round}" if len(self.probes(config["rounds"])) > 1 else ""
                    panels[_TITLES[encoder].format(*clients) + of_round] = panel
            first = next(iter(found.values()))
            shown.append(Panels(title, panels, np.array(first["labels"]), np.array(first["owners"]), first["classes"]))
        return shown

    def draw(self, found: list[Panels], widths: Widths = FIGURES):
        """A block per run, of at most three panels in a row."""
        import matplotlib
        from matplotlib.figure import Figure

        columns = min(max(len(one.panels) for one in found), _COLUMNS, max(1, int(widths.text / _NARROWEST)))
        width = widths.text if columns > 1 else widths.column
        names_of = [[*one.shown.values()] for one in found]
        ncols = max(1, int(width / (0.3 + LETTER * max(len(name) for names in names_of for name in names))))
        legends = [0.3 + 0.15 * -(-len(names) // ncols) for names in names_of]
        heights = [
            (width / columns) * -(-len(one.panels) // columns) + 0.3 + of
            for one, of in zip(found, legends, strict=True)
        ]
        with matplotlib.rc_context(STYLE | {"axes.grid": False}):
            figure = Figure(figsize=(width, sum(heights)), layout="constrained")
            blocks = figure.subfigures(len(found), 1, squeeze=False, height_ratios=heights).flatten()
            for block, one in zip(blocks, found, strict=True):
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
