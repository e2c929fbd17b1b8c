"""Training examples that clients set aside in order to choose hyper-parameters.

Luo et al. (CCVR, NeurIPS 2021, Section 5.1) take 15 % of the training data out and return them for the final training. The
partition is drawn first, from all training data, so that it is the same in both.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from bench.seeding import generator_for


def hold_out_together(
    labels: np.ndarray, clients: Sequence[np.ndarray], num_classes: int, share: float, seed: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """What `hold_out` divides, for an evaluation on the examples of all clients together.

    Returns:
        Rows that each client trains on; and all rows that are set aside, ascending.

    Raises:
        ValueError: as `hold_out`, or if a class has no example that is set aside.
    """
    kept, held = hold_out(labels, clients, num_classes, share, seed)
    together = np.sort(np.concatenate(held))
    lacking = sorted(set(labels[np.concatenate(list(clients))].tolist()) - set(labels[together].tolist()))
    if lacking:
        raise ValueError(
            f"With validation_share {share:g} no client sets an example of {_some('class', list(map(str, lacking)))} aside; "
            "use a larger share, or fewer clients."
        )
    return kept, together


def hold_out(
    labels: np.ndarray, clients: Sequence[np.ndarray], num_classes: int, share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Divides the examples of each client into those that it trains on and those that it sets aside: of each of its classes
    the share, halves rounded down, and at least one example is trained on; where that is nothing, one of its largest class.

    Args:
        labels: [n].
        clients: rows of each client.
        share: in (0, 1).
        seed: of the run.

    Returns:
        Rows that each client trains on, in the order that they had; and rows that it sets aside.

    Raises:
        ValueError: if a client can set nothing aside.
    """
    kept, held = [], []
    for client, rows in enumerate(clients):
        order = rows[torch.randperm(len(rows), generator=generator_for(seed, "validation", client)).numpy()]
        of_class = [order[labels[order] == label] for label in range(num_classes)]
        counts = [min(math.ceil(share * len(found) - 0.5), len(found) - 1) if len(found) else 0 for found in of_class]
        if not any(counts):
            largest = max(range(num_classes), key=lambda label: len(of_class[label]))
            counts[largest] = min(1, len(of_class[largest]) - 1)
        own = np.concatenate([found[:count] for found, count in zip(of_class, counts, strict=True)])
        held.append(own)
        kept.append(rows[~np.isin(rows, own)])
    empty = [str(client) for client, own in enumerate(held) if not len(own)]
    if empty:
        raise ValueError(
            f"A validation part needs two examples of one class at each client, but {_some('client', empty)} "
            f"{'has' if len(empty) == 1 else 'have'} not; use fewer clients, or another partition."
        )
    return kept, held


def _some(what: str, names: list[str], shown: int = 5) -> str:
    """ "clients 3, 7 and 9 more"."""
    plural = {"client": "clients", "class": "classes"}[what]
    listed = ", ".join(names[:shown])
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{what if len(names) == 1 else plural} {listed}{more}"
