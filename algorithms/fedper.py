"""FedPer: the body is shared, and every client has a head of its own.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers, 2019.
https://arxiv.org/abs/1912.00818
"""

from dataclasses import dataclass

from algorithms import registered
from algorithms.shared.partial import PersonalPart


@registered("fedper")
@dataclass(frozen=True)
class FedPer(PersonalPart):
    """FedAvg of the body; a client trains the body and its head, the personalization layers of the paper, together.

    With `head_layers` 0 everything is shared, and it is FedAvg; with all layers in the head and `fit_private` "none", it is
    local training.
    """
