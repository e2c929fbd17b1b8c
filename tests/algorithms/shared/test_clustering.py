"""K-means, its balanced form, and the elbow rule, on points whose clusters are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from algorithms.shared.clustering import balanced_k_means, elbow, elbow_of, in_equal_parts, k_means
from datasets import partitions

CORNERS = np.array([[0.0, 0], [0, 1], [1, 0]])


def blobs(*sizes: int) -> np.ndarray:
    """Points near three corners."""
    rng = np.random.default_rng(0)
    return np.concatenate([CORNERS[i] + rng.normal(0, 0.01, (size, 2)) for i, size in enumerate(sizes)])


def test_k_means_finds_separate_groups():
    labels, centroids, inertia = k_means(blobs(4, 5, 6), 3, seed=0)
    assert adjusted_rand_score(np.repeat([0, 1, 2], [4, 5, 6]), labels) == 1
    assert np.sort(np.linalg.norm(centroids, axis=1)) == pytest.approx([0, 1, 1], abs=0.03)
    assert inertia < 0.01


def test_k_means_makes_no_more_clusters_than_there_are_different_points():
    labels, _, inertia = k_means(np.array([[0.0, 1], [0, 1], [1, 0]]), 3, seed=0)
    assert len(np.unique(labels)) == 2 and inertia == 0


def test_balanced_k_means_moves_the_farthest_points_of_a_full_cluster_to_the_nearest_with_room():
    points = np.array([[0.0], [0.1], [0.2], [0.3], [2.0], [9.0]])
    plain, _, _ = k_means(points, 2, seed=0)
    assert sorted(np.bincount(plain)) == [1, 5]
    # Capacity floor(1.2 * 6 / 2) = 3. Of the five near 0.52, 2.0 and 0.0 are farthest; later centroids are 0.2 and 3.7,
    # where 2.0 is nearer to the second, and 0.0 is the farthest of the other four.
    balanced = balanced_k_means(points, 2, seed=0)
    assert balanced.tolist() in ([1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0])


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 99))
def test_balanced_k_means_respects_the_capacity(count, num_clusters, seed):
    num_clusters = min(num_clusters, count)
    points = np.random.default_rng(seed).dirichlet([0.2] * 5, count)
    sizes = np.bincount(balanced_k_means(points, num_clusters, seed), minlength=num_clusters)
    assert sizes.sum() == count
    assert sizes.max() <= max(int(1.2 * count / num_clusters), -(-count // num_clusters))


def test_elbow_of_a_curve_worked_out_by_hand():
    # Scaled: 1, 0.3, 0.2, 0.1, 0 over 0, 1/4, 1/2, 3/4, 1: 0, 0.45, 0.3, 0.15, 0 below the chord.
    assert elbow_of([110, 40, 30, 20, 10]) == 2
    assert elbow_of([100, 90, 80, 10, 0]) == 4
    assert elbow_of([9.0, 8, 7, 6, 5, 4, 3, 2 - 1e-15, 1, 0]) == 1
    assert elbow_of([5, 5, 5]) == elbow_of([3]) == 1


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "examples, partition, found",
    [
        (50_000, "label-2", (7, 8, 8)),
        (50_000, "label-3", (6, 7, 7)),
        (50_000, "dir-0.1", (8, 9, 10)),
        (50_000, "dir-0.5", (7, 7, 8)),
        (60_000, "label-2", (7, 8, 8)),
        (60_000, "label-3", (6, 7, 7)),
        (60_000, "dir-0.1", (10, 10, 10)),
        (60_000, "dir-0.5", (8, 7, 8)),
    ],
)
def test_elbow_on_the_golden_partitions_is_near_the_values_of_the_digest(examples, partition, found):
    """Section 8: CIFAR-10 and FMNIST, 40 clients; K-means draws differ by up to 2."""
    labels = np.arange(examples) % 10
    for seed, expected in enumerate(found):
        clients = partitions.parse(partition).split(labels, 40, 10, seed)
        counts = np.stack([np.bincount(labels[client], minlength=10) for client in clients])
        assert abs(elbow(counts / counts.sum(1, keepdims=True), seed) - expected) <= 2


def test_random_parts_differ_by_one_at_most_and_with_the_seed():
    sizes = np.bincount(in_equal_parts(11, 4, seed=0))
    assert sorted(sizes) == [2, 3, 3, 3]
    assert in_equal_parts(11, 4, seed=0).tolist() == in_equal_parts(11, 4, seed=0).tolist()
    assert in_equal_parts(11, 4, seed=0).tolist() != in_equal_parts(11, 4, seed=1).tolist()


def test_clusters_of_200_clients_take_no_time_to_speak_of():
    """The speed is measured by `bench speed`; here only that the largest case of the papers runs."""
    points = np.random.default_rng(0).dirichlet([0.1] * 200, 200)
    assert np.bincount(balanced_k_means(points, 2, 0)).max() <= 120
