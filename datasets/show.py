"""Views of a partition: the client x class table, and its bubble plot."""

from pathlib import Path

import numpy as np
import pandas as pd


def count_table(indices: list[np.ndarray], labels: np.ndarray, classes: tuple[str, ...]) -> pd.DataFrame:
    """Examples of each class at each client.

    Args:
        indices: one array of rows of `labels` per client.
        labels: [examples], class of each example.
        classes: name of each class.

    Returns:
        One row per client (index "client", from 0) and one integer column per class, then "total".
    """
    counts = [np.bincount(labels[client], minlength=len(classes)) for client in indices]
    table = pd.DataFrame(np.stack(counts), columns=list(classes)).rename_axis("client")
    return table.assign(total=table.sum(axis=1))


def draw_bubbles(table: pd.DataFrame, path: Path, title: str = "") -> None:
    """Draws one bubble per client and class; its area is proportional to the number of examples.

    Args:
        table: from `count_table`.
        path: of the plot, in the format of its suffix (.png, .svg, .pdf).

    Raises:
        ValueError: a suffix that matplotlib cannot write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    formats = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:] not in formats:
        known = ", ".join(f".{name}" for name in formats)
        raise ValueError(f"A plot is written to a file ending in one of {known}, but got {str(path)!r}.")

    counts = table.drop(columns="total")
    num_clients, num_classes = counts.shape
    width, height = _cell(10, num_clients), _cell(4, num_classes)  # inches per client and per class
    largest = counts.to_numpy().max()
    # With many clients or classes, bubbles may overlap in one direction; they are translucent.
    diameter = 72 * min(max(width, height, 0.16), 3 * min(width, height))  # of the largest, in points

    def area(count):
        return diameter**2 * count / largest

    figure = Figure(figsize=(width * num_clients + 2.6, height * num_classes + 1.3), layout="constrained")
    axes = figure.subplots()
    clients, labels = np.nonzero(counts.to_numpy())
    axes.scatter(clients, labels, area(counts.to_numpy()[clients, labels]), alpha=0.6, linewidth=0)
    for count in legend_counts(largest):
        axes.scatter([], [], area(count), color="C0", alpha=0.6, linewidth=0, label=f"{count:,}")
    axes.legend(title="examples", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelspacing=1.2)

    axes.set_xlim(-1, num_clients)
    axes.set_ylim(-1, num_classes)
    step = max(1, round(0.12 / height))  # a label needs about 0.12 inches
    axes.set_yticks(range(0, num_classes, step), counts.columns[::step], fontsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_axisbelow(True)
    axes.grid(color="0.92", linewidth=0.5)
    axes.set(xlabel="client", ylabel="class", title=title)
    figure.savefig(path, dpi=150)


def _cell(total: float, count: int) -> float:
    """Inches per row or column, so that `count` of them take about `total` inches."""
    return float(np.clip(total / count, 0.08, 0.4))


def legend_counts(largest: int) -> list[int]:
    """Up to three round numbers of examples, from a tenth of the largest count to nearly all of it."""
    counts = [_round_down(largest * share) for share in (0.1, 0.4, 1)]
    return sorted({count for count in counts if count > 0})


def _round_down(value: float) -> int:
    """The value with one significant digit: 3759 becomes 3000."""
    power = 10 ** int(np.log10(max(value, 1)))
    return int(value // power * power)
