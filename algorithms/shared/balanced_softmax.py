"""The balanced softmax: logits shifted by how often a client has each class."""

from typing import Literal

import torch
from torch import Tensor

Vacant = Literal["exclude", "clamp"]


def balanced(logits: Tensor, counts: Tensor, *, gamma: float = 1.0, vacant: Vacant = "exclude") -> Tensor:
    """Logits [B, num_classes] plus gamma log n_c, up to a constant: of n_c / max n instead of n_c, so that logits stay as they
    are, bit for bit, where all counts are equal.

    Args:
        counts: n, [num_classes], of the client's examples; not all 0.
        gamma: strength of the shift, >= 0; at 0 logits stay as they are, also of vacant classes.
        vacant: classes without an example are left out of the softmax ("exclude": -inf, which has the gradient 0), or are
            counted as if they had one ("clamp").
    """
    if gamma == 0:
        return logits
    held = counts.clamp(min=1)
    shifted = logits + gamma * (held / held.max()).log()
    return shifted if vacant == "clamp" else torch.where(counts > 0, shifted, -torch.inf)
