"""How much frozen features tell: the loss of a classifier and of a decoder that were trained on them.

Appendix C of FedConcat (Diao et al., AAAI 2024) estimates the mutual information of features and labels by the first, that of
features and images by the second; a smaller loss is more information.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from algorithms.local import descend
from bench.seeding import generator_for, seed_for
from bench.simulation.client import Batch, BatchIndex, BatchPlan, Settings


class Examples(NamedTuple):
    """Inputs and targets of a head; to `descend` what a client's data is.

    Attributes:
        features: [n, feature_dim].
        targets: [n] classes, or [n, pixels] in [0, 1].
    """

    features: Tensor
    targets: Tensor

    def take(self, index: BatchIndex) -> Batch:
        """The batch of those rows."""
        return Batch(self.features[index.rows], self.targets[index.rows])


def classification_loss(examples: Examples, num_classes: int, settings: Settings, seed: int, data: int) -> float:
    """Mean cross-entropy, in nats, that a linear classifier reaches on the examples it is trained on.

    Args:
        examples: targets [n], classes.
        settings: of its training; only epochs, batches and SGD count.
        seed: of the run.
        data: names the examples; heads on the same examples see the same batches, whatever the encoder.
    """
    head = _initial(lambda: nn.Linear(examples.features.shape[1], num_classes), seed)
    loss = partial(F.cross_entropy, reduction="none")
    return _loss_after_training(head, loss, examples, settings, seed, data)


def reconstruction_loss(examples: Examples, width: int, settings: Settings, seed: int, data: int) -> float:
    """Mean squared error per pixel that a decoder reaches on the examples it is trained on.

    Args:
        examples: targets [n, pixels], in [0, 1].
        width: hidden units of the decoder, with ReLU; 0 is a linear decoder. Its outputs pass a sigmoid.
        settings, seed, data: as in `classification_loss`.
    """
    inputs, pixels = examples.features.shape[1], examples.targets.shape[1]

    def decoder() -> nn.Module:
        hidden = [nn.Linear(inputs, width), nn.ReLU()] if width else []
        return nn.Sequential(*hidden, nn.Linear(width or inputs, pixels), nn.Sigmoid())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).square().mean(1)

    return _loss_after_training(_initial(decoder, seed), loss, examples, settings, seed, data)


def _initial(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module with PyTorch's default initial params, drawn for this purpose only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "head-init"))
        return build()


def _loss_after_training(head, loss, examples: Examples, settings: Settings, seed: int, data: int) -> float:
    """Trains a head by local SGD, then takes its mean loss [n] -> scalar over all examples."""

    def objective(params, batch: Batch, view: Any) -> Tensor:
        return batch.mean(loss(functional_call(head, params, (batch.x,)), batch.y))

    view = SimpleNamespace(settings=settings)  # the part of a client's view that training needs
    plan = _plan(len(examples.targets), settings, generator_for(seed, "head-batches", data))
    params = descend(objective, dict(head.named_parameters()), examples, plan, view).params
    with torch.no_grad():
        return objective(params, Batch(*examples), view).item()


def _plan(count: int, settings: Settings, generator: torch.Generator) -> BatchPlan:
    passes = settings.passes(count)
    rows = torch.cat([torch.randperm(count, generator=generator)[: sum(sizes)] for sizes in passes])
    return [BatchIndex(batch, None, {}, len(batch)) for batch in rows.split(sum(passes, []))]
