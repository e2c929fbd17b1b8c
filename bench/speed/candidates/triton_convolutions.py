"""Kernels that convolve for many clients as matrix products whose patches are never written (implicit GEMM), in Triton.

Rows of the product are the pixels of all examples of one client, columns its output channels, and the sum is over the C k k
numbers of a patch, which are gathered from the images while the product is made. Layouts are free: kernels take strides, so
that [B, K C, H, W] is read and written where it is. Sums are in float32; TF32 products where `allow_tf32` says so.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _SUMMED = 128, 32  # of a tile of the forward product
_PATCH, _PIXELS = 32, 64  # of a tile of the gradient of a weight: columns, and summed rows
_PARTS = 16  # into which the sum over pixels is split, so that few clients keep the device busy


@triton.jit
def _patch(
    x, offset, column, row, sb, sc, sh, sw, examples, channels, height, width, out_h, out_w, padding, SIDE: tl.constexpr
):
    """Numbers of patches [rows, columns], gathered from the images of one client; 0 outside of them."""
    example, pixel = row // (out_h * out_w), row % (out_h * out_w)
    channel, tap = column // (SIDE * SIDE), column % (SIDE * SIDE)
    y = (pixel // out_w)[:, None] + (tap // SIDE)[None, :] - padding
    z = (pixel % out_w)[:, None] + (tap % SIDE)[None, :] - padding
    inside = (example < examples)[:, None] & (channel < channels)[None, :]
    inside = inside & (y >= 0) & (y < height) & (z >= 0) & (z < width)
    where = offset + example[:, None] * sb + channel[None, :] * sc + y * sh + z * sw
    return tl.load(x + where, mask=inside, other=0.0)


@triton.jit
def _forward(
    x, weight, out, xk, xb, xc, xh, xw, ok, ob, oo, oh, ow, examples, channels, height, width, wide, out_h, out_w, padding,
    SIDE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, SUMMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.arange(0, WIDE)
    length = channels * SIDE * SIDE
    total = tl.zeros((ROWS, WIDE), dtype=tl.float32)
    for start in range(0, length, SUMMED):
        column = start + tl.arange(0, SUMMED)
        patch = _patch(
            x, client * xk, column, row, xb, xc, xh, xw, examples, channels, height, width, out_h, out_w, padding, SIDE
        )
        inside = (column < length)[:, None] & (output < wide)[None, :]
        where = client * wide * length + output[None, :] * length + column[:, None]
        taps = tl.load(weight + where, mask=inside, other=0.0)
        total = tl.dot(patch, taps, total, input_precision=PRECISION)
    example, pixel = row // (out_h * out_w), row % (out_h * out_w)
    place = client * ok + example * ob + (pixel // out_w) * oh + (pixel % out_w) * ow
    inside = (example < examples)[:, None] & (output < wide)[None, :]
    tl.store(out + place[:, None] + output[None, :] * oo, total, mask=inside)


@triton.jit
def _of_weight(
    slope, x, out, gk, gb, go, gh, gw, xk, xb, xc, xh, xw, examples, channels, height, width, wide, out_h, out_w, padding,
    part_rows,
    SIDE: tl.constexpr, WIDE: tl.constexpr, PATCH: tl.constexpr, PIXELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    part, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * PATCH + tl.arange(0, PATCH)
    output = tl.arange(0, WIDE)
    length = channels * SIDE * SIDE
    total = tl.zeros((WIDE, PATCH), dtype=tl.float32)
    for start in range(0, part_rows, PIXELS):
        within = start + tl.arange(0, PIXELS)
        row = tl.where(within < part_rows, part * part_rows + within, examples * out_h * out_w)
        example, pixel = row // (out_h * out_w), row % (out_h * out_w)
        place = client * gk + example * gb + (pixel // out_w) * gh + (pixel % out_w) * gw
        inside = (output < wide)[:, None] & (example < examples)[None, :]
        slopes = tl.load(slope + place[None, :] + output[:, None] * go, mask=inside, other=0.0)
        patch = _patch(
            x, client * xk, column, row, xb, xc, xh, xw, examples, channels, height, width, out_h, out_w, padding, SIDE
        )
        total = tl.dot(slopes, patch, total, input_precision=PRECISION)
    inside = (output < wide)[:, None] & (column < length)[None, :]
    where = (part * tl.num_programs(2) + client) * wide * length + output[:, None] * length + column[None, :]
    tl.store(out + where, total, mask=inside)


def forward(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """See `convolutions.Variant`; the result is laid out as [B, K O, h, w]."""
    clients, examples, channels, height, width = x.shape
    wide, side = weight.shape[1], weight.shape[-1]
    out_h, out_w = height + 2 * padding - side + 1, width + 2 * padding - side + 1
    out = x.new_empty(examples, clients, wide, out_h, out_w).transpose(0, 1)
    grid = (triton.cdiv(examples * out_h * out_w, _ROWS), clients)
    _forward[grid](
        x, weight.contiguous(), out, *x.stride(), *out.stride(),
        examples, channels, height, width, wide, out_h, out_w, padding,
        SIDE=side, ROWS=_ROWS, WIDE=_tile(wide), SUMMED=_SUMMED, PRECISION=_precision(),
    )  # fmt: skip
    return out


def of_weight(slope: Tensor, x: Tensor, side: int, padding: int) -> Tensor:
    """See `convolutions.Variant`. Parts of the sum are added up in one order, so that the same comes out again."""
    clients, examples, channels, height, width = x.shape
    wide, out_h, out_w = slope.shape[2:]
    part_rows = triton.cdiv(triton.cdiv(examples * out_h * out_w, _PARTS), _PIXELS) * _PIXELS
    out = x.new_empty(_PARTS, clients, wide, channels, side, side)
    grid = (triton.cdiv(channels * side * side, _PATCH), _PARTS, clients)
    _of_weight[grid](
        slope, x, out, *slope.stride(), *x.stride(),
        examples, channels, height, width, wide, out_h, out_w, padding, part_rows,
        SIDE=side, WIDE=_tile(wide), PATCH=_PATCH, PIXELS=_PIXELS, PRECISION=_precision(),
    )  # fmt: skip
    return out.sum(0)


def _tile(wide: int) -> int:
    """Columns that hold so many channels: a power of 2, as products of tensor cores need, at least 16."""
    return max(16, triton.next_power_of_2(wide))


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
