"""What the speed benchmark runs: the workload W1 and its variants, on one thread, on CIFAR-10 or on images like it.

W1: CIFAR-10, 40 clients, label-2, simple CNN, batch 64, SGD 0.01 / 0.9, two rounds of one local epoch, the global test
after each round. Configs are plain namespaces, so that neither Ray nor pydantic need be there.
"""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

import datasets
from bench.profiling import GpuUse
from bench.simulation.build import build_task
from bench.simulation.task import Task

W1 = {
    "algorithm": {"name": "fedavg"},
    "dataset": "cifar10",
    "partition": "label-2",
    "clients": 40,
    "first_clients": None,
    "model": "simple-cnn",
    "model_width": 1.0,
    "weights": "none",
    "transform": "fedconcat",
    "rounds": 2,
    "local_epochs": 1,
    "local_steps": None,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "participation": 1.0,
    "nearest_cohort": False,
    "last_batch": "keep",
    "evaluate_every": None,
    "seed": 0,
    "split": "test",
    "validation_share": None,
    "train_examples": None,
    "test_examples": None,
    "image_size": None,
    "dirichlet_seed_override": None,
    "trace_local_models": None,
    "callbacks": [],
}


@dataclass(frozen=True)
class Setting:
    """What every case is told.

    Attributes:
        folder: where CIFAR-10, or random images in its shape, lie.
        data_dir: where other datasets may lie, or None.
        gpu: samples the use of the GPU.
        share: part of the 40 clients that trains in a round, in (0, 1], except in W1 itself.
        repeats: measurements of each case.
        processes: how many plain processes run W1 side by side.
        methods: of the case of that name; () for all of a list.
    """

    folder: Path
    data_dir: Path | None
    gpu: GpuUse
    share: float = 0.5
    repeats: int = 3
    processes: int = 2
    methods: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """The GPU if there is one."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def config(**changes: Any) -> SimpleNamespace:
    """W1 with changes, as `bench.simulation.run` reads it."""
    return SimpleNamespace(**{**W1, **changes})


def task_on(folder: Path, *, device: str = "cpu", engine: str = "loop", **changes: Any) -> Task:
    """W1 with changes as a task, on the images in a folder."""
    wanted = config(**changes)
    return build_task(wanted, datasets.load(wanted.dataset, folder), device=device, engine=engine)


def apart(count: int, fn: Callable, *args: Any, **pool: Any) -> list:
    """What so many calls of fn(*args) return in as many new processes, which share nothing with this one.

    A process that is done early may take the next call, too: calls that must run at once wait for each other.

    Args:
        pool: passed to the pool: initializer, initargs.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, **pool) as processes:
        return [future.result() for future in [processes.submit(fn, *args) for _ in range(count)]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def images(data_dir: Path | None, scratch: Path) -> Iterator[tuple[Path, str]]:
    """A folder with CIFAR-10, and what it is: the images of data_dir, or random ones that leave nothing behind."""
    try:
        found = datasets.load("cifar10", data_dir).kind
    except datasets.MissingData:
        found = None
    if found:
        yield data_dir, found
        return
    write_random_cifar10(scratch / "cifar-10-batches-py")
    with mock.patch.dict(os.environ, SKEWBENCH_CACHE=str(scratch / "cache")):
        yield scratch, "random, in the shape of CIFAR-10"


def write_random_cifar10(folder: Path, batch_size: int = 10_000) -> None:
    """Five training files and a test file of random images with CIFAR-10's layout and balanced labels."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        images = rng.integers(0, 256, (batch_size, 3072), np.uint8)
        batch = {"data": images, "labels": [i % 10 for i in range(batch_size)]}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(label) for label in range(10)]}))
