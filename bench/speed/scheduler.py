"""Trials of Ray Tune: what they cost beyond their training in time and memory, each other's speed, and reports on them."""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from bench.config.resolve import resolve
from bench.config.schema import RunConfig, run_id
from bench.execution import resources
from bench.execution.job import Job
from bench.execution.ray_environment import python_path
from bench.execution.resources import num_cores
from bench.execution.run_recorder import RunCallback
from bench.execution.scheduler import run_jobs
from bench.execution.workspace import Workspace
from bench.experiments import expansion
from bench.experiments.cells import to_json
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.grid_loading import make_grid
from bench.profiling import unique_memory_mb
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from bench.speed.rows import EXAMPLES, Row, not_measured
from bench.speed.workload import Setting, apart, median_seconds

_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
WORKLOAD = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "label-2", "local_epochs": 1}
MANY = {  # 25 runs per seed, each of one step of one client
    "dataset": ["digits"],
    "partition": ["label-1", "label-2", "label-3", "dir-0.1", "iid"],
    "algorithm": ["fedavg", "fedprox", "moon", "fedrs", "fedlc"],
}
TRIVIAL = {"clients": 10, "participation": 0.1, "rounds": 1, "local_steps": 1}


def trials(setting: Setting) -> list[Row]:
    """One and two trials of Ray Tune, and what Tune costs per trial once its workers are warm."""
    case = "processor time of a command with one short run"
    rows = [
        Row("scheduler overhead, warm workers", seconds_per_trial(), "s per trial", "target: 0.05 s"),
        Row(case, apart(1, command_cpu_seconds)[0], "s", "Ray's processes included")
        if sys.platform.startswith("linux")
        else not_measured(case, "needs Linux"),
    ]
    if num_cores() < 2:
        return [*rows, not_measured("two trials", "one core")]
    alone, together = (side_by_side(setting.folder, count) for count in (1, 2))
    return [
        *rows,
        Row("one trial, one core", alone, EXAMPLES),
        Row("two trials, two cores", together, EXAMPLES, f"{together / alone:.2f} of one trial"),
    ]


def scheduler(
    setting: Setting, count: int = 1000, growth: tuple[int, int] = (200, 2000), seeds: int = 100
) -> list[Row]:
    """2,500 trivial runs: seconds of the first 1,000, the driver's growth, and a Markdown report and `status` over all."""
    (first, last), seen, begin = growth, {}, time.perf_counter()

    def look(num_ended: int) -> None:
        if num_ended in (first, last, count):
            seen[num_ended] = time.perf_counter(), unique_memory_mb()

    with tempfile.TemporaryDirectory() as folder:
        store, axes = Store(Path(folder)), {**MANY, "seed": [*range(seeds)]}
        spec = make_grid("many", {"title": "Many runs", "axes": axes, "settings": TRIVIAL})
        cells = expansion.expand(spec, "paper")
        with store.locked():
            store.write_grid("many@paper", to_json(spec, "paper", {}, cells))
        ended = _run(store, [cell.config for cell in cells], look=look)
        failed = [record["reason"] for _, record in ended if record["status"] != "done"]
        if failed:  # these are quick
            raise RuntimeError(f"{len(failed)} of {len(ended)} runs were not done; the first: {failed[0]}")
        seconds = {}
        for command in (("report", "--format", "md"), ("status",)):
            seconds[command[0]] = median_seconds(lambda command=command: _bench(*command, "--results-dir", folder), 1)
    wall, memory = seen[count][0] - begin, [seen[place][1] for place in growth]
    case = f"driver's memory per trial, from {first:,} to {last:,}"
    return [
        Row(f"{count:,} trivial runs", wall, "s", f"{1000 * wall / count:.0f} ms per run; target on 2 cores: 90 s"),
        not_measured(case, "needs /proc")
        if None in memory
        else Row(case, (memory[1] - memory[0]) * 1000 / (last - first), "kB", "target: 50 kB"),
        Row(f"Markdown report over {len(cells):,} stored runs", seconds["report"], "s", "target: 3 s"),
        Row(f"status over {len(cells):,} stored runs", seconds["status"], "s", "target: 1 s"),
    ]


def command_cpu_seconds() -> float:
    """Processor seconds of `run` with one run of two rounds, and of all processes that it starts. To be called in a fresh
    process, which becomes the parent of those of Ray that outlive theirs, so that the system counts them as its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    setting = ("--algorithm", "fedavg", "--dataset", "digits", "--partition", "iid", "--gpus-per-trial", "0")
    with tempfile.TemporaryDirectory() as folder:
        _bench("run", *setting, "--set", "rounds=2,clients=10,local_steps=1", "--results-dir", folder)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_per_trial() -> float:
    """Scheduling time per trial once every worker has finished its first run, of two rounds on digits; setting up a run is
    counted as well."""
    workers = num_cores()
    runs = _seeds(3 * max(20, workers), dataset="digits", rounds=2)
    with tempfile.TemporaryDirectory() as folder:
        warm = _run(Store(Path(folder)), runs)[workers - 1 :]
    wall = warm[-1][0] - warm[0][0]
    return (wall * workers - sum(record["seconds"] for _, record in warm[1:])) / (len(warm) - 1)


def side_by_side(data_dir: Path, count: int, rounds: int = 3) -> float:
    """Examples per second, evaluation included, of W1 in this many trials at once, on one core each, and a GPU that they
    share if there is one; the first round only warms up."""
    gpus = f"{1 / count:.3g}" if torch.cuda.is_available() else "0"
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        ended = _run(store, _seeds(count, rounds=rounds), data_dir=data_dir, gpus=gpus, at_once=count)
        rows = [store.rows(record["id"]) for _, record in ended]
    return sum((last["examples"] - one["examples"]) / (last["seconds"] - one["seconds"]) for one, *_, last in rows)


def _seeds(count: int, **changes) -> list[RunConfig]:
    return [resolve({**WORKLOAD, **changes, "seed": seed}) for seed in range(count)]


def _bench(*words: str) -> None:
    paths = {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    command = [sys.executable, "-m", "bench", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | paths)


def _run(
    store: Store,
    configs: Iterable[RunConfig],
    *,
    data_dir: Path | None = None,
    gpus: str = "0",
    at_once: int = 0,
    look: Callable[[int], None] = lambda num_ended: None,
) -> list[tuple[float, dict]]:
    """Trains runs; look is called after each with how many have ended. Returns (moment, record) of each as they ended."""
    clock = _Clock(look)
    jobs = [Job(run_id(one), one, str(store.run_folder(run_id(one))), StateRetention(final="none")) for one in configs]
    with store.locked():
        machines = resources.Machines(resources.choose(1.0, gpus, None), at_once)
        run_jobs(jobs, Workspace(store, machines, ExecutionOptions(data_dir)), clock)
    return clock.ended


class _Clock(RunCallback):
    """Notes when each run ended, and its record."""

    def __init__(self, look: Callable[[int], None]):
        self.ended: list[tuple[float, dict]] = []
        self._look = look

    def on_end(self, job: Job, record: dict) -> None:
        self.ended.append((time.perf_counter(), record))
        self._look(len(self.ended))
