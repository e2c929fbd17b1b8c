"""FedDecorr: local training decorrelates the features, against their collapse into few dimensions under label skew.

Shi, Liang, Zhang, Tan and Bai, Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning, ICLR 2023.
https://arxiv.org/abs/2210.00226
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Task, Tree, at_least, cross_entropy, one_of, registered
from algorithms.shared.moments import moments

Variant = Literal["code", "paper"]
_EPSILON = 1e-8  # added to variances: features that are the same for a whole batch, such as dead ones, have none


@registered("feddecorr")
@dataclass(frozen=True)
class FedDecorr(RoundBased):
    """FedAvg whose local objective penalises correlations between the features that the classifier reads.

    Features are standardised over the batch. With f the standardised features [N, d]: of f^T f, the mean square of the
    entries off the diagonal, divided by N. A batch of one example has no such term.

    Differs from the paper: its penalty is |K|_F^2 / d^2 with the correlation matrix K = f^T f / (N - 1). Published
    numbers are those of the authors' code, whose gradient is (N-1)^2 / N * d / (d-1) times as large, 62.8 for N = 64
    and d = 84: `beta` 0.1 in the code is about 6.3 in the paper.

    A feature that is alive for few examples of a batch has a large gradient, so that differences of rounding, between engines
    or devices, grow within a few rounds, the faster the smaller the batches: runs agree in statistics, not digit for digit.

    Attributes:
        beta: weight of the penalty, >= 0; 0 is FedAvg.
        variant: the penalty of the "code", or of the "paper".
    """

    beta: float = 0.1
    variant: Variant = "code"

    def __post_init__(self) -> None:
        at_least("beta", self.beta, 0)
        one_of("variant", self.variant, get_args(Variant))

    def caveats(self, task: Task) -> list[str]:
        said = "feddecorr: differences of rounding grow in training, so that other engines and devices give other runs."
        return [said] if self.beta else []

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        loss = cross_entropy(view.model.head(params, features), batch)
        return loss + self.beta * self._penalty(features, batch.mask) if self.beta else loss

    def _penalty(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Of features [B, d] in the rows of mask [B]. Scalar."""
        num_rows, deviations, variance = moments(features, mask)
        standardised = deviations / (_EPSILON + variance).sqrt()
        products = standardised.T @ standardised
        if self.variant == "paper":
            return (products / (num_rows - 1).clamp(min=1)).square().mean()
        width = len(products)
        crossed = products * (1 - torch.eye(width, dtype=products.dtype, device=products.device))
        return crossed.square().sum() / max(width * (width - 1), 1) / num_rows.clamp(min=1)
