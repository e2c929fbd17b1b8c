"""FedConcat-IFCA: encoders of the clusters that IFCA finds, under one classifier.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024, Section 5.6.
https://arxiv.org/abs/2312.06290
"""

from dataclasses import dataclass

from algorithms import registered
from algorithms.ifca import IFCA
from algorithms.shared.clustering import ClusterInit
from algorithms.shared.concatenation import Concatenation, FirstStage


@registered("fedconcat-ifca")
@dataclass(frozen=True)
class FedConcatIFCA(Concatenation):
    """FedConcat whose first stage is IFCA.

    Attributes:
        cluster_init: of IFCA.
    """

    cluster_init: ClusterInit = "common"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.required_number()
        self.first_stage()  # checks the options

    def first_stage(self) -> FirstStage:
        return IFCA(self.required_number(), self.cluster_init)
