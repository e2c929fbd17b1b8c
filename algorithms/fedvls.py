"""FedVLS: clients preserve what the received model says about classes that they lack, and suppress wrong logits.

Guo et al., Exploring Vacant Classes in Label-Skewed Federated Learning, AAAI 2025. https://arxiv.org/abs/2401.02329
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Tree, at_least, cross_entropy, one_of, registered
from algorithms.shared.distillation import masked_divergence, not_true, teacher_logits

Variant = Literal["code", "paper"]
_LEAST_SHARE = 1e-9  # the official code adds it within logarithms


@registered("fedvls")
@dataclass(frozen=True)
class FedVLS(RoundBased):
    """FedAvg with the local objective L_cal + lambda L_dis + logit_weight L_logit.

    With pi the client's label shares and logits z: L_cal is the cross-entropy of z + log pi. L_dis is the mean KL(q_g || q)
    of the softmax of the received and of the local model over the vacant classes, those without examples: 0 where less
    than two are vacant. L_logit is the sum over classes c of pi_c log(mean over the batch of 1[y != c] exp z_c). The teacher
    costs one more forward pass of each batch.

    Differs from the paper: `variant` "code" is the official code (krumpguo/FedVLS), which probably made the published
    numbers. It has pi + 1e-9 for pi in logarithms, z - log(pi + 1e-9) + log(1/C + 1e-9) for z in L_logit, C classes, the
    indicator within exp, so that examples of the class itself count as exp 0, and it weights L_logit by 0.005.
    Differs from the paper: L_dis is the KL divergence, of which the paper prints the negative.
    Differs from the official code: the weight decay is that of the settings, where the code has none for this method, and the
    teacher is in evaluation mode.

    Attributes:
        distillation_weight: lambda of the paper, >= 0; 0.5 in the paper for CIFAR-100 and Tiny-ImageNet.
        logit_weight: weight of L_logit, >= 0; None is that of the variant: 0.005 in the code, 1 in the paper. Where it and
            lambda are 0, a client with as many examples of each class as of any other trains as in FedAvg.
        variant: "code" or "paper", where a class c adds 0 to L_logit if the whole batch is of that class. Nothing bounds
            L_logit from below, as all logits may fall together; in the paper's form, at its weight 1, runs may diverge.
    """

    distillation_weight: float = 0.1
    logit_weight: float | None = None
    variant: Variant = "code"

    def __post_init__(self) -> None:
        at_least("distillation_weight", self.distillation_weight, 0)
        if self.logit_weight is not None:
            at_least("logit_weight", self.logit_weight, 0)
        one_of("variant", self.variant, get_args(Variant))

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        logits = view.model(params, batch.x)
        shares = view.label_counts / view.label_counts.sum()
        vacant = shares == 0
        distance = masked_divergence(logits, teacher_logits(view, batch.x), vacant, vacant)
        default = 0.005 if self.variant == "code" else 1.0
        weight = default if self.logit_weight is None else self.logit_weight
        return (
            self._calibrated(logits, shares, batch)
            + self.distillation_weight * batch.mean(distance)
            + weight * self._wrong_logits(logits, shares, batch)
        )

    def _calibrated(self, logits: Tensor, shares: Tensor, batch: Batch) -> Tensor:
        """L_cal. In the paper's form vacant classes have log 0 = -inf, which leaves them out of the softmax."""
        odds = shares + (_LEAST_SHARE if self.variant == "code" else 0)
        # A common factor makes no difference; divided by the largest, equal shares add log 1 = 0, without rounding.
        return cross_entropy(logits + (odds / odds.max()).log(), batch)

    def _wrong_logits(self, logits: Tensor, shares: Tensor, batch: Batch) -> Tensor:
        """L_logit."""
        wrong = not_true(batch, logits)
        real = torch.ones_like(wrong) if batch.mask is None else batch.mask[:, None].expand_as(wrong)
        if self.variant == "paper":
            return (shares * _log_mean_exp(logits, wrong & real, real)).sum()
        shift = math.log(1 / len(shares) + _LEAST_SHARE) - (shares + _LEAST_SHARE).log()
        return (shares * _log_mean_exp(torch.where(wrong, logits + shift, 0), real, real)).sum()


def _log_mean_exp(values: Tensor, counted: Tensor, rows: Tensor) -> Tensor:
    """Of each column, the logarithm of the mean over its rows of exp of the counted values; 0 where none is counted.

    Args:
        values: [B, num_classes].
        counted, rows: bool, [B, num_classes]; all that are counted are among the rows.

    Returns:
        [num_classes].
    """
    lowest = torch.finfo(values.dtype).min  # not -inf, of which the gradient of a column without counted values is NaN
    total = torch.where(counted, values, lowest).logsumexp(0)
    return torch.where(counted.any(0), total - rows.sum(0).clamp(min=1).to(values.dtype).log(), 0)
