"""Local training: what happens on one client."""

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchIndex, BatchPlan, ClientData, ClientView, Loss
from bench.errors import HookError
from bench.hooks import place_of

# (loss, params, batch, view) -> a constant as large as params
GradientOf = Callable[[Loss, Tree, Batch, ClientView], Tree]


class LocalResult(NamedTuple):
    """What a client hands back: the update that it sends, its own new state, and what it has measured.

    Attributes:
        metrics: name -> scalar tensor, the same names at all clients. A run notes their means over the cohort by
            `cohort.weights`; they count as no traffic.
    """

    update: Tree
    client: Tree
    metrics: dict[str, Tensor] = {}


class Trained(NamedTuple):
    """Params after local SGD, and the momentum buffer at its end."""

    params: Tree
    velocity: Tree


def task_loss(params: Tree, batch: Batch, view: ClientView) -> Tensor:
    """Mean cross-entropy over the real rows of a batch. Scalar."""
    return cross_entropy(view.model(params, batch.x), batch)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of logits [B, num_classes] over the real rows of a batch. Scalar."""
    if batch.mask is None:
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
    # The same numbers: of what F.cross_entropy does about labels to ignore, vmap makes a dozen kernels.
    chosen = batch.y[:, None] == torch.arange(logits.shape[1], device=logits.device)
    return batch.mean(-torch.where(chosen, F.log_softmax(logits, 1), 0).sum(1))


def gradient(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
    """Gradient of a loss on a batch, as a constant: nothing is differentiated through it.

    Of masked batches by `torch.func`, which vmap can trace; of all others by autograd, because only that lets a forward pass
    update running statistics in place.

    Args:
        loss: (params, batch, view) -> scalar.
        params: a flat dict of tensors.
    """
    params = {name: leaf.detach() for name, leaf in params.items()}
    if batch.mask is not None:
        return torch.func.grad(functools.partial(_value, loss))(params, batch, view)
    leaves = [leaf.requires_grad_() for leaf in params.values()]
    return dict(zip(params, torch.autograd.grad(_value(loss, params, batch, view), leaves), strict=True))


def value_of(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tensor:
    """What a loss returns, for methods that take its gradient by other means than `gradient`: so the contract counts it."""
    return _value(loss, params, batch, view)


def _value(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tensor:
    """What a loss returns; raises HookError if that is no scalar."""
    value = loss(params, batch, view)
    if not isinstance(value, Tensor) or value.ndim:
        got = f"a tensor of shape {[*value.shape]}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise HookError(f"{place_of(loss)}, returned {got}, but a scalar is expected; write return batch.mean(...).")
    return value


def clipped(slope: Tree, most: float | None) -> Tree:
    """A gradient, scaled to the norm most where its norm over all parameters is larger; as it is if most is None."""
    # One division of equal numbers gives exactly 1: a gradient that is short enough keeps its bits.
    return slope if most is None else tree.scale(slope, most / tree.norm(slope).clamp(min=most))


def unless_padding(index: BatchIndex, new: Tree, old: Tree, smallest_batch: int = 1) -> Tree:
    """What a client has after a step: new, but old where the batch of index is padding only, because other clients have more
    batches than this one; or where it has fewer examples than smallest_batch."""
    if index.least >= smallest_batch:
        return new
    return old if index.mask is None else tree.where(index.mask.sum() >= smallest_batch, new, old)


def descend(
    loss: Loss,
    params: Tree,
    data: ClientData,
    plan: BatchPlan,
    view: ClientView,
    *,
    velocity: Tree | None = None,
    momentum: float | None = None,
    gradient_offset: Tree | None = None,
    step_offset: Tree | None = None,
    smallest_batch: int = 1,
    gradient_of: GradientOf = gradient,
    plain: Collection[str] = (),
) -> Trained:
    """Local SGD: one step per batch of the plan, starting at params. Pure; nothing can be differentiated through it.

    Per step, with gradient g of the loss, as gradient_of gives it: v = momentum v + g + weight_decay params +
    gradient_offset; then params = params - lr (v + step_offset).

    Args:
        loss: (params, batch, view) -> scalar.
        params: where to start, a flat dict of tensors.
        data, plan, view: of the client; lr, momentum, weight decay and the largest norm of a gradient are those of
            `view.settings`.
        velocity: momentum buffer at the start; zeros by default.
        momentum: replaces that of the settings.
        gradient_offset: added to every gradient, inside the momentum.
        step_offset: added to every step, outside the momentum.
        smallest_batch: batches with fewer examples are skipped.
        gradient_of: (loss, params, batch, view) -> what a step takes for the gradient, a constant as large as params. Weight
            decay, gradient_offset and momentum come after it, and after it is shortened to the largest norm.
        plain: names of params that take plain steps instead, params = params - lr g; their momentum buffer stays as it is.
    """
    rule = _Rule(
        view.settings.lr,
        view.settings.momentum if momentum is None else momentum,
        view.settings.weight_decay,
        gradient_offset,
        step_offset,
        smallest_batch,
        _shortened(gradient_of, view.settings.max_gradient_norm),
        tuple(plain),
    )
    velocity = tree.zeros_like(params) if velocity is None else velocity
    exact = not plan or plan[0].mask is None
    return (_descend_exactly if exact else _descend_masked)(rule, loss, params, velocity, data, plan, view)


def _shortened(gradient_of: GradientOf, most: float | None) -> GradientOf:
    """A way to take gradients that are no longer than most."""
    return gradient_of if most is None else lambda *given: clipped(gradient_of(*given), most)


def momentum_steps(num_steps: Tensor, momentum: float) -> Tensor:
    """How many plain steps the displacement of num_steps steps with momentum is worth, under a constant gradient.

    a(T) = [T - m (1 - m^T) / (1 - m)] / (1 - m), with T steps and momentum m.
    """
    return (num_steps - momentum * (1 - momentum**num_steps) / (1 - momentum)) / (1 - momentum)


class _Rule(NamedTuple):
    """What one step does with a gradient; see `descend`."""

    lr: float
    momentum: float
    weight_decay: float
    gradient_offset: Tree | None
    step_offset: Tree | None
    smallest_batch: int
    gradient_of: GradientOf
    plain: tuple[str, ...]


def _descend_exactly(
    rule: _Rule, loss: Loss, params: Tree, velocity: Tree, data: ClientData, plan: BatchPlan, view: ClientView
) -> Trained:
    """Batches of their own lengths: autograd, and updates in place on private copies."""
    params = {name: leaf.detach().clone() for name, leaf in params.items()}
    names = [name for name in params if name not in rule.plain]
    leaves, plain = ([params[name] for name in some] for some in (names, rule.plain))
    speeds = [velocity[name].clone() for name in names]
    in_gradient = rule.gradient_offset and [rule.gradient_offset[name] for name in names]
    in_step = rule.step_offset and [rule.step_offset[name] for name in names]
    for index in plan:
        if index.least < rule.smallest_batch:
            continue
        gradients = rule.gradient_of(loss, params, data.take(index), view)
        torch._foreach_mul_(speeds, rule.momentum)
        torch._foreach_add_(speeds, [gradients[name] for name in names])
        if rule.weight_decay:
            torch._foreach_add_(speeds, leaves, alpha=rule.weight_decay)
        if in_gradient:
            torch._foreach_add_(speeds, in_gradient)
        torch._foreach_add_(leaves, speeds, alpha=-rule.lr)
        if in_step:
            torch._foreach_add_(leaves, in_step, alpha=-rule.lr)
        if plain:
            torch._foreach_add_(plain, [gradients[name] for name in rule.plain], alpha=-rule.lr)
    return Trained(params, {**velocity, **dict(zip(names, speeds, strict=True))})


def _descend_masked(
    rule: _Rule, loss: Loss, params: Tree, velocity: Tree, data: ClientData, plan: BatchPlan, view: ClientView
) -> Trained:
    """Padded batches: a function that vmap can trace; a batch of padding only changes nothing."""
    for index in plan:
        slope = rule.gradient_of(loss, params, data.take(index), view)
        parts = [slope, velocity, params, *filter(None, (rule.gradient_offset, rule.step_offset))]
        outputs = _Step.apply(
            (rule.lr, rule.momentum, rule.weight_decay),
            tuple(name in rule.plain for name in params),
            bool(rule.gradient_offset),
            bool(rule.step_offset),
            *(part[name] for part in parts for name in params),
        )
        stepped, moved = outputs[: len(params)], outputs[len(params) :]
        after = Trained(dict(zip(params, stepped, strict=True)), dict(zip(params, moved, strict=True)))
        params, velocity = unless_padding(index, after, Trained(params, velocity), rule.smallest_batch)
    return Trained(params, velocity)


class _Step(torch.autograd.Function):
    """One step of all params: a few kernels for lists of tensors, also where vmap traces many clients, of which it would else
    make a few kernels for each tensor."""

    @staticmethod
    def forward(
        rates: tuple[float, float, float], plain: tuple[bool, ...], in_gradient: bool, in_step: bool, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        """The new params, then the new velocity.

        Args:
            rates: lr, momentum, weight decay.
            plain: which params take plain steps.
            in_gradient, in_step: whether there is a gradient_offset, and a step_offset.
            leaves: of the gradient, the velocity, the params, and the offsets that there are.
        """
        (lr, momentum, weight_decay), count = rates, len(plain)
        slope, velocity, params, *offsets = (leaves[at : at + count] for at in range(0, len(leaves), count))
        moved = list(torch._foreach_add(slope, velocity, alpha=momentum))
        if weight_decay:
            torch._foreach_add_(moved, params, alpha=weight_decay)
        if in_gradient:
            torch._foreach_add_(moved, offsets[0])
        step = list(torch._foreach_add(moved, offsets[-1])) if in_step else moved
        step = [own if alone else new for alone, new, own in zip(plain, step, slope, strict=True)]
        moved = [own if alone else new for alone, new, own in zip(plain, moved, velocity, strict=True)]
        return (*torch._foreach_sub(params, step, alpha=lr), *moved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing is differentiated through a step."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The same kernels for the clients [K] of a block, which are the first dimension of all leaves."""
        rule, leaves, dims = inputs[:4], inputs[4:], in_dims[4:]
        stacked = [
            leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
        outputs = _Step.forward(*rule, *stacked)
        return outputs, (0,) * len(outputs)
