"""FedConcat-FeSEM: encoders of the clusters that FeSEM finds, under one classifier.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024, Section 5.6.
https://arxiv.org/abs/2312.06290
"""

from dataclasses import dataclass

from algorithms import registered
from algorithms.fesem import FeSEM
from algorithms.shared.clustered import Proximal
from algorithms.shared.clustering import ClusterInit
from algorithms.shared.concatenation import Concatenation, FirstStage


@registered("fedconcat-fesem")
@dataclass(frozen=True)
class FedConcatFeSEM(Concatenation):
    """FedConcat whose first stage is FeSEM.

    Attributes:
        cluster_init, proximal, proximal_weight: of FeSEM.
    """

    cluster_init: ClusterInit = "common"
    proximal: Proximal = FeSEM.proximal
    proximal_weight: float = FeSEM.proximal_weight

    def __post_init__(self) -> None:
        super().__post_init__()
        self.required_number()
        self.first_stage()  # checks the options

    def first_stage(self) -> FirstStage:
        return FeSEM(
            num_clusters=self.required_number(),
            cluster_init=self.cluster_init,
            proximal=self.proximal,
            proximal_weight=self.proximal_weight,
        )
