"""Each client has other shares of the labels, drawn from a Dirichlet distribution."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.redrawn import MIN_EXAMPLES, Redrawn, split_classes


@registered_partition("dir", title="Dir({})", latex=r"$p_k \sim \mathrm{Dir}(%s)$", symbols={"concentration": "b"})
@dataclass(frozen=True)
class Dirichlet(Redrawn):
    """Each class split in Dirichlet proportions; smaller b is more skewed."""

    takes_seed_override: ClassVar[bool] = True
    concentration: float

    def _attempts(self, labels, num_clients, num_classes, rng):
        class_indices = [np.flatnonzero(labels == label) for label in range(num_classes)]
        while True:
            smallest = np.full(num_clients, MIN_EXAMPLES)
            clients = split_classes(class_indices, smallest, len(labels) / num_clients, self.concentration, rng)
            for indices in clients or ():
                rng.shuffle(indices)
            yield clients
