"""Statistics of a batch that count its real rows only: the same on batches of their own lengths and on padded ones."""

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Of the rows of a batch.

    Attributes:
        num_rows: number of real rows, a scalar in the precision of the values.
        deviations: [B, d], differences from the mean; 0 in padding rows.
        variance: [d], unbiased (divided by num_rows - 1); 0 if there are fewer than two real rows.
    """

    num_rows: Tensor
    deviations: Tensor
    variance: Tensor


def moments(values: Tensor, mask: Tensor | None) -> Moments:
    """Moments of values [B, d] over the rows of mask [B], or over all if it is None. Differentiable."""
    if mask is None:
        num_rows = values.new_full((), len(values))
        deviations = values - values.mean(0)
    else:
        num_rows = mask.sum().to(values.dtype)
        real = mask[:, None]
        mean = torch.where(real, values, 0).sum(0) / num_rows.clamp(min=1)
        deviations = torch.where(real, values - mean, 0)
    return Moments(num_rows, deviations, deviations.square().sum(0) / (num_rows - 1).clamp(min=1))


class ClassSums(NamedTuple):
    """Of the features of each class.

    Attributes:
        totals: [num_classes, d].
        counts: [num_classes], number of features.
    """

    totals: Tensor
    counts: Tensor


def class_sums(values: Tensor, labels: Tensor, num_classes: int, mask: Tensor | None) -> ClassSums:
    """Sums of values [B, d] by label [B], over the rows of mask [B], or over all if it is None."""
    chosen = labels[:, None] == torch.arange(num_classes, device=labels.device)
    chosen = (chosen if mask is None else chosen & mask[:, None]).to(values.dtype)
    return ClassSums(chosen.T @ values, chosen.sum(0))
