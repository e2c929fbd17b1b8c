"""Heat maps of how much clients' data differ, with the coalitions that FedCollab made of them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bench.experiments.labels import pairs
from bench.results.grids import StoredCell, StoredGrid
from bench.results.json_schema import is_number
from bench.results.omitted_defaults import spell_out
from bench.results.store import Store
from reports.figures import Figure, registered_figure
from reports.figures.lines import STYLE, placed, wrapped
from reports.figures.style import COLOURS
from reports.tables.aggregate import current_cells
from reports.tables.names import Names
from reports.tables.records import Records, ended_runs
from reports.widths import FIGURES, Widths

_TICK = 0.14  # inches, of the id of a client
_FRAME = COLOURS[2]
_BAR: dict[str, Any] = {"location": "bottom", "aspect": 40, "shrink": 0.6, "pad": 0.02}


class Divided(NamedTuple):
    """The coalitions of one run.

    Attributes:
        title: its setting and seed.
        capacity: C with which they were found.
        order: [N], clients in the order of their coalitions, then of their ids.
        coalitions: [N], of each client.
        divergences: [N, N].
        num_examples: [N], training examples of each client; [0] of runs before records had them.
        run_id, config: of the run.
    """

    title: str
    capacity: float
    order: np.ndarray
    coalitions: np.ndarray
    divergences: np.ndarray
    num_examples: np.ndarray
    run_id: str
    config: dict[str, Any]

    @property
    def bounds(self) -> np.ndarray:
        """[K + 1]: where coalitions begin and end in the order."""
        return np.flatnonzero(np.diff(self.coalitions[self.order], prepend=-1, append=-1))

    @property
    def counted(self) -> str:
        """ "3 coalitions"."""
        count = len(self.bounds) - 1
        return f"{count} coalition{'s' * (count > 1)}"


@registered_figure("divergences")
class Divergences(Figure):
    """How much the data of any two clients differ, with the coalitions that FedCollab made of them."""

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> list[Divided]:
        return list(divided(grid, records))

    def draw(self, found: list[Divided], widths: Widths = FIGURES):
        """A panel per setting, with the clients of a coalition side by side in a frame."""
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        columns, width = placed(len(found), widths)
        rows = -(-len(found) // columns)
        with matplotlib.rc_context(STYLE | {"axes.grid": False}):
            side = width / columns
            titles = [titled(panel, f"C = {panel.capacity:g}: {panel.counted}", side) for panel in found]
            height = side + 0.25 + 0.14 * max(len(title.splitlines()) for title in titles)
            figure = Figure(figsize=(width, height * rows + 0.5), layout="constrained")
            drawn = figure.subplots(rows, columns, squeeze=False).ravel()
            for axes, panel, title in zip(drawn, found, titles, strict=False):
                values = panel.divergences[np.ix_(panel.order, panel.order)]
                image = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
                for low, high in zip(panel.bounds, panel.bounds[1:], strict=False):
                    corner, size = (low - 0.5, low - 0.5), high - low
                    axes.add_patch(
                        Rectangle(corner, size, size, fill=False, edgecolor=_FRAME, linewidth=1.2, clip_on=False)
                    )
                axes.set_title(title)
                axes.set_xlabel("Client")
                number_clients(axes.xaxis, panel.order, side - 0.5, rotation=90)
                number_clients(axes.yaxis, panel.order, side - 0.5)
            for axes in drawn[len(found) :]:
                axes.remove()
            figure.supylabel("Client", fontsize=STYLE["axes.labelsize"])
            name = "Divergence of the data of two clients (frames: coalitions)"
            figure.colorbar(image, ax=figure.axes[: len(found)], label=wrapped(name, width - 0.4), **_BAR)
        return figure


def divided(grid: StoredGrid, records: Records) -> Iterator[Divided]:
    """The coalitions of the first finished seed of each setting; bases share them, because they do not depend on the base.

    Settings that one title would name say in which options they differ.
    """
    first: dict[str, tuple[str, StoredCell, dict[str, Any]]] = {}
    current = grid | {"cells": sorted(current_cells(grid, records), key=lambda cell: cell["seed"])}
    for run, cell, record in ended_runs(current, records):
        diagnostics = record.get("diagnostics", {}) if record["status"] == "done" else {}
        if {"coalitions", "divergences"} <= diagnostics.keys() and is_number(_options(cell).get("capacity")):
            first.setdefault(json.dumps([_setting(cell), _options(cell)]), (run, cell, diagnostics))
    order = [json.dumps(_setting(cell)) for cell in grid["cells"]]
    found = sorted(first.values(), key=lambda one: order.index(json.dumps(_setting(one[1]))))
    names, options = Names.of_grid(grid), [_options(cell) for _, cell, _ in found]
    differing = [key for key in options[0] if len({str(one[key]) for one in options}) > 1] if options else []
    for run, cell, diagnostics in found:
        own = _options(cell)
        named = pairs({key: own[key] for key in differing if key != "capacity"})
        on = f" ({names.on(cell['substitute'])})" if cell["substitute"] else ""
        setting = names.together(("dataset", "partition"), _setting(cell)[:2]).plain
        title = ", ".join([setting, *named]) + f"{on}, seed {cell['seed']}"
        coalitions = np.array(diagnostics["coalitions"])
        order_of_clients = np.argsort(coalitions, kind="stable")
        divergences = np.array(diagnostics["divergences"], float)
        examples = np.array(diagnostics.get("num_examples", []))
        of_clients = (order_of_clients, coalitions, divergences, examples)
        yield Divided(title, own["capacity"], *of_clients, run, cell["config"])


def titled(panel: Divided, below: str, width: float) -> str:
    """The title of a panel, in lines that fit into a width in inches, and what is said below it."""
    return f"{wrapped(panel.title, width - 0.35)}\n{below}"


def number_clients(axis, order: np.ndarray, length: float, **options) -> None:
    """Ids of clients as ticks without marks, of as many clients as have room on an axis of this length in inches."""
    ticks = range(0, len(order), -(-len(order) // max(1, int(length / _TICK))))
    axis.set_ticks(ticks, [str(order[tick]) for tick in ticks], **options)
    axis.set_tick_params(length=0, pad=1)


def _setting(cell: StoredCell) -> list:
    return [cell["dataset"], cell["config"]["partition"], cell["substitute"]]


def _options(cell: StoredCell) -> dict[str, Any]:
    """On what coalitions depend, beside the data and the seed."""
    config = spell_out(cell["config"])
    method = {key: value for key, value in config["algorithm"].items() if key not in ("name", "base")}
    return {"clients": config["clients"], **method}
