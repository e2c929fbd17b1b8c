"""No augmentation and no normalisation."""

from bench.registry import registered_transform
from datasets.transforms.base import ALL, Recipe


@registered_transform("none")
def none():
    """Scaling to [0, 1]."""
    return {ALL: Recipe()}
