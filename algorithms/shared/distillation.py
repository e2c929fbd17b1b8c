"""Distillation on the client: the received model as a teacher, and softmax functions over a part of the classes.

Everything here is finite where a part is empty, in value and in gradient, and can be traced by vmap.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.shared.types import Batch, ClientView


def teacher_logits(view: ClientView, x: Tensor) -> Tensor:
    """Logits [B, num_classes] of the model that a client received, as constants.

    The model is in evaluation mode, on the received buffers: the teacher is the same in all batches of a round, and the
    student's running statistics and dropout masks are what they are without it.
    """
    with torch.no_grad():
        return view.model.copy(view.buffers)(view.params, x)


def not_true(batch: Batch, logits: Tensor) -> Tensor:
    """Whether a class is not the label of an example: [B, num_classes], bool."""
    return batch.y[:, None] != torch.arange(logits.shape[1], device=logits.device)


def masked_log_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    """Log-softmax of logits [B, num_classes] over the allowed classes of each row.

    Args:
        allowed: bool, [B, num_classes] or [num_classes].

    Returns:
        [B, num_classes]; 0 at classes that are not allowed.
    """
    # The lowest number instead of -inf: a row with nothing allowed has a softmax then, which nobody reads.
    lowest = torch.finfo(logits.dtype).min
    return torch.where(allowed, F.log_softmax(torch.where(allowed, logits, lowest), 1), 0)


def masked_divergence(
    student: Tensor, teacher: Tensor, known: Tensor, taught: Tensor, temperature: float = 1.0
) -> Tensor:
    """tau^2 KL(teacher || student) of each example, between softmax functions at temperature tau over parts of the classes.

    Args:
        student, teacher: logits [B, num_classes].
        known, taught: classes in the softmax of the student and of the teacher, bool, [B, num_classes] or [num_classes];
            all that are taught are known.

    Returns:
        [B]; 0 for an example of which nothing is taught.
    """
    own = masked_log_softmax(student / temperature, known)
    wanted = masked_log_softmax(teacher / temperature, taught)
    shares = torch.where(taught, wanted.exp(), 0)
    return temperature**2 * (shares * (wanted - own)).sum(1)
