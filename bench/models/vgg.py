"""VGG-9 as in NIID-Bench."""

from dataclasses import dataclass

import torch.nn.functional as F

from bench.models import registered_model
from bench.models.base import Staged

_CHANNELS = ((32, 64), (128, 128), (256, 256))  # two convolutions per block, each block ends in a 2x2 max-pool


@registered_model("vgg9", title="VGG-9")
@dataclass(frozen=True)
class Vgg9(Staged):
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

    @property
    def stages(self):
        return (*(f"conv{number}" for number in range(1, 7)), "linear1", "linear2")

    def stage(self, name, params, x, bound):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return F.conv2d(x, weight, bias, padding=1) if name[:4] == "conv" else F.linear(x, weight, bias)

    def activated(self, name, x, bound):
        x = F.relu(x)
        if name in ("conv2", "conv4", "conv6"):
            x = F.max_pool2d(x, 2)
        if name == "conv4":
            return bound.dropout(x, 0.05, channelwise=True)
        return bound.dropout(x.flatten(1), 0.1) if name in ("conv6", "linear2") else x
