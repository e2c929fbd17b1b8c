"""FedConcat-FedSoft: encoders of the clusters that FedSoft finds, under one classifier.

Diao, Li and He, Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024, Section 5.6.
https://arxiv.org/abs/2312.06290
"""

from dataclasses import dataclass

from algorithms import registered
from algorithms.fedsoft import FedSoft, Vote
from algorithms.shared.clustered import Proximal
from algorithms.shared.concatenation import Concatenation, FirstStage


@registered("fedconcat-fedsoft")
@dataclass(frozen=True)
class FedConcatFedSoft(Concatenation):
    """FedConcat whose first stage is FedSoft.

    Attributes:
        interval, smallest_importance, vote, proximal, proximal_weight: of FedSoft.
    """

    interval: int = FedSoft.interval
    smallest_importance: float = FedSoft.smallest_importance
    vote: Vote = FedSoft.vote
    proximal: Proximal = FedSoft.proximal
    proximal_weight: float = FedSoft.proximal_weight

    def __post_init__(self) -> None:
        super().__post_init__()
        self.required_number()
        self.first_stage()  # checks the options

    def first_stage(self) -> FirstStage:
        return FedSoft(
            num_clusters=self.required_number(),
            interval=self.interval,
            smallest_importance=self.smallest_importance,
            vote=self.vote,
            proximal=self.proximal,
            proximal_weight=self.proximal_weight,
        )
