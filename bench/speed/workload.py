"""What the speed benchmark runs and how it is timed: the workload W1 and its variants, on CIFAR-10 or on images like it.

W1: CIFAR-10, 40 clients, label-2, simple CNN, batch 64, SGD 0.01 / 0.9, two rounds of one local epoch, the global test
after each round. Configs are plain namespaces, so that neither Ray nor pydantic need be there.
"""

import json
import multiprocessing
import os
import pickle
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import datasets
from bench.config.plain import PlainConfig
from bench.determinism import make_deterministic
from bench.profiling import GpuUse, peak_memory_mb, reset_peak_memory
from bench.simulation.build import build_task
from bench.simulation.task import Task
from bench.speed.rows import EXAMPLES, Row

W1 = json.loads("""{
    "algorithm": {"name": "fedavg"}, "dataset": "cifar10", "partition": "label-2", "clients": 40, "model": "simple-cnn",
    "model_width": 1.0, "transform": "fedconcat", "rounds": 2, "local_epochs": 1, "batch_size": 64, "lr": 0.01, "momentum": 0.9,
    "weight_decay": 1e-5, "participation": 1.0, "last_batch": "keep", "seed": 0, "split": "test"
}""")


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


def config(**changes: Any) -> PlainConfig:
    """W1 with changes, as `bench.simulation.run` reads it."""
    return PlainConfig({**W1, **changes})


def task_on(folder: Path, *, device: str = "cpu", engine: str = "loop", **changes: Any) -> Task:
    """W1 with changes as a task, on the images in a folder."""
    wanted = config(**changes)
    if device == "cuda":
        make_deterministic()  # as workers do
    return build_task(wanted, datasets.load(wanted.dataset, folder), device=device, engine=engine)


def take_turns(cases: dict[str, Callable[[], int]], repeats: int, device: torch.device, gpu: GpuUse) -> dict[str, Row]:
    """Median pace of each case; they take turns, so that a machine whose speed drifts treats all alike.

    Args:
        cases: name -> what is run; returns the examples that it trained on.
        repeats: measurements of each.
        device: where they train.
        gpu: samples its use.
    """
    if device.type == "cuda":
        for run in cases.values():  # kernels are loaded and tuned at their first use
            run()
    turns = [{case: _pace(case, run, device, gpu) for case, run in cases.items()} for _ in range(repeats)]
    return {case: _median([turn[case] for turn in turns]) for case in cases}


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Wall time of a call, the median of several."""
    return statistics.median(timeit.repeat(run, number=1, repeat=repeats))


def apart(count: int, fn: Callable, *args: Any) -> list:
    """What so many calls of fn(*args) return in as many new processes, which share nothing with this one.

    A process that is done early may take the next call, too: calls that must run at once wait for each other.
    """
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as processes:
        return [future.result() for future in [processes.submit(fn, *args) for _ in range(count)]]


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
        pixels = rng.integers(0, 256, (batch_size, 3072), np.uint8)
        batch = {"data": pixels, "labels": [i % 10 for i in range(batch_size)]}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(label) for label in range(10)]}))


def _pace(case: str, run: Callable[[], int], device: torch.device, gpu: GpuUse) -> Row:
    """Of one call that returns the examples that it trained on."""
    reset_peak_memory(device)
    cpu, begin = time.process_time(), time.perf_counter()
    examples = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    end, spent = time.perf_counter(), time.process_time() - cpu
    rate, peak = examples / (end - begin), peak_memory_mb(device)
    return Row(case, rate, EXAMPLES, "", examples / spent, peak, gpu.between(begin, end))


def _median(paces: list[Row]) -> Row:
    used = [pace.gpu_use for pace in paces if pace.gpu_use is not None]
    return replace(
        paces[0],
        value=statistics.median(pace.value for pace in paces),
        per_core_second=statistics.median(pace.per_core_second for pace in paces),
        peak_mb=max(pace.peak_mb for pace in paces),
        gpu_use=statistics.mean(used) if used else None,
    )
