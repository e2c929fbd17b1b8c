"""Image sizes: one number for squares, or "<height>x<width>" in pixels."""

import re
from typing import Any

ImageSize = int | str
LARGEST = 1024  # pixels of a side; a larger size is a mistake, and its arrays would fill the memory


def read_image_size(value: Any) -> ImageSize:
    """The canonical form of a size: 32, or "24x32"; also accepts [height, width].

    Raises:
        ValueError: if it is not a size.
    """
    sides = value
    if isinstance(value, str) and re.fullmatch(r"\d+x\d+", value):
        sides = [int(side) for side in value.split("x")]
    elif isinstance(value, int):
        sides = [value, value]
    if not (
        isinstance(sides, list | tuple)
        and len(sides) == 2
        and all(type(side) is int and 0 < side <= LARGEST for side in sides)
    ):
        raise ValueError(
            f"image_size must be a number of pixels from 1 to {LARGEST}, or height and width as 24x32, "
            f"but got {value!r}."
        )
    height, width = sides
    return height if height == width else f"{height}x{width}"


def sides_of(image_size: ImageSize) -> tuple[int, int]:
    """(height, width) in pixels of what `read_image_size` returns."""
    if isinstance(image_size, int):
        return image_size, image_size
    height, width = map(int, image_size.split("x"))
    return height, width
