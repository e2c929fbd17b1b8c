"""Multi-layer perceptrons."""

import math
from dataclasses import dataclass

import torch.nn.functional as F

from bench.models.base import Layered


@dataclass(frozen=True)
class Mlp(Layered):
    """Inputs-64-64-classes perceptron with ReLU, for small images such as digits."""

    def layers(self):
        inputs = math.prod(self.input_shape)
        return {"linear1": (64, inputs), "linear2": (64, 64), "classifier": (self.num_classes, 64)}

    def hidden(self, params, x, bound):
        x = x.flatten(1)
        for name in ("linear1", "linear2"):
            x = F.relu(F.linear(x, params[f"{name}.weight"], params[f"{name}.bias"]))
            yield name, x
