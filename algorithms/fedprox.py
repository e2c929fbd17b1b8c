"""FedProx: a proximal term keeps local models near the global one.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
https://arxiv.org/abs/1812.06127
"""

from dataclasses import dataclass

from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Tree, at_least, registered, task_loss, tree


@registered("fedprox")
@dataclass(frozen=True)
class FedProx(RoundBased):
    """FedAvg with a proximal local objective (Eq. 2 of the paper).

    Attributes:
        mu: weight of the proximal term, >= 0; 0 is FedAvg.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        at_least("mu", self.mu, 0)

    def proximal_params(self, params: Tree) -> Tree:
        """The params that stay near those that the client received."""
        return params

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        drift = tree.squared_distance(self.proximal_params(params), self.proximal_params(view.params))
        return task_loss(params, batch, view) + 0.5 * self.mu * drift
