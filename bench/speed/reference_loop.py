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


def train_round(model: nn.Module, federation, clients: list[int], settings, augment: bool) -> int:
    """One round of FedAvg on some clients, then the accuracy on the test set.

    Returns:
        Examples trained on.
    """
    start = {name: value.clone() for name, value in model.state_dict().items()}
    sizes = [len(federation.clients[client]) for client in clients]
    mean = {name: torch.zeros_like(value) for name, value in start.items()}
    for client, size in zip(clients, sizes, strict=True):
        model.load_state_dict(start)
        _train(model, federation, federation.clients[client], settings, augment)
        for name, value in model.state_dict().items():
            mean[name] += value * (size / sum(sizes))
    model.load_state_dict(mean)
    _test(model, federation)
    return sum(sizes) * settings.local_epochs


def _train(model: nn.Module, federation, rows: Tensor, settings, augment: bool) -> None:
    transform = federation.transform
    optimizer = torch.optim.SGD(
        model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay, foreach=True
    )
    for _ in range(settings.local_epochs):
        order = rows[torch.randperm(len(rows))].to(federation.device)
        codes = transform.draw(len(rows), torch.default_generator)["crop"].to(order.device) if augment else order
        for batch, code in zip(order.split(settings.batch_size), codes.split(settings.batch_size), strict=True):
            images = federation.images[batch]
            if augment:
                images = transform.augment(images, {"crop": code})
            optimizer.zero_grad(set_to_none=True)
            x = images.to(torch.float32, memory_format=torch.channels_last).div_(255)
            F.cross_entropy(model(x), federation.labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def _test(model: nn.Module, federation) -> float:
    correct = 0
    for images, labels in zip(federation.test_images.split(500), federation.test_labels.split(500), strict=True):
        x = images.to(torch.float32, memory_format=torch.channels_last).div_(255)
        correct += (model(x).argmax(1) == labels).sum()
    return float(correct) / len(federation.test_labels)
