"""FedCollab: no augmentation; as in its authors' code. MNIST, which may stand in for Fashion-MNIST, has its own statistics."""

from bench.registry import registered_transform
from datasets.transforms.base import Recipe

_CIFAR100 = Recipe(mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762))


@registered_transform("fedcollab")
def fedcollab():
    """Normalisation as in the code of FedCollab, no augmentation; mnist with its own statistics."""
    return {
        "fmnist": Recipe(mean=(0.2860,), std=(0.3530,)),
        "mnist": Recipe(mean=(0.1307,), std=(0.3081,)),
        "cifar10": Recipe(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
        "cifar100": _CIFAR100,
        "cifar100-coarse": _CIFAR100,
    }
