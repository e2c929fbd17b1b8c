"""Heat maps side by side, a row per run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reports.figures.lines import STYLE
from reports.widths import FIGURES, Widths

_PANEL, _NARROWEST, _LABELS = 1.9, 1.4, 0.4  # inches: a panel, at least, and what stands left of a row
_MOST_TICKS = 10


class Matrix(NamedTuple):
    """One panel.

    Attributes:
        run: label of the run, for its row of panels.
        title: above the panel.
        values: [rows, columns]; NaN for an undefined value.
        row_name, column_name: labels of the axes.
        rows, columns: labels of the ticks.
        scale: name of the quantity; panels with the same one share the colour scale.
    """

    run: str
    title: str
    values: np.ndarray
    row_name: str
    column_name: str
    rows: list[int]
    columns: list[int]
    scale: str


def draw(rows: list[list[Matrix]], widths: Widths = FIGURES):
    """The `matplotlib.figure.Figure` of panels."""
    import matplotlib
    from matplotlib.figure import Figure

    most = max(1, int((widths.text - _LABELS) / _NARROWEST))
    rows = [row[first : first + most] for row in rows for first in range(0, len(row), most)]
    width = max(map(len, rows))
    side = min(_PANEL, (widths.text - _LABELS) / width)
    scales: dict[str, list[np.ndarray]] = {}
    for panel in (panel for row in rows for panel in row):
        scales.setdefault(panel.scale, []).append(panel.values)
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(side * width + _LABELS, side * len(rows) + 0.6), layout="constrained")
        grid = figure.subplots(len(rows), width, squeeze=False)
        drawn: dict[str, list] = {}
        for axes_of_row, row in zip(grid, rows, strict=True):
            for axes in axes_of_row[len(row) :]:
                axes.remove()
            for axes, panel in zip(axes_of_row, row, strict=False):
                low, high = _limits(panel.scale, scales)
                image = axes.imshow(panel.values, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
                axes.set_title(panel.title)
                axes.set_xlabel(panel.column_name)
                first = axes is axes_of_row[0]
                axes.set_ylabel(f"{row[0].run}\n\n{panel.row_name}" if first else panel.row_name)
                _number(axes.set_xticks, panel.columns)
                _number(axes.set_yticks, panel.rows)
                drawn.setdefault(panel.scale, []).append((axes, image))
        for scale, shown in drawn.items():
            columns = len(shown) / len(rows)
            layout: dict[str, Any] = {"location": "bottom", "aspect": 15 * columns, "fraction": 0.05, "pad": 0.03}
            figure.colorbar(shown[0][1], ax=[axes for axes, _ in shown], label=scale, **layout)
    return figure


def _limits(scale: str, scales: dict[str, list[np.ndarray]]) -> tuple[float, float]:
    """Ends of the colour scale. It includes the diagonal of a similarity, which is 1, and starts at 0 for counts."""
    values = np.concatenate([panel.ravel() for panel in scales[scale]])
    values = values[~np.isnan(values)]
    if not len(values):
        return 0.0, 1.0
    low = 0.0 if scale == "Training examples" else float(values.min())
    return low, max(float(values.max()), low + 1e-9)


def _number(set_ticks: Callable, labels: list[int]) -> None:
    ticks = range(0, len(labels), -(-len(labels) // _MOST_TICKS))
    set_ticks(ticks, [labels[tick] for tick in ticks])
