"""How fast something trains: wall time, processor time, memory and GPU use, as medians of cases that take turns."""

import statistics
import time
from collections.abc import Callable

import torch

from bench.profiling import GpuUse, peak_memory_mb, reset_peak_memory
from bench.speed.rows import EXAMPLES, Row


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
    paces: dict[str, list[Row]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, run in cases.items():
            paces[case].append(measure(case, run, device, gpu))
    return {case: _median(found) for case, found in paces.items()}


def measure(case: str, run: Callable[[], int], device: torch.device, gpu: GpuUse) -> Row:
    """The pace of one call that returns the examples that it trained on."""
    reset_peak_memory(device)
    cpu, begin = time.process_time(), time.perf_counter()
    examples = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    end, spent = time.perf_counter(), time.process_time() - cpu
    rate, peak = examples / (end - begin), peak_memory_mb(device)
    return Row(case, rate, EXAMPLES, "", examples / spent, peak, gpu.between(begin, end))


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Wall time of a call, the median of several."""
    measured = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        measured.append(time.perf_counter() - begin)
    return statistics.median(measured)


def _median(paces: list[Row]) -> Row:
    used = [pace.gpu_use for pace in paces if pace.gpu_use is not None]
    return Row(
        paces[0].case,
        statistics.median(pace.value for pace in paces),
        EXAMPLES,
        per_core_second=statistics.median(pace.per_core_second for pace in paces),
        peak_mb=max(pace.peak_mb for pace in paces),
        gpu_use=statistics.mean(used) if used else None,
    )
