"""The small LeNet-type networks of the FedConcat, MOON and CCVR papers."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from bench.models.base import Layered


@dataclass(frozen=True)
class SimpleCnn(Layered):
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

    def hidden(self, params, x, bound):
        # ReLU commutes with max-pooling; after pooling it has a quarter of the work.
        for name in ("conv1", "conv2"):
            x = F.relu(F.max_pool2d(F.conv2d(x, params[f"{name}.weight"], params[f"{name}.bias"]), 2))
            yield name, x
        x = x.flatten(1)
        for name in ("linear1", "linear2"):
            x = F.relu(F.linear(x, params[f"{name}.weight"], params[f"{name}.bias"]))
            yield name, x


@dataclass(frozen=True)
class SimpleCnnWide(SimpleCnn):
    """The simple CNN with as many parameters as five of them (310,089 parameters for 3x32x32 and 10 classes)."""

    sizes = (14, 36, 270, 189)


@dataclass(frozen=True)
class MoonCnn(SimpleCnn):
    """Simple CNN with MOON's two-layer projection head; features are its 256 outputs (92,626 parameters)."""

    def layers(self):
        layers = super().layers()
        del layers["classifier"]
        return {**layers, "projection1": (84, 84), "projection2": (256, 84), "classifier": (self.num_classes, 256)}

    def hidden(self, params, x, bound):
        shared = dict(super().hidden(params, x, bound))
        yield from shared.items()
        x = F.relu(F.linear(shared["linear2"], params["projection1.weight"], params["projection1.bias"]))
        yield "projection1", x
        yield "projection2", F.linear(x, params["projection2.weight"], params["projection2.bias"])


def _after_convolutions(pixels: int) -> int:
    """Side of the feature map after two unpadded 5x5 convolutions, each followed by a 2x2 max-pool."""
    return ((pixels - 4) // 2 - 4) // 2
