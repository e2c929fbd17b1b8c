"""How much frozen features tell: the loss of a classifier and of a decoder that were trained on them.

Appendix C of FedConcat (Diao et al., AAAI 2024) estimates the mutual information of features and labels by the first, that of
features and images by the second; a smaller loss is more information. `information` makes a number in nats of the first.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from algorithms.shared.local_sgd import descend
from algorithms.shared.types import Batch, BatchIndex, BatchPlan, Settings
from bench.seeding import generator_for, seed_for

_CROSS_ENTROPY = partial(F.cross_entropy, reduction="none")


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
    head, params = _classifier(examples, num_classes, settings, seed, data)
    return _mean_loss(head, params, _CROSS_ENTROPY, examples)


class Information(NamedTuple):
    """What features Z tell about labels Y, in nats.

    Attributes:
        bound: lower bound of the mutual information I(Z; Y); below 0 where the classifier is worse than the shares of the
            labels. NaN if a label of the examples is not among the held-out ones.
        entropy: H(Y), which I(Z; Y) cannot exceed.
    """

    bound: float
    entropy: float


def information(
    examples: Examples, held_out: Examples, num_classes: int, settings: Settings, seed: int, data: int
) -> Information:
    """Estimate of the mutual information I(Z; Y) of features and labels (Equation 15 of FedConcat), from below:

        I(Z; Y) = H(Y) - H(Y | Z) >= H(Y) + E[log q(Y | Z)],

    where q is a linear classifier that is trained on the examples as that of `classification_loss` (Barber and Agakov, The IM
    Algorithm, NIPS 2003). The gap is how far q is from the true p(y | z); with q = p there is none. The expectation is the mean
    over held-out examples, which q has not seen, because the bound need not hold on those that it was trained on. It gives the
    labels the shares that they have among the examples, and so does H(Y).

    Estimators by nearest neighbours need distances that say something, which those of hundreds of features do not, or look at
    one feature at a time (scikit-learn's `mutual_info_classif`). This one bounds the information of all features together.

    Args:
        examples: targets [n], classes; q is trained on them.
        held_out: others, with the same features.
        num_classes, settings, seed, data: as in `classification_loss`.
    """
    head, params = _classifier(examples, num_classes, settings, seed, data)
    with torch.no_grad():
        losses = F.cross_entropy(
            functional_call(head, params, (held_out.features,)), held_out.targets, reduction="none"
        )
    shares = torch.bincount(examples.targets, minlength=num_classes).double() / len(examples.targets)
    counts = torch.bincount(held_out.targets, minlength=num_classes)
    means = torch.bincount(held_out.targets, losses.double(), minlength=num_classes) / counts  # NaN without examples
    present = shares > 0
    entropy = -(shares[present] * shares[present].log()).sum().item()
    return Information(entropy - (shares[present] * means[present]).sum().item(), entropy)


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

    head = _initial(decoder, seed)
    return _mean_loss(head, _trained(head, loss, examples, settings, seed, data), loss, examples)


def _initial(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module with PyTorch's default initial params, drawn for this purpose only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "head-init"))
        return build()


def _classifier(
    examples: Examples, num_classes: int, settings: Settings, seed: int, data: int
) -> tuple[nn.Module, dict]:
    """A linear classifier, and its params after training."""
    head = _initial(lambda: nn.Linear(examples.features.shape[1], num_classes), seed)
    return head, _trained(head, _CROSS_ENTROPY, examples, settings, seed, data)


def _trained(head, loss, examples: Examples, settings: Settings, seed: int, data: int) -> dict:
    """The params of a head after training by local SGD on a loss of each example [n]."""

    def objective(params, batch: Batch, view: Any) -> Tensor:
        return batch.mean(loss(functional_call(head, params, (batch.x,)), batch.y))

    view = SimpleNamespace(settings=settings)  # the part of a client's view that training needs
    plan = _plan(len(examples.targets), settings, generator_for(seed, "head-batches", data))
    return descend(objective, dict(head.named_parameters()), examples, plan, view).params


def _mean_loss(head, params: dict, loss, examples: Examples) -> float:
    with torch.no_grad():
        return loss(functional_call(head, params, (examples.features,)), examples.targets).mean().item()


def _plan(count: int, settings: Settings, generator: torch.Generator) -> BatchPlan:
    passes = settings.passes(count)
    rows = torch.cat([torch.randperm(count, generator=generator)[: sum(sizes)] for sizes in passes])
    return [BatchIndex(batch, None, {}, len(batch)) for batch in rows.split(sum(passes, []))]
