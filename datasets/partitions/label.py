"""Each client holds examples of k labels only."""

import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.base import Drawn, Partition


@registered_partition("label", title="#C = {}", latex=r"$\#C=%s$", symbols={"labels_per_client": "k"})
@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """k labels per client, each class shared equally by its owners.

    Attributes:
        labels_per_client: k, at least 1 and at most the number of classes.
    """

    parameter: ClassVar[str] = "a whole number k of at least 1"
    labels_per_client: int

    @staticmethod
    def accepts(value: float) -> bool:
        return isinstance(value, int) and value >= 1

    def validate(self, num_clients, num_classes, num_train, num_test):
        mistakes = []
        if self.labels_per_client > num_classes:
            mistakes.append(
                f"label-k needs k to be at most the number of classes ({num_classes}), but got {self.name}."
            )
        if num_clients < (fewest := -(-num_classes // self.labels_per_client)):
            mistakes.append(
                f"{self.name} needs at least {fewest} clients to hold all {num_classes} classes, but got {num_clients}."
            )
        return mistakes + super().validate(num_clients, num_classes, num_train, num_test)

    def deal(self, labels, num_clients, num_classes, seed, **others):
        owned = self._draw_labels(num_clients, num_classes, seed)
        rng = np.random.RandomState(seed)
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for label in range(num_classes):
            indices = np.flatnonzero(labels == label)
            rng.shuffle(indices)
            owners = [client for client in range(num_clients) if label in owned[client]]
            for owner, part in zip(owners, np.array_split(indices, len(owners)), strict=True):
                parts[owner].append(part)
        return Drawn([np.concatenate(client_parts) for client_parts in parts])

    def _draw_labels(self, num_clients: int, num_classes: int, seed: int) -> list[list[int]]:
        """Labels of each client: the first ones round-robin, so that every class has an owner, the others at random. One is
        dealt if there are as many clients as classes."""
        rng = random.Random(seed)
        owned = []
        for client in range(num_clients):
            mine = [*range(client % num_classes, num_classes, num_clients)]
            while len(mine) < self.labels_per_client:
                label = rng.randint(0, num_classes - 1)
                if label not in mine:
                    mine.append(label)
            owned.append(mine)
        return owned
