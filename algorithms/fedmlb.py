"""FedMLB: hidden features must also suit the upper layers of the received model, which are grafted onto each stage.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022. https://arxiv.org/abs/2207.06936
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

import algorithms
from algorithms import Batch, ClientView, State, Task, Tree, above, at_least, cross_entropy, registered, task_loss
from algorithms.shared.clipping import Clipped
from bench.models.base import Staged, require_stages


@registered("fedmlb")
@dataclass(frozen=True)
class FedMLB(Clipped):
    """FedAvg with the local objective CE(z) + lambda_1 mean CE(b) + lambda_2 mean KL(softmax(b/T) || softmax(z/T)).

    z are the logits of the local model. Each stage of its encoder has a branch: b are the logits that the later stages and the
    classifier of the received model, which stay as they are, make of the output of the local stage. Means are over branches and
    examples. Gradients flow through branches into the local stages, in both terms, as they do through b in the divergence.
    The received model is in evaluation mode, on the received buffers.

    The branches of n stages cost about (n - 1) / 2 more passes of the encoder, of which a caveat tells; passes over examples
    are counted as in FedAvg.
    In the first step of a round b and z are equal, and the gradient of stage k is 1 + lambda_1 (n + 1 - k) / n times that of
    FedAvg: a part of what the method gains may be a larger learning rate. With both lambdas 0 it is FedAvg, but for clipping.

    Differs from the authors' code (jinkyu032/FedMLB), where the received model is in training mode, which matters for batch
    normalisation and dropout only, and where a moving average of accuracies is reported. Its network is a ResNet, with branches
    after stem and four stages; that each layer of our other networks is a stage is our reading. The paper's body was not at
    hand: formulas are those of three codes.

    Attributes:
        branch_weight: lambda_1 of the paper, >= 0.
        distillation_weight: lambda_2 of the paper, >= 0.
        temperature: T, > 0; the divergence is not multiplied by T^2.
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    branch_weight: float = 1.0
    distillation_weight: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("branch_weight", self.branch_weight, 0)
        at_least("distillation_weight", self.distillation_weight, 0)
        above("temperature", self.temperature, 0)

    def caveats(self, task: Task) -> list[str]:
        more = (len(task.model.stages) - 1) / 2 if isinstance(task.model, Staged) else 0
        said = (
            f"fedmlb: branches cost about {more:g} more passes of the encoder per example, which are not in the counts."
        )
        return [said] if more and (self.branch_weight or self.distillation_weight) else []

    def init(self, task: Task) -> State:
        require_stages(algorithms.name_of(self), task.model)
        return super().init(task)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        if not (self.branch_weight or self.distillation_weight):
            return task_loss(params, batch, view)
        levels = view.model.stages(params, batch.x)
        logits = view.model.head(params, levels[-1].output)
        received, loss = view.model.copy(view.buffers), cross_entropy(logits, batch)
        for level in levels:
            branch = received.after(level.name, view.params, level.output)
            known, own = (F.log_softmax(one / self.temperature, 1) for one in (branch, logits))
            distance = batch.mean((known.exp() * (known - own)).sum(1))
            terms = self.branch_weight * cross_entropy(branch, batch) + self.distillation_weight * distance
            loss = loss + terms / len(levels)
        return loss
