"""Label shares as of a Dirichlet distribution, at clients of equal size."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bench.registry import registered_partition
from datasets.partitions.base import Drawn, Partition
from datasets.partitions.redrawn import MAX_DRAWS, Redrawn


@registered_partition(
    "dirichlet-equal",
    title="Dir({}), equal sizes",
    latex=r"$p_k \sim \mathrm{Dir}(%s)$, equal sizes",
    symbols={"concentration": "b"},
)
@dataclass(frozen=True)
class EqualDirichlet(Partition):
    """Label shares of clients of equal size drawn from a Dirichlet distribution; smaller b is more skewed.

    Client after client, in the order of their numbers: its size is that of all others (up to one example, the first clients
    have more), its label shares q are a draw of Dir(b, ..., b), one b for each class of the dataset. Each of its examples in
    turn has a label drawn by q among the labels of which examples are left, and is drawn among these examples, without
    replacement. Where q is 0 for all labels that are left, the label is drawn by how many examples of each are left. All
    examples are dealt: the last clients get what others have left, and may have other shares than q.

    This is the partition of Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019 (https://arxiv.org/abs/1909.06335), to which papers refer that write Dir(b). Its own parameter is the
    concentration of all classes together: b times the number of classes, where these have as many examples each.

    Attributes:
        concentration: b, > 0, the same for all classes.
    """

    parameter: ClassVar[str] = Redrawn.parameter
    concentration: float
    accepts = staticmethod(Redrawn.accepts)

    def deal(self, labels, num_clients, num_classes, seed, **others):
        rng = np.random.RandomState(seed)
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
        sizes, taken = np.array([len(pool) for pool in pools]), np.zeros(num_classes, dtype=np.int64)
        each, more = divmod(len(labels), num_clients)
        clients = []
        for client in range(num_clients):
            counts = _draw_counts(each + (client < more), self._draw_shares(num_classes, rng), sizes - taken, rng)
            parts = zip(pools, taken, counts, strict=True)
            clients.append(rng.permutation(np.concatenate([pool[start : start + own] for pool, start, own in parts])))
            taken += counts
        return Drawn(clients)

    def _draw_shares(self, num_classes: int, rng) -> np.ndarray:
        """q, [classes]."""
        for _ in range(MAX_DRAWS):
            shares = rng.dirichlet(np.full(num_classes, self.concentration))
            if np.isfinite(shares).all() and shares.sum() > 0:  # a tiny concentration underflows to 0 or NaN
                return shares
        raise ValueError(f"{self.name} found no label shares in {MAX_DRAWS:,} draws; use a larger concentration.")


def _draw_counts(size: int, shares: np.ndarray, left: np.ndarray, rng) -> np.ndarray:
    """How many of size examples have each label [classes], drawn one after another as `EqualDirichlet` says.

    A label of which none is left is drawn again, which is the same as to draw among the others.

    Args:
        shares: q, [classes].
        left: examples of each label, [classes], in all at least size.
    """
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        odds = np.where(counts < left, shares, 0)
        if not odds.sum() > 0:
            odds = left - counts
        counts = np.minimum(counts + rng.multinomial(missing, odds / odds.sum()), left)
    return counts
