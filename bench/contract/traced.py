"""Functions of trees as their tensor operations: what a CUDA graph holds, on any device."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from bench.simulation.graphs import Captured


def traced(fn: Callable[[Tree], Tree], example: Tree) -> Captured:
    """Traces a function to its tensor operations, which a replay runs one after another: a captured graph for any device.

    As in a CUDA graph, Python runs but once, and tensors that fn reads beside its inputs are read where they were.
    """
    found: list[Tree] = []

    def on_leaves(*leaves: torch.Tensor) -> list[torch.Tensor]:
        found.append(fn(_like(example, leaves)))
        return tree.leaves(found[-1])

    inputs = tree.map(torch.clone, example)  # one tensor in two places would be traced as a single input
    operations = make_fx(on_leaves)(*tree.leaves(inputs))
    read = tree.leaves(inputs)
    outputs = _like(found[-1], [leaf.clone() for leaf in operations(*read)])

    def replay() -> None:
        torch._foreach_copy_(tree.leaves(outputs), list(operations(*read)))

    return Captured(inputs, outputs, replay)


def _like(example: Tree, leaves: Any) -> Tree:
    """A tree of the structure of another with other leaves."""
    left = iter(leaves)
    return tree.map(lambda _: next(left), example)
