"""Whole runs without Ray, from the images on disk to the last test: W1 as a user meets it, memory, and large populations."""

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import torch

import datasets
from bench.determinism import make_deterministic
from bench.profiling import GpuUse, keep_freed_memory, peak_memory_mb, reset_peak_memory
from bench.simulation.run import Run
from bench.speed.engines import padding_of
from bench.speed.rows import EXAMPLES, Row
from bench.speed.workload import Setting, apart, config

_START_SECONDS = 600  # after which a process that has not begun is given up
_STEP = {"partition": "iid", "local_epochs": None, "local_steps": 1, "rounds": 2, "test_examples": 100}
STACK = {"model": "resnet18", "clients": 20, "batch_size": 4, "train_examples": 80, **_STEP}
STATES = {"algorithm": {"name": "scaffold"}, "batch_size": 1, **_STEP}
METHODS = ("fedavg", "moon", "scaffold")  # on populations of MNIST clients
COHORT, IMAGES_PER_CLIENT = 10, 6


class Measured(NamedTuple):
    """One run; moments are those of `time.perf_counter`, whose zero is that of the machine, and sizes in MB of 10^6 bytes."""

    ready: float  # when its first round could begin; it begins when those beside it can, too
    begin: float
    end: float  # of its last test
    cpu: float  # processor seconds from begin to end
    round_seconds: float  # median
    examples: int
    before_mb: float  # with the data
    peak_mb: float
    padding: float | None = None


def w1(setting: Setting, **changes) -> list[Row]:
    """W1: one trial in this process, and several plain processes at once."""
    count, given = setting.processes, (setting.folder, changes, setting.device.type)
    alone = _pace("W1, one trial", [measure(*given)], setting.gpu)
    launched = time.perf_counter()
    with multiprocessing.get_context("spawn").Manager() as manager:
        together = apart(count, measure, *given, manager.Barrier(count))
    at_once = _pace(f"W1, {count} processes at once", together, setting.gpu)
    slowest = max(one.ready for one in together) - launched
    start = Row(f"{at_once.case}: start to first round", slowest, "s", "the slowest new process, its imports included")
    return [alone, start, replace(at_once, note=f"{at_once.value / alone.value:.2f} of one trial")]


def memory(setting: Setting, stack: dict[str, Any] = STACK, population: int = 4000) -> list[Row]:
    """Two rounds of FedAvg whose results are stacked, and of SCAFFOLD with the state of every client."""
    rows = []
    for case, changes in (
        (f"fedavg, {stack['model']}, {stack['clients']} clients", stack),
        (f"scaffold, {population:,} clients", {**STATES, "clients": population, "train_examples": population}),
    ):
        (found,) = apart(1, measure, setting.folder, changes)  # so that nobody's memory is counted as another's
        rows.append(Row(f"memory before the rounds, {case}", found.before_mb, "MB"))
        rows.append(Row(f"peak of a round, {case}", found.peak_mb, "MB"))
    return rows


def population(setting: Setting, rounds: int = 20, populations: Sequence[int] = (100, 10_000)) -> list[Row]:
    """Rounds of a small cohort in a small and a large population of MNIST clients."""
    all_images = len(datasets.load("mnist", setting.data_dir).train.labels)  # decoded now, or missing
    rows = []
    for method in METHODS:
        same = {
            "algorithm": {"name": method},
            "dataset": "mnist",
            "rounds": rounds,
            "local_epochs": None,
            "local_steps": 5,
        }
        seconds, added = [], []
        for size in populations:
            images = None if size * IMAGES_PER_CLIENT == all_images else size * IMAGES_PER_CLIENT
            changes = same | {"clients": size, "participation": COHORT / size, "train_examples": images}
            (found,) = apart(1, measure, setting.data_dir, changes)
            seconds.append(found.round_seconds)
            added.append(found.peak_mb - found.before_mb)
        for what, unit, (few, many) in (("round", "s", seconds), ("memory beyond the data", "MB", added)):
            note = f"{many / few:.2f} of {populations[0]:,} clients; target: 0.8 to 1.2" if few else ""
            for size, value, said in zip(populations, (few, many), ("", note), strict=True):
                rows.append(Row(f"{what}, {method}, {size:,} clients", value, unit, said))
    return rows


def measure(folder: Path, changes: dict, device: str = "cpu", barrier: Barrier | None = None) -> Measured:
    """Trains W1 with changes, when all for whom the barrier is are ready."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do
    try:
        wanted = config(**changes)
        if device == "cuda":
            make_deterministic()  # as workers do
        run = Run(wanted, datasets.load(wanted.dataset, folder), device=device)
        for images in (run.task.federation.images, run.task.federation.test_images):
            images.max()  # maps every page: from here on the images are part of the process
        reset_peak_memory(torch.device(device))
        before, ready = peak_memory_mb(torch.device(device)), time.perf_counter()
    finally:  # also when this one failed: the others continue
        if barrier:
            barrier.wait(_START_SECONDS)
    cpu, begin = time.process_time(), time.perf_counter()
    while not run.finished:
        run.step()
    end, cpu, peak = time.perf_counter(), time.process_time() - cpu, peak_memory_mb(torch.device(device))
    seconds = statistics.median(b - a for a, b in itertools.pairwise([0.0, *(row["seconds"] for row in run.rows)]))
    return Measured(ready, begin, end, cpu, seconds, run.rows[-1]["examples"], before, peak, padding_of(run.task))


def _pace(case: str, trials: list[Measured], gpu: GpuUse) -> Row:
    """Examples of all trials in the time from the first beginning to the last end."""
    begin, end = min(trial.begin for trial in trials), max(trial.end for trial in trials)
    examples, peak = sum(trial.examples for trial in trials), max(trial.peak_mb for trial in trials)
    per_core, use = examples / sum(trial.cpu for trial in trials), gpu.between(begin, end)
    return Row(case, examples / (end - begin), EXAMPLES, "", per_core, peak, use, trials[0].padding)
