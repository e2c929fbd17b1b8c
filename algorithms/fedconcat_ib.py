"""FedConcat-IB: the server infers label distributions from the bias of local classifiers.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024, Appendix D.10, with
the initialised bias of Ramakrishna and Dan. https://arxiv.org/abs/2312.06290
"""

import functools
from dataclasses import dataclass
from typing import Literal, cast, get_args

from torch import Tensor

import algorithms
from algorithms import Algorithm, RoundBased, State, Task, Tree, one_of, registered
from algorithms.fedavg import FedAvg
from algorithms.shared.checks import linear_classifier
from algorithms.shared.concatenation import Concatenation, FirstStage
from algorithms.shared.label_clusters import LabelClusters, by_labels, check_base
from algorithms.shared.label_inference import bias_answers

Estimate = Literal["released", "intended"]


@registered("fedconcat-ib")
@dataclass(frozen=True)
class FedConcatIB(Concatenation):
    """FedConcat-ID with distributions read from the change of the classifier's bias in the first round.

    Differs from the paper: by default the estimate is softmax(trained bias), which is what the reference code computes,
    because the bias that it keeps from before training is an alias of the trained one.

    Attributes:
        base: trains the model of a cluster; any method with one shared model.
        estimate: "released", or the "intended" formula: (trained - start) / (lr steps) + softmax(start).
    """

    base: Algorithm = FedAvg()
    estimate: Estimate = "released"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_base(self.base)
        one_of("estimate", self.estimate, get_args(Estimate))
        if cast(RoundBased, self.base).classifier != "trained":
            raise ValueError(
                f"fedconcat-ib reads label distributions from the bias of the classifier, but {algorithms.name_of(self.base)} "
                "trains no classifier; use another base, or fedconcat-id."
            )

    def init(self, task: Task) -> State:
        linear_classifier(algorithms.name_of(self), "reads label distributions from", task.model, task.initial_params())
        return super().init(task)

    def first_stage(self) -> FirstStage:
        def inferred(task: Task, start: Tree, models: Tree) -> tuple[Tensor, None]:
            name = "classifier.bias"
            return bias_answers(task, models["params"][name], start[name], self.estimate), None

        group = functools.partial(by_labels, num_clusters=self.num_clusters)
        return LabelClusters(self.base, group, inferred=inferred)
