"""Sums of features by class over a client's examples, as methods with prototypes take them."""

from collections.abc import Callable

import torch
from torch import Tensor

from algorithms.shared.moments import ClassSums, class_sums
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView

FeaturesOf = Callable[[Tensor], Tensor]  # images [B, C, H, W] -> [B, d]


def steps_of_a_pass(view: ClientView) -> Tensor:
    """Batches of a client's whole pass over its examples. Scalar tensor."""
    batches = view.num_examples / view.settings.batch_size
    return batches.ceil() if view.settings.last_batch == "keep" else batches.floor().clamp(min=1)


@torch.no_grad()
def add_batch(sums: ClassSums, features_of: FeaturesOf, batch: Batch, counts: Tensor) -> ClassSums:
    """Sums with those of the features of a batch, where the scalar `counts` holds."""
    more = class_sums(features_of(batch.x), batch.y, len(sums.counts), batch.mask)
    return ClassSums(*(torch.where(counts, old + new, old) for old, new in zip(sums, more, strict=True)))


def sums_of_a_pass(
    none: ClassSums, features_of: FeaturesOf, data: ClientData, plan: BatchPlan, view: ClientView
) -> ClassSums:
    """Sums over the first pass of a round's plan, with its augmentation, as constants.

    Args:
        none: sums of no features.
    """
    # At most how many steps a pass has is known on the host, where clients are padded to one length, too.
    epochs = view.settings.local_epochs
    first = plan if epochs is None else plan[: len(plan) // epochs]
    sums = none
    for step, index in enumerate(first):
        sums = add_batch(sums, features_of, data.take(index), step < steps_of_a_pass(view))
    return sums
