"""How skewed a partition is, in four numbers.

Jimenez-Gutierrez et al., A Thorough Assessment of the Non-IID Data Impact in Federated Learning, 2025, draw accuracy over the
Hellinger distance. https://arxiv.org/abs/2503.17070
Differs from the paper: it measures differences among clients; here each client is compared with all examples together.
"""

from typing import NamedTuple

import numpy as np


class Skew(NamedTuple):
    """The skew of a partition; distances are means over clients, not weighted by their sizes.

    Attributes:
        hellinger: Hellinger distance of a client's label distribution from that of all clients' examples together, in [0, 1].
        jensen_shannon: likewise, square root of the Jensen-Shannon divergence with logarithms of base 2, in [0, 1].
        classes_per_client: mean number of classes of which a client has an example, over clients that have one.
        size_variation: coefficient of variation of the clients' sizes, population std over mean; 0 if all are alike.
    """

    hellinger: float
    jensen_shannon: float
    classes_per_client: float
    size_variation: float

    def __str__(self) -> str:
        return (
            f"Distance of the labels of a client from those of all, mean over clients: Hellinger distance "
            f"{self.hellinger:.3f}, Jensen-Shannon distance {self.jensen_shannon:.3f} (base 2). "
            f"{self.classes_per_client:.1f} classes per client; std of sizes over their mean {self.size_variation:.3f}."
        )


MEASURES = Skew._fields
LABELS = {
    "hellinger": "Hellinger distance of clients' labels from all",
    "jensen_shannon": "Jensen-Shannon distance of clients' labels from all",
    "classes_per_client": "Classes per client",
    "size_variation": "Variation of sizes (std over mean)",
}
"""Name of every measure, on axes."""


def measure(label_counts: np.ndarray) -> Skew:
    """The skew of a partition.

    Args:
        label_counts: [clients, classes], examples of each class at each client; a client without examples has a size, but no
            label distribution.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    variation = counts.sum(1).std() / counts.sum(1).mean()
    counts = counts[counts.any(1)]
    sizes = counts.sum(1)
    own, whole = counts / sizes[:, None], counts.sum(0) / counts.sum()
    hellinger = np.sqrt(np.square(np.sqrt(own) - np.sqrt(whole)).sum(1) / 2)
    between = (own + whole) / 2
    # Rounding may leave a divergence of equal distributions just below 0, which has no root.
    divergence = (_relative_entropy(own, between) + _relative_entropy(whole, between)) / 2
    return Skew(
        float(hellinger.mean().clip(0, 1)),
        float(np.sqrt(divergence.clip(0, 1)).mean()),
        float((counts > 0).sum(1).mean()),
        float(variation),
    )


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence in bits over the last axis; q is positive wherever p is."""
    p, q = np.broadcast_arrays(p, q)
    positive = p > 0
    ratio = np.divide(p, q, out=np.ones_like(q), where=positive)
    return (p * np.log2(ratio)).sum(-1)
