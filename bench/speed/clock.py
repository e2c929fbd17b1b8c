"""How fast something trains: wall time, processor time, memory and GPU use, as medians of cases that take turns."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.profiling import GpuUse, peak_memory_mb, reset_peak_memory
from bench.speed.rows import Row

EXAMPLES = "examples per second"


@dataclass(frozen=True)
class Pace:
    """One measurement.

    Attributes:
        rate, per_core: examples per second of wall time and of processor time.
        peak_mb: largest memory meanwhile (see `peak_memory_mb`).
        gpu_use: share of time in which the GPU was busy, in [0, 1]; None if unknown.
    """

    rate: float
    per_core: float
    peak_mb: float
    gpu_use: float | None = None

    def row(self, case: str, note: str = "", padding: float | None = None) -> Row:
        return Row(case, self.rate, EXAMPLES, note, self.per_core, self.peak_mb, self.gpu_use, padding)


def take_turns(cases: dict[str, Callable[[], int]], repeats: int, device: torch.device, gpu: GpuUse) -> dict[str, Pace]:
    """Median pace of each case; they take turns, so that a machine whose speed drifts treats all alike.

    Args:
        cases: name -> what is played; returns the examples that it trained on.
        repeats: measurements of each.
        device: where they train.
        gpu: samples its use.
    """
    if device.type == "cuda":
        for play in cases.values():  # kernels are loaded and tuned at their first use
            play()
    paces: dict[str, list[Pace]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, play in cases.items():
            paces[case].append(measure(play, device, gpu))
    return {case: _median(found) for case, found in paces.items()}


def measure(play: Callable[[], int], device: torch.device, gpu: GpuUse) -> Pace:
    """The pace of one call that returns the examples that it trained on."""
    reset_peak_memory(device)
    cpu, begin = time.process_time(), time.perf_counter()
    examples = play()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    end, spent = time.perf_counter(), time.process_time() - cpu
    return Pace(examples / (end - begin), examples / spent, peak_memory_mb(device), gpu.between(begin, end))


def _median(paces: list[Pace]) -> Pace:
    used = [pace.gpu_use for pace in paces if pace.gpu_use is not None]
    return Pace(
        statistics.median(pace.rate for pace in paces),
        statistics.median(pace.per_core for pace in paces),
        max(pace.peak_mb for pace in paces),
        statistics.mean(used) if used else None,
    )
