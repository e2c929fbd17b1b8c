"""One pass over a client's examples, of the several that a round may have, and features by class over it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.moments import ClassSums, class_sums
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchIndex, BatchPlan, ClientData, ClientView, Settings

FeaturesOf = Callable[[Tensor], Tensor]  # images [B, C, H, W] -> [B, d]


def first_pass(plan: BatchPlan, view: ClientView) -> BatchPlan:
    """The batches of a client's first pass over its examples; all that there are, if a round has fewer.

    Where clients are padded to one number of steps, a batch that is of no first pass has padding only.
    """
    size = batches_of_a_pass(view)
    if plan[0].mask is None:
        return plan[: int(size)]
    epochs = view.settings.local_epochs
    most = len(plan) if epochs is None else len(plan) // epochs  # known on the host
    return [_only(index, step < size) for step, index in enumerate(plan[:most])]


def batches_of_a_pass(view: ClientView) -> Tensor:
    """Batches of a client's whole pass over its examples. Scalar tensor."""
    batches = view.num_examples / view.settings.batch_size
    return batches.ceil() if view.settings.last_batch == "keep" else batches.floor().clamp(min=1)


def visited_in_a_pass(settings: Settings, num_examples: int) -> int:
    """Examples of a client in the batches of `first_pass`."""
    return sum(settings.passes(num_examples)[0])


def _only(index: BatchIndex, counts: Tensor) -> BatchIndex:
    """A padded batch, which has padding only unless the scalar counts holds."""
    assert index.mask is not None
    return index._replace(mask=index.mask & counts, least=0)


def joined(plan: BatchPlan) -> BatchIndex:
    """All batches of a plan as one, in which padding is not the last; its key is that of the first one."""
    mask = None if plan[0].mask is None else torch.cat([index.mask for index in plan if index.mask is not None])
    draws = {name: torch.cat([index.draws[name] for index in plan]) for name in plan[0].draws}
    return BatchIndex(
        torch.cat([index.rows for index in plan]), mask, draws, sum(index.least for index in plan), plan[0].key
    )


@torch.no_grad()
def add_batch(sums: ClassSums, features_of: FeaturesOf, batch: Batch) -> ClassSums:
    """Sums with those of the features of a batch, as constants."""
    return tree.add(sums, class_sums(features_of(batch.x), batch.y, len(sums.counts), batch.mask))


def sums_over(plan: BatchPlan, none: ClassSums, features_of: FeaturesOf, data: ClientData) -> ClassSums:
    """Sums of features over the batches of a plan, of images as augmented.

    Args:
        none: sums of no features.
    """
    sums = none
    for index in plan:
        sums = add_batch(sums, features_of, data.take(index))
    return sums


class ClassMeans(NamedTuple):
    """Of the features of a client's examples.

    Attributes:
        means: [num_classes, d]; 0 for classes without an example.
        counts: [num_classes].
        squares: sum over the examples of their features' squared lengths, a scalar.
    """

    means: Tensor
    counts: Tensor
    squares: Tensor


@torch.no_grad()
def class_means(params: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> ClassMeans:
    """Over the batches of a plan, of images as augmented, in training mode: as in the steps that follow. Leaves running
    statistics and masks of dropout as they are."""
    model, num_classes = view.model.twin(), len(view.label_counts)
    totals = counts = squares = torch.zeros_like(view.num_examples)
    for index in plan:
        batch = data.take(index)
        features = model.features(params, batch.x)
        sums = class_sums(features, batch.y, num_classes, batch.mask)
        lengths = features.square().sum(1)
        totals, counts = totals + sums.totals, counts + sums.counts
        squares = squares + (lengths if batch.mask is None else torch.where(batch.mask, lengths, 0)).sum()
    return ClassMeans(totals / counts.clamp(min=1)[:, None], counts, squares)
