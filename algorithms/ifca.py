"""IFCA: every client joins the cluster whose model has the lowest loss on its data.

Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.
https://arxiv.org/abs/2006.04088
"""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from algorithms import BatchPlan, ClientData, ClientView, Cohort, State, Task, Tree, one_of, registered, task_loss
from algorithms.shared.clustered import ClusteredRounds, lowest, on_each_model, one_hot, start_models
from algorithms.shared.clustering import ClusterInit


@registered("ifca")
@dataclass(frozen=True)
class IFCA(ClusteredRounds):
    """Algorithm 1 of the paper, with model averaging.

    Clients receive all K models in every round and send one. The loss of a model is the mean of its mini-batch losses over
    one pass in training mode, each model on a shuffle and augmentation of its own, as in the reference code of FedConcat.
    So equal models differ by how examples fell into batches, which is what sets them apart in the first round if all
    start from a common model: the first choice is essentially random. Where losses are equal up to rounding (a client
    whose batches are all full, without augmentation) the first cluster wins. Clients deploy the model that they would
    choose now.

    Differs from the paper: a cluster's mean weights clients by their number of examples.

    Attributes:
        cluster_init: whether the K models start from one "common" model, as in the reference code of FedConcat, or from
            "independent" ones, as in the paper; of one cluster both are the same.
    """

    cluster_init: ClusterInit = "common"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("cluster_init", self.cluster_init, get_args(ClusterInit))

    def init(self, task: Task) -> State:
        replace(task, settings=task.settings.one_pass(last_batch="keep")).require_batches([task.model], drops=False)
        return super().init(task)

    def initial_models(self, task: Task) -> Tree:
        return start_models(task, self.num_clusters, self.cluster_init)

    def memberships(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        losses = on_each_model(_mean_batch_loss, task, cohort, state, apart=True)
        return one_hot(lowest(losses), self.num_clusters, task.dtype)


@torch.no_grad()
def _mean_batch_loss(data: ClientData, plan: BatchPlan, view: ClientView) -> Tensor:
    """Mean over batches of their mean loss; batches of padding add 0. Scalar."""
    return sum(task_loss(view.params, data.take(index), view) for index in plan) / view.num_steps
