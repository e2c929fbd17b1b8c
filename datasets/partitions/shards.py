"""Examples sorted by label, cut into shards."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.base import Drawn, Partition


@registered_partition("shards", title="{} shards", symbols={"shards_per_client": "s"})
@dataclass(frozen=True)
class Shards(Partition):
    """s shards of the examples sorted by label, dealt at random.

    The n training examples are sorted by label; examples of one label keep the order of the training file. They are cut into
    N s consecutive shards of n div (N s) examples, for N clients; the first n mod (N s) shards have one example more. A random
    permutation of the shards, of NumPy's legacy generator with the run's seed, is dealt in order: client i gets the s shards at
    positions i s to i s + s - 1 and has their examples in that order. A shard may span two labels or more, so that a client may
    have more than s labels.

    This is the pathological partition of McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
    Data, AISTATS 2017 (https://arxiv.org/abs/1602.05629): 100 clients with 2 shards of 300 examples of MNIST.

    Attributes:
        shards_per_client: s, at least 1.
    """

    parameter: ClassVar[str] = "a whole number s of at least 1"
    shards_per_client: int

    @staticmethod
    def accepts(value: float) -> bool:
        return isinstance(value, int) and value >= 1

    def validate(self, num_clients, num_classes, num_train, num_test):
        if num_train is None or (num_shards := num_clients * self.shards_per_client) <= num_train:
            return super().validate(num_clients, num_classes, num_train, num_test)
        return [
            f"{self.name} cuts the examples into clients times {self.shards_per_client} = {num_shards} shards, but there are "
            f"{num_train} training examples; use fewer clients or shards."
        ]

    def deal(self, labels, num_clients, num_classes, seed, **others):
        num_shards = num_clients * self.shards_per_client
        shards = np.array_split(np.argsort(labels, kind="stable").astype(np.int64), num_shards)
        dealt = np.random.RandomState(seed).permutation(num_shards).reshape(num_clients, self.shards_per_client)
        return Drawn([np.concatenate([shards[shard] for shard in own]) for own in dealt])
