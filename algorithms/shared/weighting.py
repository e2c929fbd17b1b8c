"""Methods whose server takes a plain mean over the cohort, unless they are asked for one by numbers of examples."""

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
class Uniform(RoundBased):
    """FedAvg with a mean of models and their buffers that is "uniform", or by number of "examples".

    Attributes:
        weighting: which mean.
    """

    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        one_of("weighting", self.weighting, get_args(Weighting))

    @property
    def weighs_clients(self) -> bool:
        return self.weighting == "examples"

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        return {"delta": Average(updates["delta"], self._weights(cohort))}

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return average_buffers(trained, self._weights(cohort))

    def _weights(self, cohort: Cohort) -> Tensor:
        """By which models are averaged [K]."""
        return cohort.weights if self.weighting == "examples" else torch.ones_like(cohort.num_examples)
