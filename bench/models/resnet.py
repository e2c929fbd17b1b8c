"""Residual networks: ResNet-50 for 32x32 images, and ResNet-18 as it is for ImageNet."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from bench.models import registered_model
from bench.models.base import BatchNormalised, Staged

_EXPANSION = 4  # of a bottleneck


class _Convolution(NamedTuple):
    """Name, weight shape [out, in, kernel, kernel] and stride of a convolution."""

    name: str
    shape: tuple[int, int, int, int]
    stride: int = 1


class _ResNet(BatchNormalised, Staged):
    """A stem, four stages of residual blocks of which all but the first halve the resolution, and the mean over pixels.

    Attributes:
        counts: blocks per stage.
        stem: of the first convolution, kernel and stride.
    """

    counts: ClassVar[tuple[int, ...]]
    stem: ClassVar[tuple[int, int]]

    def block(self, inside: int, previous: int, stride: int) -> list[_Convolution]:
        """The convolutions of a block with so many inner and input channels, without the one on its shortcut."""
        raise NotImplementedError

    def pooled(self, x: Tensor) -> Tensor:
        """What the first block gets of the output of the stem."""
        return x

    def layers(self):
        kernel, _ = self.stem
        layers = {"stem": (self._channels(64), self.input_shape[0], kernel, kernel)}
        for convolutions, shortcut in self._blocks():
            layers |= {name: shape for name, shape, _ in [*convolutions, *shortcut]}
            width, *_ = convolutions[-1].shape
        return {**layers, "classifier": (self.num_classes, width)}

    @property
    def stages(self):
        return ("stem", *(f"stage{number}" for number in range(1, len(self.counts) + 1)))

    def stage(self, name, params, x, bound):
        if name == "stem":
            return self.conv(params, bound, x, name, self.stem[1])
        before = None  # what the block before this one has before its activation
        for convolutions, shortcut in self._blocks():
            *first, last = convolutions
            if not last.name.startswith(f"{name}."):
                continue
            around = x = x if before is None else F.relu(before)
            for of in shortcut:
                around = self.conv(params, bound, x, of.name, of.stride)
            for of in first:
                x = F.relu(self.conv(params, bound, x, of.name, of.stride))
            before = self.conv(params, bound, x, last.name, last.stride) + around
        return before

    def activated(self, name, x, bound):
        x = F.relu(x)
        return self.pooled(x) if name == "stem" else x.mean((2, 3)) if name == self.stages[-1] else x

    def _channels(self, published: int) -> int:
        return published

    def _blocks(self) -> Iterator[tuple[list[_Convolution], list[_Convolution]]]:
        """The convolutions of every block, and the one on its shortcut, [] where that is the identity."""
        previous = self._channels(64)
        for stage, count in enumerate(self.counts):
            for index in range(count):
                name, stride = f"stage{stage + 1}.block{index + 1}", 2 if stage > 0 and index == 0 else 1
                own = self.block(self._channels(64 * 2**stage), previous, stride)
                out, *_ = own[-1].shape
                changes = stride > 1 or previous != out
                shortcut = [_Convolution(f"{name}.shortcut", (out, previous, 1, 1), stride)] if changes else []
                yield [of._replace(name=f"{name}.{of.name}") for of in own], shortcut
                previous = out


@registered_model("resnet50", title="ResNet-50")
@dataclass(frozen=True)
class ResNet50(_ResNet):
    """ResNet-50 with a 3x3 stem and no max-pool, for 32x32 images (23,705,252 parameters with 100 classes).

    The stride of a bottleneck is in its 3x3 convolution (v1.5).

    Attributes:
        width: multiplier of all channel counts, > 0; 1 is the published network.
    """

    counts = (3, 4, 6, 3)
    stem = (3, 1)

    width: float = 1.0

    def __post_init__(self):
        if self._channels(64) < 1:
            raise ValueError(f"model_width must leave at least one channel of 64, but got {self.width}.")

    @property
    def smallest_batch(self):
        return 2 if max(self.input_shape[1:]) <= 8 else 1  # halved three times, they end as a single pixel

    def block(self, inside, previous, stride):
        return [
            _Convolution("conv1", (inside, previous, 1, 1)),
            _Convolution("conv2", (inside, inside, 3, 3), stride),
            _Convolution("conv3", (inside * _EXPANSION, inside, 1, 1)),
        ]

    def _channels(self, published):
        return int(published * self.width)


@registered_model("resnet18", title="ResNet-18")
@dataclass(frozen=True)
class ResNet18(_ResNet):
    """ResNet-18 as torchvision has it for ImageNet, 7x7 stem and max-pool included (11,186,772 parameters with 20 classes).

    He et al., CVPR 2016 (https://arxiv.org/abs/1512.03385). Images of up to 32x32 pixels end as a single one, so that batch
    statistics need two examples.
    """

    counts = (2, 2, 2, 2)
    stem = (7, 2)
    takes_weights = True

    @property
    def smallest_batch(self):
        return 2 if max(self.input_shape[1:]) <= 32 else 1

    def block(self, inside, previous, stride):
        return [
            _Convolution("conv1", (inside, previous, 3, 3), stride),
            _Convolution("conv2", (inside, inside, 3, 3)),
        ]

    def pooled(self, x):
        return F.max_pool2d(x, 3, stride=2, padding=1)


def torchvision_name(name: str) -> str:
    """What torchvision's files call a param or buffer of `ResNet18`."""
    name = re.sub(r"stage(\d)\.block(\d)", lambda found: f"layer{found[1]}.{int(found[2]) - 1}", name)
    name = name.replace("shortcut.norm", "downsample.1").replace("shortcut", "downsample.0")
    return re.sub(r"conv(\d)\.norm", r"bn\1", name.replace("stem", "conv1").replace("classifier", "fc"))
