"""The practical ceiling that engines are measured against: FedAvg written by hand in ordinary PyTorch.

uint8 tensors in memory, `randperm` and indexing per epoch, `nn.Module`, `torch.optim.SGD` (foreach), nothing logged; only
the batched augmentation is the harness's own. It shares no training code with the engines.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SimpleCnn(nn.Module):
    """The network of `bench.models.cnn.SimpleCnn` for 3x32x32 images and 10 classes, as a module."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.linear1, self.linear2, self.classifier = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.classifier(F.relu(self.linear2(F.relu(self.linear1(x)))))


def train_round(model: nn.Module, federation, clients: list[int], settings) -> int:
    """One round of FedAvg on some clients, then the test; returns the examples trained on."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    sizes = [len(federation.clients[client]) for client in clients]
    mean = {name: torch.zeros_like(value) for name, value in start.items()}
    for client, size in zip(clients, sizes, strict=True):
        model.load_state_dict(start)
        _train(model, federation, federation.clients[client], settings)
        for name, value in model.state_dict().items():
            mean[name] += value * (size / sum(sizes))
    model.load_state_dict(mean)
    with torch.no_grad():
        tested = zip(federation.test_images.split(500), federation.test_labels.split(500), strict=True)
        float(sum((model(_scaled(images)).argmax(1) == labels).sum() for images, labels in tested))
    return sum(sizes) * settings.local_epochs


def _train(model: nn.Module, federation, rows: Tensor, settings) -> None:
    transform, size = federation.transform, settings.batch_size
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay, foreach=True
    )
    for _ in range(settings.local_epochs):
        order = rows[torch.randperm(len(rows))].to(federation.device)
        draws = transform.draw(len(rows), torch.default_generator)
        draws = {name: values.to(order.device).split(size) for name, values in draws.items()}
        for place, batch in enumerate(order.split(size)):
            images = transform.augment(federation.images[batch], {name: parts[place] for name, parts in draws.items()})
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(_scaled(images)), federation.labels[batch]).backward()
            optimizer.step()


def _scaled(images: Tensor) -> Tensor:
    return images.to(torch.float32, memory_format=torch.channels_last).div_(255)
