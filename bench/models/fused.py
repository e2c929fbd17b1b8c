"""Models cut into blocks: what goes into a block is made of the outputs of the blocks of several models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.models.base import BoundModel, Model, Params, uniform_init
from bench.models.calibrated import ModelWrapper
from bench.models.concat import classifier_part, encoder_part, with_prefix, without_prefix
from bench.models.taps import Taps


class _Reached(Exception):
    """The layer was reached at which a block ends; `value` goes into it."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = value


def run_block(
    model: BoundModel, params: Params, x: Tensor, start: str = "", given: Tensor | None = None, end: str = ""
) -> Tensor:
    """What goes into layer `end` of a model, or its features where that is "", if `given` goes into layer `start`, or where
    that is "", the images x into the first one."""

    def change(layer: str, value: Tensor) -> Tensor:
        if layer == end:
            raise _Reached(given if layer == start else value)
        return given if layer == start else value

    # What is before the start runs on two images, and its outputs are not used.
    with Taps(params, change):
        try:
            found = model.features(params, x[:2] if start else x)
            return given if start == "classifier" else found
        except _Reached as reached:
            return reached.value


def fuse(outputs: Sequence[Tensor], adapter: Tensor | None) -> Tensor:
    """What goes into a block: the mean of the outputs of the blocks before, or what an adapter [c, m c] makes of the channels
    of all of them."""
    if adapter is None:
        return torch.stack([*outputs]).mean(0)
    together = torch.cat([*outputs], 1)
    return F.linear(together.movedim(1, -1), adapter).movedim(-1, 1)


def block_inputs(
    models: Sequence[BoundModel], params: Sequence[Params], x: Tensor, cuts: Sequence[str]
) -> list[Tensor]:
    """What goes into each model's block after the last cut before it is fused: the outputs of all models' blocks before it.

    Args:
        cuts: layers at which blocks begin, at least one.
    """
    start, given = "", [None] * len(models)
    for number, end in enumerate(cuts):
        outputs = [
            run_block(model, own, x, start, before, end)
            for model, own, before in zip(models, params, given, strict=True)
        ]
        if number == len(cuts) - 1:
            return outputs
        given = [fuse(outputs, own.get(adapter_of(number))) for own in params]
        start = end
    return []


def adapter_of(number: int) -> str:
    """The param that is the adapter of a cut, the first one with number 0."""
    return f"adapter{number}.weight"


@dataclass(frozen=True)
class WithAdapters(ModelWrapper):
    """A model with an adapter for each cut.

    Attributes:
        cuts: the layers.
        count: m, number of models whose outputs are fused.
    """

    inner: Model
    cuts: tuple[str, ...]
    count: int

    def init(self, generator):
        layers, params = self.inner.layers(), self.inner.init(generator)
        for number, cut in enumerate(self.cuts):
            width = layers[cut][1]
            weight = uniform_init("adapter", (width, self.count * width), generator)["adapter.weight"]
            params = {adapter_of(number): weight, **params}
        return params


@dataclass(frozen=True)
class Fused(Model):
    """Models whose blocks read the fused outputs of all models' blocks before.

    The last features are added up, and one classifier reads them; or each model's own reads its features, and the logits are
    added up. Params and buffers of model k have the prefix "encoder<k>.".

    Attributes:
        members: the models.
        cuts: layers at which blocks begin whose inputs are fused.
        multihead: whether each model has a classifier of its own.
    """

    members: tuple[Model, ...]
    cuts: tuple[str, ...]
    multihead: bool

    @property
    def loop_only(self):
        return self.members[0].loop_only

    @property
    def depends_on_mode(self):
        return self.members[0].depends_on_mode

    @property
    def smallest_batch(self):
        return self.members[0].smallest_batch

    def layers(self):
        own = self.members[0].layers()
        classes, width = own.pop("classifier")
        layers = {f"encoder{k}.{name}": shape for k in range(len(self.members)) for name, shape in own.items()}
        return {**layers, "classifier": (classes, width * (len(self.members) if self.multihead else 1))}

    def init(self, generator):
        params = {}
        for k, member in enumerate(self.members):
            params |= with_prefix(k, encoder_part(member.init(generator)))
        return params | uniform_init("classifier", self.layers()["classifier"], generator)

    def init_buffers(self):
        buffers = {}
        for k, member in enumerate(self.members):
            buffers |= with_prefix(k, member.init_buffers())
        return buffers

    def features(self, params, x, bound):
        models = [
            replace(bound, spec=member, buffers=without_prefix(k, bound.buffers))
            for k, member in enumerate(self.members)
        ]
        own = [without_prefix(k, params) | classifier_part(params) for k in range(len(models))]
        start, given = "", [None] * len(models)
        if self.cuts:
            outputs, start = block_inputs(models, own, x, self.cuts), self.cuts[-1]
            given = [fuse(outputs, leaves.get(adapter_of(len(self.cuts) - 1))) for leaves in own]
        last = [run_block(*each, x, start, before) for *each, before in zip(models, own, given, strict=True)]
        return torch.cat(last, 1) if self.multihead else torch.stack(last).sum(0)


def is_chain(model: Model, cut: str) -> bool:
    """Whether all that a layer and those after it read is the layer's input."""
    generator = torch.Generator().manual_seed(0)
    params, bound = model.init(generator), BoundModel(model, model.init_buffers())
    x = torch.rand(5, *model.input_shape, generator=generator)
    try:
        given = run_block(bound, params, x, end=cut)
        found = run_block(bound, params, 1 - x, cut, given)
    except RuntimeError:
        return False
    return bool(torch.equal(found, bound.features(params, x)))
