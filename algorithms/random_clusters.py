"""Random clusters: FedConcat that ignores the labels, to tell what its clusters contribute.

A control for Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024.
"""

import functools
from dataclasses import dataclass

from algorithms import Algorithm, registered
from algorithms.fedavg import FedAvg
from algorithms.shared.concatenation import FirstStage
from algorithms.shared.label_clusters import LabelClusters, at_random, check_base
from algorithms.shared.models_per_cluster import ModelsPerCluster


@registered("random-clusters")
@dataclass(frozen=True)
class RandomClusters(ModelsPerCluster):
    """FedConcat with random clusters of equal size, whatever clients hold.

    Attributes:
        base: trains the model of a cluster; any method with one shared model.
    """

    base: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_base(self.base)
        self.required_number()

    def first_stage(self) -> FirstStage:
        group = functools.partial(at_random, num_clusters=self.required_number())
        return LabelClusters(self.base, group, models=self.named_models)
