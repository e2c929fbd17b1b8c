"""Stages 1 and 2 of FedConcat: clients of similar labels form clusters, and a base method trains a model in each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import algorithms
from algorithms.centralized import Centralized
from algorithms.shared import tree
from algorithms.shared.accounting import no_costs
from algorithms.shared.base import Algorithm, Deployed, State
from algorithms.shared.client_states import no_rows, read_rows, write_rows
from algorithms.shared.clustering import (
    ClusterInit,
    NumClusters,
    balanced_k_means,
    cluster_seed,
    elbow,
    in_equal_parts,
    k_means,
    model_of_cluster,
)
from algorithms.shared.groups import step_groups
from algorithms.shared.metrics import mean_over_groups
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import RunConfig, Settings, Task
from algorithms.shared.wrapper import refuse_wrapper

Inferred = Callable[[Task, Tree, Tree], tuple[Tensor, Tree | None]]

_BYTES_PER_SHARE = 4  # a client sends its label distribution in single precision


@dataclass(frozen=True)
class LabelClusters(Algorithm):
    """A base method in every cluster of clients; all start from one initial model.

    The clusters are found before the first round from what clients report, or after a first round of all clients from the
    models that they trained in it: that round then counts in every cluster.

    Attributes:
        base: trains one shared model.
        group: (task, label distributions [N, num_classes]) -> cluster of each client [N].
        reported: task -> label distributions that clients send before the first round; None for clusters that ignore them.
        inferred: (task of some clients, initial params, their trained models: "params" and "buffers" [clients, ...]) ->
            label distributions [clients, num_classes], and the buffers [clients, ...] with which these models go into the
            means of their clusters, or None if they are as they were; set exactly if the clusters are found after the first
            round.
        cluster_init: whether all clusters start from the "common" initial model or from "independent" ones.
        anew: whether clusters that were found after a first round start from initial models, instead of the means of it;
            with `models`, they can only do so.
        models: names of the models that the clusters train, in turn (see `model_of_cluster`); () for that of the task, which
            all clients train in a first round.
    """

    base: Algorithm
    group: Callable[[Task, Tensor | None], Tensor]
    reported: Callable[[Task], Tensor] | None = None
    inferred: Inferred | None = None
    cluster_init: ClusterInit = "common"
    anew: bool = False
    models: tuple[str, ...] = ()

    def init(self, task: Task) -> State:
        if self.inferred:
            return {"round": 0, "start": self.base.init(task), "costs": no_costs()}
        distributions = self.reported(task) if self.reported else None
        state = self._divided(task, 0, distributions)
        spent = no_costs() | {"bytes_up": _BYTES_PER_SHARE * (0 if distributions is None else distributions.numel())}
        return {**state, "costs": spent}

    def step(self, task: Task, state: State) -> State:
        if "start" in state:
            return self._first_round(task, state["start"])
        return step_groups(self.base, {name: self._cluster(task, state, name) for name in state["models"]}, state)

    def finite_check(self, state: State) -> Tree:
        if "start" in state:
            return self.base.finite_check(state["start"])
        return {name: self.base.finite_check(model) for name, model in state["models"].items()}

    def metrics(self, state: State) -> dict[str, Any]:
        if "start" in state:
            return {}
        return mean_over_groups(
            {name: self.base.metrics(model) for name, model in state["models"].items()}, state["clusters"]
        )

    def traffic(self, task: Task) -> int:
        reports = _BYTES_PER_SHARE * task.federation.num_classes if self.reported else 0
        # Which clients train which of several models is not known yet: as if all trained the largest.
        each = [replace(task, model=model_of_cluster(task, self.models, k)) for k in range(len(self.models) or 1)]
        if not self.inferred:
            return reports + max(map(self.base.traffic, each))
        everyone, rest = replace(task.settings, rounds=1, participation=1.0), task.settings.rounds - 1
        if self.anew:  # a round of the task's model, after which all begins
            begun = (self.base.traffic(replace(own, settings=replace(own.settings, rounds=rest))) for own in each)
            return reports + self.base.traffic(replace(task, settings=everyone)) + max(begun)
        # In the first round the clients train that are not in a cohort, too.
        beside = round((1 - task.cohort_share) * self.base.traffic(replace(task, settings=everyone)))
        return reports + self.base.traffic(task) + beside

    def validate(self, config: RunConfig) -> list[str]:
        return self.base.validate(config)

    def caveats(self, task: Task) -> list[str]:
        return self.base.caveats(task)

    def workload(self, settings: Settings, num_examples: int) -> int:
        return self.base.workload(settings, num_examples)

    def state_templates(self, task: Task) -> list[State]:
        shares = torch.empty(task.population, task.federation.num_classes, dtype=torch.float64, device="meta")
        state = {**self._divided(task, task.settings.rounds, shares), "costs": no_costs()}
        if not self.inferred:
            return [state]
        # In the first round everyone takes part, and the server waits for all results.
        models = {name: _with_rows(model, state["clusters"] == int(name)) for name, model in state["models"].items()}
        start = self.base.init(task)
        result = {"update": start["params"], "client": start["clients"]["fresh"], "buffers": start["buffers"]}
        held = {"fresh": result, "rows": dict.fromkeys(range(task.population), result)}
        return [{**state, "models": models, "round_only": held}]

    def models_of_clusters(self, task: Task, state: State) -> list[tuple[Tree, Tree]]:
        """Params and buffers of each cluster, leaves [*p]."""
        deployed = [
            cast(Deployed, self.base.deploy(self._cluster(task, state, name), model, torch.arange(0)))
            for name, model in state["models"].items()
        ]
        return [(one.params, one.buffers) for one in deployed]

    def found(self, state: State) -> dict[str, Tensor]:
        """The cluster of each client, and the label distributions from which it was found."""
        return {key: state[key] for key in ("clusters", "distributions") if key in state}

    def _first_round(self, task: Task, start: State) -> State:
        """All clients train from the initial model, their models tell the clusters, and are averaged within them."""
        # As many clients at a time as in any other round, so that memory is bounded by the cohort.
        base, infer = cast(RoundBased, self.base), cast(Inferred, self.inferred)
        at_once, distributions = len(task.sample_cohort(0).ids), []
        results: dict[str, Any] = {}
        for ids in torch.arange(task.population).split(at_once):
            outputs = base.map_clients(task, base.local_update, task.cohort(ids), start)
            models = base.local_models(start, outputs)
            shares, moved = infer(task.restrict(ids), start["params"], models)
            distributions.append(shares)
            if moved is not None:
                outputs = outputs._replace(buffers={name: moved[name] for name in outputs.buffers})
            results = write_rows(results or no_rows(tree.row(outputs, 0)), ids, outputs)
        found = torch.cat(distributions)
        # Of a model that has diverged nothing is inferred; the run ends with this round.
        state = self._divided(task, 1, torch.where(found.isfinite(), found, 0))
        models, spent = {}, no_costs()
        for name, model in state["models"].items():
            members = torch.nonzero(state["clusters"] == int(name)).flatten()
            own = task.restrict(members)
            cohort = own.cohort(torch.arange(len(members)))
            before = base.init(own) if self.anew else model  # of the model that was trained
            after = base.finish_round(own, before, cohort, read_rows(results, members))
            models[name] = model if self.anew else {**after, "round": 1}
            spent = {key: spent[key] + after["costs"][key] for key in spent}
        return {**state, "models": models, "costs": spent}

    def _divided(self, task: Task, round: int, distributions: Tensor | None) -> State:
        """Clusters, numbered without gaps, with new states of the base."""
        _, clusters = self.group(task, distributions).unique(return_inverse=True)
        state = {"round": round, "clusters": clusters}
        if distributions is not None:
            state["distributions"] = distributions
        names = map(str, range(int(clusters.max()) + 1))
        return {**state, "models": {name: self.base.init(self._cluster(task, state, name)) for name in names}}

    def _cluster(self, task: Task, state: State, name: str) -> Task:
        """The task of one cluster."""
        own = task.restrict(torch.nonzero(state["clusters"] == int(name)).flatten())
        own = replace(own, model=model_of_cluster(task, self.models, int(name)))
        return replace(own, initial_model=int(name)) if self.cluster_init == "independent" else own


def _with_rows(model: State, members: Tensor) -> State:
    """A state of the base in which all members of a cluster (a mask of clients) have taken part, and are as new."""
    fresh = model["clients"]["fresh"]
    return {**model, "clients": {"fresh": fresh, "rows": dict.fromkeys(range(int(members.sum())), fresh)}}


def by_labels(task: Task, distributions: Tensor, *, num_clusters: NumClusters, balanced: bool = False) -> Tensor:
    """Stage 1: K-means on label distributions [N, num_classes] -> cluster of each client [N]; of those without values, which
    state templates have, as many clusters as there would be."""
    if distributions.is_meta:
        if isinstance(num_clusters, int):
            return torch.arange(len(distributions)) % num_clusters
        distributions = torch.from_numpy(np.random.default_rng(0).random(distributions.shape))  # clients of all kinds
    points, seed = distributions.double().cpu().numpy(), cluster_seed(task)
    if num_clusters == "none":
        labels = np.arange(len(points))
    else:
        number = elbow(points, seed) if num_clusters == "elbow" else num_clusters
        labels = balanced_k_means(points, number, seed) if balanced else k_means(points, number, seed)[0]
    return torch.from_numpy(labels)


def at_random(task: Task, distributions: None, *, num_clusters: int) -> Tensor:
    """Random clusters of equal size, whatever the labels -> cluster of each client [N]."""
    return torch.from_numpy(in_equal_parts(task.population, num_clusters, cluster_seed(task)))


def check_balanced(balanced: bool, num_clusters: NumClusters) -> None:
    """Raises ValueError if there is nothing to balance."""
    if balanced and num_clusters == "none":
        raise ValueError(
            "balanced limits the size of clusters, but with num_clusters none each client is one by itself."
        )


def check_base(base: Algorithm) -> None:
    """Raises ValueError unless a method can train the model of a cluster."""
    name = algorithms.name_of(base)
    if isinstance(base, Centralized):
        raise ValueError(
            "FedConcat divides clients into clusters, but centralized has only one, which holds everything."
        )
    if base.personal:
        raise ValueError(f"FedConcat needs one shared model per cluster, but {name} deploys one model per client.")
    if base.deploys != "model":
        raise ValueError(
            f"FedConcat needs one model per cluster as clients train it, but {name} deploys several side by side."
        )
    if base.cohorts_of_one_size:
        raise ValueError(
            f"FedConcat trains its base within clusters, whose cohorts differ in size, but {name} needs cohorts of one size."
        )
    if base.deploy_reads_clients:
        raise ValueError(
            f"FedConcat needs a base that averages models in every round, but {name} leaves them at clients."
        )
    refuse_wrapper("FedConcat", base)
    if not isinstance(base, RoundBased):
        raise ValueError(f"FedConcat needs a base that trains and averages one model in rounds, but {name} does not.")
