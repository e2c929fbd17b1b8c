"""KMeans: k-means on the models that clients train from a common one, then federated averaging in every cluster.

A form of the baseline KMeans of Bao, Wang, Wu and He, Optimizing the Collaboration Structure in Cross-Silo Federated Learning,
ICML 2023, whose settings are not published. https://arxiv.org/abs/2306.06508
"""

from dataclasses import dataclass, replace

import torch

from algorithms import Cohort, RunConfig, State, Task, Tree, at_least, registered
from algorithms.shared.clustered import RegroupedRounds
from algorithms.shared.clustering import cluster_seed, coordinates, inner_products, k_means


@registered("kmeans")
@dataclass(frozen=True)
class KMeans(RegroupedRounds):
    """FedAvg for some rounds, of which the last tells the clusters: they are those of k-means (ten starts) on the params that
    all clients have trained in it. Every cluster goes on by itself from the mean of its clients' models.

    The round that tells the clusters is one of all clients, whatever the participation: only models that started from the
    same one can be compared, and so there is none without a cluster.

    Differs from the paper, which says nothing about this baseline: all of the above is ours.

    Attributes:
        num_clusters: K, >= 1; 1 is FedAvg with a round of all clients. Fewer clients make fewer clusters.
        warm_up_rounds: rounds of FedAvg, that of all clients included, >= 1; 1 clusters what was trained from the initial
            model.
    """

    warm_up_rounds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("warm_up_rounds", self.warm_up_rounds, 1)

    def validate(self, config: RunConfig) -> list[str]:
        mistakes = super().validate(config)
        if config.rounds <= self.warm_up_rounds:
            mistakes.append(
                f"kmeans makes clusters after warm_up_rounds ({self.warm_up_rounds}) rounds and trains them in the others: "
                f"rounds must be larger than that, but got {config.rounds}."
            )
        return mistakes

    def sample(self, task: Task, state: State) -> Cohort:
        if self._tells_clusters(state):
            return task.cohort(torch.arange(task.population))
        return task.sample_cohort(state["round"])

    def regroup(self, task: Task, state: State, cohort: Cohort, updates: Tree) -> State:
        if not self._tells_clusters(state):
            return state
        products = inner_products(updates)  # all from one model: updates are as far apart as models
        if not products.isfinite().all():
            return state  # diverged, so that there are no clusters to find
        points = coordinates(products)
        labels, _, _ = k_means(points, min(self.num_clusters, len(points)), cluster_seed(task))
        return {**state, "server": {"clusters": torch.from_numpy(labels).to(task.device)}}

    def traffic(self, task: Task) -> int:
        settings = replace(task.settings, rounds=1, participation=1.0)
        of_all = super().traffic(replace(task, settings=settings))
        return round((1 + task.cohort_share * (task.settings.rounds - 1)) * of_all)

    def _tells_clusters(self, state: State) -> bool:
        """Whether the round that follows a state is the last one of the warm-up."""
        return state["round"] == self.warm_up_rounds - 1
