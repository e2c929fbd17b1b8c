"""What partitions share that are drawn again until every client is large enough."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from datasets.partitions.base import Drawn, Partition

MIN_EXAMPLES = 10  # smallest client that a Dirichlet draw may produce
MAX_DRAWS = 10_000  # the published partitions need up to 1,166


class Redrawn(Partition):
    """A Dirichlet draw that is repeated until every client is large enough; a field of subclasses is the concentration b (beta
    of the papers), > 0; smaller is more skewed."""

    parameter: ClassVar[str] = "a number b above 0"
    concentration: float

    @staticmethod
    def accepts(value: float) -> bool:
        return 0 < value < float("inf")

    def validate(self, num_clients, num_classes, num_train, num_test):
        mistakes = super().validate(num_clients, num_classes, num_train, num_test)
        if num_train is not None and num_clients * MIN_EXAMPLES > num_train:
            mistakes.insert(
                0,
                f"{self.name} gives every client at least {MIN_EXAMPLES} examples, but {num_train} training examples are too "
                f"few for {num_clients} clients; use fewer clients.",
            )
        return mistakes

    def deal(self, labels, num_clients, num_classes, seed, **others):
        condition = (
            f"{len(labels)} examples over {num_clients} clients with concentration {self.concentration:g} "
            f"and a minimum size of {MIN_EXAMPLES}"
        )
        attempts = self._attempts(labels, num_clients, num_classes, np.random.RandomState(seed))
        for num_draws, indices in zip(range(1, MAX_DRAWS + 1), attempts, strict=False):
            if indices is not None:
                return Drawn(indices, num_draws)
        raise ValueError(
            f"{self.name} found no split of {condition} in {MAX_DRAWS:,} draws; use fewer clients or a "
            "larger concentration."
        )

    def _attempts(self, labels, num_clients, num_classes, rng) -> Iterator[list[np.ndarray] | None]:
        """One item per draw: the clients' indices, or None if a client is too small."""
        raise NotImplementedError


def split_classes(
    class_indices: list[np.ndarray], smallest: np.ndarray, capacity: float, concentration: float, rng
) -> list[np.ndarray] | None:
    """The rows of each part, class after class, where each class is split in Dirichlet proportions; None if a part is too
    small.

    Args:
        class_indices: the rows of each class, ascending.
        smallest: [parts], the least number of rows of each part.
        capacity: a part with this many rows receives none of the following classes.
    """
    sizes = np.zeros(len(smallest), dtype=np.int64)
    shuffled, cuts = [], []
    for indices in class_indices:
        indices = indices.copy()
        rng.shuffle(indices)
        shares = rng.dirichlet(np.full(len(smallest), concentration)) * (sizes < capacity)
        if not shares.sum() > 0:  # a tiny concentration underflows to 0 or NaN
            return None
        ends = cut(shares / shares.sum(), len(indices))
        sizes += np.diff(ends, prepend=0, append=len(indices))
        shuffled.append(indices)
        cuts.append(ends)
    if (sizes < smallest).any():
        return None
    split = [np.split(indices, ends) for indices, ends in zip(shuffled, cuts, strict=True)]
    return [np.concatenate(parts) for parts in zip(*split, strict=True)]


def cut(shares: np.ndarray, size: int) -> np.ndarray:
    """Cut positions [parts - 1] that divide `size` items by shares [parts], which sum to 1."""
    return (np.cumsum(shares) * size).astype(np.int64)[:-1]
