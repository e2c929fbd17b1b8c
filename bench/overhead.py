"""What the scheduler costs: wall time of many short runs beyond the seconds that the runs themselves took."""

import os
import tempfile
import time
from pathlib import Path

from bench import resources, tune
from bench.config import resolve, run_id
from bench.run import Keep
from bench.store import Store


def seconds_per_trial(count: int = 60) -> float:
    """Scheduling time per trial once every worker has finished its first run; setting up a run is counted as well.

    Args:
        count: runs of two rounds on digits.
    """
    share = resources.choose(1.0, "0", None)
    workers = os.cpu_count()
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        settings = {"algorithm": "fedavg", "dataset": "digits", "partition": "label-2", "rounds": 2, "local_epochs": 1}
        configs = [resolve({**settings, "seed": seed}) for seed in range(count)]
        jobs = [tune.Job(run_id(c), c, store.run_folder(run_id(c)), Keep(final=False)) for c in configs]
        with store.locked():
            tune.play(jobs, store, clock, data_dir=None, resources=share)
    warm = clock.ended_at[workers - 1 :]
    wall = warm[-1][0] - warm[0][0]
    return (wall * workers - sum(seconds for _, seconds in warm[1:])) / (len(warm) - 1)


class _Clock:
    """Notes when each run ended, and how long it trained."""

    def __init__(self):
        self.ended_at: list[tuple[float, float]] = []

    def started(self, job) -> None:
        pass

    def advanced(self, job, rounds) -> None:
        pass

    def ended(self, job, record) -> None:
        self.ended_at.append((time.perf_counter(), record["seconds"]))
