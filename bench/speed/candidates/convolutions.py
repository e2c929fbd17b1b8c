"""Convolutions of many clients at once, each with weights of its own, in several ways: forward, and the two gradients.

A convolution of a model that vmap traces becomes one kernel for all clients. Which kernel is fast depends on the card: grouped
convolutions of few channels, which vmap takes, are known to be slow. All of them here have stride 1.

Shapes: K clients, B examples, C channels in, O out, HxW pixels, P padding; h = H + 2 P - k + 1, w likewise.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

_TORCHS = F.conv2d  # also while models use another


class Variant(NamedTuple):
    """One way to convolve.

    Attributes:
        forward: (x [K, B, C, H, W], weight [K, O, C, k, k], padding) -> [K, B, O, h, w].
        of_weight: (slope [K, B, O, h, w], x, k, padding) -> gradient of the weight.
        of_input: (slope, weight, padding) -> gradient of x; None for the forward convolution of the padded slope with the
            weight turned around, which it is.
    """

    forward: Callable[[Tensor, Tensor, int], Tensor]
    of_weight: Callable[[Tensor, Tensor, int, int], Tensor]
    of_input: Callable[[Tensor, Tensor, int], Tensor] | None = None


def variant(name: str) -> Variant:
    """A way to convolve by its name.

    Raises:
        ImportError: if it needs a library that is not installed.
    """
    return _VARIANTS[name]()


def conv2d(name: str, x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """`F.conv2d` of one client, under vmap of many: x [B, C, H, W], weight [O, C, k, k], bias [O] -> [B, O, h, w].

    Can be differentiated once, also by `torch.func.grad`.
    """
    return _Convolution.apply(x, weight, name, padding) + bias[:, None, None]


@contextmanager
def used(name: str) -> Iterator[None]:
    """Models convolve in one way, for a while; their convolutions must have stride 1."""

    def replaced(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
        return conv2d(name, x, weight, bias, padding)

    with mock.patch.object(F, "conv2d", replaced):
        yield


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, name: str, padding: int) -> Tensor:
        return variant(name).forward(x[None], weight[None], padding)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, weight, ctx.name, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        return (
            _OfInput.apply(slope, weight, ctx.name, ctx.padding) if of_x else None,
            _OfWeight.apply(slope, x, weight.shape[-1], ctx.name, ctx.padding) if of_weight else None,
            None,
            None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, weight: Tensor, name: str, padding: int) -> tuple[Tensor, int]:
        return variant(name).forward(*_stacked(info, in_dims, x, weight), padding), 0


class _OfInput(torch.autograd.Function):
    @staticmethod
    def forward(slope: Tensor, weight: Tensor, name: str, padding: int) -> Tensor:
        return _gradient_of_input(variant(name), slope[None], weight[None], padding)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Gradients are constants: nothing is differentiated twice."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple, slope: Tensor, weight: Tensor, name: str, padding: int) -> tuple[Tensor, int]:
        return _gradient_of_input(variant(name), *_stacked(info, in_dims, slope, weight), padding), 0


class _OfWeight(torch.autograd.Function):
    @staticmethod
    def forward(slope: Tensor, x: Tensor, side: int, name: str, padding: int) -> Tensor:
        return variant(name).of_weight(slope[None], x[None], side, padding)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Gradients are constants: nothing is differentiated twice."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, slope: Tensor, x: Tensor, side: int, name: str, padding: int
    ) -> tuple[Tensor, int]:
        return variant(name).of_weight(*_stacked(info, in_dims, slope, x), side, padding), 0


def _stacked(info: Any, in_dims: tuple, *given: Tensor) -> list[Tensor]:
    """Tensors with the clients first, those of all clients repeated."""
    return [
        leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
        for leaf, dim in zip(given, in_dims, strict=False)
    ]


def _gradient_of_input(way: Variant, slope: Tensor, weight: Tensor, padding: int) -> Tensor:
    if way.of_input:
        return way.of_input(slope, weight, padding)
    turned = weight.flip((-2, -1)).transpose(1, 2)
    return way.forward(slope, turned, weight.shape[-1] - 1 - padding)


# Grouped: the clients are groups of channels, as vmap has it.


def _channels(x: Tensor) -> Tensor:
    """[K, B, C, H, W] -> [B, K C, H, W]."""
    return x.transpose(0, 1).flatten(1, 2)


def _grouped_forward(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    found = _TORCHS(_channels(x), weight.flatten(0, 1), padding=padding, groups=len(x))
    return found.unflatten(1, (len(x), -1)).transpose(0, 1)


def _grouped_backward(slope: Tensor, x: Tensor, weight: Tensor, padding: int, mask: list[bool]) -> Any:
    return torch.ops.aten.convolution_backward(
        _channels(slope), _channels(x), weight.flatten(0, 1), None, [1, 1], [padding, padding], [1, 1], False, [0, 0],
        len(x), mask,
    )  # fmt: skip


def _grouped_of_weight(slope: Tensor, x: Tensor, side: int, padding: int) -> Tensor:
    weight = x.new_empty(len(x), slope.shape[2], x.shape[2], side, side)  # only its shape counts
    return _grouped_backward(slope, x, weight, padding, [False, True, False])[1].view_as(weight)


def _grouped_of_input(slope: Tensor, weight: Tensor, padding: int) -> Tensor:
    grown = weight.shape[-1] - 1 - 2 * padding
    height, width = slope.shape[-2] + grown, slope.shape[-1] + grown
    x = slope.new_empty(*slope.shape[:2], weight.shape[2], height, width)  # only its shape counts
    found = _grouped_backward(slope, x, weight, padding, [True, False, False])[0]
    return found.unflatten(1, (len(x), -1)).transpose(0, 1)


# Unfolded: patches [K, B h w, C k k] in memory, and one matrix product per client.


def _patches(x: Tensor, side: int, padding: int) -> Tensor:
    padded = F.pad(x, (padding,) * 4) if padding else x
    windows = padded.unfold(3, side, 1).unfold(4, side, 1)  # [K, B, C, h, w, k, k]
    return windows.permute(0, 1, 3, 4, 2, 5, 6).flatten(4).flatten(1, 3)


def _unfolded_forward(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    found = torch.bmm(_patches(x, weight.shape[-1], padding), weight.flatten(2).transpose(1, 2))
    grown = 2 * padding - weight.shape[-1] + 1
    sizes = (x.shape[1], x.shape[-2] + grown, x.shape[-1] + grown)
    return found.unflatten(1, sizes).movedim(-1, 2)


def _unfolded_of_weight(slope: Tensor, x: Tensor, side: int, padding: int) -> Tensor:
    rows = slope.movedim(2, 1).flatten(2)  # [K, O, B h w]
    return torch.bmm(rows, _patches(x, side, padding)).unflatten(2, (x.shape[2], side, side))


@functools.cache
def _triton() -> Variant:
    from bench.speed.candidates import triton_convolutions

    return Variant(triton_convolutions.forward, triton_convolutions.of_weight)


_VARIANTS: dict[str, Callable[[], Variant]] = {
    "grouped": lambda: Variant(_grouped_forward, _grouped_of_weight, _grouped_of_input),
    "unfolded": lambda: Variant(_unfolded_forward, _unfolded_of_weight),
    "triton": _triton,
}
VARIANTS = tuple(_VARIANTS)
