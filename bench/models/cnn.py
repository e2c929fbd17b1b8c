"""Networks of two 5x5 convolutions: those of the FedConcat, MOON and CCVR papers, of FedMR, and of McMahan et al. for MNIST."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from bench.models import registered_model
from bench.models.base import Layered


class _TwoConvolutions(Layered):
    """Two 5x5 convolutions, each with ReLU and 2x2 max-pooling, then linear layers with ReLU.

    Attributes:
        channels: of the two convolutions.
        widths: of the linear layers before the classifier.
        padding: of the convolutions, in pixels on each side; 2 keeps the size of the image.
    """

    channels: ClassVar[tuple[int, int]]
    widths: ClassVar[tuple[int, ...]]
    padding: ClassVar[int] = 0

    def __post_init__(self):
        self._require_pixels(4 if self.padding else 16)

    def layers(self):
        channels, height, width = self.input_shape
        first, second = self.channels
        layers = {"conv1": (first, channels, 5, 5), "conv2": (second, first, 5, 5)}
        previous = second * self._after_convolutions(height) * self._after_convolutions(width)
        for number, width in enumerate(self.widths, 1):
            layers[f"linear{number}"] = (width, previous)
            previous = width
        return {**layers, "classifier": (self.num_classes, previous)}

    def stage(self, name, params, x, bound):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        if name.startswith("conv"):  # ReLU commutes with max-pooling; after pooling it has a quarter of the work
            return F.max_pool2d(F.conv2d(x, weight, bias, padding=self.padding), 2)
        return F.linear(x.flatten(1), weight, bias)

    def _after_convolutions(self, pixels: int) -> int:
        """Side of the feature map after both convolutions and their max-pools."""
        lost = 4 - 2 * self.padding
        return ((pixels - lost) // 2 - lost) // 2


@registered_model("simple-cnn", title="Simple CNN", aliases=("lenet-cifar",))
@dataclass(frozen=True)
class SimpleCnn(_TwoConvolutions):
    """Two 5x5 convolutions and three linear layers (62,006 parameters for 3x32x32 and 10 classes)."""

    channels = (6, 16)
    widths = (120, 84)


@registered_model("simple-cnn-wide", title="Simple CNN, wide")
@dataclass(frozen=True)
class SimpleCnnWide(SimpleCnn):
    """The simple CNN with as many parameters as five of them (310,089 parameters for 3x32x32 and 10 classes)."""

    channels = (14, 36)
    widths = (270, 189)


@registered_model("moon-cnn", title="MOON's CNN")
@dataclass(frozen=True)
class MoonCnn(SimpleCnn):
    """Simple CNN with MOON's two-layer projection head; features are its 256 outputs (92,626 parameters)."""

    def layers(self):
        layers = super().layers()
        del layers["classifier"]
        return {**layers, "projection1": (84, 84), "projection2": (256, 84), "classifier": (self.num_classes, 256)}

    def activated(self, name, x, bound):
        return x if name == "projection2" else super().activated(name, x, bound)


@registered_model("fedmr-mnist-cnn", title="FedMR's MNIST CNN")
@dataclass(frozen=True)
class FedMrMnistCnn(_TwoConvolutions):
    """FedMR's CNN for MNIST: 20 and 50 channels, one linear layer of 50 (66,130 parameters for 1x28x28, 10 classes).

    From the code of FedMR, by the authors of FedCat (https://github.com/HMHelloWorld/FedMR).
    """

    channels = (20, 50)
    widths = (50,)


@registered_model("fedmr-femnist-cnn", title="FedMR's FEMNIST CNN")
@dataclass(frozen=True)
class FedMrFemnistCnn(_TwoConvolutions):
    """FedMR's CNN for FEMNIST: 16 and 32 channels, one linear layer of 256 (160,510 parameters for 1x28x28, 62 classes).

    From the code of FedMR, by the authors of FedCat (https://github.com/HMHelloWorld/FedMR).
    """

    channels = (16, 32)
    widths = (256,)


@registered_model("mcmahan2017-mnist-cnn", title="McMahan's MNIST CNN")
@dataclass(frozen=True)
class McMahanMnistCnn(_TwoConvolutions):
    """McMahan's CNN for MNIST: padded convolutions, a linear layer of 512 (1,663,370 parameters for 1x28x28, 10 classes).

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, Section 3.
    https://arxiv.org/abs/1602.05629
    """

    channels = (32, 64)
    widths = (512,)
    padding = 2
