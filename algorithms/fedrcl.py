"""FedRCL: on several levels, features are contrasted by class, and kept from being too similar within a class.

Seo, Kim, Kim and Han, Relaxed Contrastive Learning for Federated Learning, CVPR 2024. https://arxiv.org/abs/2401.04928
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import algorithms
from algorithms import (
    Batch,
    ClientView,
    State,
    Task,
    Tree,
    above,
    at_least,
    between,
    cross_entropy,
    registered,
    task_loss,
)
from algorithms.shared.clipping import Clipped
from bench.models.base import require_stages


@registered("fedrcl")
@dataclass(frozen=True)
class FedRCL(Clipped):
    """FedAvg with two terms in the local objective, means over the batch and over the stages of the encoder.

    What a stage has before its activation is averaged over pixels and scaled to length 1; s are cosines of two examples of
    the batch, in units of tau. The contrast of an example is -log(e^p / (e^p + sum e^n)), where p is the least of s with its
    class, itself included, and n are the `num_negatives` largest of s with other classes. The penalty of an example is
    log(1 + e^(s - 1/tau)), with the least of s with other examples of its class; it is 0, up to rounding, where that is below
    the threshold, or there is none. Where a batch has one class, the contrast is 0. Clients hold no teacher and no counts.

    With both weights 0 it is FedAvg, but for clipping. Gradients at short features f are up to 1 / (tau |f|): keep the clip.

    Differs from the paper as its first page and third parties tell it, whose contrast has all examples of a class and whose
    penalty all pairs above the threshold; this is the authors' code (skynbe/FedRCL), which takes one of each. The paper's body
    was not at hand. Differs from the code: the mean of models is by number of examples. Its networks are ResNets, of which
    stem and four stages are the levels; that the stages of our other networks are, from before ReLU but after max-pooling, is
    our reading.

    Attributes:
        contrast_weight: weight of the contrast, >= 0.
        penalty_weight: weight of the penalty, >= 0.
        temperature: tau of the paper, > 0.
        threshold: cosine in [-1, 1] from which the penalty acts.
        num_negatives: examples of other classes in the contrast, >= 1; fewer where the batch has fewer.
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    contrast_weight: float = 1.0
    penalty_weight: float = 1.0
    temperature: float = 0.05
    threshold: float = 0.7
    num_negatives: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("contrast_weight", self.contrast_weight, 0)
        at_least("penalty_weight", self.penalty_weight, 0)
        above("temperature", self.temperature, 0)
        between("threshold", self.threshold, -1, 1)
        at_least("num_negatives", self.num_negatives, 1)

    def init(self, task: Task) -> State:
        require_stages(algorithms.name_of(self), task.model)
        return super().init(task)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        if not (self.contrast_weight or self.penalty_weight):
            return task_loss(params, batch, view)
        levels = view.model.stages(params, batch.x)
        loss = cross_entropy(view.model.head(params, levels[-1].output), batch)
        for level in levels:
            contrast, penalty = self.level_terms(level.before, batch)
            loss = loss + (self.contrast_weight * contrast + self.penalty_weight * penalty) / len(levels)
        return loss

    def level_terms(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Contrast and penalty of features [B, d] or [B, channels, height, width], means over the real rows. Scalars."""
        f = F.normalize(features.flatten(2).mean(2) if features.ndim > 2 else features, dim=1)
        cosines = f @ f.T
        alike = batch.y[:, None] == batch.y
        itself = torch.eye(len(batch.y), dtype=torch.bool, device=f.device)
        real = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
        # Infinities are chosen only where there is no example: then exp makes 0 of them, in value and in gradient. Padding rows
        # have themselves.
        positive = torch.where(alike & real | itself, cosines, torch.inf).min(1).values
        others = torch.where(alike | ~real, -torch.inf, cosines)
        negatives = others.topk(min(self.num_negatives, len(f)), dim=1).values
        scores = torch.cat([positive[:, None], negatives], 1) / self.temperature
        contrast = scores.logsumexp(1) - scores[:, 0]
        # Without another example of its class, or one near enough, a row has the cosine -1.
        least = torch.where(alike & real & ~itself, cosines, torch.inf).min(1).values
        near = torch.where((least >= self.threshold) & least.isfinite(), least, -1)
        penalty = F.softplus((near - 1) / self.temperature)
        return batch.mean(contrast), batch.mean(penalty)
