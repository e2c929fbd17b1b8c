"""FeSEM: the server puts every client into the cluster whose model is nearest to the client's last one.

Xie, Long, Shen, Zhou, Wang and Jiang, Multi-Center Federated Learning, arXiv 2020 (World Wide Web, 2023).
https://arxiv.org/abs/2005.01026
"""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from algorithms import State, Tree, at_least, one_of, registered, task_loss, tree
from algorithms.shared.client_states import read_rows
from algorithms.shared.clustered import ClusteredRounds, Proximal, one_hot, pull, squared_distances, start_models
from algorithms.shared.clustering import ClusterInit, cluster_seed, in_equal_parts
from algorithms.shared.types import Batch, ClientView, Cohort, RunConfig, Task


@registered("fesem")
@dataclass(frozen=True)
class FeSEM(ClusteredRounds):
    """Algorithm 1 of the paper, with proximal local training.

    The first cohort is cut into K random groups. Later a client is in the cluster nearest to its last trained model, in
    squared Euclidean distance over params and buffers (the first of equals); a client that has not taken part counts by the
    initial model. The server keeps the clients' last models and assigns, so that a client receives one model and
    sends one.

    From independent models the first groups hardly change: local models stay near the one that they started from.

    Differs from the reference code of FedConcat: no limit of 10,000 on the distance to the nearest model.

    Attributes:
        cluster_init: whether the K models start from one "common" model, as in the reference code of FedConcat, or from
            "independent" ones; of one cluster both are the same.
        proximal: "released" has no proximal term, since that of the reference code carries no gradient; "intended" adds
            weight/2 |params - params of the client's cluster|^2 to the loss.
        proximal_weight: of that term (lambda of the paper), >= 0; read only if proximal is "intended".
    """

    cluster_init: ClusterInit = "common"
    proximal: Proximal = "released"
    proximal_weight: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("cluster_init", self.cluster_init, get_args(ClusterInit))
        one_of("proximal", self.proximal, get_args(Proximal))
        at_least("proximal_weight", self.proximal_weight, 0)

    def validate(self, config: RunConfig) -> list[str]:
        cohort, mistakes = config.cohort_size, super().validate(config)
        if not mistakes and cohort % self.num_clusters:
            return [
                f"FeSEM cuts its first cohort into equal groups: num_clusters must divide its size ({cohort} clients), but "
                f"got {self.num_clusters}."
            ]
        return mistakes

    def initial_models(self, task: Task) -> Tree:
        return start_models(task, self.num_clusters, self.cluster_init)

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {**super().init_client(task, params), "params": params, "buffers": task.initial_buffers()}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        loss = task_loss(params, batch, view)
        return loss if self.proximal == "released" else loss + 0.5 * self.proximal_weight * pull(params, view)

    def downloads(self, state: State) -> Tree:
        return tree.row({"params": state["params"], "buffers": state["buffers"]}, 0)

    def memberships(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        last = read_rows(state["clients"], cohort.ids)
        clusters = {"params": state["params"], "buffers": state["buffers"]}
        locals_ = {key: last[key] for key in clusters}
        distances = [squared_distances(tree.row(locals_, position), clusters) for position in range(len(cohort.ids))]
        return one_hot(torch.stack(distances).argmin(1), self.num_clusters, task.dtype)

    def assign(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        if state["clients"]["rows"]:
            return self.memberships(task, cohort, state)
        groups = in_equal_parts(len(cohort.ids), self.num_clusters, cluster_seed(task))
        return one_hot(torch.from_numpy(groups).to(task.device), self.num_clusters, task.dtype)
