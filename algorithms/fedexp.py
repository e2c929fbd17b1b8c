"""FedExP: the server extrapolates along the mean update, the further the less the clients' updates agree.

Jhunjhunwala, Wang and Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
https://arxiv.org/abs/2301.09604
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Average, Cohort, Deployed, RoundBased, State, Task, Tree, at_least, one_of, registered, tree

Iterate = Literal["mean", "last"]


@registered("fedexp")
@dataclass(frozen=True)
class FedExP(RoundBased):
    """FedAvg with a step size of the server that it computes in every round from the deltas D_i and their mean D:
    max(1, sum p_i |D_i|^2 / (2 (|D|^2 + eps))). Norms are over all params, without buffers.

    It deploys the mean of the params of the last two rounds, while training goes on from the last ones; after the first round
    it deploys these. Buffers are those of the last round. The mean flatters FedExP beside methods that deploy what they
    train: `deployed=last` is the comparison without it.

    With equal D_i, or a large eps, it is FedAvg.

    Attributes:
        eps: of the denominator, >= 0; its authors have 0.001 on CIFAR and CINIC-10, and 0.1 on EMNIST.
        eps_per_client: eps times the number of clients of the round, as in the authors' code (which also shrinks it over
            rounds, by the square of the factor of the learning rate; here it is constant).
        deployed: the "mean" of the last two rounds' params, as in the paper, or the "last" ones.
    """

    eps: float = 0.001
    eps_per_client: bool = False
    deployed: Iterate = "mean"

    weighs_clients = True

    def __post_init__(self) -> None:
        at_least("eps", self.eps, 0)
        one_of("deployed", self.deployed, get_args(Iterate))

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"previous": params, "begun": torch.zeros((), dtype=torch.bool, device=task.device)}

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        # The server computes the norms: clients send what those of FedAvg do.
        norms = _squared_norms(updates["delta"])
        return {**super().weighted_means(updates, cohort), "squared_norm": Average(norms, cohort.weights)}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        eps = self.eps * (len(cohort.ids) if self.eps_per_client else 1)
        squared = tree.squared_distance(update["delta"], tree.zeros_like(update["delta"]))
        # 0 / 0: nothing has moved.
        step_size = (update["squared_norm"] / (2 * (squared + eps))).nan_to_num(1).clamp(min=1)
        new = tree.add(params, tree.scale(update["delta"], step_size))
        # The mean after the first round is that of its params with themselves.
        previous = tree.where(server["begun"], params, new)
        return new, {"previous": previous, "begun": torch.ones_like(server["begun"])}

    def caveats(self, task: Task) -> list[str]:
        if self.deployed == "last" or not task.model.init_buffers():
            return []
        return ["fedexp: the mean of two models is deployed with the running statistics of the second one."]

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        if self.deployed == "last":
            return super().deploy(task, state, client_ids)
        mean = tree.map(lambda new, old: (new + old) / 2, state["params"], state["server"]["previous"])
        return Deployed(self.deployed_model(task), mean, state["buffers"], per_client=False)


def _squared_norms(deltas: Tree) -> Tensor:
    """Squared norm of each client's delta over all leaves [K], leaves [K, ...]."""
    return torch.stack([leaf.flatten(1).square().sum(1) for leaf in tree.leaves(deltas)]).sum(0)
