"""Who has which training examples."""

from typing import Any, NamedTuple

import numpy as np

from bench.seeding import seed_for
from bench.simulation.validation_split import hold_out, hold_out_together
from datasets import partitions


class Division(NamedTuple):
    """The examples of a run, and who has which.

    Attributes:
        images, labels: on which clients train, uint8 [n, C, H, W] and int64 [n].
        clients: rows of each client.
        test_images, test_labels: on which models are evaluated: test examples, or what clients have set aside.
        test_clients: rows of these on which each client tests; None if clients have no test data of their own.
        scores_together: whether models are scored on the test examples of all clients together as well.
    """

    images: np.ndarray
    labels: np.ndarray
    clients: list[np.ndarray]
    test_images: np.ndarray
    test_labels: np.ndarray
    test_clients: list[np.ndarray] | None = None
    scores_together: bool = False


def divide(config: Any, dataset: Any) -> Division:
    """Who has which examples of a dataset in the run of a config.

    Raises:
        ValueError: if the partition cannot be drawn, or clients have too few examples for a validation part.
    """
    partition = partitions.parse(config.partition)
    if partition.has_own_tests:
        return _divide_pool(config, dataset, partition)
    images, labels, groups = _subset(dataset.train, config.train_examples, config.seed)
    clients = partition.split(
        labels,
        config.clients,
        dataset.num_classes,
        config.seed,
        dirichlet_seed_override=config.dirichlet_seed_override,
        groups=groups,
    )
    clients = clients[: config.first_clients]
    if config.split != "validation":
        return Division(images, labels, clients, *take_subset(dataset.test, config.test_examples, config.seed))
    kept, held_out = hold_out_together(labels, clients, dataset.num_classes, config.validation_share, config.seed)
    return Division(images, labels, kept, images[held_out], labels[held_out])


def _divide_pool(config: Any, dataset: Any, partition: partitions.Partition) -> Division:
    """The same where clients have test examples of their own, or keep what they have set aside in place of these. Images are
    turned, and labels renamed, as each client of a shift knows them."""
    train = take_subset(dataset.train, config.train_examples, config.seed)
    test = take_subset(dataset.test, config.test_examples, config.seed)
    labels = np.concatenate([train[1], test[1]])
    drawn = partition.draw(labels, config.clients, dataset.num_classes, config.seed, num_test=len(test[1]))
    clients, tested = drawn.indices[: config.first_clients], drawn.test_indices[: config.first_clients]
    if config.split == "validation":
        clients, tested = hold_out(labels, clients, dataset.num_classes, config.validation_share, config.seed)

    def gather(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Images and labels of the clients, one client after another, and where each has its own."""
        images = [
            partition.client_images(_rows_of(train[0], test[0], own), client, config.clients)
            for client, own in enumerate(rows)
        ]
        named = [partition.client_labels(labels[own], client, config.clients) for client, own in enumerate(rows)]
        ends = np.cumsum([len(own) for own in rows])
        return np.concatenate(images), np.concatenate(named), np.split(np.arange(ends[-1]), ends[:-1])

    return Division(*gather(clients), *gather(tested), scores_together=partition.scores_together)


def _rows_of(first: np.ndarray, second: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of two arrays as if they were one, which may be too large to be joined."""
    found = np.empty((len(rows), *first.shape[1:]), first.dtype)
    in_first = rows < len(first)
    found[in_first], found[~in_first] = first[rows[in_first]], second[rows[~in_first] - len(first)]
    return found


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
