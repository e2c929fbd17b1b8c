"""FedNTD: clients preserve what the received model says about the classes that are not the label of an example.

Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022.
https://arxiv.org/abs/2106.03097
"""

from dataclasses import dataclass

from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Tree, above, at_least, cross_entropy, registered
from algorithms.shared.distillation import masked_divergence, not_true, teacher_logits


@registered("fedntd")
@dataclass(frozen=True)
class FedNTD(RoundBased):
    """FedAvg with not-true distillation in the local objective: cross-entropy + beta tau^2 mean KL(q_g || q).

    q and q_g are the softmax of the local and of the received model at temperature tau over all classes but the label, in
    which the KL divergence has no gradient. The teacher costs one more forward pass of each batch. With two classes this is
    FedAvg.

    Differs from the official code (Lee-Gihun/FedNTD): the teacher is in evaluation mode, which matters for models with
    batch normalisation or dropout only.

    Attributes:
        beta: weight of the distillation, >= 0; 0 is FedAvg.
        temperature: tau of the paper, > 0; 1 in the configuration of the official code, whose class has 3.
    """

    beta: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        at_least("beta", self.beta, 0)
        above("temperature", self.temperature, 0)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        logits = view.model(params, batch.x)
        others = not_true(batch, logits)
        distance = masked_divergence(logits, teacher_logits(view, batch.x), others, others, self.temperature)
        return cross_entropy(logits, batch) + self.beta * batch.mean(distance)
