"""A federation small enough to reason about: 5 clients of unequal size, one smaller than a batch, one missing a label."""

import functools
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

from algorithms.fedprox import FedProx
from algorithms.shared import local_sgd
from algorithms.shared.types import Settings
from bench import models
from bench.models.base import BatchNormalised, Staged
from bench.simulation.task import Task
from datasets import transforms
from datasets.federation import federate

SIZES = (13, 4, 20, 8, 11)
NUM_CLASSES = 3
SETTINGS = Settings(
    rounds=3,
    local_epochs=2,
    local_steps=None,
    batch_size=6,
    lr=0.05,
    momentum=0.9,
    weight_decay=1e-3,
    participation=1.0,
    last_batch="keep",
)


def toy_task(
    *,
    sizes: tuple[int, ...] = SIZES,
    model: str = "mlp",
    shape: tuple[int, int, int] = (1, 6, 6),
    dataset: str = "digits",
    transform: str = "none",
    noise: float = 0.0,
    engine: str = "loop",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    device: str = "cpu",
    own_tests: bool = False,
    **settings,
) -> Task:
    """A task on random images; the second client has no example of label 0. With own_tests, each client has some of the test
    images."""
    rng = np.random.default_rng(7)
    num_examples = sum(sizes)
    images = rng.integers(0, 256, (num_examples, *shape), dtype=np.uint8)
    labels = rng.integers(0, NUM_CLASSES, num_examples)
    labels[sizes[0] : sum(sizes[:2])] = 1  # nothing, where there is one client
    test_images = rng.integers(0, 256, (30, *shape), dtype=np.uint8)
    test_labels = np.arange(30) % NUM_CLASSES
    clients = np.split(np.arange(num_examples), np.cumsum(sizes)[:-1])
    tested = [np.arange(client % 5, 30, 5) for client in range(len(sizes))] if own_tests else None
    prepared = transforms.build(transform, dataset, shape, device)
    federation = federate(
        images, labels, test_images, test_labels, clients, NUM_CLASSES, prepared, noise, device, tested
    )
    network = models.load(model)(shape, NUM_CLASSES)
    return Task(network, replace(SETTINGS, **settings), federation, seed, engine, dtype)


@dataclass(frozen=True)
class Normalised(BatchNormalised, Staged):
    """The smallest model with batch normalisation: one convolution."""

    def layers(self):
        return {"stem": (4, self.input_shape[0], 3, 3), "classifier": (self.num_classes, 4)}

    @property
    def stages(self):
        return ("stem",)

    def stage(self, name, params, x, bound):
        return self.conv(params, bound, x, name)

    def activated(self, name, x, bound):
        return F.relu(x).mean((2, 3))


def normalised_task(**settings) -> Task:
    """A toy task in single precision, with a model whose running statistics move."""
    task = toy_task(dtype=torch.float32, **settings)
    return replace(task, model=Normalised(task.model.input_shape, NUM_CLASSES))


def other_value(kind, value):
    """A valid value of an option beside the one that it has: another method, a number nearby, or another choice of its type."""
    if isinstance(value, bool):
        return not value
    if is_dataclass(value):
        return FedProx(mu=1.0)
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 0.5 * value + (0.1 if value != 0.2 else 0.2)  # 0.2 would stay what it is
    return next(choice for choice in _choices(kind) if choice != value)


def other_values(kind, value) -> list:
    """Valid values of an option beside the one that it has, if there are any, `other_value` first: an option may act only where
    it is far smaller or larger, such as a share of so few clients."""
    if isinstance(value, bool) or is_dataclass(value):
        return [other_value(kind, value)]
    if isinstance(value, int):
        found = [other_value(kind, value), value - 1, 2 * value, value // 2, 1, 0]
    elif isinstance(value, float):
        scaled = [value * 10.0**power for power in (-1, 1, -2, 2, -4, 4)]
        found = [other_value(kind, value), *scaled, 0.3, 0.5, 0.9, 1.0, 0.0]
    else:
        found = _choices(kind)
    return [one for one in dict.fromkeys(found) if one != value]


def _choices(kind) -> list:
    """Values of a type: all of a Literal, one of a plain type, all of the parts of a union."""
    if kind in (plain := {bool: [True], int: [1], float: [0.5]}):
        return plain[kind]
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [choice for part in typing.get_args(kind) for choice in _choices(part)]


def train(algorithm, task, rounds: int | None = None):
    """The state after some rounds (default: all of the task's)."""
    state = algorithm.init(task)
    for _ in range(algorithm.num_rounds(task.settings) if rounds is None else rounds):
        state = algorithm.step(task.in_round(state["round"]), state)
    return state


@contextmanager
def gradients_counted() -> Iterator[list[int]]:
    """Examples of each call of `gradient` or `value_of` meanwhile, on the engine loop, without those within a loss, of its
    batch."""
    sizes: list[int] = []
    plain, is_inside = local_sgd._value, False

    def noted(loss, params, batch, view):
        nonlocal is_inside
        if is_inside:
            return plain(loss, params, batch, view)
        sizes.append(len(batch.y))
        is_inside = True
        try:
            return plain(loss, params, batch, view)
        finally:
            is_inside = False

    with mock.patch.object(local_sgd, "_value", noted):
        yield sizes


@functools.lru_cache(maxsize=16)
def history(algorithm, **settings) -> tuple[Task, tuple]:
    """A toy task, and the states before the first round and after each: trained once, for all tests that ask for the same.

    Nobody may change them.
    """
    task = toy_task(**settings)
    states = [algorithm.init(task)]
    for _ in range(algorithm.num_rounds(task.settings)):
        states.append(algorithm.step(task.in_round(states[-1]["round"]), states[-1]))
    return task, tuple(states)


_LEAST = 1e-3  # smaller numbers are differences of such, with their rounding


def assert_equal(a, b, tolerance: float = 0.0):
    """Trees of one structure with equal leaves; plain numbers are compared too.

    Args:
        tolerance: largest difference in a leaf, relative to the largest number in it, or to `_LEAST` if all are smaller.

    Raises:
        AssertionError: naming the first leaf that differs.
    """
    if found := difference(a, b, tolerance):
        raise AssertionError(found)


def difference(a, b, tolerance: float = 0.0, path: str = "") -> str:
    """The first leaf in which two trees differ, and how: "server.momentum.w differs by up to 0.5"; "" if they are equal.

    Args:
        tolerance: as in `assert_equal`.
        path: keys that lead to these trees.
    """
    name = path or "the state"
    if isinstance(a, dict):
        if not isinstance(b, dict) or a.keys() != b.keys():
            return f"{name} has the keys {_keys(a)} and {_keys(b)}"
        within = (difference(a[key], b[key], tolerance, f"{path}.{key}" if path else str(key)) for key in a)
        return next(filter(None, within), "")
    if not isinstance(a, torch.Tensor):
        return "" if a == b else f"{name} is {a} and {b}"
    largest = float(b.double().abs().max()) if tolerance and b.numel() else 0.0
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * max(largest, _LEAST))
    except AssertionError:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{name} is {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        return f"{name} differs by up to {float((a.double() - b.double()).abs().max()):.2g}"
    return ""


def _keys(tree) -> str:
    return ", ".join(map(str, tree)) if isinstance(tree, dict) else f"of no dict, but a {type(tree).__name__}"
