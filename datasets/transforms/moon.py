"""MOON, used by CCVR: as in QinbinLi/MOON for CIFAR and in FedML for CINIC-10; defined for these three datasets only."""

from bench.registry import registered_transform
from datasets.transforms.base import Recipe


@registered_transform("moon")
def moon():
    """As in the code of MOON."""
    return {
        "cifar10": Recipe(
            padding="reflect",
            flip=True,
            mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
            std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
        ),
        "cifar100": Recipe(
            padding="zero",
            flip=True,
            rotation=15.0,
            mean=(0.50707516, 0.48654887, 0.44091784),
            std=(0.26733429, 0.25643846, 0.27615047),
        ),
        "cinic10": Recipe(
            padding="reflect",
            flip=True,
            mean=(0.47889522, 0.47227842, 0.43047404),
            std=(0.24205776, 0.23828046, 0.25874835),
        ),
    }
