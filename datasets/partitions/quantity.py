"""Clients have other numbers of examples."""

from dataclasses import dataclass

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.redrawn import MIN_EXAMPLES, Redrawn, cut


@registered_partition(
    "quantity", title="q ~ Dir({})", latex=r"$q \sim \mathrm{Dir}(%s)$", symbols={"concentration": "b"}
)
@dataclass(frozen=True)
class Quantity(Redrawn):
    """Sizes in Dirichlet proportions, classes mixed as in the full dataset; smaller b is more skewed."""

    concentration: float

    def _attempts(self, labels, num_clients, num_classes, rng):
        permuted = rng.permutation(np.arange(len(labels), dtype=np.int64))
        while True:
            shares = rng.dirichlet(np.full(num_clients, self.concentration))
            shares = shares / shares.sum()
            large_enough = shares.min() * len(labels) >= MIN_EXAMPLES
            yield np.split(permuted, cut(shares, len(labels))) if large_enough else None
