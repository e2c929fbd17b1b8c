"""FedUV: local training keeps classifier outputs varied and features spread out, as if data were IID.

Son, Kim, Chung, Huang and Liu, FedUV: Uniformity and Variance for Heterogeneous Federated Learning, CVPR 2024.
https://arxiv.org/abs/2402.18372
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Task, Tree, at_least, cross_entropy, registered
from algorithms.shared.moments import moments

_LARGE_LR = 0.1  # ten times that of the authors


@registered("feduv")
@dataclass(frozen=True)
class FedUV(RoundBased):
    """FedAvg with two terms in the local objective, for which a client needs nothing but its batch.

    Variance: how far the standard deviation of each class probability over the batch is below 1/sqrt(C), that of C
    one-hot vectors, one of each class; mean over classes. Uniformity: the mean of exp(-D/sigma) over pairs of
    examples, with D the squared distance of the features that the classifier reads, and sigma the median of all D but
    zeros, the lower one of two. Batches of one example have neither term. Both depend on the batch size, which is 128
    in the authors' code.

    The second term does not see the scale of the features, and does not bound it: at large learning rates they grow until
    the run diverges. Pairs so far apart that exp(-D/sigma) is 0 in the precision of the run have no gradient.

    Attributes:
        variance_weight: weight of the first term, >= 0.
        uniformity_weight: weight of the second, >= 0; with both 0 it is FedAvg.
        detach_sigma: takes sigma as a constant; otherwise it is differentiated, as in the code, so that the second term
            does not depend on the scale of the features.
    """

    variance_weight: float = 2.5
    uniformity_weight: float = 0.5
    detach_sigma: bool = False

    def __post_init__(self) -> None:
        at_least("variance_weight", self.variance_weight, 0)
        at_least("uniformity_weight", self.uniformity_weight, 0)

    def caveats(self, task: Task) -> list[str]:
        blind = self.uniformity_weight and not self.detach_sigma
        said = (
            f"feduv: at a learning rate of {task.settings.lr:g} runs may diverge where those of FedAvg do not, because the "
            "uniformity term, with sigma differentiated as in the authors' code, does not bound the scale of the features."
        )
        return [said] if blind and task.settings.lr >= _LARGE_LR else []

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        logits = view.model.head(params, features)
        loss = cross_entropy(logits, batch)
        if self.variance_weight:
            loss = loss + self.variance_weight * _lack_of_variance(logits, batch.mask)
        if self.uniformity_weight:
            loss = loss + self.uniformity_weight * _closeness(features, batch.mask, self.detach_sigma)
        return loss


def _lack_of_variance(logits: Tensor, mask: Tensor | None) -> Tensor:
    """The variance term, of logits [B, num_classes] in the rows of mask [B]; 0 if there are fewer than two. Scalar."""
    of = moments(logits.softmax(1), mask)
    varies = of.variance > 0  # the root has no gradient at 0
    deviation = torch.where(varies, torch.where(varies, of.variance, 1).sqrt(), 0)
    lack = (logits.shape[1] ** -0.5 - deviation).relu().mean()
    return torch.where(of.num_rows >= 2, lack, 0)


def _closeness(features: Tensor, mask: Tensor | None, detach_sigma: bool) -> Tensor:
    """The uniformity term, of features [B, d] in the rows of mask [B]; 0 if there are fewer than two. Scalar."""
    size = len(features)
    pairs = torch.ones(size, size, dtype=torch.bool, device=features.device).triu(1)
    if mask is not None:
        pairs = pairs & mask & mask[:, None]
    # As differences: |a|^2 - 2ab + |b|^2 is not 0 for equal features, which the median leaves out.
    squared = (features[:, None] - features).square().sum(2)
    distances = torch.where(pairs, squared, 0).flatten()
    sigma = _lower_median(distances)
    # Where sigma is tiny beside D, exp(-D/sigma) is 0 and D/sigma^2 infinite, whose product would be the gradient.
    counted = pairs.flatten() & (torch.exp(-(distances / sigma).detach()) > 0)
    ratios = torch.where(counted, distances, 0) / (sigma.detach() if detach_sigma else sigma)
    return torch.where(counted, torch.exp(-ratios), 0).sum() / pairs.sum().clamp(min=1)


def _lower_median(values: Tensor) -> Tensor:
    """The lower median of those of values [n] that are positive, one of them; 1 if there are none. Scalar."""
    counted = values > 0
    order = torch.where(counted, values, torch.inf).argsort(stable=True)
    middle = (counted.sum() - 1).clamp(min=0) // 2
    position = order.gather(0, middle[None])
    return torch.where(counted.any(), values.gather(0, position)[0], 1)
