"""Test metrics of what a method deploys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import tree
from algorithms.base import Deployed
from bench.models.base import BoundModel, Params
from bench.seeds import normal_from_keys, seed_for

_BATCH = 500  # examples per forward pass: large enough for a GPU, small enough for a CPU's cache


def evaluate(task, deployed: Deployed) -> dict[str, float]:
    """Accuracies in [0, 1].

    Returns:
        For a shared model: "accuracy" and "loss" (mean cross-entropy) on the whole test set; under the partition
        `noise-s` on one copy of it per client, with that client's noise.
        For one model per client: "global_accuracy", each model on the whole test set, mean over clients; and
        "local_accuracy", per-class test accuracies weighted by the client's training label shares, mean over clients.
    """
    if not deployed.per_client:
        return _evaluate_shared(task, deployed)
    overall, own = [], []
    for client in range(task.population):
        params, buffers = tree.row(deployed.params, client), tree.row(deployed.buffers, client)
        correct, _ = _score(task, BoundModel(deployed.model, buffers), params, _noise_of(task, client))
        overall.append(correct.double().mean())
        own.append(
            local_accuracy(correct, task.federation.test_labels, task.cohort(torch.tensor([client])).label_counts[0])
        )
    return {
        "global_accuracy": torch.stack(overall).mean().item(),
        "local_accuracy": torch.stack(own).mean().item(),
    }


def local_accuracy(correct: Tensor, labels: Tensor, label_counts: Tensor) -> Tensor:
    """Accuracy on a test set with the label shares of one client.

    Args:
        correct: [n], bool, whether each test example is classified correctly.
        labels: [n].
        label_counts: [num_classes], the client's training examples of each class; at least one class with a test
            example must be held.
    """
    num_classes = len(label_counts)
    tested = torch.bincount(labels, minlength=num_classes).double()
    right = torch.bincount(labels[correct], minlength=num_classes).double()
    shares = torch.where(tested > 0, label_counts.double(), 0)
    return (shares * right / tested.clamp(min=1)).sum() / shares.sum()


def _evaluate_shared(task, deployed: Deployed) -> dict[str, float]:
    model = BoundModel(deployed.model, deployed.buffers)
    noises = [None]
    if task.federation.noise_levels is not None:
        noises = [_noise_of(task, client) for client in range(task.population)]
    scores = [_score(task, model, deployed.params, noise) for noise in noises]
    accuracy = torch.stack([correct.double().mean() for correct, _ in scores]).mean()
    loss = torch.stack([losses.double().mean() for _, losses in scores]).mean()
    return {"accuracy": accuracy.item(), "loss": loss.item()}


@torch.no_grad()
def _score(task, model: BoundModel, params: Params, noise: tuple[float, int] | None) -> tuple[Tensor, Tensor]:
    """Correctness (bool) and cross-entropy of every test example, each [n]."""
    federation = task.federation
    correct, losses = [], []
    for images, labels, start in zip(
        federation.test_images.split(_BATCH),
        federation.test_labels.split(_BATCH),
        range(0, len(federation.test_labels), _BATCH),
        strict=True,
    ):
        x = federation.transform.scale(images, task.dtype, memory_format=torch.channels_last)
        if noise is not None:
            level, key = noise
            keys = key + torch.arange(start, start + len(labels), device=x.device)
            x = x + level * normal_from_keys(keys, images[0].numel()).view_as(x).to(x.dtype)
        logits = model(params, x)
        correct.append(logits.argmax(1) == labels)
        losses.append(F.cross_entropy(logits, labels, reduction="none"))
    return torch.cat(correct), torch.cat(losses)


def _noise_of(task, client: int) -> tuple[float, int] | None:
    """(standard deviation, key) of the noise that a client's copy of the test set has, the same in every evaluation."""
    levels = task.federation.noise_levels
    if levels is None:
        return None
    everywhere = task.global_ids(torch.tensor([client])).item()
    return levels[everywhere].item(), seed_for(task.seed, "noise", everywhere) >> 2
