"""The arithmetic of FedCollab's shifts: four groups of clients, the first two rich in examples and the other two poor.

Shares, rotations and label maps are fixed, only the deal is random. All numbers are those of the authors' code.

Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.
https://arxiv.org/abs/2306.06508
"""

import math
from typing import NamedTuple

import numpy as np

GROUPS = 4
_HALVED = ((1, 2, 3), (1, 2, 3), (6, 7, 8), (6, 7, 8))  # group -> labels that it shares with another one
_MINORITY = (0, 4, 5, 9)  # group -> label of which it alone has a quarter, and nobody the rest
_ANGLES = (-25, 25, 155, 205)  # group -> degrees, counter-clockwise


class Deal(NamedTuple):
    """Rows of the training and of the test part of each client, one int64 array per client."""

    train: list[np.ndarray]
    test: list[np.ndarray]


def group_of(client: int, num_clients: int) -> int:
    """The group of a client, 0..3: groups are equally large and of consecutive clients."""
    return client * GROUPS // num_clients


def describe_rotations(num_clients: int) -> str:
    """Which clients see images rotated by which angle, as one sentence."""
    parts = [f"{who} by {angle}" for who, angle in zip(_members(num_clients), _ANGLES, strict=True)]
    return f"Images are rotated, in degrees counter-clockwise: those of clients {', '.join(parts)}."


def describe_names(num_clients: int) -> str:
    """Which clients call the 20 labels of images what, as one sentence; see `rename`."""
    names = ("y", "5 - y up to 5, then y", "19 - y", "14 + y up to 5, then 19 - y")
    parts = [f"{who} call it {name}" for who, name in zip(_members(num_clients), names, strict=True)]
    return f"Label y has other names: clients {'; '.join(parts)}."


def _members(num_clients: int) -> list[str]:
    """The clients of each group: "0 to 4"."""
    size = num_clients // GROUPS
    return [f"{size * group} to {size * (group + 1) - 1}" for group in range(GROUPS)]


def equal_shares(num_clients: int, num_classes: int) -> np.ndarray:
    """Share of each label for each client, [clients, classes]: all alike."""
    return np.full((num_clients, num_classes), 1 / num_clients)


def label_shares(num_clients: int) -> np.ndarray:
    """Share of each label for each client, [clients, 10], where groups differ in their labels (cluster4, k = 0.25)."""
    shares = np.zeros((num_clients, 10))
    for client in range(num_clients):
        group = group_of(client, num_clients)
        shares[client, _HALVED[group]] = GROUPS / 2 / num_clients
        shares[client, _MINORITY[group]] = 1 / num_clients  # a quarter of the label over a quarter of the clients
    return shares


def kept_shares(num_clients: int, decay: float) -> np.ndarray:
    """Share of its training examples that each client keeps, [clients]: all in the first half, e^-decay in the second."""
    return np.exp(-decay * (np.arange(num_clients) * 2 // num_clients))


def count(class_counts: np.ndarray, shares: np.ndarray, kept: np.ndarray, test_share: float) -> np.ndarray:
    """Examples of each class at each client, [2, clients, classes]: for training, and for testing.

    Args:
        class_counts: [classes], examples of each class in the pool.
        shares: [clients, classes]; kept: [clients].
        test_share: of each client's examples of each class, in (0, 1).
    """
    dealt = np.stack([_sizes(own, total) for own, total in zip(shares.T, class_counts, strict=True)], 1)
    parts = [_sizes(_parts(share, test_share), own)[[0, 2]] for own, share in zip(dealt, kept, strict=True)]
    return np.stack(parts, 1)


def deal(labels: np.ndarray, shares: np.ndarray, kept: np.ndarray, test_share: float, seed: int) -> Deal:
    """Deals the rows of a pool, label by label, and cuts those of each client into training, unused and test part.

    The order of the draws is that of the authors' code: one shuffle per label; then per client one of all its rows, and one
    per label.

    Args:
        labels: [n], of the pool; for the others see `count`.
        seed: of the legacy generator.
    """
    rng = np.random.RandomState(seed)
    num_clients, num_classes = shares.shape
    owned: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label in range(num_classes):
        rows = np.flatnonzero(labels == label)
        rng.shuffle(rows)
        *parts, _ = np.split(rows, np.cumsum(_sizes(shares[:, label], len(rows))))
        for own, part in zip(owned, parts, strict=True):
            own.append(part)
    clients = []
    for own, kept_share in zip(owned, kept, strict=True):
        rows = np.concatenate(own)
        rng.shuffle(rows)
        pieces = []
        for label in range(num_classes):
            of_label = rows[labels[rows] == label]
            rng.shuffle(of_label)
            ends = np.cumsum(_sizes(_parts(kept_share, test_share), len(of_label)))
            pieces.append(np.split(of_label, ends))
        clients.append([np.concatenate(part) for part in zip(*pieces, strict=True)])
    return Deal([parts[0] for parts in clients], [parts[2] for parts in clients])


def rotate(images: np.ndarray, group: int) -> np.ndarray:
    """Images as a group sees them, uint8 [n, C, H, W]: rotated about their centre, symmetrically continued at the edges.

    The nearest pixel is taken. This equals padding by symmetric reflection, `torchvision.transforms.functional.rotate` of a
    tensor and a centre crop, wherever the padding reaches far enough.
    """
    *_, height, width = images.shape
    return images.reshape(*images.shape[:2], -1)[:, :, _rotation(height, width, _ANGLES[group])].reshape(images.shape)


def rename(labels: np.ndarray, group: int) -> np.ndarray:
    """What a group calls the 20 labels y of an image: y; 5 - y up to 5, then y; 19 - y; 14 + y up to 5, then 19 - y."""
    low = labels < 6
    if group == 0:
        return labels
    if group == 1:
        return np.where(low, 5 - labels, labels)
    return np.where(low, 14 + labels, 19 - labels) if group == 3 else 19 - labels


def _parts(kept_share: float, test_share: float) -> list[float]:
    """Shares of the training, unused and test part."""
    return [(1 - test_share) * kept_share, (1 - test_share) * (1 - kept_share), test_share]


def _sizes(shares, total: int | np.ndarray) -> np.ndarray:
    """Sizes of consecutive slices of so many items, [shares], or [shares, *total.shape] of several totals: their ends are
    rounded, fractions below 0.51 down."""
    return np.diff((np.multiply.outer(np.cumsum(shares), total) + 0.49).astype(np.int64), axis=0, prepend=0)


def _rotation(height: int, width: int, degrees: float) -> np.ndarray:
    """[H * W], the pixel of the flattened image that each pixel of the rotated one copies.

    Pixel centres are at half-integers; the source is the pixel that contains the rotated centre.
    """
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    down, across = np.indices((height, width)) + 0.5 - np.array([height, width])[:, None, None] / 2
    y = np.floor(sin * across + cos * down + height / 2).astype(np.int64)
    x = np.floor(cos * across - sin * down + width / 2).astype(np.int64)
    return (_reflect(y, height) * width + _reflect(x, width)).ravel()


def _reflect(position: np.ndarray, size: int) -> np.ndarray:
    """Positions in 0..size-1, those beyond an edge mirrored at the edge, so that its pixel is repeated."""
    position = position % (2 * size)
    return np.minimum(position, 2 * size - 1 - position)
