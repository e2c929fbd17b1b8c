"""Models as pure functions of their params, and models bound to running statistics and a source of dropout masks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]


class StageOutput(NamedTuple):
    """What a stage of an encoder makes of a batch.

    Attributes:
        name: of the stage.
        before: [B, ...], before the activation.
        output: [B, ...], what the next stage, or the classifier, reads.
    """

    name: str
    before: Tensor
    output: Tensor


@dataclass(frozen=True)
class Model:
    """A network as pure functions; trainable tensors are passed in by name.

    Attributes:
        input_shape: (channels, height, width) of one image.
        num_classes: number of logits.
        version: raised whenever the outputs of the model may change; part of the run id.
        loop_only: why the vectorised engine refuses the model, as the end of a sentence; "" if it does not.
        takes_weights: whether the model can start from ImageNet weights (see `bench.models.pretrained`).
        library: the installed package that brings the network, whose version a record names; "" if none does.
    """

    input_shape: tuple[int, int, int]
    num_classes: int

    version: ClassVar[int] = 1
    loop_only: ClassVar[str] = ""
    takes_weights: ClassVar[bool] = False
    library: ClassVar[str] = ""

    def layers(self) -> dict[str, tuple[int, ...]]:
        """Weight shape of each convolution [out, in, kernel, kernel] and linear layer [out, in], in order."""
        raise NotImplementedError

    def features(self, params: Params, x: Tensor, bound: "BoundModel") -> Tensor:
        """The encoder: images [B, C, H, W] -> features [B, feature_dim]."""
        raise NotImplementedError

    def head(self, params: Params, z: Tensor) -> Tensor:
        """The classifier: features [B, feature_dim] -> logits [B, num_classes]."""
        return F.linear(z, params["classifier.weight"], params["classifier.bias"])

    def hidden(self, params: Params, x: Tensor, bound: "BoundModel") -> Iterator[tuple[str, Tensor]]:
        """Name and output [B, ...] of each layer of the encoder, after activation and pooling, in order.

        By default there is one, "features".
        """
        yield "features", self.features(params, x, bound)

    def init(self, generator: torch.Generator) -> Params:
        """Initial params with PyTorch's default for convolutions and linear layers: uniform in +-1/sqrt(fan-in)."""
        params = {}
        for name, shape in self.layers().items():
            params |= uniform_init(name, shape, generator)
        return params

    def init_buffers(self) -> Params:
        """Initial buffers: tensors that are averaged but not trained, such as running statistics."""
        return {}

    @property
    def depends_on_mode(self) -> bool:
        """Whether training mode differs from evaluation mode (dropout, batch statistics)."""
        return bool(self.loop_only)

    @property
    def smallest_batch(self) -> int:
        """Examples that a batch needs in training mode."""
        return 1

    @property
    def feature_dim(self) -> int:
        """Width of the features, the input of the classifier.

        Raises:
            ValueError: if no layer is called so.
        """
        if found := self.layers().get("classifier"):
            return found[1]
        raise ValueError(
            f"The method needs the width of the features, but no layer of {type(self).__name__} is called classifier; use "
            "another model."
        )

    def _require_pixels(self, least: int) -> None:
        """Raises ValueError if images are smaller than least x least pixels."""
        _, height, width = self.input_shape
        if min(height, width) < least:
            raise ValueError(
                f"{type(self).__name__} needs images of at least {least}x{least} pixels, but got {height}x{width}; "
                "use the model mlp for smaller ones."
            )


class Staged(Model):
    """A model whose encoder is cut into stages, each a layer or several, an activation, and pooling, if any."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        raise NotImplementedError

    def stage(self, name: str, params: Params, x: Tensor, bound: "BoundModel") -> Tensor:
        """What a stage makes of the output of the one before, or of images, before its activation [B, ...]."""
        raise NotImplementedError

    def activated(self, name: str, x: Tensor, bound: "BoundModel") -> Tensor:
        """The output of a stage [B, ...], from what it has before its activation. The last ones are the features."""
        return F.relu(x)

    def run_stages(self, params: Params, x: Tensor, bound: "BoundModel", after: str = "") -> Iterator[StageOutput]:
        """What each stage makes of images; with `after`, only those that follow this stage, whose output is x."""
        first = self.stages.index(after) + 1 if after else 0
        for name in self.stages[first:]:
            before = self.stage(name, params, x, bound)
            x = self.activated(name, before, bound)
            yield StageOutput(name, before, x)

    def features(self, params, x, bound):
        *_, last = self.run_stages(params, x, bound)
        return last.output


def require_stages(method: str, model: Model) -> None:
    """Raises ValueError unless a model, which a method of this name is to train, is cut into stages."""
    if not isinstance(model, Staged):
        raise ValueError(
            f"{method} needs a model whose encoder is cut into stages, but {type(model).__name__} has none; use another one, "
            "such as simple-cnn, mlp, vgg9 or resnet18."
        )


class Layered(Staged):
    """A sequential model: all its layers but the classifier are stages, and `hidden` has their outputs."""

    @property
    def stages(self):
        return tuple(name for name in self.layers() if name != "classifier")

    def hidden(self, params, x, bound):
        for name, _, output in self.run_stages(params, x, bound):
            yield name, output


def uniform_init(layer: str, shape: tuple[int, ...], generator: torch.Generator) -> Params:
    """PyTorch's default for one convolution or linear layer: weight and bias uniform in +-1/sqrt(fan-in)."""
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return {
        f"{layer}.weight": torch.empty(shape).uniform_(-bound, bound, generator=generator),
        f"{layer}.bias": torch.empty(shape[0]).uniform_(-bound, bound, generator=generator),
    }


class BatchNormalised(Model):
    """A model with batch normalisation after every convolution.

    Convolutions have no bias and are Kaiming-normal (fan-out), batch norm starts at weight 1 and bias 0, linear layers
    have PyTorch's default.
    """

    loop_only = "normalises by batch statistics, which padding rows would enter"

    def init(self, generator):
        params = {}
        for name, shape in self.layers().items():
            if len(shape) == 2:
                params |= uniform_init(name, shape, generator)
            else:
                deviation = math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
                params[f"{name}.weight"] = torch.empty(shape).normal_(0, deviation, generator=generator)
                params[f"{name}.norm.weight"] = torch.ones(shape[0])
                params[f"{name}.norm.bias"] = torch.zeros(shape[0])
        return params

    def init_buffers(self):
        buffers = {}
        for name, shape in self.layers().items():
            if len(shape) == 4:
                buffers[f"{name}.norm.running_mean"] = torch.zeros(shape[0])
                buffers[f"{name}.norm.running_var"] = torch.ones(shape[0])
                buffers[f"{name}.norm.num_batches_tracked"] = torch.zeros((), dtype=torch.long)
        return buffers

    def conv(
        self, params: Params, bound: "BoundModel", x: Tensor, name: str, stride: int = 1, groups: int = 1
    ) -> Tensor:
        """A convolution with padding for the same size (divided by the stride), then batch normalisation."""
        weight = params[f"{name}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2, groups=groups)
        return bound.batch_norm(params, x, f"{name}.norm")


@dataclass(frozen=True)
class BoundModel:
    """A model bound to one client's buffers, mode and dropout generator; algorithms call it.

    Attributes:
        spec: the model.
        buffers: working copy of the buffers; a forward pass in training mode updates it in place.
        training: training mode (dropout, batch statistics) or evaluation mode.
        generator: source of dropout masks; used in training mode only.
    """

    spec: Model
    buffers: Params
    training: bool = False
    generator: Any = None

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return self.head(params, self.features(params, x))

    def features(self, params: Params, x: Tensor) -> Tensor:
        return self.spec.features(params, x, self)

    def outputs(self, params: Params, x: Tensor) -> dict[str, Tensor]:
        """Outputs of all layers for images: name -> [B, ...] in order; those of "classifier" are the logits."""
        found = dict(self.spec.hidden(params, x, self))
        *_, z = found.values()
        return {**found, "classifier": self.head(params, z)}

    def stages(self, params: Params, x: Tensor) -> list[StageOutput]:
        """What each stage makes of images; of a `Staged` model."""
        return list(cast(Staged, self.spec).run_stages(params, x, self))

    def after(self, stage: str, params: Params, x: Tensor) -> Tensor:
        """Logits, from the output of one of the stages; of a `Staged` model."""
        for later in cast(Staged, self.spec).run_stages(params, x, self, after=stage):
            x = later.output
        return self.head(params, x)

    def head(self, params: Params, z: Tensor) -> Tensor:
        return self.spec.head(params, z)

    def copy(self, buffers: Params | None = None, training: bool = False) -> "BoundModel":
        """The same model on a copy of buffers (default: its own); forward passes do not change the originals."""
        copy = {name: tensor.clone() for name, tensor in (self.buffers if buffers is None else buffers).items()}
        return replace(self, buffers=copy, training=training)

    def twin(self) -> "BoundModel":
        """The same model on copies of its buffers and its generator: its forward passes draw the masks that those of this one
        would draw, and leave this one as it is."""
        generator = self.generator and self.generator.clone_state()
        return replace(self.copy(training=self.training), generator=generator)

    def dropout(self, x: Tensor, rate: float, channelwise: bool = False) -> Tensor:
        """Inverted dropout with masks from the client's own generator; the identity in evaluation mode."""
        if not self.training:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if channelwise else x.shape
        keep = torch.rand(shape, generator=self.generator).to(x.device) >= rate
        return x * keep / (1 - rate)

    def batch_norm(self, params: Params, x: Tensor, name: str) -> Tensor:
        """Batch normalisation (momentum 0.1, epsilon 1e-5); training mode updates the running statistics."""
        if self.training:
            self.buffers[f"{name}.num_batches_tracked"].add_(1)
        return F.batch_norm(
            x,
            self.buffers[f"{name}.running_mean"],
            self.buffers[f"{name}.running_var"],
            params[f"{name}.weight"],
            params[f"{name}.bias"],
            self.training,
        )
