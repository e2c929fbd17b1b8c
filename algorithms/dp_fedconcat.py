"""DP-FedConcat: clients report label distributions with Laplace noise, for differential privacy.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024, Appendix B.
https://arxiv.org/abs/2312.06290
"""

import functools
from dataclasses import dataclass

from algorithms import Algorithm, above, registered
from algorithms.fedavg import FedAvg
from algorithms.shared.concatenation import FirstStage
from algorithms.shared.label_clusters import LabelClusters, by_labels, check_balanced, check_base
from algorithms.shared.label_inference import noisy_label_shares
from algorithms.shared.models_per_cluster import ModelsPerCluster


@registered("dp-fedconcat")
@dataclass(frozen=True)
class DPFedConcat(ModelsPerCluster):
    """FedConcat on noisy reports, neither clipped nor normalised.

    Attributes:
        base: trains the model of a cluster; any method with one shared model.
        epsilon: privacy budget, > 0; the noise has scale 1/epsilon, so infinity would be FedConcat.
        balanced: limits clusters to 1.2 times their equal share.
    """

    base: Algorithm = FedAvg()
    epsilon: float = 2.5
    balanced: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_base(self.base)
        check_balanced(self.balanced, self.num_clusters)
        above("epsilon", self.epsilon, 0)

    def first_stage(self) -> FirstStage:
        group = functools.partial(by_labels, num_clusters=self.num_clusters, balanced=self.balanced)
        reported = functools.partial(noisy_label_shares, epsilon=self.epsilon)
        return LabelClusters(self.base, group, reported=reported, models=self.named_models)
