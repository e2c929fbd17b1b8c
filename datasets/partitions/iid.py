"""All clients are alike."""

from dataclasses import dataclass

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.base import Drawn, Partition


@registered_partition("iid", title="IID")
@dataclass(frozen=True)
class Iid(Partition):
    """A random permutation cut into nearly equal parts."""

    def deal(self, labels, num_clients, num_classes, seed, **others):
        rng = np.random.RandomState(seed)
        return Drawn(np.array_split(rng.permutation(np.arange(len(labels), dtype=np.int64)), num_clients))
