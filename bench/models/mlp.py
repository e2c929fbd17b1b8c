"""Multi-layer perceptrons."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from bench.models import registered_model
from bench.models.base import Layered


@registered_model("mlp", title="MLP")
@dataclass(frozen=True)
class Mlp(Layered):
    """Inputs-64-64-classes perceptron with ReLU, for small images such as digits."""

    hidden_width: ClassVar[int] = 64

    def layers(self):
        inputs, width = math.prod(self.input_shape), self.hidden_width
        return {"linear1": (width, inputs), "linear2": (width, width), "classifier": (self.num_classes, width)}

    def stage(self, name, params, x, bound):
        return F.linear(x.flatten(1), params[f"{name}.weight"], params[f"{name}.bias"])


@registered_model("fedcollab-mlp", title="FedCollab's MLP")
@dataclass(frozen=True)
class FedCollabMlp(Mlp):
    """FedCollab's perceptron: two hidden layers of 200 (199,210 parameters for 1x28x28 and 10 classes).

    Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.
    https://arxiv.org/abs/2306.06508
    """

    hidden_width = 200
