"""Figure of how many others each client trains with in FedCollab, over its number of examples.

Corollary 3.5 of Bao et al. (ICML 2023, https://arxiv.org/abs/2306.06508): clients with more data are pickier.
"""

from typing import NamedTuple

import numpy as np

from bench.results.store import Store
from reports.figures.divergences import Divided, divided, titled
from reports.figures.lines import STYLE, placed
from reports.figures.style import COLOURS
from reports.widths import FIGURES, Widths

_LABELS = {"clients": "Clients in its coalition", "weight": "Weight of other clients"}
_AREA = 14  # of the point of one client, in points^2; that of several has as much for each
_WIDE = 10  # ratio of the largest number of examples to the smallest, from which their axis is logarithmic


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


def collect(figure: dict, grid: dict, records: dict, store: Store, value: str | None = None) -> list[Partners]:
    """The panels of a figure; arguments as in `reports.figures.series.collect`."""
    runs = [run for run in divided(grid, records) if len(run.num_examples) == len(run.coalitions)]
    return [Partners(run, figure["y"], _values(run, figure["y"])) for run in runs]


def _values(run: Divided, y: str) -> np.ndarray:
    together = run.coalitions[:, None] == run.coalitions
    return together.sum(1) if y == "clients" else 1 - run.num_examples / (together @ run.num_examples)


def draw(panels: list[Partners], widths: Widths = FIGURES):
    """The `matplotlib.figure.Figure`: a panel per setting, a point per client; equal ones are one, with their number."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns, width = placed(len(panels), widths)
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, 2.2 * rows + 0.3), layout="constrained")
        drawn = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(drawn, panels, strict=False):
            points, counts = np.unique(np.stack([panel.run.num_examples, panel.values], 1), axis=0, return_counts=True)
            axes.scatter(*points.T, s=_AREA * counts, color=COLOURS[0], alpha=0.7, linewidth=0)
            for point, count in zip(points, counts, strict=True):
                if count > 1:
                    axes.annotate(f"×{count}", point, (6, 3), textcoords="offset points", fontsize=7)
            axes.set_title(titled(panel.run, f"C = {panel.run.capacity:g}: {panel.run.counted}", width / columns))
            if panel.run.num_examples.max() >= _WIDE * panel.run.num_examples.min():
                axes.set_xscale("log")
            if panel.y == "clients":
                axes.set_ylim(0, panel.values.max() + 1)
                axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            else:
                axes.set_ylim(-0.05, 1.05)
            axes.margins(x=0.12)
        for axes in drawn[len(panels) :]:
            axes.remove()
        figure.supxlabel("Training examples of a client", fontsize=STYLE["axes.labelsize"])
        figure.supylabel(_LABELS[panels[0].y], fontsize=STYLE["axes.labelsize"])
    return figure
