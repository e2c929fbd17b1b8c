"""FedSoft: clients belong to all clusters, to each by the share of their examples that its model fits best.

Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022.
https://arxiv.org/abs/2112.06053
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import State, Tree, at_least, between, one_of, registered, task_loss
from algorithms.shared.clustered import ClusteredRounds, Proximal, lowest, on_each_model, one_hot, pull, start_models
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Task

Vote = Literal["per-sample", "released"]


@registered("fedsoft")
@dataclass(frozen=True)
class FedSoft(ClusteredRounds):
    """FedSoft as FedConcat uses it: memberships are the importance weights u of the paper.

    In every interval-th round each example of a client's training data votes for the model with the smallest loss on it
    (in evaluation mode, the first of equals); a client's importance of a cluster is the share of votes, but at least
    smallest_importance, and 1/K until it has voted. Clients receive all K models in every round and send one.

    Differs from the paper: clients start from the model of their largest importance instead of their own last one, every
    client of the cohort trains, and the means of the models also weight clients by their number of examples.

    Differs from the reference code of FedConcat: losses that are equal up to rounding are equal, and the first model wins;
    there the smallest number does. In the first round there the first K clients share the memory of the K models: each of
    them overwrites one with the model that it starts from, before later clients read it. Here nobody does.

    Attributes:
        interval: rounds from one vote to the next (tau of the paper), >= 1.
        smallest_importance: sigma of the paper, in [0, 1].
        vote: "per-sample" compares the models' losses on the same example; "released" on the examples at the same place
            of K separate shuffles, as the reference code of FedConcat does.
        proximal: "released" has no proximal term, since that of the reference code carries no gradient; "intended" adds
            sum_k u_k weight/2 |params - params of model k|^2 to the loss.
        proximal_weight: of that term (lambda of the paper), >= 0; read only if proximal is "intended".
    """

    interval: int = 2
    smallest_importance: float = 0.0001
    vote: Vote = "per-sample"
    proximal: Proximal = "released"
    proximal_weight: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("interval", self.interval, 1)
        between("smallest_importance", self.smallest_importance, 0, 1)
        one_of("vote", self.vote, get_args(Vote))
        one_of("proximal", self.proximal, get_args(Proximal))
        at_least("proximal_weight", self.proximal_weight, 0)

    def initial_models(self, task: Task) -> Tree:
        return start_models(task, self.num_clusters, "independent")

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        loss = task_loss(params, batch, view)
        return loss if self.proximal == "released" else loss + 0.5 * self.proximal_weight * pull(params, view)

    def assign(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        if state["round"] % self.interval:
            return self.memberships(task, cohort, state)
        batch_size = task.settings.batch_size
        length = math.ceil(max(task.sizes(cohort.ids)) / batch_size) * batch_size
        in_order = functools.partial(_losses_in_order, length=length)
        losses = on_each_model(in_order, task, cohort, state, apart=self.vote == "released")
        sizes = cohort.num_examples[:, None]
        real = torch.arange(length, device=task.device) < sizes
        votes = one_hot(lowest(losses), self.num_clusters, task.dtype) * real[..., None]
        return (votes.sum(1) / sizes).clamp(min=self.smallest_importance)


@torch.no_grad()
def _losses_in_order(data: ClientData, plan: BatchPlan, view: ClientView, length: int) -> Tensor:
    """Losses of a client's examples in the order of a pass [length]; what is beyond its examples means nothing."""
    model = view.model.copy()

    def losses_of(batch: Batch) -> Tensor:
        return F.cross_entropy(model(view.params, batch.x), batch.y, reduction="none")

    losses = torch.cat([losses_of(data.take(index)) for index in plan])
    return F.pad(losses, (0, length - len(losses)))
