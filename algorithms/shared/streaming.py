"""Weighted means of trees that arrive one after another."""

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.tree import Tree


class RunningMean:
    """The weighted mean of all trees so far, up to rounding that of `tree.weighted_mean`. Needs the memory of one tree."""

    def __init__(self) -> None:
        self._sum: Tree = None
        self._weight: Tensor | None = None

    def add(self, values: Tree, weights: Tensor) -> None:
        """Adds trees.

        Args:
            values: leaves [k, ...].
            weights: [k], >= 0.
        """
        weight = weights.double().sum()
        if self._weight is None:
            self._sum, self._weight = tree.map(lambda leaf: _weighted_sum(leaf, weights), values), weight
        else:
            self._sum = tree.map(lambda total, leaf: total.add_(_weighted_sum(leaf, weights)), self._sum, values)
            self._weight = self._weight + weight

    def mean(self) -> Tree:
        """The mean, leaves [...]; the weights may not all be 0.

        Raises:
            ValueError: if nothing has been added.
        """
        if self._weight is None:
            raise ValueError("A mean needs at least one tree, but none has been added.")
        weight = self._weight
        return tree.map(lambda total: total / weight.to(total.dtype), self._sum)


def _weighted_sum(leaf: Tensor, weights: Tensor) -> Tensor:
    return torch.tensordot(weights.to(leaf.dtype), leaf, dims=1)
