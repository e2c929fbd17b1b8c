"""Pictures of features: examples as points of a plane, coloured by class, one panel per encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.errors import unknown
from reports.figures.lines import FORMATS, save
from reports.figures.style import colours_of_classes

VIEWS = ("pca", "tsne")
_MARKERS = "o^sDvP"  # of clients, so that a picture can be read without colours too
_PANEL = 3.1  # inches
_LEGEND = {"title": "class (client)", "frameon": False, "fontsize": 9, "title_fontsize": 9, "markerscale": 2}


class Panel(NamedTuple):
    """One encoder's features.

    Attributes:
        title: above the panel.
        features: [n, feature_dim].
    """

    title: str
    features: np.ndarray


def project(features: np.ndarray, view: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Features in the plane.

    Args:
        features: [n, feature_dim], n >= 2.
        view: "pca" keeps distances as far as two directions can; "tsne" keeps neighbourhoods only.
        seed: of the start of t-SNE.

    Returns:
        [n, 2], and what to write at the axes.

    Raises:
        ValueError: if there is no such view.
    """
    if view == "pca":
        from sklearn.decomposition import PCA

        pca = PCA(2, svd_solver="full")
        with np.errstate(invalid="ignore"):  # features that are all alike have no variance to share
            points = pca.fit_transform(features)
        return points, tuple(
            f"component {number} ({share:.0%} of variance)"
            for number, share in enumerate(np.nan_to_num(pca.explained_variance_ratio_), start=1)
        )
    if view == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(features) - 1) / 3)  # scikit-learn's default, where there are enough points
        points = TSNE(2, perplexity=perplexity, init="pca", random_state=seed % 2**32).fit_transform(features)
        return points, ("t-SNE dimension 1", "t-SNE dimension 2")
    raise ValueError(unknown("view", view, VIEWS))


def draw(
    panels: Sequence[Panel],
    labels: np.ndarray,
    clients: np.ndarray,
    classes: Sequence[str],
    stem: Path,
    *,
    title: str,
    view: str = "pca",
    seed: int = 0,
) -> list[Path]:
    """Draws panels side by side, at most three in a row, all of the same examples.

    Args:
        panels: features of the encoders.
        labels: [n], class of each example.
        clients: [n], client of each example.
        classes: name of each class.
        stem: path of the pictures without a suffix.
        title: above all panels.
        view, seed: as in `project`.

    Returns:
        The pictures, one of each of `reports.figures.lines.FORMATS`.
    """
    from matplotlib.figure import Figure

    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_PANEL * columns, _PANEL * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, panel in zip(grid, panels, strict=False):
        points, axis_labels = project(panel.features, view, seed)
        _scatter(axes, points, labels, clients, classes)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(axis_labels[0], fontsize=8)
        axes.set_ylabel(axis_labels[1], fontsize=8)
        axes.tick_params(labelsize=7)
        if view == "tsne":  # its distances have no unit
            axes.set(xticks=[], yticks=[])
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize=11)
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4), **_LEGEND)
    paths = [stem.with_name(f"{stem.name}.{format}") for format in FORMATS]
    for path in paths:
        save(figure, path)
    return paths


def _scatter(axes, points: np.ndarray, labels: np.ndarray, clients: np.ndarray, classes: Sequence[str]) -> None:
    """One colour per class, one marker per client."""
    present = np.unique(labels).tolist()
    colours = colours_of_classes(len(present))
    for number, client in enumerate(np.unique(clients).tolist()):
        for position, label in enumerate(present):
            chosen = (clients == client) & (labels == label)
            if chosen.any():
                axes.scatter(
                    *points[chosen].T,
                    s=9,
                    marker=_MARKERS[number % len(_MARKERS)],
                    color=colours[position],
                    alpha=0.6,
                    linewidth=0,
                    label=f"{classes[label]} (client {client})",
                )
