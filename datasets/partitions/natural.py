"""Clients as the data names them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.base import Drawn, Partition


@registered_partition("natural", title="by writer")
@dataclass(frozen=True)
class Natural(Partition):
    """Each writer is a client, for datasets that name them."""

    version: ClassVar[int] = 2  # cohorts are rounded to the nearest size, see `bench.config.schema`

    counts_clients: ClassVar[bool] = True

    def usual_clients(self, num_writers):
        return num_writers

    def deal(self, labels, num_clients, num_classes, seed, *, groups, **others):
        if groups is None:
            raise ValueError("Partition natural needs a dataset that names its writers, such as femnist.")
        if (writers := int(groups.max()) + 1) != num_clients:
            raise ValueError(
                f"Partition natural of {writers} writers has {writers} clients, but got {num_clients} clients."
            )
        return Drawn([np.flatnonzero(groups == writer) for writer in range(num_clients)])
