"""FedNova: updates are normalised by the amount of local work before they are averaged.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020.
https://arxiv.org/abs/2007.07481
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from algorithms import Average, LocalResult, RoundBased, Tree, descend, one_of, registered, tree
from algorithms.shared.base import average_buffers
from algorithms.shared.local_sgd import momentum_steps
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Cohort, Task

MomentumMode = Literal["corrected", "steps"]


@registered("fednova")
@dataclass(frozen=True)
class FedNova(RoundBased):
    """FedAvg with normalised averaging (Eq. 7 and 8 of the paper): params + (sum p_i a_i) sum p_i delta_i / a_i.

    With equal clients it is FedAvg. Running statistics are averaged as in FedAvg, except in the mode "steps".

    Attributes:
        momentum_mode: "corrected": a_i is the sum of the weights that local SGD with momentum gives to its gradients;
            "steps": a_i is the number of local steps, whatever the momentum, and running statistics follow the rule of
            the params, which extrapolates them (the FedCollab code).
    """

    momentum_mode: MomentumMode = "corrected"

    weighs_clients = True

    def __post_init__(self) -> None:
        one_of("momentum_mode", self.momentum_mode, get_args(MomentumMode))

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view).params
        momentum = view.settings.momentum if self.momentum_mode == "corrected" else 0.0
        work = momentum_steps(view.num_steps, momentum)
        return LocalResult({"delta": tree.subtract(trained, view.params), "work": work}, view.client)

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        return {"delta": Average(_normalised(updates["delta"], updates["work"]), cohort.weights)}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return tree.add(params, tree.scale(update["delta"], _mean_work(update, cohort))), server

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        if self.momentum_mode == "corrected":
            return average_buffers(trained, cohort.weights)
        moved = tree.map(lambda new, old: (new - old).double(), trained, buffers)
        mean = tree.weighted_mean(_normalised(moved, updates["work"]), cohort.weights)
        direction = tree.scale(mean, _mean_work(updates, cohort))
        return tree.map(lambda old, d: (old + d).to(old.dtype), buffers, direction)


def _normalised(deltas: Tree, work: Tensor) -> Tree:
    """delta_i / a_i, of deltas with leaves [K, ...] and work [K]."""
    return tree.map(lambda leaf: leaf / work.view(-1, *[1] * (leaf.dim() - 1)), deltas)


def _mean_work(updates: Tree, cohort: Cohort) -> Tensor:
    """sum p_i a_i. Scalar."""
    return tree.weighted_mean(updates["work"], cohort.weights)
