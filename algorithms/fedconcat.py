"""FedConcat: clusters of clients with similar labels train encoders, and one classifier reads all of them.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024.
https://arxiv.org/abs/2312.06290
"""

import functools
from dataclasses import dataclass
from typing import get_args

from algorithms import Algorithm, one_of, registered
from algorithms.fedavg import FedAvg
from algorithms.shared.clustering import ClusterInit
from algorithms.shared.concatenation import FirstStage
from algorithms.shared.label_clusters import LabelClusters, by_labels, check_balanced, check_base
from algorithms.shared.label_inference import label_shares
from algorithms.shared.models_per_cluster import ModelsPerCluster


@registered("fedconcat", symbols={"num_clusters": "K", "encoder_rounds": "T_e", "classifier_rounds": "T_c"})
@dataclass(frozen=True)
class FedConcat(ModelsPerCluster):
    """Algorithm 1 of the paper: clients report their label distributions, which K-means divides into clusters.

    Differs from the paper: all clusters start from one initial model, as in the reference code; `cluster_init`
    "independent" is the other reading of "initialise E_i, C_i for each cluster".

    Attributes:
        base: trains the model of a cluster; any method with one shared model.
        balanced: limits clusters to 1.2 times their equal share.
        cluster_init: whether clusters start from the "common" initial model or from "independent" ones.
    """

    base: Algorithm = FedAvg()
    balanced: bool = False
    cluster_init: ClusterInit = "common"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_base(self.base)
        check_balanced(self.balanced, self.num_clusters)
        one_of("cluster_init", self.cluster_init, get_args(ClusterInit))

    def first_stage(self) -> FirstStage:
        group = functools.partial(by_labels, num_clusters=self.num_clusters, balanced=self.balanced)
        return LabelClusters(
            self.base, group, reported=label_shares, cluster_init=self.cluster_init, models=self.named_models
        )
