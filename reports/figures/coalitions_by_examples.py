"""Figure of how many others each client trains with in FedCollab, over its number of examples.

Corollary 3.5 of Bao et al. (ICML 2023, https://arxiv.org/abs/2306.06508): clients with more data are pickier.
"""

from typing import Literal, NamedTuple

import numpy as np

from bench.results.grids import StoredGrid
from bench.results.store import Store
from reports.figures import Figure, registered_figure
from reports.figures.divergences import Divided, divided, titled
from reports.figures.lines import STYLE, placed
from reports.figures.style import COLOURS
from reports.tables.records import Records
from reports.widths import FIGURES, Widths

_LABELS = {"clients": "Clients in its coalition", "weight": "Weight of other clients"}
_AREA = 14  # of the point of one client, in points^2; that of several has as much for each
_WIDE = 10  # ratio of the largest number of examples to the smallest, from which their axis is logarithmic


_LABEL, _MARGIN = 0.25, 0.6  # inches: of a number above points, and of a panel beside its axis


class Partners(NamedTuple):
    """One panel.

    Attributes:
        run: its coalitions.
        y: "clients" or "weight".
        values: [N], of each client: clients in its coalition, itself included, or the weight of all others in the mean of its
            coalition, in [0, 1): 1 - alpha_ii of the paper.
    """

    run: Divided
    y: str
    values: np.ndarray


@registered_figure("coalitions-by-examples")
class CoalitionsByExamples(Figure):
    """How many others clients train with in FedCollab, over their numbers of training examples.

    Attributes:
        y: "clients" for the clients of a coalition, "weight" for the weight of all others in the mean of a client's coalition.
    """

    y: Literal["clients", "weight"] = "clients"

    @property
    def name(self) -> str:
        return f"coalitions-by-examples-{self.y}"

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> list[Partners]:
        runs = [run for run in divided(grid, records) if len(run.num_examples) == len(run.coalitions)]
        return [Partners(run, self.y, _values(run, self.y)) for run in runs]

    def draw(self, found: list[Partners], widths: Widths = FIGURES):
        """A panel per setting, a point per client; equal ones are one, and where points are close their number stands above
        them."""
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

        columns, width = placed(len(found), widths)
        rows = -(-len(found) // columns)
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(width, 2.2 * rows + 0.3), layout="constrained")
            drawn = figure.subplots(rows, columns, squeeze=False).ravel()
            for axes, panel in zip(drawn, found, strict=False):
                points, counts = np.unique(
                    np.stack([panel.run.num_examples, panel.values], 1), axis=0, return_counts=True
                )
                axes.scatter(*points.T, s=_AREA * counts, color=COLOURS[0], alpha=0.7, linewidth=0)
                is_log = panel.run.num_examples.max() >= _WIDE * panel.run.num_examples.min()
                for place, count in _labels(points, counts, is_log, width / columns - _MARGIN):
                    above = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 7}
                    axes.annotate(f"×{count}", place, (0, 5), **above)
                axes.set_title(titled(panel.run, f"C = {panel.run.capacity:g}: {panel.run.counted}", width / columns))
                axes.locator_params(axis="x", nbins=4)
                if is_log:
                    axes.set_xscale("log")
                    axes.xaxis.set_major_locator(
                        LogLocator(subs=(1, 3) if np.ptp(np.log10(points[:, 0])) < 1.5 else (1,))
                    )
                    axes.xaxis.set_major_formatter("{x:g}")
                    axes.xaxis.set_minor_formatter(NullFormatter())
                if panel.y == "clients":
                    axes.set_ylim(0, 1.15 * panel.values.max() + 1)
                    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
                else:
                    axes.set_ylim(-0.05, 1.15)
                axes.margins(x=0.12)
            for axes in drawn[len(found) :]:
                axes.remove()
            figure.supxlabel("Training examples of a client", fontsize=STYLE["axes.labelsize"])
            figure.supylabel(_LABELS[found[0].y], fontsize=STYLE["axes.labelsize"])
        return figure


def _values(run: Divided, y: str) -> np.ndarray:
    together = run.coalitions[:, None] == run.coalitions
    return together.sum(1) if y == "clients" else 1 - run.num_examples / (together @ run.num_examples)


def _labels(points: np.ndarray, counts: np.ndarray, is_log: bool, length: float) -> list[tuple[np.ndarray, int]]:
    """Where numbers of clients stand, and which: one for all points of a height that are closer than a number is wide.

    Args:
        points, counts: [M, 2] and [M]: places in rising order of x, and clients at each.
        is_log: whether the x axis is logarithmic.
        length: of the x axis in inches.
    """
    x = np.log(points[:, 0]) if is_log else points[:, 0]
    inches = (x - x.min()) * length / max(np.ptp(x), 1e-9)
    found = []
    for height in np.unique(points[:, 1]):
        (level,) = np.nonzero(points[:, 1] == height)
        for group in np.split(level, np.flatnonzero(np.diff(inches[level]) > _LABEL) + 1):
            if counts[group].sum() > 1:
                found.append((points[group].mean(0), int(counts[group].sum())))
    return found
