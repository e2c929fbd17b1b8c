"""clsnorm: the classifier's weight vectors are normalised, in training and in evaluation.

Luo et al., No Fear of Heterogeneity, NeurIPS 2021, Section 3.3. https://arxiv.org/abs/2106.05001
"""

from dataclasses import dataclass, replace

import algorithms
from algorithms import RoundBased, State, Task, Wrapper, registered
from algorithms.shared.partial import check_classifier
from algorithms.shared.wrapper import refuse_wrapper
from bench.models.base import Staged
from bench.models.calibrated import NormalisedClassifier, NormalisedOfStages, wrap


@registered("clsnorm")
@dataclass(frozen=True)
class ClsNorm(Wrapper):
    """A method with logits w_c . z / |w_c| and no bias; the server averages the vectors w_c as they are."""

    does = "normalises the classifier of"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_wrapper("clsnorm", self.base)
        if not isinstance(self.base, RoundBased):
            raise ValueError(
                f"clsnorm needs a base that trains one model in rounds, but got {algorithms.name_of(self.base)}."
            )
        if self.base.classifier == "replaced":
            raise ValueError(
                f"clsnorm normalises the classifier of the model, but {algorithms.name_of(self.base)} replaces it by another "
                "one."
            )

    def init(self, task: Task) -> State:
        check_classifier(task.model, "clsnorm normalises the classifier")
        return super().init(task)

    def inside(self, task: Task) -> Task:
        kind = NormalisedOfStages if isinstance(task.model, Staged) else NormalisedClassifier
        return replace(task, model=wrap(kind, task.model))
