"""Metrics of methods that train one model for each of several groups of clients."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def mean_over_groups(found: Mapping[str, Mapping[str, Any]], groups: Tensor) -> dict[str, Any]:
    """Means over groups by their numbers of clients, of the groups that have measured something.

    Args:
        found: number of a group, as a text -> its metrics.
        groups: [N], the group of each client.
    """
    counts = torch.bincount(groups.cpu()).tolist()
    means = {}
    for name in dict.fromkeys(name for metrics in found.values() for name in metrics):
        having = [(counts[int(group)], metrics[name]) for group, metrics in found.items() if name in metrics]
        means[name] = sum(count * value for count, value in having) / sum(count for count, _ in having)
    return means
