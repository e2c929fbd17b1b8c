"""FedConcat and NIID-Bench: as in the released code of FedConcat; other datasets are only scaled."""

from bench.registry import registered_transform
from datasets.transforms.base import ALL, Recipe

_CIFAR100 = Recipe(
    padding="zero",
    flip=True,
    rotation=15.0,
    mean=(0.5070751592371323, 0.48654887331495095, 0.4409178433670343),
    std=(0.2673342858792401, 0.2564384629170883, 0.27615047132568404),
)


@registered_transform("fedconcat")
def fedconcat():
    """As in the code of FedConcat; datasets that it does not use are scaled to [0, 1]."""
    halves = (0.5, 0.5, 0.5)
    return {
        "cifar10": Recipe(padding="reflect", flip=True),
        "cifar100": _CIFAR100,
        "cifar100-coarse": _CIFAR100,
        "tinyimagenet": Recipe(padding="zero", flip=True, rotation=15.0, mean=halves, std=halves, image_size=32),
        ALL: Recipe(),
    }
