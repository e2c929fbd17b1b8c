"""A file with the weights of a ResNet-18 in torchvision's layout, of random numbers."""

from pathlib import Path

import torch
from torch import Tensor

from bench.models.resnet import ResNet18, torchvision_name


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    """As torchvision's file has them; running statistics are not those of a new network, and images differ in features."""
    network, generator = ResNet18((3, 224, 224), 1000), torch.Generator().manual_seed(seed)
    buffers = {
        name: 0.2 * (leaf + 0.1 * torch.randn(leaf.shape, generator=generator))
        if leaf.is_floating_point()
        else leaf + 7
        for name, leaf in network.init_buffers().items()
    }
    return {torchvision_name(name): leaf for name, leaf in (network.init(generator) | buffers).items()}


def write_weights(path: Path, seed: int = 0) -> dict[str, Tensor]:
    """Writes such a file, and returns what it holds."""
    found = random_weights(seed)
    torch.save(found, path)
    return found
