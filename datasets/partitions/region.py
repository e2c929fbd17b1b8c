"""Clients of a region are alike."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.redrawn import MIN_EXAMPLES, Redrawn, split_classes


@registered_partition(
    "region",
    title="{} regions, Dir({})",
    latex=r"%s regions, $p_k \sim \mathrm{Dir}(%s)$",
    symbols={"num_groups": "g", "concentration": "b"},
)
@dataclass(frozen=True)
class Region(Redrawn):
    """Groups of clients, each class split over the g groups in Dirichlet proportions; within a group clients are alike.

    The groups are dealt as `dir-b` deals as many clients. Client i of N is in group floor(i g / N), and all clients of a group
    have as many examples of each class, up to one.

    Skew by region is that of ProFed (https://arxiv.org/abs/2503.20618).

    Attributes:
        num_groups: g, at least 2 and at most the number of clients.
        concentration: b, > 0; smaller is more skewed.
    """

    parameter: ClassVar[str] = "a whole number g of at least 2 and a number b above 0"
    num_groups: int
    concentration: float

    @staticmethod
    def accepts(num_groups: float, concentration: float) -> bool:
        return isinstance(num_groups, int) and num_groups >= 2 and Redrawn.accepts(concentration)

    def validate(self, num_clients, num_classes, num_train, num_test):
        mistakes = super().validate(num_clients, num_classes, num_train, num_test)
        if num_clients >= self.num_groups:
            return mistakes
        return [
            f"{self.name} has {self.num_groups} groups of clients: clients must be at least {self.num_groups}, but got "
            f"{num_clients}.",
            *mistakes,
        ]

    def _attempts(self, labels, num_clients, num_classes, rng):
        class_indices = [np.flatnonzero(labels == label) for label in range(num_classes)]
        members = np.bincount(np.arange(num_clients) * self.num_groups // num_clients)
        while True:
            smallest = members * MIN_EXAMPLES
            groups = split_classes(class_indices, smallest, len(labels) / self.num_groups, self.concentration, rng)
            # Rows of a group are in the order of their classes, so that dealing in turn shares each class equally.
            clients = groups and [
                rows[first::count] for rows, count in zip(groups, members, strict=True) for first in range(count)
            ]
            for indices in clients or ():
                rng.shuffle(indices)
            yield clients
