"""Images destroyed such that they no longer show a class, as the code of FedOV makes them (Diao et al., ICLR 2023)."""

import math

import torch
from torch import Tensor

from bench.seeding import uniform_from_keys

_NUMBERS = 12  # draws of an image


def destroyed(x: Tensor, keys: Tensor, black: Tensor | float = 0.0) -> Tensor:
    """Each image after one of seven changes, all equally likely: a resized crop, a blur, an erased rectangle; twice, a
    band that is copied or halves that are swapped (`_cut`); twice, turned squares (`_turned`).

    Args:
        x: [B, C, H, W].
        keys: [B]; what happens to an image is a function of its key.
        black: what is erased becomes.
    """
    u = uniform_from_keys(keys, _NUMBERS).to(x.dtype)
    kind, u = (u[:, 0] * 7).floor()[:, None, None, None], u[:, 1:]
    changes = [_cropped(x, u), _blurred(x, u), _erased(x, u, black), _cut(x, u), _turned(x, u)]
    out = changes[-1]
    for last, change in zip((0, 1, 2, 4), changes, strict=False):
        out = torch.where((kind <= last) & (kind > last - (2 if last == 4 else 1)), change, out)
    return out


def _cropped(x: Tensor, u: Tensor) -> Tensor:
    """A rectangle of 0.10 to 0.33 of the area, with sides of a ratio of 3:4 to 4:3, in the size of the image."""
    height, width = x.shape[2:]
    area, ratio = height * width * (0.10 + 0.23 * u[:, 0]), _ratio(u[:, 1], 3 / 4, 4 / 3)
    rows, columns = (
        _stretch(size, side.round().clamp(1, size), place)
        for size, side, place in ((height, (area / ratio).sqrt(), u[:, 2]), (width, (area * ratio).sqrt(), u[:, 3]))
    )
    return rows[:, None] @ x @ columns[:, None].transpose(2, 3)


def _stretch(size: int, side: Tensor, place: Tensor) -> Tensor:
    """Matrices [B, size, size] that stretch a part of so many pixels to the whole, linearly."""
    first = (place * (size - side + 1)).floor()
    pixels = torch.arange(size, device=side.device, dtype=side.dtype)
    source = ((pixels + 0.5) * (side / size)[:, None] - 0.5).clamp(min=0)
    source = first[:, None] + torch.minimum(source, side[:, None] - 1)
    return (1 - (source[:, :, None] - pixels).abs()).clamp(min=0)


def _blurred(x: Tensor, u: Tensor) -> Tensor:
    """A Gaussian filter of standard deviation 10 to 100, 3, 5, 7 or 9 pixels wide and 1, 3 or 5 high."""
    height, width = x.shape[2:]
    deviation = 10 + 90 * u[:, 0]
    columns = _smoothed(width, (u[:, 1] * 4).floor() + 1, deviation)
    rows = _smoothed(height, (u[:, 2] * 3).floor(), deviation)
    return rows[:, None] @ x @ columns[:, None].transpose(2, 3)


def _smoothed(size: int, half: Tensor, deviation: Tensor) -> Tensor:
    """Matrices [B, size, size] of a filter with so many taps on each side, the image reflected at its ends."""
    taps = torch.arange(-4, 5, device=half.device)
    source = (torch.arange(size, device=half.device) + taps[:, None]).abs()  # [9, size]
    source = torch.where(source < size, source, 2 * (size - 1) - source).clamp(0, size - 1)
    picks = (source[:, :, None] == torch.arange(size, device=half.device)).to(deviation.dtype)
    weights = torch.exp(-taps.square() / (2 * deviation.square()[:, None])) * (taps.abs() <= half[:, None])
    return torch.einsum("bt,tij->bij", weights / weights.sum(1, keepdim=True), picks)


def _erased(x: Tensor, u: Tensor, black: Tensor | float) -> Tensor:
    """Without a rectangle of 0.33 to 0.50 of the area, with sides of a ratio of 0.3 to 3.3."""
    height, width = x.shape[2:]
    area, ratio = height * width * (0.33 + 0.17 * u[:, 0]), _ratio(u[:, 1], 0.3, 3.3)
    inside = [
        _between(size, (place * (size - side + 1)).floor(), side)
        for size, side, place in (
            (height, (area * ratio).sqrt().round().clamp(1, height), u[:, 2]),
            (width, (area / ratio).sqrt().round().clamp(1, width), u[:, 3]),
        )
    ]
    return torch.where((inside[0][:, :, None] & inside[1][:, None])[:, None], black, x)


def _cut(x: Tensor, u: Tensor) -> Tensor:
    """Along one axis, either half of the rows copied over others, a quarter of the image away or more; or halves swapped."""
    height, width = x.shape[2:]
    axis, swaps = u[:, 0] < 0.5, u[:, 1] < 0.5
    rows, columns = (_moved(size, swaps, u[:, 2]) for size in (height, width))
    same = [torch.arange(size, device=x.device).expand_as(one) for size, one in ((height, rows), (width, columns))]
    rows, columns = torch.where(axis[:, None], rows, same[0]), torch.where(axis[:, None], same[1], columns)
    return _gather(x, rows[:, :, None] * width + columns[:, None])


def _moved(size: int, swaps: Tensor, choice: Tensor) -> Tensor:
    """The source [B, size] of each row."""
    half, rows = size // 2, torch.arange(size, device=choice.device)
    starts = torch.arange(size - half + 1, device=choice.device)
    apart = (4 * (starts[:, None] - starts).abs() >= size).flatten()
    count = sum(4 * abs(a - b) >= size for a in range(len(starts)) for b in range(len(starts)))
    chosen = apart.long().argsort(descending=True, stable=True)[(choice * count).long()]
    source, target = chosen[:, None] // len(starts), chosen[:, None] % len(starts)
    copied = torch.where((rows >= target) & (rows < target + half), rows - target + source, rows)
    return torch.where(swaps[:, None], (rows + half) % size, copied)


def _turned(x: Tensor, u: Tensor) -> Tensor:
    """In a band half as high as the image, two squares side by side, each turned by 90, 180 or 270 degrees."""
    height, width = x.shape[2:]
    side = min(height, width) // 2
    first = (u[:, 0] * (height - side + 1)).floor().long()[:, None, None]
    i, j = torch.arange(height, device=x.device)[:, None], torch.arange(width, device=x.device)
    a, b, square = i - first, j % max(side, 1), j // max(side, 1)
    left, right = ((u[:, k] * 3).floor().long()[:, None, None] for k in (1, 2))
    turns = torch.where(square == 0, left, right)
    last = side - 1
    row = torch.where(turns == 0, b, torch.where(turns == 1, last - a, last - b))
    column = torch.where(turns == 0, last - a, torch.where(turns == 1, last - b, a))
    inside = (a >= 0) & (a < side) & (square < 2)
    source = (first + row) * width + square * side + column
    return _gather(x, torch.where(inside, source, i * width + j))


def _gather(x: Tensor, source: Tensor) -> Tensor:
    """The pixels of x [B, C, H, W] at source [B, H, W]."""
    flat = x.flatten(2)
    return flat.gather(2, source.flatten(1)[:, None].expand_as(flat)).view_as(x)


def _between(size: int, first: Tensor, side: Tensor) -> Tensor:
    """Which of so many pixels [B, size] are among the `side` ones from the first on."""
    pixels = torch.arange(size, device=first.device)
    return (pixels >= first[:, None]) & (pixels < (first + side)[:, None])


def _ratio(u: Tensor, least: float, most: float) -> Tensor:
    """A ratio of sides, its logarithm uniform."""
    return torch.exp(math.log(least) + u * math.log(most / least))
