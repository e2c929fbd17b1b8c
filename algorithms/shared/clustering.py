"""Groups of clients with similar label distributions or models: K-means, with a limit on sizes, the elbow rule for K, and the
best cut in two."""

import math
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from algorithms.shared.types import RunConfig, Task
from bench import models
from bench.models.base import Model
from bench.seeding import seed_for

NumClusters = int | Literal["elbow", "none"]
ClusterInit = Literal["common", "independent"]

_RESTARTS = 10  # scikit-learn's default when FedConcat was written
_BALANCING_STEPS = 100
_SPARE = 1.2  # capacity of a cluster, in units of equal shares
_LARGEST_K = 20  # that the elbow rule considers


def cluster_seed(task: Task) -> int:
    """The seed of everything random about the clusters of a task, below 2^32."""
    return seed_of_clusters(task.seed)


def seed_of_clusters(seed: int) -> int:
    """The same for the seed of a run."""
    return seed_for(seed, "clusters") % 2**32


def too_many_clusters(num_clusters: NumClusters, config: RunConfig) -> list[str]:
    """Why the clients of a config cannot form so many clusters: one sentence, or none."""
    if isinstance(num_clusters, int) and num_clusters > config.population:
        return [f"num_clusters must be at most the number of clients ({config.population}), but got {num_clusters}."]
    return []


def model_of_cluster(task: Task, names: Sequence[str], cluster: int) -> Model:
    """The model that a cluster trains: of those with these names, the one whose number is the cluster's modulo their count;
    without names, that of the task."""
    if not names:
        return task.model
    return models.load(names[cluster % len(names)])(task.model.input_shape, task.model.num_classes)


def k_means(points: np.ndarray, num_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Lloyd's algorithm from k-means++ starts, the best of ten.

    Args:
        points: [n, dim].
        num_clusters: K, at most n.
        seed: of the starts, below 2^32.

    Returns:
        Cluster of each point [n], centroids [K, dim], and the sum of squared distances to them.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():  # equal points make fewer clusters than requested, which is no mistake
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(num_clusters, n_init=_RESTARTS, random_state=seed).fit(points)
    return found.labels_.astype(np.int64), found.cluster_centers_, float(found.inertia_)


def balanced_k_means(points: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """K-means in which no cluster has more than floor(1.2 n / K) points, or what n points need if that is more
    (section 8 of FedConcat's digest).

    From the centroids of K-means, a hundred times: every point goes to its nearest centroid; an empty cluster's centroid
    moves to a random point; full clusters give up their farthest points, which join the nearest cluster with room.

    Returns:
        Cluster of each point [n].
    """
    capacity = max(math.floor(_SPARE * len(points) / num_clusters), math.ceil(len(points) / num_clusters))
    _, centroids, _ = k_means(points, num_clusters, seed)
    random = np.random.default_rng(seed)
    for _ in range(_BALANCING_STEPS):
        distances = np.linalg.norm(points[:, None] - centroids[None], axis=2)
        labels = distances.argmin(1)
        for cluster in np.setdiff1d(np.arange(num_clusters), labels):
            centroids[cluster] = points[random.integers(len(points))]
        allowed, removed = np.ones_like(distances, dtype=bool), []
        for cluster in range(num_clusters):
            members = np.flatnonzero(labels == cluster)
            excess = max(0, len(members) - capacity)
            farthest = members[np.argsort(-distances[members, cluster], kind="stable")[:excess]]
            allowed[farthest, cluster] = False
            labels[farthest] = -1
            removed += farthest.tolist()
        for point in sorted(removed):
            room = np.bincount(labels[labels >= 0], minlength=num_clusters) < capacity
            labels[point] = np.where(allowed[point] & room, distances[point], np.inf).argmin()
        for cluster in np.unique(labels):
            centroids[cluster] = points[labels == cluster].mean(0)
    return labels


def elbow(points: np.ndarray, seed: int) -> int:
    """The K at which more clusters stop to pay: that of the largest distance below the chord of the curve of inertias.

    Differs from the paper, which names the elbow rule without saying how it is read off: K = 1..20, both axes scaled to
    [0, 1] (section 8 of FedConcat's digest).
    """
    return elbow_of(inertias(points, seed))


def inertias(points: np.ndarray, seed: int) -> list[float]:
    """The sums of squared distances to centroids for K = 1, 2, ..., as far as the elbow rule looks; arguments of `k_means`."""
    return [k_means(points, number, seed)[2] for number in range(1, min(_LARGEST_K, len(points)) + 1)]


def elbow_of(inertias: list[float]) -> int:
    """The elbow of a falling curve of inertias of K = 1, 2, ...; 1 if it does not fall, or falls in a straight line."""
    curve = np.asarray(inertias, dtype=float)
    if len(curve) < 2 or curve[0] <= curve[-1]:
        return 1
    heights = (curve - curve[-1]) / (curve[0] - curve[-1])
    below = 1 - np.linspace(0, 1, len(curve)) - heights
    return int(np.argmax(below.round(9))) + 1  # rounded: on a straight line the differences are rounding


def in_equal_parts(count: int, num_clusters: int, seed: int) -> np.ndarray:
    """A random cluster for each of `count` points, in clusters whose sizes differ by one at most."""
    labels = np.empty(count, dtype=np.int64)
    for cluster, members in enumerate(np.array_split(np.random.default_rng(seed).permutation(count), num_clusters)):
        labels[members] = cluster
    return labels


def bipartition(similarities: np.ndarray) -> np.ndarray:
    """The cut of points in two parts whose most similar pair across the cut is as dissimilar as can be.

    It is the last merge of single linkage: the tree joins pairs in descending order of similarity, and what remains apart
    longest is what the cut divides.

    Args:
        similarities: [n, n], symmetric, n >= 2.

    Returns:
        Part of each point, 0 or 1 [n]; that of the first point is 0.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage

    above_diagonal = similarities[np.triu_indices(len(similarities), 1)]
    # linkage wants distances, and only their order matters to it.
    parts = cut_tree(linkage(above_diagonal.max() - above_diagonal, "single"), n_clusters=2).flatten()
    return parts ^ parts[0]


def inner_products(stacked: Tree) -> Tensor:
    """Inner products over all leaves of n trees, leaves [n, ...]: [n, n], double."""
    # Leaf by leaf, so that no more than the largest is there in double precision.
    rows = (leaf.flatten(1).double() for leaf in tree.leaves(stacked))
    return torch.stack([row @ row.T for row in rows]).sum(0)


def coordinates(products: Tensor) -> np.ndarray:
    """Points with the distances of vectors of which only the inner products [n, n] are known: [n, n], with mean 0."""
    centred = products - products.mean(0) - products.mean(1, keepdim=True) + products.mean()
    squares, axes = torch.linalg.eigh(centred)
    return (axes * squares.clamp(min=0).sqrt()).cpu().numpy()
