"""Examples that clients do not train on, so that a server can combine their models by what these say on them."""

from dataclasses import replace

import torch
from torch import Tensor

from algorithms.shared.types import Task


def num_held(num_examples: int, share: float) -> int:
    """How many of so many examples a client holds out: the share, rounded down, but at least one, and it trains on at least
    one. Without a share, none."""
    return min(max(1, int(share * num_examples)), num_examples - 1) if share else 0


def training_part(task: Task, share: float) -> Task:
    """The task on the examples that clients do not hold out."""
    return _on(task, [rows[num_held(len(rows), share) :] for rows in _shuffled(task)]) if share else task


def held_part(task: Task, share: float) -> Task:
    """The task on the examples that clients hold out; a client with one example has none."""
    return _on(task, [rows[: num_held(len(rows), share)] for rows in _shuffled(task)])


def _shuffled(task: Task) -> list[Tensor]:
    """The rows of each client of the federation, in an order of the seed's."""
    return [
        rows[torch.randperm(len(rows), generator=task.generator_for("hold-out", client))]
        for client, rows in enumerate(task.federation.clients)
    ]


def _on(task: Task, clients: list[Tensor]) -> Task:
    labels, counts = task.federation.labels, task.federation.label_counts
    if not labels.is_meta:
        on_host = labels.cpu()
        counts = torch.stack([torch.bincount(on_host[rows], minlength=counts.shape[1]) for rows in clients]).double()
    return replace(task, federation=replace(task.federation, clients=tuple(clients), label_counts=counts))
