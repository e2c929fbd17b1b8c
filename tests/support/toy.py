"""A federation small enough to reason about: 5 clients of unequal size, one smaller than a batch, one missing a label."""

import functools
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
import torch.nn.functional as F

import algorithms
from bench import models
from bench.models.base import BatchNormalised
from bench.simulation.client import Settings
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
    **settings,
) -> Task:
    """A task on random images; the second client has no example of label 0."""
    rng = np.random.default_rng(7)
    num_examples = sum(sizes)
    images = rng.integers(0, 256, (num_examples, *shape), dtype=np.uint8)
    labels = rng.integers(0, NUM_CLASSES, num_examples)
    labels[sizes[0] : sum(sizes[:2])] = 1  # nothing, where there is one client
    test_images = rng.integers(0, 256, (30, *shape), dtype=np.uint8)
    test_labels = np.arange(30) % NUM_CLASSES
    clients = np.split(np.arange(num_examples), np.cumsum(sizes)[:-1])
    prepared = transforms.build(transform, dataset, shape)
    federation = federate(images, labels, test_images, test_labels, clients, NUM_CLASSES, prepared, noise)
    network = models.load(model)(shape, NUM_CLASSES)
    return Task(network, replace(SETTINGS, **settings), federation, seed, engine, dtype)


@dataclass(frozen=True)
class Normalised(BatchNormalised):
    """The smallest model with batch normalisation: one convolution."""

    def layers(self):
        return {"stem": (4, self.input_shape[0], 3, 3), "classifier": (self.num_classes, 4)}

    def features(self, params, x, bound):
        return F.relu(self.conv(params, bound, x, "stem")).mean((2, 3))


def normalised_task(**settings) -> Task:
    """A toy task with a model whose running statistics move; they are in single precision, as ever."""
    task = toy_task(dtype=torch.float32, **settings)
    return replace(task, model=Normalised(task.model.input_shape, NUM_CLASSES))


CYCLES = ("fedcat", "fedcat-gc", "fedcat-dc")  # methods with cycles of as many rounds as a cohort has clients
SMALL = {
    "num_clusters": 2,
    "encoder_rounds": 2,
    "classifier_rounds": 2,
    "inference_images": 200,
    "generator_steps": 3,
    "hidden_width": 16,
}


def toy_method(name: str, **options):
    """A method with its defaults, but for those that are made for more clients and rounds than a toy task has."""
    cls = algorithms.load(name)
    small = {field.name: SMALL[field.name] for field in fields(cls) if field.name in SMALL}
    return algorithms.make(name, **small | options)


def train(algorithm, task, rounds: int | None = None):
    """The state after some rounds (default: all of the task's)."""
    state = algorithm.init(task)
    for _ in range(algorithm.num_rounds(task.settings) if rounds is None else rounds):
        state = algorithm.step(task, state)
    return state


@functools.lru_cache(maxsize=16)
def history(algorithm, **settings) -> tuple[Task, tuple]:
    """A toy task, and the states before the first round and after each: trained once, for all tests that ask for the same.

    Nobody may change them.
    """
    task = toy_task(**settings)
    states = [algorithm.init(task)]
    for _ in range(algorithm.num_rounds(task.settings)):
        states.append(algorithm.step(task, states[-1]))
    return task, tuple(states)


def assert_equal(a, b, tolerance: float = 0.0):
    """Trees of one structure with equal leaves; plain numbers are compared too."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key], tolerance)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    else:
        assert a == b
