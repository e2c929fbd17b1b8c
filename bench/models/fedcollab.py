"""The CNN of FedCollab: three 3x3 convolutions and two linear layers."""

from dataclasses import dataclass

import torch.nn.functional as F

from bench.models import registered_model
from bench.models.base import Layered


@registered_model("fedcollab-cnn", title="FedCollab's CNN")
@dataclass(frozen=True)
class FedCollabCnn(Layered):
    """FedCollab's CNN: unpadded 3x3 convolutions of 32, 64 and 64 channels (122,570 parameters for 3x32x32, 10 classes).

    Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.
    https://arxiv.org/abs/2306.06508
    """

    def __post_init__(self):
        self._require_pixels(18)

    def layers(self):
        channels, height, width = self.input_shape
        return {
            "conv1": (32, channels, 3, 3),
            "conv2": (64, 32, 3, 3),
            "conv3": (64, 64, 3, 3),
            "linear1": (64, 64 * _after_convolutions(height) * _after_convolutions(width)),
            "classifier": (self.num_classes, 64),
        }

    def stage(self, name, params, x, bound):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        if name == "linear1":
            return F.linear(x.flatten(1), weight, bias)
        x = F.conv2d(x, weight, bias)
        # ReLU commutes with the pooling; after it, ReLU has a quarter of the work.
        return x if name == "conv3" else F.max_pool2d(x, 2)


def _after_convolutions(pixels: int) -> int:
    """Side of the feature map after the convolutions and the two max-pools."""
    return ((pixels - 2) // 2 - 2) // 2 - 2
