"""What cannot work together in a config whose values are all valid by themselves; told without the images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import datasets
from datasets import partitions

if TYPE_CHECKING:
    from bench.config import RunConfig


def impossible(config: RunConfig) -> list[str]:
    """What cannot work together in a config whose values are all valid by themselves."""
    name = config.algorithm["name"]
    if name == "centralized" and (config.partition, config.clients) != ("none", 1):
        return [
            "centralized pools all training data: partition must be 'none' and clients 1, "
            f"but got partition {config.partition!r} and clients {config.clients}."
        ]
    if name != "centralized" and config.partition == "none":
        return [f"partition 'none' gives one client everything and is for centralized only, but got {name}."]
    info = datasets.INFO.get(config.dataset)
    if info is None or config.partition == "none":
        return []
    partition = partitions.parse(config.partition)
    examples = config.train_examples or info.train_size
    mistakes = []
    if isinstance(partition, partitions.LabelsPerClient):
        if partition.labels_per_client > info.num_classes:
            mistakes.append(
                f"label-k needs k between 1 and the number of classes ({config.dataset} has {info.num_classes}), "
                f"but got {config.partition}."
            )
        if config.clients < info.num_classes:
            mistakes.append(
                f"{config.partition} needs at least as many clients as classes ({config.dataset} has "
                f"{info.num_classes}), but got {config.clients} clients."
            )
    smallest = partitions.MIN_EXAMPLES
    sized = isinstance(partition, partitions.Dirichlet | partitions.Quantity)
    if sized and config.clients * smallest > examples:
        mistakes.append(
            f"{config.partition} gives every client at least {smallest} examples, but {examples} training examples "
            f"are too few for {config.clients} clients; use fewer clients."
        )
    if config.clients > examples:
        mistakes.append(
            f"clients must be at most the number of training examples ({examples}), but got {config.clients}."
        )
    return mistakes
