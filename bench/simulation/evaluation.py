"""Test metrics of what a method deploys."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.base import Deployed
from bench.models.base import BoundModel, Params
from bench.seeding import normal_from_keys, seed_for


class Evaluation(NamedTuple):
    """What is measured of one deployed model, or one per client.

    Attributes:
        scores: see `evaluate`.
        client_accuracies: accuracy of each client's model on the client's own test data, in [0, 1]; None if clients have no
            test data of their own.
    """

    scores: dict[str, float]
    client_accuracies: list[float] | None = None


def evaluate(task, deployed: Deployed) -> dict[str, float]:
    """Accuracies in [0, 1].

    Returns:
        For a shared model: "accuracy" and "loss" (mean cross-entropy) on the whole test set; under the partition
        `noise-s` on one copy of it per client, with that client's noise.
        For one model per client: "global_accuracy", each model on the whole test set, mean over clients; and
        "local_accuracy", per-class test accuracies weighted by the client's training label shares, mean over clients.
        Instead of these, where clients have test data of their own: "own_accuracy" and "loss" of each client's model,
        shared or not, on these, means over clients. For shifts that is all: the whole test set would say nothing else of a
        shared model, as each client has about as many examples in it; and a client's own model is not made for the data of
        others. Where test data are scored together as well (`Federation.scores_together`), also "accuracy" of a shared model
        or "global_accuracy" of one model per client, on the test data of all clients together; and
        "weighted_accuracy", "own_accuracy" weighted by the clients' numbers of test examples.
    """
    return measure(task, deployed).scores


def measure(task, deployed: Deployed) -> Evaluation:
    """The scores of `evaluate`, and the accuracies of clients on test data of their own."""
    everyone = torch.arange(task.population)
    if task.federation.test_clients is not None:
        own, losses = evaluate_own(task, deployed, everyone)
        scores = {"own_accuracy": own.mean().item(), "loss": losses.mean().item()}
        if task.federation.scores_together:
            sizes = own.new_tensor([len(rows) for rows in task.federation.test_clients])
            weighted = (own @ sizes / sizes.sum()).item()
            scores = _score_together(task, deployed) | scores | {"weighted_accuracy": weighted}
        return Evaluation(scores, own.tolist())
    if not deployed.per_client:
        return Evaluation(_evaluate_shared(task, deployed))
    overall, own = evaluate_clients(task, deployed, everyone)
    return Evaluation({"global_accuracy": overall.mean().item(), "local_accuracy": own.mean().item()})


def _score_together(task, deployed: Deployed) -> dict[str, float]:
    """The accuracy on the test data of all clients together."""
    if deployed.per_client:
        overall, _ = evaluate_clients(task, deployed, torch.arange(task.population))
        return {"global_accuracy": overall.mean().item()}
    return {"accuracy": _evaluate_shared(task, deployed)["accuracy"]}


def require_local_accuracies(task) -> None:
    """Raises ValueError if a client has only labels of which there is no test example, so that its model would have no
    `local_accuracy`; of clients that have no test data of their own."""
    if task.federation.test_clients is not None:
        return
    tested = torch.bincount(task.federation.test_labels.cpu(), minlength=task.federation.num_classes) > 0
    held = task.federation.label_counts[:, tested].sum(1)
    if len(without := (held == 0).nonzero().flatten()):
        raise ValueError(
            f"Client {int(without[0])} has only labels of which there is no test example, so that its model would have no "
            "local_accuracy; use more test_examples, or another partition."
        )


def correctness(task, deployed: Deployed) -> Tensor:
    """Whether the deployed model classifies each test example correctly: bool [M, n].

    M is 1 for a shared model, but the population under the partition `noise-s` (see `evaluate`), and for one model per client.
    """
    shared = not deployed.per_client
    if shared and deployed.test_features is not None:
        logits = BoundModel(deployed.model, deployed.buffers).head(deployed.params, deployed.test_features)
        return _compare(logits, task.federation.test_labels)[0][None]
    copies = 1 if shared and task.federation.noise_levels is None else task.population
    found = []
    for client in range(copies):
        params, buffers = (part if shared else tree.row(part, client) for part in (deployed.params, deployed.buffers))
        found.append(_score(task, BoundModel(deployed.model, buffers), params, _noise_of(task, client))[0])
    return torch.stack(found)


def evaluate_own(task, deployed: Deployed, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracy in [0, 1] and mean cross-entropy of the models of some clients on the clients' own test data, each [K].

    Args:
        deployed: one model for all, or one per client of ids.
        ids: [K], of the task, whose clients have test data of their own.
    """
    accuracies, losses = [], []
    for position, client in enumerate(task.global_ids(ids).tolist()):
        params, buffers = (
            tree.row(part, position) if deployed.per_client else part for part in (deployed.params, deployed.buffers)
        )
        rows = task.federation.test_clients[client].to(task.device)
        model = BoundModel(deployed.model, buffers)
        if deployed.test_features is not None:
            logits = model.head(params, deployed.test_features[rows])
            correct, loss = _compare(logits, task.federation.test_labels[rows])
        else:
            correct, loss = _score(task, model, params, None, rows)
        accuracies.append(correct.double().mean())
        losses.append(loss.double().mean())
    return torch.stack(accuracies), torch.stack(losses)


def evaluate_clients(task, deployed: Deployed, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracies in [0, 1] of the models of some clients, each [K].

    Args:
        deployed: one model per client of ids.
        ids: [K], of the task.

    Returns:
        Accuracy on the whole test set, and on test data with the label shares of the client (see `local_accuracy`).
    """
    overall, own = [], []
    for position, (client, counts) in enumerate(zip(ids.tolist(), task.cohort(ids).label_counts, strict=True)):
        params, buffers = tree.row(deployed.params, position), tree.row(deployed.buffers, position)
        correct, _ = _score(task, BoundModel(deployed.model, buffers), params, _noise_of(task, client))
        overall.append(correct.double().mean())
        own.append(local_accuracy(correct, task.federation.test_labels, counts))
    return torch.stack(overall), torch.stack(own)


def client_accuracies(task, deployed: Deployed) -> Tensor:
    """Accuracy in [0, 1] of the model that each client uses, shared or its own: [population]. It is that on the client's own
    test data; where it has none, on test data with its label shares (see `local_accuracy`), NaN if there are none."""
    if task.federation.test_clients is not None:
        return evaluate_own(task, deployed, torch.arange(task.population))[0]
    correct, labels = correctness(task, deployed), task.federation.test_labels
    counts = task.cohort(torch.arange(task.population)).label_counts
    rows = correct.expand(len(counts), -1)
    return torch.stack([local_accuracy(row, labels, own) for row, own in zip(rows, counts, strict=True)])


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
    if deployed.test_features is not None:
        logits = model.head(deployed.params, deployed.test_features)
        scores = [_compare(logits, task.federation.test_labels)]
    else:
        noises = [None]
        if task.federation.noise_levels is not None:
            noises = [_noise_of(task, client) for client in range(task.population)]
        scores = [_score(task, model, deployed.params, noise) for noise in noises]
    accuracy = torch.stack([correct.double().mean() for correct, _ in scores]).mean()
    loss = torch.stack([losses.double().mean() for _, losses in scores]).mean()
    return {"accuracy": accuracy.item(), "loss": loss.item()}


def _score(
    task, model: BoundModel, params: Params, noise: tuple[float, int] | None, rows: Tensor | slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Correctness (bool) and cross-entropy of every test example, or of some rows, each [n]."""

    def logits(x: Tensor, first: int) -> Tensor:
        if noise is not None:
            level, key = noise
            keys = key + torch.arange(first, first + len(x), device=x.device)
            x = x + level * normal_from_keys(keys, x[0].numel()).view_as(x).to(x.dtype)
        return model(params, x)

    images, labels = task.federation.test_images[rows], task.federation.test_labels[rows]
    return _compare(task.map_images(logits, images), labels)


def _compare(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.argmax(1) == labels, F.cross_entropy(logits, labels, reduction="none")


def _noise_of(task, client: int) -> tuple[float, int] | None:
    """(standard deviation, key) of the noise that a client's copy of the test set has, the same in every evaluation."""
    levels = task.federation.noise_levels
    if levels is None:
        return None
    everywhere = task.global_ids(torch.tensor([client])).item()
    return levels[everywhere].item(), seed_for(task.seed, "noise", everywhere) >> 2
