"""No federation: all examples at one client."""

from dataclasses import dataclass

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.base import Drawn, Partition


@registered_partition("none", title="pooled")
@dataclass(frozen=True)
class SingleClient(Partition):
    """One client holds everything, for centralized training."""

    def validate(self, num_clients, num_classes, num_train, num_test):
        wrong = f"Partition none gives everything to 1 client, but got {num_clients} clients."
        return [] if num_clients == 1 else [wrong]

    def deal(self, labels, num_clients, num_classes, seed, **others):
        return Drawn([np.arange(len(labels), dtype=np.int64)])
