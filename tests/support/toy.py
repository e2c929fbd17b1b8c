"""A federation small enough to reason about: 5 clients of unequal size, one smaller than a batch, one missing a label."""

import functools
import typing
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import algorithms
from algorithms.fedprox import FedProx
from bench import models
from bench.models.base import BatchNormalised
from bench.participation import cohort_size
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
    """A toy task in single precision, with a model whose running statistics move."""
    task = toy_task(dtype=torch.float32, **settings)
    return replace(task, model=Normalised(task.model.input_shape, NUM_CLASSES))


# What a new method needs to be tested as all others are: nothing, or a line in one of these tables.

# Options made for more clients and rounds than a toy task has, or for longer computations.
SMALL = {
    "num_clusters": 2,
    "encoder_rounds": 2,
    "classifier_rounds": 2,
    "inference_images": 200,
    "generator_steps": 3,
    "hidden_width": 16,
    "discriminator_rounds": 20,
    "capacity": 2.0,
    "warm_up_rounds": 1,
    "eps1": 2.0,  # of a cluster that has had one mean update
}

# Options whose effect needs a special task, or is none on the numbers: what tests them instead, for every method that has them,
# or for one method, (method, option), where others of the same name are tested as all options are.
TESTED_ELSEWHERE = {
    "cache_features": "test_fedconcat.py: fewer passes, equal numbers",
    "stage3_encoder_mode": "test_fedconcat.py: batch norm",
    "balanced": "test_fedconcat.py: one large cluster",
    "epsilon": "test_fedconcat.py: scale of the noise",
    "models": "test_fedconcat.py: encoders of other widths",
    "inference_images": "test_fedconcat.py: images counted",
    "inference_mode": "test_fedconcat.py: mode of the passes",
    "noise_moves_statistics": "test_fedconcat.py: running statistics by hand",
    "global_model_mode": "test_losses.py: batch norm by hand",
    "estimate": "test_fedconcat.py: formula",
    **dict.fromkeys(
        (("fesem", "proximal_weight"), ("fedsoft", "proximal_weight")),
        "test_clustered.py: read only with the intended proximal term",
    ),
    **dict.fromkeys(
        (("fedconcat-fesem", "proximal_weight"), ("fedconcat-fedsoft", "proximal_weight")),
        "test_fedconcat.py: given to the first stage, that of fesem or fedsoft",
    ),
    (
        "fedvls",
        "distillation_weight",
    ): "test_distillation.py: two steps in a round, before which teacher and student agree",
    "smallest_importance": "test_clustered.py: three clusters",
    "vote": "test_clustered.py: three clusters",
    "interval": "test_clustered.py: three rounds",
    ("feddyn", "clip"): "test_feddyn.py: long gradients",
    ("mofedsam", "clip"): "test_fedsam.py: long gradients",
    ("fedasam", "eta"): "test_fedsam.py: ascent by hand",  # `other_value` of 0.2 is 0.2
    **dict.fromkeys(("swa", "swa_start", "swa_every", "swa_last_lr"), "test_fedsam.py: more rounds"),
    "tukey": "test_ccvr.py: where features are transformed",
    "relu": "test_ccvr.py: where features are transformed",
    "calibration_batch_size": "test_ccvr.py: fewer features than a batch",
    "calibration_epochs": "test_ccvr.py: fewer than make 1,000 steps",
    "eps1": "test_clusterers.py: criterion",
    "eps2": "test_clusterers.py: criterion",
    "regroup_every": "test_fedcat.py: groups of later cycles",
    "greedy_share": "test_fedcat.py: frequencies of selected clients",
    "count_rule": "test_fedcat.py: weights",
    "restarts": "test_coalitions.py: only some searches find the best coalitions",
    ("fedetf", "width"): "test_classifiers.py: at least as many dimensions as classes",
    "divergence": "test_fedcollab.py: published for the clients of the paper only",
    "discriminator_lr": "test_fedcollab.py: divergences, of which coalitions may be the same",
    "features": "test_fedcollab.py: a file of weights",
    **dict.fromkeys((("fedcollab", "delta"), ("fedcollab", "dimension")), "test_fedcollab.py: the bound in the record"),
    "discriminator_rounds": "test_fedcollab.py: divergences, of which coalitions may be the same",
    **dict.fromkeys(
        (("fedexp", "eps"), ("fedexp", "eps_per_client")),
        "test_server_steps.py: where clients disagree so much that the step is longer than 1",
    ),
    ("fedproto", "carry"): "test_features.py: a class that a cohort does not hold",
    ("fedproto", "predict"): "test_features.py: predictions",
}


@dataclass(frozen=True)
class Toy:
    """What tests of all methods do otherwise for one.

    Attributes:
        alone: it is defined for one client that holds everything.
        in_cycles: it has cycles of as many rounds as a cohort has clients, and no new model within them.
        everyone_begins: all clients train in the first round, whatever the participation.
        counters: numbers of batches that two clients with 1 and 2 steps in a round may have counted after two rounds. After the
            first, they go on from the mean 5/3, truncated, unless the method says otherwise.
        search: settings that a small search of its options needs.
        smallest_client: examples that every client needs.
        outlines_are_bounds: a state may be smaller than its outline, by what is known only when the run has begun.
        options: small ones, which are no defaults, but make a test one of the method and not of rounding.
        deep: options for a model with many normalised layers after few steps, when running statistics are far from those
            of its batches.
        exchanges_less: what a run is known to exchange is a bound, which toy tasks do not reach.
    """

    alone: bool = False
    in_cycles: bool = False
    everyone_begins: bool = False
    counters: tuple[list[int], ...] = ([2, 3],)
    search: dict[str, int] = field(default_factory=dict)
    smallest_client: int = 1
    outlines_are_bounds: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    deep: dict[str, Any] = field(default_factory=dict)
    exchanges_less: bool = False


# From the counters of their cluster, in which they may be alone.
_CLUSTERED = ([2, 3], [2, 4])
# Each copy goes on from the counters of its first client, which is drawn.
_CAT = Toy(in_cycles=True, counters=([2, 3], [3, 2], [3, 3], [2, 4], [4, 2]), search={"rounds": 12})
TOYS = {
    "centralized": Toy(alone=True),
    "local": Toy(counters=([2, 4],)),
    # Its gradient is steep where a feature is alive for few examples: with 0.1, in batches of 2 and 6, initial params that
    # differ by 1e-15 lead to params that differ by 1e-2 on one and the same engine.
    "feddecorr": Toy(options={"beta": 0.01}),
    "fedproto": Toy(counters=([2, 4],), deep={"collect": "last_epoch"}, exchanges_less=True),
    "fedconcat-id": Toy(everyone_begins=True),
    "fedconcat-ib": Toy(everyone_begins=True),
    "ifca": Toy(counters=_CLUSTERED),
    "fedsoft": Toy(counters=_CLUSTERED),
    "fesem": Toy(counters=_CLUSTERED, search={"clients": 20}),
    "fedconcat-fesem": Toy(search={"clients": 20}),
    "fedcluster": Toy(counters=_CLUSTERED),
    "kmeans": Toy(everyone_begins=True, counters=_CLUSTERED, search={"rounds": 12}),
    "lg-fedavg": Toy(counters=([2, 4],)),  # those of the bodies, which stay
    "per-fedavg": Toy(counters=([0, 0],)),  # buffers stay
    "pfedme": Toy(counters=([0, 0],)),  # the counter of a local model stays
    "fedcollab": Toy(counters=_CLUSTERED, smallest_client=2, outlines_are_bounds=True),
    "fedcat": _CAT,
    "fedcat-gc": _CAT,
    "fedcat-dc": _CAT,
}


def toy(name: str) -> Toy:
    """What is special about a method; nothing about most."""
    return TOYS.get(name, Toy())


def settings_for(name: str, participation: float | None = None) -> dict:
    """Settings of a toy task on which a method can be trained; a run with cycles has two of them."""
    share = {} if participation is None else {"participation": participation}
    if toy(name).in_cycles:
        share = share or {"participation": 0.4}
        return share | {"rounds": 2 * cohort_size(len(SIZES), **share)}
    return share | ({"sizes": (sum(SIZES),)} if toy(name).alone else {})


def toy_method(name: str, **options):
    """A method with its defaults, but for those that are made for more clients and rounds than a toy task has."""
    cls = algorithms.load(name)
    small = {option.name: SMALL[option.name] for option in fields(cls) if option.name in SMALL}
    return algorithms.make(name, **small | toy(name).options | options)


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


_LEAST = 1e-3  # smaller numbers are differences of such, with their rounding


def assert_equal(a, b, tolerance: float = 0.0):
    """Trees of one structure with equal leaves; plain numbers are compared too.

    Args:
        tolerance: largest difference in a leaf, relative to the largest number in it, or to `_LEAST` if all are smaller.
    """
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key], tolerance)
    elif isinstance(a, torch.Tensor):
        largest = float(b.double().abs().max()) if tolerance and b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * max(largest, _LEAST))
    else:
        assert a == b
