"""What trials of Ray Tune cost beyond their training: time of the scheduler, memory, and each other's speed."""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import resources, tune
from bench.config import resolve, run_id
from bench.run import Keep
from bench.store import Store
from bench.worker import Job


@dataclass(frozen=True)
class Trial:
    """Speed of one trial in examples per second, evaluation included, and its unique memory in MB (None if unknown)."""

    rate: float
    unique_memory_mb: float | None


def seconds_per_trial(count: int = 60) -> float:
    """Scheduling time per trial once every worker has finished its first run; setting up a run is counted as well.

    Args:
        count: runs of two rounds on digits, at least one more than there are cores.
    """
    settings = {"algorithm": "fedavg", "dataset": "digits", "partition": "label-2", "rounds": 2, "local_epochs": 1}
    ended, _ = _play([{**settings, "seed": seed} for seed in range(count)], None, 0)
    workers = os.cpu_count()
    warm = ended[workers - 1 :]
    wall = warm[-1][0] - warm[0][0]
    return (wall * workers - sum(record["seconds"] for _, record in warm[1:])) / (len(warm) - 1)


def side_by_side(data_dir: Path, count: int, rounds: int = 3) -> list[Trial]:
    """The workload of `bench.speed` in this many trials at once, on one core each; the first round only warms up."""
    settings = {
        "algorithm": "fedavg",
        "dataset": "cifar10",
        "partition": "label-2",
        "rounds": rounds,
        "local_epochs": 1,
    }
    ended, rows_of = _play([{**settings, "seed": seed} for seed in range(count)], data_dir, count)
    trials = []
    for (_, record), rows in zip(ended, rows_of, strict=True):
        first, last = rows[0], rows[-1]
        rate = (last["examples"] - first["examples"]) / (last["seconds"] - first["seconds"])
        trials.append(Trial(rate, record["unique_memory_mb"]))
    return trials


def _play(
    settings: list[dict], data_dir: Path | None, max_concurrent: int
) -> tuple[list[tuple[float, dict]], list[list]]:
    """(moment, record) of each run in the order in which they ended, and their rows."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        configs = [resolve(flat) for flat in settings]
        jobs = [Job(run_id(c), c, str(store.run_folder(run_id(c))), Keep(final=False)) for c in configs]
        with store.locked():
            share = resources.choose(1.0, "0", None)
            tune.play(jobs, store, clock, data_dir=data_dir, resources=share, max_concurrent=max_concurrent)
            return clock.ended_at, [store.rows(record["id"]) for _, record in clock.ended_at]


class _Clock:
    """Notes when each run ended, and its record."""

    def __init__(self):
        self.ended_at: list[tuple[float, dict]] = []

    def started(self, job) -> None:
        pass

    def said(self, text) -> None:
        pass

    def postponed(self, job) -> None:
        pass

    def noted(self, job, note) -> None:
        pass

    def advanced(self, job, rounds) -> None:
        pass

    def ended(self, job, record) -> None:
        self.ended_at.append((time.perf_counter(), record))
