"""clsprox: a proximal term keeps the classifiers of local models near the global one.

Luo et al., No Fear of Heterogeneity, NeurIPS 2021, Section 3.3. https://arxiv.org/abs/2106.05001
"""

from dataclasses import dataclass

from algorithms import State, Task, Tree, registered
from algorithms.fedprox import FedProx
from algorithms.shared.partial import check_classifier
from bench.models.concat import classifier_part


@registered("clsprox")
@dataclass(frozen=True)
class ClsProx(FedProx):
    """FedProx on the classifier alone, weight and bias.

    Differs from the paper: it does not print mu; the default is ours.
    """

    def init(self, task: Task) -> State:
        check_classifier(task.model, "clsprox holds the classifier")
        return super().init(task)

    def proximal_params(self, params: Tree) -> Tree:
        return classifier_part(params)
