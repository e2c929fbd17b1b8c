"""Methods whose server takes a mean over the cohort that is by number of examples, or uniform."""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from algorithms.shared.base import Average, Weighting, average_buffers
from algorithms.shared.checks import one_of
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import Cohort


@dataclass(frozen=True)
class Weighs(RoundBased):
    """The option, and what follows from it; of what the mean is says the method.

    Attributes:
        weighting: a "uniform" mean, or one by number of "examples".
    """

    weighting: Weighting = "examples"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("weighting", self.weighting, get_args(Weighting))

    @property
    def weighs_clients(self) -> bool:
        return self.weighting == "examples"

    def client_weights(self, cohort: Cohort) -> Tensor:
        """By which clients are averaged [K]."""
        return cohort.weights if self.weighting == "examples" else torch.ones_like(cohort.num_examples)


@dataclass(frozen=True)
class Weighed(Weighs):
    """FedAvg with such a mean of models and their buffers."""

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        return {"delta": Average(updates["delta"], self.client_weights(cohort))}

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return average_buffers(trained, self.client_weights(cohort))
