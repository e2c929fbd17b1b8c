"""Arithmetic on trees: tensors in nested dicts (and named tuples), leaf by leaf."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

Tree = Any  # Tensor, or a dict or named tuple of trees


def map(fn: Callable[..., Any], *trees: Tree) -> Tree:
    """fn applied to corresponding leaves of trees of one structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map(fn, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return type(first)(*(map(fn, *parts) for parts in zip(*trees, strict=True)))
    return fn(*trees)


def leaves(tree: Tree) -> list[Tensor]:
    """All tensors of a tree, in the order of its keys."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]


def zeros_like(tree: Tree) -> Tree:
    return map(torch.zeros_like, tree)


def add(a: Tree, b: Tree) -> Tree:
    return map(torch.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return map(lambda leaf: leaf * factor, tree)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """Leaves of a where the scalar condition holds, else of b."""
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """Squared Euclidean distance over all leaves. Scalar."""
    return cast(Tensor, sum((x - y).square().sum() for x, y in zip(leaves(a), leaves(b), strict=True)))


def norm(tree: Tree) -> Tensor:
    """Euclidean norm over all leaves. Scalar."""
    return cast(Tensor, sum(leaf.square().sum() for leaf in leaves(tree))).sqrt()


def stack(trees: list[Tree]) -> Tree:
    """One tree whose leaves have a new leading axis [len(trees), ...]."""
    return map(lambda *parts: torch.stack(parts), *trees)


def put_row(stacked: Tree, index: int, row: Tree) -> None:
    """Replaces one row of stacked, leaves [k, ...], in place: a stack that is filled so needs no second copy of its rows.

    Raises:
        ValueError: if a leaf of the row has another shape or type than the stack is for.
    """

    def put(leaf: Tensor, new: Tensor) -> None:
        if leaf.shape[1:] != new.shape:  # copy_ would repeat a smaller one
            raise ValueError(f"A row of a stack must have the shape {[*leaf.shape[1:]]}, but got {[*new.shape]}.")
        if leaf.dtype != new.dtype:  # copy_ would round
            raise ValueError(f"A row of a stack must have the type {leaf.dtype}, but got {new.dtype}.")
        leaf[index].copy_(new)

    map(put, stacked, row)


def concatenate(trees: list[Tree]) -> Tree:
    """One tree of stacked trees, leaves [k, ...] of any k: their leaves one after another along the leading axis."""
    return map(lambda *parts: torch.cat(parts), *trees)


def row(tree: Tree, index: int | slice | Tensor) -> Tree:
    """Row (or rows) of every leaf along the leading axis."""
    return map(lambda leaf: leaf[index], tree)


def weighted_mean(stacked: Tree, weights: Tensor) -> Tree:
    """Mean over the leading axis.

    Args:
        stacked: leaves [K, ...].
        weights: [K], >= 0, not all 0; normalised here.
    """
    shares = weights.double() / weights.double().sum()
    return map(lambda leaf: torch.tensordot(shares.to(leaf.dtype), leaf, dims=1), stacked)


def num_bytes(tree: Tree) -> int:
    """Size of all leaves in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def all_finite(tree: Tree) -> bool:
    """Whether no floating-point leaf holds an infinity or a NaN."""
    found = [torch.isfinite(leaf).all() for leaf in leaves(tree) if leaf.is_floating_point()]
    return not found or bool(torch.stack([one.to(found[0].device) for one in found]).all())  # read from a GPU once
