"""clsprox: a proximal term keeps the classifiers of local models near the global one.

Luo et al., No Fear of Heterogeneity, NeurIPS 2021, Section 3.3. https://arxiv.org/abs/2106.05001
"""

from dataclasses import dataclass

from algorithms import tree
from algorithms.base import RoundBased
from algorithms.checks import at_least
from algorithms.local import task_loss
from bench.models.concat import classifier_part


@dataclass(frozen=True)
class ClsProx(RoundBased):
    """FedProx on the classifier alone, weight and bias.

    Differs from the paper: it does not print mu; the default is ours.

    Attributes:
        mu: weight of the proximal term, >= 0; 0 is FedAvg.
    """

    mu: float = 0.01

    def __post_init__(self):
        at_least("mu", self.mu, 0)

    def local_loss(self, params, batch, view):
        drift = tree.squared_distance(classifier_part(params), classifier_part(view.params))
        return task_loss(params, batch, view) + 0.5 * self.mu * drift
