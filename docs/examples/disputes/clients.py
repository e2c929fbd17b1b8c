"""Deals MNIST's training images to the ten clients of FedBench, Dir(0.5): `python clients.py DATA_DIR FILE.npz`.

The draws are those of fedbench/datasets.py (NechbaMohammed/FLBenchmark at e9e432d), all with seed 42. The tenth of a client's
images that it holds out is left out.
"""

import sys

import numpy as np
import torch
from torch.utils.data import random_split
from torchvision.datasets import MNIST


def deal(labels: np.ndarray) -> list[np.ndarray]:
    """The training images of each client, by their places in MNIST's file."""
    draws = np.random.default_rng(42)
    clients = [np.empty(0, int) for _ in range(10)]
    while min(map(len, clients)) < 10:
        for label in range(10):
            images = np.flatnonzero(labels == label)
            draws.shuffle(images)
            shares = draws.dirichlet(np.full(10, 0.5))
            shares *= [len(client) < len(labels) / 10 for client in clients]
            ends = (np.cumsum(shares / shares.sum()) * len(images)).astype(int)[:-1]
            clients = [np.append(client, part) for client, part in zip(clients, np.split(images, ends), strict=True)]
    return [without_a_tenth(client) for client in clients]


def without_a_tenth(images: np.ndarray) -> np.ndarray:
    """The larger part of them, as FedBench calls torch."""
    sizes = (len(images) - len(images) // 10, len(images) // 10)
    kept, _ = random_split(range(len(images)), sizes, torch.Generator().manual_seed(42))
    return np.sort(images[kept.indices]).astype(np.int32)


if __name__ == "__main__":
    folder, path = sys.argv[1:]
    dealt = deal(MNIST(folder, train=True).targets.numpy())
    np.savez_compressed(path, pooled=False, **{f"train_{client}": images for client, images in enumerate(dealt)})
