"""Several models side by side, each with its own classifier, whose logits a rule combines."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.models.base import Model
from bench.models.concat import with_prefix, without_prefix


class Ensemble(Model):
    """Models on the same input; `combine` makes logits of theirs.

    The features are the logits of all models, one after another. The params and buffers of model k have the prefix
    "encoder<k>.", those of the rule have none.

    Attributes:
        members: the models.
    """

    members: tuple[Model, ...]

    def combine(self, params: dict, logits: Tensor) -> Tensor:
        """Logits [B, num_classes] from those of the m models, [B, m, their number of classes]."""
        raise NotImplementedError

    def init_rule(self, generator: torch.Generator) -> dict:
        """Params of the rule."""
        return {}

    @property
    def loop_only(self):
        return next((member.loop_only for member in self.members if member.loop_only), "")

    @property
    def depends_on_mode(self):
        return any(member.depends_on_mode for member in self.members)

    @property
    def smallest_batch(self):
        return max(member.smallest_batch for member in self.members)

    @property
    def feature_dim(self):
        return sum(member.num_classes for member in self.members)

    def layers(self):
        return {
            f"encoder{k}.{name}": shape
            for k, member in enumerate(self.members)
            for name, shape in member.layers().items()
        }

    def init(self, generator):
        params = {}
        for k, member in enumerate(self.members):
            params |= with_prefix(k, member.init(generator))
        return params | self.init_rule(generator)

    def init_buffers(self):
        buffers = {}
        for k, member in enumerate(self.members):
            buffers |= with_prefix(k, member.init_buffers())
        return buffers

    def logits_of(self, params: dict, x: Tensor, bound) -> Iterator[Tensor]:
        """The logits [B, classes] of one model after another."""
        for k, member in enumerate(self.members):
            own = without_prefix(k, params)
            one = replace(bound, spec=member, buffers=without_prefix(k, bound.buffers))
            yield one(own, x)

    def features(self, params, x, bound):
        return torch.cat([*self.logits_of(params, x, bound)], 1)

    def head(self, params, z):
        return self.combine(params, z.unflatten(1, (len(self.members), -1)))


# Rules without training. Where the result is a probability, its logarithm is the logit, so that the softmax gives it back.


class Rule(NamedTuple):
    """How logits [B, m, C] become logits [B, C].

    Attributes:
        combine: (logits, what it knows of the models, or None) -> logits.
        knows: shape of what it knows, from (m, C); None if nothing.
    """

    combine: Callable[[Tensor, Tensor | None], Tensor]
    knows: Callable[[int, int], tuple[int, ...]] | None = None


def mean_logits(logits: Tensor, _: Tensor | None = None) -> Tensor:
    return logits.mean(1)


def mean_probabilities(logits: Tensor, _: Tensor | None = None) -> Tensor:
    """Logarithm of the mean of the softmaxes."""
    return F.log_softmax(logits, 2).logsumexp(1) - math.log(logits.shape[1])


def votes(logits: Tensor) -> Tensor:
    """Number of models with the largest logit at each class, the first of equal ones. [B, C]."""
    classes = torch.arange(logits.shape[2], device=logits.device)
    return (logits.argmax(2, keepdim=True) == classes).to(logits.dtype).sum(1)


def majority(logits: Tensor, _: Tensor | None = None) -> Tensor:
    """Logarithm of the votes, ties decided by the mean of the softmaxes, then for the lowest class."""
    return _log(votes(logits) + 0.5 * F.softmax(logits, 2).mean(1))


def weighted_logits(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Sum of the logits, each class weighed by a model's weight [m, C] for it."""
    return torch.einsum("bmc,mc->bc", logits, weights)


def weighted_probabilities(logits: Tensor, weights: Tensor | None) -> Tensor:
    """Logarithm of the sum of the softmaxes, each class weighed by a model's weight [m, C] for it."""
    return _log(torch.einsum("bmc,mc->bc", F.softmax(logits, 2), weights))


def polychotomous(logits: Tensor, confusion: Tensor | None) -> Tensor:
    """Logarithm of the product over the models of the share of examples of a class that a model calls what it says now;
    confusion [m, C, C] has the shares, by true class and by called class."""
    called = logits.argmax(2, keepdim=True) == torch.arange(logits.shape[2], device=logits.device)
    return torch.einsum("bmk,mck->bc", called.to(logits.dtype), _log(confusion))


def _log(values: Tensor | None) -> Tensor:
    """Logarithms, of 0 that of the smallest number, so that a loss stays finite."""
    assert values is not None
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()


RULES = {
    "logits": Rule(mean_logits),
    "probabilities": Rule(mean_probabilities),
    "votes": Rule(majority),
    "weighted-logits": Rule(weighted_logits, lambda m, c: (m, c)),
    "weighted-probabilities": Rule(weighted_probabilities, lambda m, c: (m, c)),
    "polychotomous": Rule(polychotomous, lambda m, c: (m, c, c)),
}


@dataclass(frozen=True)
class ByRule(Ensemble):
    """An ensemble with a rule of `RULES`; what that knows of the models is the param "knowledge".

    Attributes:
        rule: name of the rule.
    """

    members: tuple[Model, ...]
    rule: str = "logits"

    def init_rule(self, generator):
        knows = RULES[self.rule].knows
        return {"knowledge": torch.zeros(knows(len(self.members), self.num_classes))} if knows else {}

    def combine(self, params, logits):
        return RULES[self.rule].combine(logits, params.get("knowledge"))


# Rules that are trained: small models whose inputs are the logits of all models, [B, m C, 1, 1].


@dataclass(frozen=True)
class HiddenLayer(Model):
    """W2 relu(W1 v + b1) + b2 of the logits v.

    Attributes:
        width: of the hidden layer.
    """

    width: int

    def layers(self):
        return {"hidden": (self.width, self.input_shape[0]), "classifier": (self.num_classes, self.width)}

    def features(self, params, x, bound):
        return F.relu(F.linear(x.flatten(1), params["hidden.weight"], params["hidden.bias"]))


@dataclass(frozen=True)
class Linear(Model):
    """W v + b of the logits v."""

    def layers(self):
        return {"classifier": (self.num_classes, self.input_shape[0])}

    def features(self, params, x, bound):
        return x.flatten(1)


@dataclass(frozen=True)
class Weights(Linear):
    """sum_i w_i z_i of the logits z_i of model i, with a weight for each model and class, or for each model and one bias; at
    first the mean.

    Attributes:
        per_class: whether models have a weight for each class.
    """

    per_class: bool

    def layers(self):
        return {}

    def init(self, generator):
        m = self.input_shape[0] // self.num_classes
        if self.per_class:
            return {"weights": torch.full((m, self.num_classes), 1 / m)}
        return {"weights": torch.full((m, 1), 1 / m), "bias": torch.zeros(())}

    def head(self, params, z):
        logits = (z.unflatten(1, (-1, self.num_classes)) * params["weights"]).sum(1)
        return logits + params["bias"] if "bias" in params else logits


@dataclass(frozen=True)
class Aggregated(Ensemble):
    """An ensemble whose logits a small model reads; its params have the prefix "aggregator.".

    Attributes:
        aggregator: the small model.
    """

    members: tuple[Model, ...]
    aggregator: Model

    def init_rule(self, generator):
        return {f"aggregator.{name}": leaf for name, leaf in self.aggregator.init(generator).items()}

    def combine(self, params, logits):
        own = {
            name.removeprefix("aggregator."): leaf for name, leaf in params.items() if name.startswith("aggregator.")
        }
        return self.aggregator.head(own, self.aggregator.features(own, logits.flatten(1), None))


@dataclass(frozen=True)
class Voting(Ensemble):
    """An ensemble of models with one output more, the class unknown: those to which an image is least unknown add up their
    probabilities of the other classes; the logits are the logarithms of the sums.

    Attributes:
        voters: how many models vote; 0 for all.
    """

    members: tuple[Model, ...]
    voters: int

    def combine(self, params, logits):
        return _log(vote(logits, self.voters or len(self.members)))


def vote(logits: Tensor, voters: int) -> Tensor:
    """Sum of the probabilities [B, C] of the known classes over the models with the smallest one of the last class, unknown.

    Args:
        logits: [B, m, C + 1].
    """
    shares = F.softmax(logits, 2)
    chosen = shares[:, :, -1].argsort(dim=1, stable=True)[:, :voters, None]
    return shares[:, :, :-1].gather(1, chosen.expand(-1, -1, shares.shape[2] - 1)).sum(1)
