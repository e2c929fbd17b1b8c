"""Sharpness-aware gradients: taken not at params, but at params + e, a short way up a loss."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.local_sgd import gradient
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, ClientView, Loss, Task

LEAST_NORM = 1e-12  # added to a norm that divides


def ascent(slope: Tree, rho: float | Tensor) -> Tree:
    """e = rho v / |v| along a tree v, with one norm over all its leaves; 0 where v is so short that it has no direction."""
    length = tree.norm(slope)
    return tree.scale(slope, torch.where(length < LEAST_NORM, 0, rho / (length + LEAST_NORM)))


def two_gradients(
    loss: Loss,
    params: Tree,
    batch: Batch,
    view: ClientView,
    ascend: Callable[[Tree], Tree],
    uphill: Loss | None = None,
) -> tuple[Tree, Tree]:
    """Gradients on a batch: at params, and at params + e. Only the first pass moves running statistics, and both draw the
    same dropout masks.

    Args:
        ascend: e, from the first gradient.
        uphill: the loss of the first gradient, if it is another one.
    """
    again = replace(view, model=view.model.twin())  # made before the first pass, which draws masks
    here = gradient(uphill or loss, params, batch, view)
    return here, gradient(loss, tree.add(params, ascend(here)), batch, again)


def sharp_gradient(loss: Loss, params: Tree, batch: Batch, view: ClientView, rho: float) -> Tree:
    """The gradient on a batch at params + e, with e of length rho up the gradient at params; that at params if rho is 0."""
    if not rho:
        return gradient(loss, params, batch, view)
    return two_gradients(loss, params, batch, view, lambda slope: ascent(slope, rho))[1]


def one_class_caveats(name: str, task: Task, rho: float) -> list[str]:
    """What a reader must know of a method with ascents of length rho and memories of clients, where clients have one class."""
    alone = task.federation.one_class_clients
    said = (
        f"{name}: {alone} of {task.population} clients have examples of one class only: their gradients soon vanish, but the "
        "ascent keeps its length, so that they go on moving and what they remember of it grows."
    )
    return [said] if alone and rho else []
