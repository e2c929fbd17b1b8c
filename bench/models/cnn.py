"""The small LeNet-type networks of the FedConcat, MOON and CCVR papers."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from bench.models.base import Model


@dataclass(frozen=True)
class SimpleCnn(Model):
    """Two 5x5 convolutions and three linear layers (62,006 parameters for 3x32x32 and 10 classes)."""

    sizes: ClassVar[tuple[int, int, int, int]] = (6, 16, 120, 84)  # channels of the convolutions, linear layers

    def __post_init__(self):
        self._require_pixels(16)

    def layers(self):
        channels, height, width = self.input_shape
        first, second, third, fourth = self.sizes
        flat = second * _after_convolutions(height) * _after_convolutions(width)
        return {
            "conv1": (first, channels, 5, 5),
            "conv2": (second, first, 5, 5),
            "linear1": (third, flat),
            "linear2": (fourth, third),
            "classifier": (self.num_classes, fourth),
        }

    def features(self, params, x, bound):
        # The maximum of rectified values is the rectified maximum: the same numbers from a quarter of the work.
        x = F.relu(F.max_pool2d(F.conv2d(x, params["conv1.weight"], params["conv1.bias"]), 2))
        x = F.relu(F.max_pool2d(F.conv2d(x, params["conv2.weight"], params["conv2.bias"]), 2))
        x = F.relu(F.linear(x.flatten(1), params["linear1.weight"], params["linear1.bias"]))
        return F.relu(F.linear(x, params["linear2.weight"], params["linear2.bias"]))


@dataclass(frozen=True)
class SimpleCnnWide(SimpleCnn):
    """The simple CNN widened to the size of five of them (310,089 parameters for 3x32x32 and 10 classes)."""

    sizes = (14, 36, 270, 189)


@dataclass(frozen=True)
class MoonCnn(SimpleCnn):
    """Simple CNN with MOON's two-layer projection head; features are its 256 outputs (92,626 parameters)."""

    def layers(self):
        layers = super().layers()
        del layers["classifier"]
        return {**layers, "projection1": (84, 84), "projection2": (256, 84), "classifier": (self.num_classes, 256)}

    def features(self, params, x, bound):
        x = SimpleCnn.features(self, params, x, bound)
        x = F.relu(F.linear(x, params["projection1.weight"], params["projection1.bias"]))
        return F.linear(x, params["projection2.weight"], params["projection2.bias"])


def _after_convolutions(pixels: int) -> int:
    """Side of the feature map after two unpadded 5x5 convolutions, each followed by a 2x2 max-pool."""
    return ((pixels - 4) // 2 - 4) // 2
