"""MobileNetV2 for 32x32 images."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F

from bench.models import registered_model
from bench.models.base import BatchNormalised

# Expansion, output channels, number of blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM, _LAST = 32, 1280


@registered_model("mobilenetv2", title="MobileNetV2")
@dataclass(frozen=True)
class MobileNetV2(BatchNormalised):
    """MobileNetV2 with three strides instead of five, for 32x32 images (2,236,682 parameters with 10 classes).

    Sandler et al., CVPR 2018 (https://arxiv.org/abs/1801.04381); the stem and stage 2 keep the resolution. No dropout.
    """

    @property
    def smallest_batch(self):
        return 2 if max(self.input_shape[1:]) <= 8 else 1  # halved three times, they end as a single pixel

    def layers(self):
        layers = {"stem": (_STEM, self.input_shape[0], 3, 3)}
        for name, inside, channels, previous, _ in self._blocks():
            if inside != previous:
                layers[f"{name}.expand"] = (inside, previous, 1, 1)
            layers[f"{name}.depthwise"] = (inside, 1, 3, 3)
            layers[f"{name}.project"] = (channels, inside, 1, 1)
        return {**layers, "last": (_LAST, _STAGES[-1][1], 1, 1), "classifier": (self.num_classes, _LAST)}

    def features(self, params, x, bound):
        conv = partial(self.conv, params, bound)
        x = F.relu6(conv(x, "stem"))
        for name, inside, channels, previous, stride in self._blocks():
            y = F.relu6(conv(x, f"{name}.expand")) if inside != previous else x
            y = F.relu6(conv(y, f"{name}.depthwise", stride, groups=inside))
            y = conv(y, f"{name}.project")
            x = x + y if stride == 1 and channels == previous else y
        return F.relu6(conv(x, "last")).mean((2, 3))

    def _blocks(self) -> Iterator[tuple[str, int, int, int, int]]:
        """(name, inner, output and input channels, stride) of every inverted residual."""
        previous = _STEM
        for stage, (expansion, channels, count, first_stride) in enumerate(_STAGES, 1):
            for block in range(count):
                stride = first_stride if block == 0 else 1
                yield f"stage{stage}.block{block + 1}", expansion * previous, channels, previous, stride
                previous = channels
