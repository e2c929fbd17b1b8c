"""VGG-9 as in NIID-Bench."""

from dataclasses import dataclass

import torch.nn.functional as F

from bench.models import registered_model
from bench.models.base import Model

_CHANNELS = ((32, 64), (128, 128), (256, 256))  # two convolutions per block, each block ends in a 2x2 max-pool


@registered_model("vgg9", title="VGG-9")
@dataclass(frozen=True)
class Vgg9(Model):
    """Six 3x3 convolutions and three linear layers with dropout (3,491,530 parameters for 3x32x32, 10 classes)."""

    loop_only = "draws dropout masks from one generator per client"

    def __post_init__(self):
        self._require_pixels(8)

    def layers(self):
        previous, height, width = self.input_shape
        layers = {}
        for channels in sum(_CHANNELS, ()):
            layers[f"conv{len(layers) + 1}"] = (channels, previous, 3, 3)
            previous = channels
        flat = previous * (height // 8) * (width // 8)
        return {**layers, "linear1": (512, flat), "linear2": (512, 512), "classifier": (self.num_classes, 512)}

    def features(self, params, x, bound):
        for number in range(1, 7):
            x = F.relu(F.conv2d(x, params[f"conv{number}.weight"], params[f"conv{number}.bias"], padding=1))
            if number % 2 == 0:
                x = F.max_pool2d(x, 2)
            if number == 4:
                x = bound.dropout(x, 0.05, channelwise=True)
        x = bound.dropout(x.flatten(1), 0.1)
        x = F.relu(F.linear(x, params["linear1.weight"], params["linear1.bias"]))
        x = F.relu(F.linear(x, params["linear2.weight"], params["linear2.bias"]))
        return bound.dropout(x, 0.1)
