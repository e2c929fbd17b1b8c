"""The skew of partitions: by hand, against SciPy, and in order."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from datasets import skew
from datasets.partitions import parse


def counts_of(name, num_clients=10, seed=0):
    labels = np.random.RandomState(7).permutation(np.arange(5000) % 10)
    return np.stack(
        [np.bincount(labels[own], minlength=10) for own in parse(name).split(labels, num_clients, 10, seed)]
    )


def test_two_clients_by_hand():
    found = skew.measure(np.array([[3, 1], [0, 2]]))
    # The whole is (1/2, 1/2); the clients are (3/4, 1/4) and (0, 1).
    first = 1 - (np.sqrt(3 / 8) + np.sqrt(1 / 8))
    second = 1 - np.sqrt(1 / 2)
    assert found.hellinger == pytest.approx((np.sqrt(first) + np.sqrt(second)) / 2)
    assert found.classes_per_client == 1.5
    assert found.size_variation == pytest.approx(1 / 3)  # sizes 4 and 2: std 1, mean 3


def test_distances_are_those_of_scipy_and_clients_count_alike():
    counts = counts_of("dir-0.3")
    assert (counts == 0).any() and np.ptp(counts.sum(1)) > 100
    own, whole = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    found = skew.measure(counts)
    assert found.jensen_shannon == pytest.approx(np.mean([jensenshannon(p, whole, base=2) for p in own]))
    assert found.hellinger == pytest.approx(
        np.mean([np.linalg.norm(np.sqrt(p) - np.sqrt(whole)) for p in own]) / 2**0.5
    )
    assert skew.measure(counts * np.arange(1, 11)[:, None]).classes_per_client == found.classes_per_client


def test_ends_of_the_range():
    alike = skew.measure(np.array([[2, 4, 6], [1, 2, 3], [10, 20, 30]]))
    assert alike[:3] == pytest.approx((0, 0, 3), abs=1e-7) and alike.size_variation > 0.5
    many = skew.measure(np.eye(1000))  # one class each: nearly nothing in common with the whole
    assert 0.97 < many.hellinger < 1 and 0.97 < many.jensen_shannon < 1
    assert many[2:] == (1, 0)
    assert skew.measure(np.array([[5, 5]])) == (0, 0, 2, 0)


def test_a_client_without_examples_has_a_size_only():
    found, without = skew.measure(np.array([[2, 2], [4, 0], [0, 0]])), skew.measure(np.array([[2, 2], [4, 0]]))
    assert found[:3] == without[:3] and without.size_variation == 0 < found.size_variation


def test_skew_falls_as_the_concentration_grows():
    found = [skew.measure(counts_of(name)) for name in ("label-1", "dir-0.05", "dir-0.5", "dir-5", "iid")]
    for key in ("hellinger", "jensen_shannon"):
        values = [getattr(one, key) for one in found]
        assert values == sorted(values, reverse=True) and len(set(values)) == 5
    sizes = [skew.measure(counts_of(f"quantity-{beta}")).size_variation for beta in (0.5, 5, 50)]
    assert sizes == sorted(sizes, reverse=True)


def test_clients_of_a_region_are_as_skewed_as_the_region():
    of_regions, of_clients = (skew.measure(counts_of("region-5-0.3", clients)) for clients in (5, 20))
    assert of_clients.hellinger == pytest.approx(of_regions.hellinger, abs=0.03)


def test_every_measure_has_a_label():
    assert skew.MEASURES == tuple(skew.LABELS)
