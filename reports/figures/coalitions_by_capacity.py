"""Figure of the best coalitions that were found for every C of FedCollab in a range: how many, and who is in which."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from bench.results.grids import StoredGrid
from bench.results.json_schema import is_integer, is_number
from bench.results.store import Store
from reports.figures import Figure, Probe, registered_figure
from reports.figures.divergences import Divided, divided, number_clients, titled
from reports.figures.lines import STYLE, placed
from reports.figures.style import colours_of_classes
from reports.tables.records import Records
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    from bench.config.schema import RunConfig
    from bench.measurements.run import FinishedRun

_ALONE = -1  # the colour number of a client that trains by itself
_HEIGHTS = (1, 2.6)  # of the two parts of a panel
_RUN: dict[str, Any] = {"color": "0.2", "linestyle": "--", "linewidth": 1}
_SAME: dict[str, Any] = {"color": "0.88", "linewidth": 0}


class ByCapacity(NamedTuple):
    """One panel.

    Attributes:
        run: its coalitions.
        ends: [S + 1], of intervals of C.
        coalitions: [S, N], the best that were found in each interval.
    """

    run: Divided
    ends: np.ndarray
    coalitions: np.ndarray

    @property
    def same(self) -> tuple[float, float] | None:
        """Ends of the interval with the coalitions of the run; None without one."""
        (found,) = np.nonzero((self.coalitions == self.run.coalitions).all(1))
        return (self.ends[found[0]], self.ends[found[-1] + 1]) if len(found) else None


@registered_figure("coalitions-by-capacity")
class CoalitionsByCapacity(Figure):
    """The best coalitions that a search finds for every C of FedCollab (its option `capacity`) in a range.

    Attributes:
        smallest, largest: ends of the range.
    """

    smallest: float = Field(0.5, gt=0)
    largest: float = Field(50.0, gt=0)

    shape = {"ends": [is_number], "coalitions": [[is_integer]]}

    @model_validator(mode="after")
    def _is_a_range(self) -> "CoalitionsByCapacity":
        if self.smallest >= self.largest:
            raise ValueError(f"smallest must be less than largest ({self.largest:g}), but got {self.smallest:g}.")
        return self

    def probes(self, rounds: int) -> list[Probe]:
        return [Probe(self.kind, option=(self.smallest, self.largest))]

    def is_measurable(self, probe: Probe, config: "RunConfig") -> bool:
        return config.algorithm["name"] == "fedcollab"

    def measure(self, run: "FinishedRun", probe: Probe) -> dict[str, Any]:
        from bench.measurements.capacities import coalitions_of

        found = run.record["diagnostics"]
        return coalitions_of(run.task, found["divergences"], found["coalitions"], self.smallest, self.largest)

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> list[ByCapacity]:
        return [
            ByCapacity(run, np.array(found["ends"]), np.array(found["coalitions"]))
            for run in divided(grid, records)
            for found in self.results(store, run.run_id, run.config["rounds"], records[run.run_id]).values()
        ]

    def draw(self, found: list[ByCapacity], widths: Widths = FIGURES):
        """For each setting the number of coalitions over C, and beneath it the coalition of each client."""
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        columns, width = placed(len(found), widths)
        rows = -(-len(found) // columns)
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(width, 2.9 * rows + 0.5), layout="constrained")
            drawn = figure.subplots(2 * rows, columns, squeeze=False, sharex="col", height_ratios=_HEIGHTS * rows)
            for number, panel in enumerate(found):
                row, column = divmod(number, columns)
                _draw_counts(drawn[2 * row, column], panel, width / columns)
                _draw_coalitions(drawn[2 * row + 1, column], panel)
            for number in range(len(found), rows * columns):
                for axes in drawn[2 * (number // columns) :, number % columns]:
                    axes.remove()
            for row in range(rows):
                drawn[2 * row, 0].set_ylabel("Coalitions (best found)")
                drawn[2 * row + 1, 0].set_ylabel("Client, by coalition")
            figure.supxlabel("C (capacity)", fontsize=STYLE["axes.labelsize"])
            handles = {
                "C of the run": Line2D([], [], **_RUN),
                "coalitions of the run": Patch(**_SAME),
                "alone": Patch(facecolor="white", edgecolor="0.5", linewidth=0.5),
            }
            layout = {"ncols": 3 if width > 3.5 else 2, "columnspacing": 1, "frameon": False}
            figure.legend(handles.values(), handles, loc="outside upper center", **layout)
        return figure


def _draw_counts(axes, panel: ByCapacity, width: float) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = panel.coalitions.max(1) + 1
    if panel.same:
        axes.axvspan(*panel.same, **_SAME)
    axes.stairs(counts, panel.ends, baseline=None, color=colours_of_classes(1)[0], linewidth=1.2)
    axes.axvline(panel.run.capacity, **_RUN)
    axes.set_ylim(0, counts.max() + 1)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(titled(panel.run, _range_of_run(panel), width))


def _draw_coalitions(axes, panel: ByCapacity) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import LogLocator, NullFormatter

    colours = _colours(panel)
    palette = ListedColormap(["white", *colours_of_classes(colours.max() + 1)])
    mesh = {"cmap": palette, "vmin": _ALONE - 0.5, "vmax": colours.max() + 0.5, "linewidth": 0, "rasterized": True}
    places = np.arange(len(panel.run.order) + 1) - 0.5
    axes.pcolormesh(panel.ends, places, colours.T[panel.run.order], **mesh)
    for bound in panel.run.bounds[1:-1]:
        axes.axhline(bound - 0.5, color="white", linewidth=1)
    axes.axvline(panel.run.capacity, **_RUN)
    axes.set_xscale("log")
    axes.set_xlim(panel.ends[0], panel.ends[-1])
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelbottom=True)  # also where another panel is below
    axes.invert_yaxis()
    axes.grid(visible=False)
    number_clients(axes.yaxis, panel.run.order, 1.5)


def _range_of_run(panel: ByCapacity) -> str:
    """For which C the coalitions are those of the run."""
    counted = panel.run.counted
    if not panel.same:
        return f"{counted} at C = {panel.run.capacity:g}"
    (low, high), (smallest, largest) = panel.same, panel.ends[[0, -1]]
    if low > smallest and high < largest:
        return f"{counted} for C from {low:.2f} to {high:.2f}"
    if low == smallest and high == largest:
        return f"{counted} for all these C"
    return f"{counted} for C {f'above {low:.2f}' if low > smallest else f'below {high:.2f}'}"


def _colours(panel: ByCapacity) -> np.ndarray:
    """The number of a colour for each client in each interval [S, N], _ALONE for one that is alone.

    From the interval with the C of the run outwards, a coalition has the colour of most of its clients in the interval before,
    unless a larger one has it.
    """
    count = len(panel.coalitions)
    start = int(np.clip(np.searchsorted(panel.ends, panel.run.capacity) - 1, 0, count - 1))
    nobody = np.full(panel.coalitions.shape[1], _ALONE)
    colours = np.tile(nobody, (count, 1))
    colours[start] = _coloured(panel.coalitions[start], nobody)
    for number in range(start + 1, count):
        colours[number] = _coloured(panel.coalitions[number], colours[number - 1])
    for number in reversed(range(start)):
        colours[number] = _coloured(panel.coalitions[number], colours[number + 1])
    return colours


def _coloured(coalitions: np.ndarray, before: np.ndarray) -> np.ndarray:
    sizes = np.bincount(coalitions)
    found, used = np.full_like(before, _ALONE), set()
    for coalition in np.argsort(-sizes, kind="stable"):
        members = coalitions == coalition
        if sizes[coalition] > 1:
            votes = np.bincount(before[members] + 1, minlength=2)[1:]
            old = [colour for colour in np.argsort(-votes, kind="stable") if votes[colour] and colour not in used]
            new = (colour for colour in range(len(coalitions)) if colour not in used)
            found[members] = old[0] if old else next(new)
            used.add(int(found[members][0]))
    return found
