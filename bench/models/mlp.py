"""Multi-layer perceptrons."""

import math
from dataclasses import dataclass

import torch.nn.functional as F

from bench.models.base import Model


@dataclass(frozen=True)
class Mlp(Model):
    """Inputs-64-64-classes perceptron with ReLU, for small images such as digits."""

    def layers(self):
        inputs = math.prod(self.input_shape)
        return {"linear1": (64, inputs), "linear2": (64, 64), "classifier": (self.num_classes, 64)}

    def features(self, params, x, bound):
        x = F.relu(F.linear(x.flatten(1), params["linear1.weight"], params["linear1.bias"]))
        return F.relu(F.linear(x, params["linear2.weight"], params["linear2.bias"]))
