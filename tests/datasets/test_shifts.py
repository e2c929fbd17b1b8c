"""The shifts of FedCollab: class counts, rotations and label maps of the digest, and the order of the draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets import shifts
from datasets.partitions import parse

# Pools of the paper: examples of each class, and test examples.
POOLS = {
    "label-shift": ([7000] * 10, 10_000),  # Fashion-MNIST
    "feature-shift": ([6000] * 10, 10_000),  # CIFAR-10
    "concept-shift": ([3000] * 20, 10_000),  # CIFAR-100 with coarse labels
}


def pool(name, seed=0):
    class_counts, num_test = POOLS[name]
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(class_counts)), class_counts))
    return labels, len(class_counts), num_test


def draw(name, num_clients=20, seed=0):
    labels, num_classes, num_test = pool(name)
    return parse(name).draw(labels, num_clients, num_classes, seed, num_test=num_test)


def by_label(label_counts, num_classes):
    return [label_counts.get(label, 0) for label in range(num_classes)]


# Section 2.1 of protocols/fedcollab.md: first and last client -> examples of each class for training, and for testing.
COUNTS = {
    "label-shift": {
        (0, 4): ({0: 300, 1: 600, 2: 600, 3: 600}, {0: 50, 1: 100, 2: 100, 3: 100}),
        (5, 9): ({1: 600, 2: 600, 3: 600, 4: 300}, {1: 100, 2: 100, 3: 100, 4: 50}),
        (10, 14): ({5: 2, 6: 4, 7: 4, 8: 4}, {5: 50, 6: 100, 7: 100, 8: 100}),
        (15, 19): ({6: 4, 7: 4, 8: 4, 9: 2}, {6: 100, 7: 100, 8: 100, 9: 50}),
    },
    "feature-shift": {
        (0, 9): (dict.fromkeys(range(10), 250), dict.fromkeys(range(10), 50)),
        (10, 19): (dict.fromkeys(range(10), 34), dict.fromkeys(range(10), 50)),
    },
    "concept-shift": {
        (0, 9): (dict.fromkeys(range(20), 125), dict.fromkeys(range(20), 25)),
        (10, 19): (dict.fromkeys(range(20), 6), dict.fromkeys(range(20), 25)),
    },
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", COUNTS)
def test_class_counts_are_those_of_the_digest(name, seed):
    labels, num_classes, num_test = pool(name)
    drawn = draw(name, seed=seed)
    expected = [
        tuple(by_label(part, num_classes) for part in parts)
        for (first, last), parts in COUNTS[name].items()
        for _ in range(first, last + 1)
    ]
    found = [
        tuple(np.bincount(labels[rows], minlength=num_classes).tolist() for rows in parts)
        for parts in zip(drawn.indices, drawn.test_indices, strict=True)
    ]
    assert found == expected
    counts = parse(name).counts(np.array(POOLS[name][0]), 20, num_test / len(labels))
    assert counts.transpose(1, 0, 2).tolist() == [list(parts) for parts in expected], "known without a draw"


@pytest.mark.parametrize(
    ("name", "total"), [("label-shift", 21_140), ("feature-shift", 28_400), ("concept-shift", 26_200)]
)
def test_training_examples_of_all_clients_are_those_of_the_authors(name, total):
    assert sum(map(len, draw(name).indices)) == total


@settings(max_examples=40)
@given(
    name=st.sampled_from(list(POOLS)),
    groups_of=st.integers(1, 6),
    class_counts=st.lists(st.integers(1500, 3000), min_size=20, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_example_is_dealt_twice_and_counts_are_as_predicted(name, groups_of, class_counts, seed):
    class_counts = class_counts[: len(POOLS[name][0])]
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(len(class_counts)), class_counts))
    num_clients, num_test = 4 * groups_of, len(labels) // 6
    partition = parse(name)
    drawn = partition.draw(labels, num_clients, len(class_counts), seed, num_test=num_test)
    rows = np.concatenate([*drawn.indices, *drawn.test_indices])
    assert len(np.unique(rows)) == len(rows) and rows.min() >= 0 and rows.max() < len(labels)
    counts = partition.counts(np.array(class_counts), num_clients, num_test / len(labels))
    for part, predicted in zip((drawn.indices, drawn.test_indices), counts, strict=True):
        found = [np.bincount(labels[own], minlength=len(class_counts)) for own in part]
        np.testing.assert_array_equal(found, predicted)


def test_draws_are_in_the_order_of_the_digest():
    """Section 2.5, spelled out for feature shift: one stream; all labels first, then all clients."""
    labels = np.arange(2400) % 10
    stream = np.random.RandomState(3)
    owned = {client: [] for client in range(8)}
    for label in range(10):
        indices = [row for row in range(2400) if labels[row] == label]
        stream.shuffle(indices)
        for client in range(8):
            owned[client] += indices[30 * client : 30 * client + 30]
    drawn = parse("feature-shift").draw(labels, 8, 10, 3, num_test=400)
    for client in range(8):
        own = np.array(owned[client])
        stream.shuffle(own)
        train, test = [], []
        for label in range(10):
            positions = np.flatnonzero(labels[own] == label)
            stream.shuffle(positions)
            kept = 25 if client < 4 else 3  # 25 e^-2 = 3.38
            train += own[positions[:kept]].tolist()
            test += own[positions[25:]].tolist()
        assert drawn.indices[client].tolist() == train
        assert drawn.test_indices[client].tolist() == test


@pytest.mark.parametrize("name", POOLS)
def test_the_seed_changes_who_has_what(name):
    first, same, other = (draw(name, seed=seed) for seed in (0, 0, 1))
    for part in ("indices", "test_indices"):
        one, again, different = (np.concatenate(getattr(drawn, part)) for drawn in (first, same, other))
        assert np.array_equal(one, again) and not np.array_equal(one, different)


def test_names_of_labels_are_those_of_the_digest():
    # Section 2.4: y; 5 - y up to 5, else y; 19 - y; 14 + y up to 5, else 19 - y.
    maps = [shifts.rename(np.arange(20), group).tolist() for group in range(4)]
    assert maps[0] == list(range(20))
    assert maps[1] == [5, 4, 3, 2, 1, 0, *range(6, 20)]
    assert maps[2] == list(range(19, -1, -1))
    assert maps[3] == [14, 15, 16, 17, 18, 19, *range(13, -1, -1)]
    agree = [[sum(a == b for a, b in zip(one, other, strict=True)) for other in maps] for one in maps]
    assert agree == [[20, 14, 0, 0], [14, 20, 0, 0], [0, 0, 20, 14], [0, 0, 14, 20]]


def test_groups_are_of_five_consecutive_clients_out_of_twenty():
    assert [shifts.group_of(client, 20) for client in range(20)] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    partition, labels = parse("concept-shift"), np.arange(20)
    for client in range(20):
        assert np.array_equal(partition.client_labels(labels, client, 20), shifts.rename(labels, client // 5))
    images = np.random.default_rng(0).integers(0, 256, (1, 1, 8, 8), dtype=np.uint8)
    assert np.array_equal(partition.client_images(images, 7, 20), images), "concept shift turns nothing"


@pytest.mark.parametrize("side", [28, 32])
@pytest.mark.parametrize(("group", "angle"), list(enumerate((-25, 25, 155, 205))))
def test_rotations_equal_torchvisions(group, angle, side):
    """Section 2.3: padded by 16 pixels, symmetrically; rotated, nearest pixel; centre crop."""
    from torchvision.transforms import functional

    images = np.random.default_rng(0).integers(0, 256, (3, 3, side, side), dtype=np.uint8)
    padded = functional.pad(torch.from_numpy(images).float(), [16], padding_mode="symmetric")
    expected = functional.center_crop(functional.rotate(padded, float(angle)), [side, side])
    found = parse("feature-shift").client_images(images, 5 * group, 20)
    assert found.dtype == np.uint8 and np.array_equal(found, expected.numpy())


def test_rotation_of_two_by_two_pixels_by_hand():
    # cos 155 = -0.91 and sin 155 = 0.42, so the pixel at (-0.5, -0.5) from the centre copies what is at (0.66, 0.24): 3.
    image = np.array([[[[0, 1], [2, 3]]]], dtype=np.uint8)
    assert shifts.rotate(image, 2)[0, 0].tolist() == [[3, 2], [1, 0]]
    assert shifts.rotate(image, 0)[0, 0].tolist() == image[0, 0].tolist()


def test_images_that_are_no_squares_are_continued_at_their_edges():
    wide = np.random.default_rng(0).integers(0, 256, (2, 1, 3, 40), dtype=np.uint8)
    for group in range(4):
        turned = shifts.rotate(wide, group)
        assert turned.shape == wide.shape and np.isin(turned, wide).all()


@pytest.mark.parametrize(
    ("name", "num_clients", "num_classes", "num_test", "message"),
    [
        ("feature-shift", 10, 10, 500, "clients must be a multiple of 4, but got 10"),
        ("label-shift", 20, 9, 500, "label-shift is defined for 10 classes, but the dataset has 9"),
        ("label-shift", 20, 20, 500, "label-shift is defined for 10 classes, but the dataset has 20"),
        ("concept-shift", 20, 10, 500, "concept-shift is defined for 20 classes, but the dataset has 10"),
        ("feature-shift", 20, 10, 0, "feature-shift deals training and test images together, .* has no test images"),
        ("label-shift", 20, 10, 500, "label-shift of 3000 examples leaves client 10 of 20 without examples"),
        ("feature-shift", 0, 10, 500, "clients must be at least 1, but got 0"),
    ],
)
def test_what_cannot_be_dealt_is_refused_in_one_sentence(name, num_clients, num_classes, num_test, message):
    with pytest.raises(ValueError, match=message):
        parse(name).split(np.arange(3000) % num_classes, num_clients, num_classes, 0, num_test=num_test)


def test_names_are_canonical_and_no_labels_per_client():
    for name in POOLS:
        assert parse(name).name == name
    for name in ("label-shift2", "label-shifts"):
        with pytest.raises(ValueError, match="Did you mean 'label-shift'"):
            parse(name)
    with pytest.raises(ValueError, match="Did you mean 'feature-shift'"):
        parse("feature-shif")


def test_what_sets_groups_apart_is_told():
    assert parse("feature-shift").describe_groups(8) == (
        "Images are rotated, in degrees counter-clockwise: those of clients 0 to 1 by -25, 2 to 3 by 25, 4 to 5 by 155, "
        "6 to 7 by 205."
    )
    told = parse("concept-shift").describe_groups(20)
    assert "clients 0 to 4 call it y; 5 to 9 call it 5 - y up to 5, then y; 10 to 14 call it 19 - y; " in told
    assert [int(shifts.rename(np.array([3]), group)[0]) for group in range(4)] == [3, 5 - 3, 19 - 3, 14 + 3]
    assert parse("label-shift").describe_groups(20) == "", "its table shows it"
