"""Transforms from images to model inputs: scaling, normalisation and augmentation, batched on the device.

Augmentation is an index map: each output pixel has the index of the input pixel that it copies. Crop, flip and rotation
compose into one map, so a batch is augmented by one gather of bytes on its device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor


ALL = "*"  # stands for the datasets that a transform does not name


@dataclass(frozen=True)
class Recipe:
    """The parameters of one transform.

    Attributes:
        padding: mode of padding by `pad` pixels before a random crop to the original size: "reflect", "zero", or ""
            for no crop.
        flip: mirror images horizontally with probability 1/2.
        rotation: largest angle in degrees of a random rotation (nearest pixel, zero fill), after crop and flip.
        mean, std: per channel, of the normalisation after scaling to [0, 1]; also in evaluation. A negative std inverts.
        image_size: side in pixels of the decoded images; None keeps that of the files.
    """

    padding: str = ""
    pad: int = 4
    flip: bool = False
    rotation: float = 0.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    image_size: int | None = None

    def __post_init__(self):
        if self.padding not in ("", "reflect", "zero"):
            raise ValueError(f'padding must be "reflect", "zero" or "", but got {self.padding!r}.')
        for number in (self.rotation, *self.mean, *self.std):
            if type(number) not in (int, float) or not math.isfinite(number):
                raise ValueError(f"rotation, mean and std are numbers, but got {number!r:.40}.")
        for name, size, least in (("pad", self.pad, 0), ("image_size", self.image_size or 1, 1)):
            if type(size) is not int or size < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, but got {size!r:.40}.")
        if len(self.mean) != len(self.std) or 0 in self.std:
            raise ValueError(
                f"mean and std need one number for each channel, std none of 0, but got {self.mean} and {self.std}."
            )
        if any(abs(number) > 1 for number in self.mean):
            raise ValueError(
                f"mean and std are those of images scaled to [0, 1], but got the mean {self.mean}; divide both by 255."
            )


@dataclass(frozen=True)
class Transform:
    """A recipe for images of one shape on one device.

    Attributes:
        recipe: the parameters.
        shape: (channels, height, width).
        maps: [codes, height * width], source pixel of each output pixel for every combination of crop and flip; None if they
            are computed per batch.
        mean, std: [channels, 1, 1], or None.
    """

    recipe: Recipe
    shape: tuple[int, int, int]
    maps: Tensor | None
    mean: Tensor | None
    std: Tensor | None

    @property
    def random(self) -> bool:
        """Whether training inputs are random."""
        return bool(self.recipe.padding or self.recipe.flip or self.recipe.rotation)

    def draw(self, count: int, generator: Generator, noisy: bool = False) -> dict[str, Tensor]:
        """All random numbers for the augmentation of `count` examples, on the host.

        Returns:
            "crop": [count] codes of crop and flip; "angle": [count] radians; "noise": [count] keys, if noisy.
        """
        import torch

        draws = {}
        if self.recipe.padding or self.recipe.flip:
            draws["crop"] = torch.randint(0, self._num_codes, (count,), generator=generator)
        if self.recipe.rotation:
            limit = math.radians(self.recipe.rotation)
            draws["angle"] = torch.empty(count).uniform_(-limit, limit, generator=generator)
        if noisy:
            draws["noise"] = torch.randint(0, 2**62, (count,), generator=generator)
        return draws

    def augment(self, images: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Crops, flips and rotates: uint8 [B, C, H, W] -> uint8 [B, C, H, W]."""
        if self.maps is not None:
            return self._gather(images, self.maps[draws["crop"]])
        if "crop" not in draws and "angle" not in draws:
            return images
        source, inside = _source_pixels(self.recipe, self.shape, draws.get("crop"), draws.get("angle"))
        return self._gather(images, source) * inside[:, None].view(-1, 1, *self.shape[1:])

    def scale(self, images: Tensor, dtype, **layout) -> Tensor:
        """Bytes to model inputs: scaled to [0, 1], normalised if the recipe has a mean; layout as in `Tensor.to`."""
        x = images.to(dtype, **layout).div_(255)
        return x if self.mean is None else (x - self.mean.to(dtype)) / self.std.to(dtype)

    @property
    def _num_codes(self) -> int:
        return _num_codes(self.recipe)

    def _gather(self, images: Tensor, source: Tensor) -> Tensor:
        index = source[:, None].expand(-1, self.shape[0], -1)
        return images.flatten(2).gather(2, index).view(-1, *self.shape)


class Identity:
    """A transform that changes nothing, for inputs that are features."""

    recipe = Recipe()

    def draw(self, count: int, generator: Generator, noisy: bool = False) -> dict[str, Tensor]:
        return {}

    def augment(self, inputs: Tensor, draws: dict[str, Tensor]) -> Tensor:
        return inputs

    def scale(self, inputs: Tensor, dtype, **layout) -> Tensor:
        return inputs.to(dtype)


def prepare(parameters: Recipe, shape: tuple[int, int, int], device: str = "cpu") -> Transform:
    """The transform of a recipe for images [C, H, W], with its tensors on a device.

    Raises:
        ValueError: the recipe normalises other channels than the images have, or reflects more pixels.
    """
    import torch

    if parameters.padding == "reflect" and parameters.pad >= min(shape[1:]):
        raise ValueError(f"A transform reflects {parameters.pad} pixels, but the images have {shape[1]}x{shape[2]}.")
    if len(parameters.mean) not in (0, 1, shape[0]):
        raise ValueError(
            f"A transform normalises {len(parameters.mean)} channels, but the images have {shape[0]}; its mean and std need "
            "one number for each."
        )
    maps = None
    if (parameters.flip or parameters.padding) and not parameters.rotation and parameters.padding != "zero":
        maps, _ = _source_pixels(parameters, shape, torch.arange(_num_codes(parameters)), None)
        maps = maps.to(device)
    per_channel = [
        torch.tensor(values, device=device)[:, None, None] if values else None
        for values in (parameters.mean, parameters.std)
    ]
    return Transform(parameters, shape, maps, *per_channel)


def _num_codes(parameters: Recipe) -> int:
    return (2 * parameters.pad + 1) ** 2 * 2 if parameters.padding else 2


def _source_pixels(parameters: Recipe, shape, crop: Tensor | None, angle: Tensor | None) -> tuple[Tensor, Tensor]:
    """The input pixel that each output pixel copies.

    The steps are inverted in reverse order: rotation, flip, crop, padding. Rotation takes the nearest pixel as PIL does:
    pixel centres are at half-integers, and the source is the pixel that contains the rotated centre.

    Args:
        crop: [B], code (offset_y * (2 pad + 1) + offset_x) * 2 + flip.
        angle: [B], radians, counter-clockwise, or None.

    Returns:
        source: [B, H * W], index into the flattened image; inside: [B, H * W], False where the pixel is filled with 0.
    """
    import torch

    _, height, width = shape
    device = (crop if crop is not None else angle).device
    y = torch.arange(height, device=device)[:, None].expand(height, width)
    x = torch.arange(width, device=device)[None, :].expand(height, width)
    inside = torch.ones((), dtype=torch.bool, device=device)
    if angle is not None:
        cos, sin = torch.cos(angle)[:, None, None], torch.sin(angle)[:, None, None]
        across, down = x + 0.5 - width / 2, y + 0.5 - height / 2
        x = torch.floor(cos * across - sin * down + width / 2).long()
        y = torch.floor(sin * across + cos * down + height / 2).long()
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    if crop is not None:
        code = crop[:, None, None]
        x = torch.where(code % 2 == 1, width - 1 - x, x) if parameters.flip else x
        if parameters.padding:
            side = 2 * parameters.pad + 1
            y, x = y + code // 2 // side - parameters.pad, x + code // 2 % side - parameters.pad
            if parameters.padding == "reflect":
                y, x = _reflect(y, height), _reflect(x, width)
            else:
                inside = inside & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    source = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return source.flatten(1), inside.expand(source.shape).flatten(1)


def _reflect(position: Tensor, size: int) -> Tensor:
    """Positions, those beyond an edge mirrored about the edge pixel."""
    position = position.abs()
    return (size - 1) - (size - 1 - position).abs()
