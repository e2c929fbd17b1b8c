"""Views of a partition: the client x class table, and its bubble plot."""

from pathlib import Path

import numpy as np
import pandas as pd

from datasets import skew
from datasets.base import Dataset
from datasets.partitions import Drawn, Partition


def draw(partition: Partition, dataset: Dataset, num_clients: int, seed: int) -> Drawn:
    """How a partition deals a dataset; where clients have test data of their own, indices count through the training and then
    the test examples.

    Raises:
        ValueError: the dataset cannot be dealt this way.
    """
    labels, tested = dataset.train.labels, dataset.test.labels
    if not partition.has_own_tests:
        return partition.draw(labels, num_clients, dataset.num_classes, seed, groups=dataset.train.groups)
    labels = np.concatenate([labels, tested])
    return partition.draw(labels, num_clients, dataset.num_classes, seed, num_test=len(tested))


def tables(partition: Partition, dataset: Dataset, num_clients: int, seed: int) -> dict[str, pd.DataFrame]:
    """The examples that clients have: "training", and "testing" where they have test data of their own -> `count_labels`;
    arguments and errors as of `draw`."""
    drawn = draw(partition, dataset, num_clients, seed)
    if drawn.test_indices is None:
        return {"training": count_table(drawn.indices, dataset.train.labels, dataset.classes)}
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])

    def count(indices: list[np.ndarray]) -> pd.DataFrame:
        named = [partition.client_labels(labels[own], client, num_clients) for client, own in enumerate(indices)]
        return count_labels(named, dataset.classes)

    return {"training": count(drawn.indices), "testing": count(drawn.test_indices)}


def count_table(indices: list[np.ndarray], labels: np.ndarray, classes: tuple[str, ...]) -> pd.DataFrame:
    """Examples of each class at each client.

    Args:
        indices: one array of rows of `labels` per client.
        labels: [examples], class of each example.
        classes: name of each class.

    Returns:
        One row per client (index "client", from 0) and one integer column per class, then "total".
    """
    return count_labels([labels[client] for client in indices], classes)


def count_labels(labels: list[np.ndarray], classes: tuple[str, ...]) -> pd.DataFrame:
    """The table of `count_table`, of the labels of each client's examples."""
    counts = [np.bincount(client, minlength=len(classes)) for client in labels]
    table = pd.DataFrame(np.stack(counts), columns=list(classes)).rename_axis("client")
    return table.assign(total=table.sum(axis=1))


def skew_of(table: pd.DataFrame) -> skew.Skew:
    """The skew of the partition that a table of `count_table` shows."""
    return skew.measure(table.drop(columns="total").to_numpy())


def draw_bubbles(table: pd.DataFrame, path: Path, title: str = "", test: pd.DataFrame | None = None) -> None:
    """Draws one bubble per client and class; its area is proportional to the number of examples.

    Args:
        table: from `count_table`.
        path: of the plot, in the format of its suffix (.png, .svg, .pdf).
        test: the table of the clients' own test examples, to be drawn below on the same scale.

    Raises:
        ValueError: a suffix that matplotlib cannot write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    formats = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:] not in formats:
        known = ", ".join(f".{name}" for name in formats)
        raise ValueError(f"A plot is written to a file ending in one of {known}, but got {str(path)!r}.")

    shown = [table] if test is None else [table, test]
    parts = [part.drop(columns="total") for part in shown]
    num_clients, num_classes = parts[0].shape
    width, height = _cell(10, num_clients), _cell(4, num_classes)  # inches per client and per class
    largest = max(part.to_numpy().max() for part in parts)
    # With many clients or classes, bubbles may overlap in one direction; they are translucent.
    diameter = 72 * min(max(width, height, 0.16), 3 * min(width, height))  # of the largest, in points

    def area(count):
        return diameter**2 * count / largest

    size = (width * num_clients + 2.6, (height * num_classes + 1.3) * len(parts))
    figure = Figure(figsize=size, layout="constrained")
    for axes, counts in zip(figure.subplots(len(parts), squeeze=False)[:, 0], parts, strict=True):
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
        what = "" if test is None else ", for testing" if counts is parts[-1] else ", for training"
        axes.set(xlabel="client", ylabel="class", title=title + what)
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
