"""FedCat: no augmentation; the paper names no scaling, these are the statistics of its authors' code (HMHelloWorld/FedMR)."""

from bench.registry import registered_transform
from datasets.transforms.base import Recipe

_CIFAR100 = Recipe(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


@registered_transform("fedcat")
def fedcat():
    """Normalisation as in the code of FedCat's authors, no augmentation."""
    return {
        "mnist": Recipe(mean=(0.1307,), std=(0.3081,)),
        "cifar10": Recipe(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        "cifar100": _CIFAR100,
        "cifar100-coarse": _CIFAR100,
        "femnist": Recipe(mean=(0.5,), std=(-0.5,)),  # 1 - 2x: the white background becomes -1
    }
