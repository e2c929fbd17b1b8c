"""The workload W1 as a user meets it: whole runs, from the images on disk to the last test, without Ray."""

import time
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch

import datasets
from bench.profiling import GpuUse, peak_memory_mb
from bench.simulation.run import Run
from bench.speed.engines import padding_of
from bench.speed.rows import EXAMPLES, Row
from bench.speed.workload import Setting, apart, config

_START_SECONDS = 600  # after which a process that has not begun is given up
_barrier = None  # of a process that runs beside others


@dataclass(frozen=True)
class Measured:
    """One run of W1.

    Attributes:
        launched, begin, end: when it was started, when its first round began, when its last test ended; seconds of
            `time.perf_counter`, whose zero is the same in all processes of a machine.
        ready: when it could have begun; the time to begin is when those beside it could, too.
        cpu: processor seconds from begin to end.
        examples: trained on.
        last_rate: examples per second of wall time in its last round, when everything is warm.
        peak_mb: largest memory.
        padding: share of padded batch rows; None on the loop engine.
    """

    launched: float
    ready: float
    begin: float
    end: float
    cpu: float
    examples: int
    last_rate: float
    peak_mb: float
    padding: float | None = None


def w1(setting: Setting, **changes) -> list[Row]:
    """W1: one trial in this process, and several plain processes at once."""
    device = setting.device.type
    one = measure(setting.folder, device, time.perf_counter(), changes)
    case = "W1, one trial"
    rows = [
        Row(f"{case}: start to first round", one.ready - one.launched, "s", "in this process, images decoded before"),
        _pace(case, [one], setting.gpu, f"{one.last_rate:,.0f} in the last round"),
    ]
    count, case = setting.processes, f"W1, {setting.processes} processes at once"
    start_together = {"initializer": _set_barrier, "initargs": (get_context("spawn").Barrier(count),)}
    together = apart(count, measure, setting.folder, device, time.perf_counter(), changes, **start_together)
    pace = _pace(case, together, setting.gpu)
    slowest = max(trial.ready - trial.launched for trial in together)
    alone = one.examples / (one.end - one.begin)
    return [
        *rows,
        Row(f"{case}: start to first round", slowest, "s", "the slowest new process, its imports included"),
        replace(pace, note=f"{pace.value / alone:.2f} of one trial"),
    ]


def measure(folder: Path, device: str, launched: float, changes: dict) -> Measured:
    """Runs W1 with changes; in a process of `apart`, together with those beside it."""
    torch.set_num_threads(1)
    try:
        wanted = config(**changes)
        run = Run(wanted, datasets.load(wanted.dataset, folder), device=device)
        ready = time.perf_counter()
    finally:
        if _barrier:  # also when this one failed: the others continue
            _barrier.wait(_START_SECONDS)
    cpu, begin = time.process_time(), time.perf_counter()
    while not run.finished:
        run.step()
    end, cpu = time.perf_counter(), time.process_time() - cpu
    rows = [{"examples": 0, "seconds": 0.0}, *run.rows]
    (examples, seconds), (all_examples, all_seconds) = ((row["examples"], row["seconds"]) for row in rows[-2:])
    last_rate = (all_examples - examples) / (all_seconds - seconds)
    peak = peak_memory_mb(torch.device(device))
    return Measured(launched, ready, begin, end, cpu, all_examples, last_rate, peak, padding_of(run.task))


def _set_barrier(barrier) -> None:
    global _barrier
    _barrier = barrier


def _pace(case: str, trials: list[Measured], gpu: GpuUse, note: str = "") -> Row:
    """Examples of all trials in the time from the first beginning to the last end."""
    begin, end = min(trial.begin for trial in trials), max(trial.end for trial in trials)
    examples = sum(trial.examples for trial in trials)
    per_core = examples / sum(trial.cpu for trial in trials)
    peak = max(trial.peak_mb for trial in trials)
    use, padding = gpu.between(begin, end), trials[0].padding
    return Row(case, examples / (end - begin), EXAMPLES, note, per_core, peak, use, padding)
