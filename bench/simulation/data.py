"""Who has which training examples."""

from typing import Any

import numpy as np

from bench.seeding import seed_for
from bench.simulation.validation_split import hold_out
from datasets import partitions


def divide(config: Any, dataset: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray | None]:
    """Who has which training examples.

    Returns:
        Images and labels of those that the run uses, the rows on which each client trains, and those that all of them have set
        aside (None if they need not).

    Raises:
        ValueError: if clients have too few examples for a validation part.
    """
    images, labels, groups = _subset(dataset.train, config.train_examples, config.seed)
    clients = partitions.parse(config.partition).split(
        labels,
        config.clients,
        dataset.num_classes,
        config.seed,
        dirichlet_seed_override=config.dirichlet_seed_override,
        groups=groups,
    )
    clients = clients[: config.first_clients]
    if config.split != "validation":
        return images, labels, clients, None
    kept, held_out = hold_out(labels, clients, dataset.num_classes, config.validation_share, config.seed)
    return images, labels, kept, held_out


def stratified_subset(labels: np.ndarray, count: int | None, seed: int) -> np.ndarray | None:
    """Ascending rows of a subset of count examples in which every class keeps its share; None for all.

    Raises:
        ValueError: if there are fewer examples.
    """
    if count is None or count == len(labels):
        return None
    if count > len(labels):
        raise ValueError(f"A subset needs at most as many examples as there are ({len(labels)}), but got {count}.")
    from sklearn.model_selection import StratifiedShuffleSplit  # takes a second, and most runs use all examples

    state = seed_for(seed, "subset") % 2**32
    splitter = StratifiedShuffleSplit(1, train_size=count, test_size=len(labels) - count, random_state=state)
    return np.sort(next(splitter.split(labels, labels))[0])


def take_subset(split: Any, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a stratified subset, in the order of the split."""
    images, labels, _ = _subset(split, count, seed)
    return images, labels


def _subset(split: Any, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Images, labels and writers of a stratified subset."""
    rows = stratified_subset(split.labels, count, seed)
    if rows is None:
        return split.images, split.labels, split.groups
    return split.images[rows], split.labels[rows], None if split.groups is None else split.groups[rows]
