"""Rounds of several cluster models: what IFCA, FedSoft, FeSEM, FedCluster and k-means have in common."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.base import Deployed, State, average_buffers
from algorithms.shared.checks import at_least
from algorithms.shared.client_states import read_rows
from algorithms.shared.clustering import ClusterInit, too_many_clusters
from algorithms.shared.local_sgd import LocalResult, descend
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import (
    BatchPlan,
    ClientData,
    ClientOutputs,
    ClientView,
    Cohort,
    OnClient,
    RunConfig,
    Task,
)
from bench.seeding import seed_for

Proximal = Literal["released", "intended"]


@dataclass(frozen=True)
class ClusteredRounds(RoundBased):
    """FedAvg with K models, of which each client trains one.

    A client's memberships [K], >= 0, are known before it trains: it starts from the model of its largest membership (the
    first of equals), with the buffers of that model. The server then sets the params and buffers of every cluster k to
    the mean of the cohort's trained models with weights num_examples * membership in k; a cluster of which nobody is a
    member stays as it is. Clients deploy the model of their cluster.

    A method says where memberships come from: `assign` before a round, `memberships` at any time.

    The state's "params" and "buffers" are stacked, leaves [K, ...]; on a client `view.params` and `view.model.buffers` are
    too, and `view.client["memberships"]` are its own. Client states keep those entries of the update that `init_client`
    names. The few bytes in which a client or the server names a cluster are not counted.

    Attributes:
        num_clusters: K, >= 1; 1 is FedAvg.
    """

    num_clusters: int = 5

    personal = True

    def __post_init__(self) -> None:
        at_least("num_clusters", self.num_clusters, 1)

    def validate(self, config: RunConfig) -> list[str]:
        return too_many_clusters(self.num_clusters, config)

    # What methods say

    def initial_models(self, task: Task) -> Tree:
        """Params of the K models before the first round, leaves [K, *p]."""
        raise NotImplementedError

    def memberships(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        """Memberships of clients as the state tells them [cohort, K]: by default those of their last round."""
        return read_rows(state["clients"], cohort.ids)["memberships"]

    def assign(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        """Memberships of a cohort's clients in a round [cohort, K]."""
        return self.memberships(task, cohort, state)

    # What others read

    def cluster_models(self, task: Task, state: State) -> tuple[Tree, Tree]:
        """Params and buffers of the cluster models, leaves [K, ...]."""
        return state["params"], state["buffers"]

    def models_of_clusters(self, task: Task, state: State) -> list[tuple[Tree, Tree]]:
        """Params and buffers of each cluster, leaves [*p]."""
        params, buffers = self.cluster_models(task, state)
        return [(tree.row(params, k), tree.row(buffers, k)) for k in range(self.num_clusters)]

    def clusters(self, state: State) -> dict[int, int]:
        """Client that has taken part -> the cluster from which it last trained."""
        return {client: row["memberships"].argmax().item() for client, row in state["clients"]["rows"].items()}

    def found(self, state: State) -> dict[str, Tensor]:
        """The clients that have taken part, and the cluster of each."""
        clusters = self.clusters(state)
        as_tensor = functools.partial(torch.tensor, dtype=torch.long)
        return {"clients": as_tensor(list(clusters)), "clusters": as_tensor(list(clusters.values()))}

    def diagnostics(self, state: State) -> dict[str, Any]:
        return {key: leaf.tolist() for key, leaf in self.found(state).items()}

    # On one client

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        received = {"params": view.params, "buffers": view.model.buffers}
        start = _pick(received, view.client["memberships"].argmax())
        own = replace(view, model=view.model.copy(start["buffers"], training=True))
        trained = descend(self.local_loss, start["params"], data, plan, own).params
        update = {"params": trained, "buffers": own.model.buffers, "memberships": view.client["memberships"]}
        return LocalResult(update, {key: update[key] for key in view.client})

    # On the server

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        return {**super().cohort_states(task, cohort, state), "memberships": self.assign(task, cohort, state)}

    def init_client(self, task: Task, params: Tree) -> Tree:
        equal = torch.full((self.num_clusters,), 1 / self.num_clusters, dtype=task.dtype, device=task.device)
        return {"memberships": equal}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        return {"params": update["params"], "buffers": update["buffers"]}

    def aggregate(self, task: Task, params: Tree, server: Tree, updates: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return _means(tree.weighted_mean, params, updates["params"], _weights(updates, cohort)), server

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return _means(average_buffers, buffers, updates["buffers"], _weights(updates, cohort))

    def finite_check(self, state: State) -> Tree:
        # Not the clients' rows: what they hold came from, or went into, the cluster models.
        return {"params": state["params"], "buffers": state["buffers"]}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        return {key: outputs.result.update[key] for key in ("params", "buffers")}

    # The interface

    def init(self, task: Task) -> State:
        models = {
            "params": self.initial_models(task),
            "buffers": tree.stack([task.initial_buffers()] * self.num_clusters),
        }
        return {**super().init(task), **models}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        clusters = self.memberships(task, task.cohort(client_ids), state).argmax(1)
        params, buffers = (tree.row(models, clusters) for models in self.cluster_models(task, state))
        return Deployed(self.deployed_model(task), params, buffers, True)


@dataclass(frozen=True)
class RegroupedRounds(ClusteredRounds):
    """Cluster models of which the server tells each client its own, and learns from trained models who belongs together.

    All clients begin in the first cluster. When a cohort has trained, `regroup` may divide clients anew; the cohort's models
    are then averaged within the clusters as they are now. A client receives one model and sends one, and deploys that of its
    cluster.

    The server state has "clusters" [N], the cluster of each client. What the server keeps of clients, `regroup` writes.
    """

    def regroup(self, task: Task, state: State, cohort: Cohort, updates: Tree) -> State:
        """The state in which a cohort's models are averaged: with new "clusters", and models for those that are new.

        Args:
            state: before the round.
            updates: trained - received params of the cohort, leaves [cohort, ...].
        """
        raise NotImplementedError

    def initial_models(self, task: Task) -> Tree:
        return start_models(task, self.num_clusters, "common")

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"clusters": torch.zeros(task.population, dtype=torch.long, device=task.device)}

    def memberships(self, task: Task, cohort: Cohort, state: State) -> Tensor:
        return one_hot(state["server"]["clusters"][cohort.ids], self.num_clusters, task.dtype)

    def clusters(self, state: State) -> dict[int, int]:
        """Client -> its cluster."""
        return dict(enumerate(state["server"]["clusters"].tolist()))

    @property
    def deploy_reads_clients(self) -> bool:
        return False

    def downloads(self, state: State) -> Tree:
        return tree.row({"params": state["params"], "buffers": state["buffers"]}, 0)

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """Which model to train: all else that is known of a client, the server keeps."""
        return {"memberships": self.assign(task, cohort, state)}

    def finish_round(self, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
        update = outputs.result.update
        received = tree.row(state["params"], state["server"]["clusters"][cohort.ids])
        state = self.regroup(task, state, cohort, tree.subtract(update["params"], received))
        update = {**update, "memberships": self.memberships(task, cohort, state)}
        params, server = self.aggregate(task, state["params"], state["server"], update, cohort)
        return self._finished(
            task,
            state,
            cohort,
            params=params,
            buffers=self.aggregate_buffers(state["buffers"], outputs.buffers, update, cohort),
            server=server,
            bytes_up=tree.num_bytes(self.uploads(update, outputs.buffers)),
        )


# For methods


def start_models(task: Task, num_clusters: int, init: ClusterInit) -> Tree:
    """Initial params of the clusters, leaves [K, *p]: one "common" model, or "independent" ones, the first of them common."""
    step = 1 if init == "independent" else 0
    which = [task.initial_model + step * cluster for cluster in range(num_clusters)]
    return tree.stack([replace(task, initial_model=number).initial_params() for number in which])


def on_each_model(fn: OnClient, task: Task, cohort: Cohort, state: State, *, apart: bool) -> Tensor:
    """What fn says of every cluster model on one pass over all of each client's training examples, augmented, without training.

    Args:
        fn: (data, plan, view) -> tensor; the view has the params and buffers of one cluster.
        apart: whether every model gets a shuffle and augmentation of its own, else all see the same batches.

    Returns:
        [K, cohort, ...].
    """
    settings, results = task.settings.one_pass(last_batch="keep"), []
    for cluster in range(len(tree.leaves(state["params"])[0])):
        seed = seed_for(task.seed, "choice", cluster if apart else 0)
        once = replace(task, settings=settings, seed=seed)
        params, buffers = tree.row(state["params"], cluster), tree.row(state["buffers"], cluster)
        visitors = once.cohort(cohort.ids)
        results.append(once.map_clients(fn, visitors, round=state["round"], params=params, buffers=buffers).result)
    return torch.stack(results)


def lowest(values: Tensor) -> Tensor:
    """Index along the first axis of the smallest value: of those that are equal up to rounding, the first."""
    least = values.amin(0)
    rounding = 16 * torch.finfo(values.dtype).eps * (1 + least.abs())
    return (values <= least + rounding).long().argmax(0)


def one_hot(clusters: Tensor, num_clusters: int, dtype: torch.dtype) -> Tensor:
    """Memberships [..., K] in one cluster each; clusters: [...]."""
    return (clusters[..., None] == torch.arange(num_clusters, device=clusters.device)).to(dtype)


def squared_distances(model: Tree, models: Tree) -> Tensor:
    """Squared Euclidean distance over all leaves from a model to each of K models, leaves [K, ...]. [K]."""
    pairs = zip(tree.leaves(model), tree.leaves(models), strict=True)
    return cast(Tensor, sum((many - one).square().reshape(len(many), -1).sum(1) for one, many in pairs))


def pull(params: Tree, view: ClientView) -> Tensor:
    """Squared distance to the received cluster models, weighted by a client's memberships. Scalar."""
    return (view.client["memberships"] * squared_distances(params, view.params)).sum()


def _pick(stacked: Tree, index: Tensor) -> Tree:
    # Plain indexing by a tensor would read its value, which vmap refuses.
    return tree.map(lambda leaf: leaf.index_select(0, index[None])[0], stacked)


def _weights(updates: Tree, cohort: Cohort) -> Tensor:
    """[cohort, K]."""
    return cohort.num_examples[:, None] * updates["memberships"]


def _means(mean: Callable[[Tree, Tensor], Tree], models: Tree, trained: Tree, weights: Tensor) -> Tree:
    """Means of trained models, leaves [cohort, ...], one for each column of weights [cohort, K]; models where it is 0."""
    filled = weights.sum(0).tolist()
    rows = [
        mean(trained, weights[:, cluster]) if total > 0 else tree.row(models, cluster)
        for cluster, total in enumerate(filled)
    ]
    return tree.stack(rows)
