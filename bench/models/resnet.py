"""ResNet-50 for 32x32 images."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F

from bench.models.base import BatchNormalised

_BLOCKS = (3, 4, 6, 3)  # bottleneck blocks per stage
_EXPANSION = 4


@dataclass(frozen=True)
class ResNet50(BatchNormalised):
    """ResNet-50 with a 3x3 stem and no max-pool, for 32x32 images (23,705,252 parameters with 100 classes).

    The stride of a bottleneck is in its 3x3 convolution (v1.5).

    Attributes:
        width: multiplier of all channel counts, > 0; 1 is the published network.
    """

    width: float = 1.0

    def __post_init__(self):
        if self._channels(64) < 1:
            raise ValueError(f"width must leave at least one channel of 64, but got {self.width}.")

    def layers(self):
        layers = {"stem": (self._channels(64), self.input_shape[0], 3, 3)}
        for name, inside, previous, stride in self._bottlenecks():
            layers[f"{name}.conv1"] = (inside, previous, 1, 1)
            layers[f"{name}.conv2"] = (inside, inside, 3, 3)
            layers[f"{name}.conv3"] = (inside * _EXPANSION, inside, 1, 1)
            if stride > 1 or previous != inside * _EXPANSION:
                layers[f"{name}.shortcut"] = (inside * _EXPANSION, previous, 1, 1)
        return {**layers, "classifier": (self.num_classes, self._channels(512) * _EXPANSION)}

    def features(self, params, x, bound):
        conv = partial(self.conv, params, bound)
        x = F.relu(conv(x, "stem"))
        for name, _, _, stride in self._bottlenecks():
            shortcut = conv(x, f"{name}.shortcut", stride) if f"{name}.shortcut.weight" in params else x
            x = F.relu(conv(x, f"{name}.conv1"))
            x = F.relu(conv(x, f"{name}.conv2", stride))
            x = F.relu(conv(x, f"{name}.conv3") + shortcut)
        return x.mean((2, 3))

    def _channels(self, published: int) -> int:
        return int(published * self.width)

    def _bottlenecks(self) -> Iterator[tuple[str, int, int, int]]:
        """(name, inner channels, input channels, stride) of every block."""
        previous = self._channels(64)
        for stage, count in enumerate(_BLOCKS):
            inside = self._channels(64 * 2**stage)
            for block in range(count):
                yield f"stage{stage + 1}.block{block + 1}", inside, previous, 2 if stage > 0 and block == 0 else 1
                previous = inside * _EXPANSION
