"""FedRS: the logits of classes that a client does not hold are scaled down in its softmax.

Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021.
https://doi.org/10.1145/3447548.3467254
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Tree, between, cross_entropy, registered


@registered("fedrs")
@dataclass(frozen=True)
class FedRS(RoundBased):
    """FedAvg with a restricted softmax in local training; evaluation uses plain logits.

    The whole logit is scaled, weights and bias. Differs from the official code (lxcnju/FedRepo), which multiplies by
    relative class frequencies, drops the bias, and re-applies the factors to its own output at each batch.

    Attributes:
        alpha: factor on the logits of absent classes, in [0, 1]; 1 is FedAvg.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        between("alpha", self.alpha, 0, 1)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        factors = torch.where(view.label_counts > 0, 1.0, self.alpha).to(batch.x.dtype)
        return cross_entropy(view.model(params, batch.x) * factors, batch)
