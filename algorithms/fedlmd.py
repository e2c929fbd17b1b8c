"""FedLMD: clients preserve what the received model says about the classes of which they hold few examples.

fedlmd-tf: FedLMD without a teacher: the wanted predictions are uniform over those classes.

Lu et al., Federated Learning with Label-Masking Distillation, ACM MM 2023. https://arxiv.org/abs/2409.13136
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Batch, ClientView, RoundBased, Tree, above, at_least, cross_entropy, registered
from algorithms.shared.distillation import masked_divergence, not_true, teacher_logits


@registered("fedlmd")
@registered("fedlmd-tf", title="FedLMD-TF", teacher_free=True)
@dataclass(frozen=True)
class FedLMD(RoundBased):
    """FedAvg with label-masking distillation in the local objective: cross-entropy + beta tau^2 mean KL(q_g || q).

    q is the softmax of the local model at temperature tau over all classes but the label. q_g is that of the received
    model over those of them that are no majority classes; a class is one if the client has more examples of it than of the
    mean class, classes without examples included. An example adds 0 where all classes but its label are majority classes.
    A client without majority classes trains as in FedNTD. The teacher costs one more forward pass of each batch.

    Differs from the official code (wnma3mz/FedLMD): the teacher is in evaluation mode, as in FedNTD here; without a teacher
    q_g divides by the number of its classes, as the paper has it, where the code divides by the size of the batch, and
    is called without the majority classes that it needs.

    Attributes:
        beta: weight of the distillation, >= 0; 0 is FedAvg.
        temperature: tau of the paper, > 0.
        teacher_free: q_g is uniform over its classes; that costs no forward pass.
    """

    beta: float = 1.0
    temperature: float = 1.0
    teacher_free: bool = False

    def __post_init__(self) -> None:
        at_least("beta", self.beta, 0)
        above("temperature", self.temperature, 0)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        logits = view.model(params, batch.x)
        others = not_true(batch, logits)
        counts = view.label_counts
        minority = counts * len(counts) <= counts.sum()  # whole numbers: no rounding makes equal counts unequal
        # Equal logits have a uniform softmax, over whatever classes.
        teacher = torch.zeros_like(logits) if self.teacher_free else teacher_logits(view, batch.x)
        distance = masked_divergence(logits, teacher, others, others & minority, self.temperature)
        return cross_entropy(logits, batch) + self.beta * batch.mean(distance)
