"""Trials of Ray Tune: what they cost beyond their training in time and memory, each other's speed, and reports on them."""

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution import resources
from bench.execution.job import Job
from bench.execution.ray_environment import python_path
from bench.execution.run_recorder import RunCallback
from bench.execution.scheduler import run_jobs
from bench.experiments import expansion
from bench.experiments.cells import Cell, to_json
from bench.experiments.grid_loading import make_grid
from bench.profiling import unique_memory_mb
from bench.results.metrics import summarise
from bench.results.schema import SCHEMA
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from bench.speed.rows import EXAMPLES, Row, not_measured
from bench.speed.workload import Setting, apart

_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
WORKLOAD = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "label-2", "local_epochs": 1}
SHORT = WORKLOAD | {"dataset": "digits", "rounds": 2}
TRIVIAL = {  # one step of one client
    "algorithm": "fedavg",
    "dataset": "digits",
    "partition": "label-2",
    "clients": 10,
    "participation": 0.1,
    "rounds": 1,
    "local_steps": 1,
}


def trials(setting: Setting) -> list[Row]:
    """One and two trials of Ray Tune, and what Tune costs per trial once its workers are warm."""
    rows = [_warm(), _command()]
    if os.cpu_count() < 2:
        return [*rows, not_measured("two trials", "one core")]
    (alone, _), (together, memory) = (side_by_side(setting.folder, count) for count in (1, 2))
    case = "memory that a second trial adds (unique set size)"
    return [
        *rows,
        Row("one trial, one core", alone, EXAMPLES),
        Row("two trials, two cores", together, EXAMPLES, f"{together / alone:.2f} of one trial"),
        not_measured(case, "needs /proc") if memory is None else Row(case, memory, "MB"),
    ]


def scheduler(
    setting: Setting, count: int = 1000, growth: tuple[int, int] = (200, 2000), seeds: int = 100
) -> list[Row]:
    """A thousand trivial runs, the driver's memory over two thousand, and a Markdown report and `status` over 2,500."""
    wall, grown = wall_of_many(count), memory_per_trial(*growth)
    case = f"driver's memory per trial, from {growth[0]:,} to {growth[1]:,}"
    num_runs, seconds = command_seconds(seeds)
    return [
        _warm(),
        Row(f"{count:,} trivial runs", wall, "s", f"{1000 * wall / count:.0f} ms per run; target on 2 cores: 90 s"),
        not_measured(case, "needs /proc") if grown is None else Row(case, grown / 1000, "kB", "target: 50 kB"),
        Row(f"Markdown report over {num_runs:,} stored runs", seconds["report"], "s", "target: 3 s"),
        Row(f"status over {num_runs:,} stored runs", seconds["status"], "s", "target: 1 s"),
    ]


def _warm() -> Row:
    return Row("scheduler overhead, warm workers", seconds_per_trial(), "s per trial", "target: 0.05 s")


def _command() -> Row:
    case = "processor time of a command with one short run"
    if not sys.platform.startswith("linux"):
        return not_measured(case, "needs Linux")
    return Row(case, apart(1, command_cpu_seconds)[0], "s", "Ray's processes included")


def command_cpu_seconds() -> float:
    """Processor seconds of `run` with one run of two rounds, and of all processes that it starts. To be called in a fresh
    process, which becomes the parent of those of Ray that outlive theirs, so that the system counts them as its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    options = ["--algorithm", "fedavg", "--dataset", "digits", "--partition", "iid", "--gpus-per-trial", "0"]
    options += ["--set", "rounds=2,clients=10,local_steps=1"]
    paths = {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench", "run", *options, "--results-dir", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | paths)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_per_trial(count: int = 60) -> float:
    """Scheduling time per trial once every worker has finished its first run; setting up a run is counted as well.

    Args:
        count: runs of two rounds on digits, at least one more than there are cores.
    """
    ended, _ = _run(SHORT, count)
    workers = os.cpu_count()
    warm = ended[workers - 1 :]
    wall = warm[-1][0] - warm[0][0]
    return (wall * workers - sum(record["seconds"] for _, record in warm[1:])) / (len(warm) - 1)


def side_by_side(data_dir: Path, count: int, rounds: int = 3) -> tuple[float, float | None]:
    """The workload of the speed benchmark in this many trials at once, on one core each, and a GPU that they share if
    there is one; the first round only warms up.

    Returns:
        Examples per second of all trials together, evaluation included; the last trial's unique memory in MB, None where
        the system does not tell.
    """
    gpus = f"{1 / count:.3g}" if torch.cuda.is_available() else "0"
    ended, rows = _run({**WORKLOAD, "rounds": rounds}, count, data_dir=data_dir, gpus=gpus, max_concurrent=count)
    rates = [(last["examples"] - first["examples"]) / (last["seconds"] - first["seconds"]) for first, *_, last in rows]
    return sum(rates), ended[-1][1]["unique_memory_mb"]


def wall_of_many(count: int = 1000) -> float:
    """Seconds that trivial runs take, from their settings to the last record, Ray's start and end included."""
    begin = time.perf_counter()
    _check_done(_run(TRIVIAL, count, read=False)[0])
    return time.perf_counter() - begin


def memory_per_trial(first: int = 200, last: int = 2000) -> float | None:
    """Bytes by which the driver grows per trivial run, between the end of one run and that of a later one; None where
    the system does not tell."""
    memory = []

    def look(num_ended: int) -> None:
        if num_ended in (first, last):
            memory.append(unique_memory_mb())

    _check_done(_run(TRIVIAL, last, read=False, look=look)[0])
    return None if None in memory else (memory[1] - memory[0]) * 1e6 / (last - first)


def command_seconds(num_seeds: int = 100) -> tuple[int, dict[str, float]]:
    """Seconds of the commands `report --format md` and `status` over 25 stored runs per seed, from their start to their end.

    Returns:
        Number of runs, command -> seconds.
    """
    paths = {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    with tempfile.TemporaryDirectory() as folder:
        count, seconds = write_store(Path(folder), num_seeds), {}
        for name, *options in (("report", "--format", "md"), ("status",)):
            command = [sys.executable, "-m", "bench", name, *options, "--results-dir", folder]
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | paths)
            seconds[name] = time.perf_counter() - begin
        return count, seconds


def write_store(folder: Path, num_seeds: int, rounds: int = 50) -> int:
    """A result store as if a grid of five partitions and five methods had run; returns the number of runs."""
    axes = {
        "dataset": ["digits"],
        "partition": ["label-1", "label-2", "label-3", "dir-0.1", "iid"],
        "algorithm": ["fedavg", "fedprox", "moon", "fedrs", "fedlc"],
        "seed": list(range(num_seeds)),
    }
    spec = make_grid("many", {"title": "Many runs", "axes": axes, "settings": {"rounds": rounds, "clients": 10}})
    cells = expansion.expand(spec, "paper")
    store = Store(folder)
    with store.locked():
        store.write_grid("many@paper", to_json(spec, "paper", {}, cells))
        for cell in cells:
            _write_run(store.run_folder(cell.id), cell, rounds)
    return len(cells)


def _write_run(folder: Path, cell: Cell, rounds: int) -> None:
    accuracy = {"accuracy": 0.5 + (cell.config.seed % 7) / 100, "loss": 1.0}
    rows = [{"round": number, "examples": 100 * number, **accuracy} for number in range(1, rounds + 1)]
    record = {
        "id": cell.id,
        "schema": SCHEMA,
        "status": "done",
        "reason": "",
        "summary": summarise(rows),
        "rounds": rounds,
        "seconds": 1.0,
        "bytes_per_client": 1000,
        "data": {"kind": "digits", "digest": "0badcafe"},
        "data_note": "",
        "caveats": [],
        "diagnostics": {},
        "device": "cpu",
        "versions": {"python": "3", "torch": "2", "numpy": "2", "ray": "2", "skewbench": "0"},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(cell.config.canonical()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "record.json").write_text(json.dumps(record))


def _run(
    settings: dict,
    count: int,
    *,
    data_dir: Path | None = None,
    gpus: str = "0",
    max_concurrent: int = 0,
    read: bool = True,
    look: Callable[[int], None] = lambda num_ended: None,
) -> tuple[list[tuple[float, dict]], list[list[dict]]]:
    """Runs a setting with so many seeds; look is called after each run with how many have ended. Returns, in the order in
    which runs ended, (moment, record) of each, and its rows if they were to be read."""
    clock = _Clock(look)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        configs = [resolve({**settings, "seed": seed}) for seed in range(count)]
        jobs = [Job(run_id(c), c, str(store.run_folder(run_id(c))), StateRetention(final="none")) for c in configs]
        with store.locked():
            machines = resources.Machines(resources.choose(1.0, gpus, None), max_concurrent)
            run_jobs(jobs, store, clock, data_dir=data_dir, machines=machines)
            return clock.ended, [store.rows(record["id"]) for _, record in clock.ended] if read else []


def _check_done(ended: list[tuple[float, dict]]) -> None:
    """Runs that fail are quick."""
    failed = [record["reason"] for _, record in ended if record["status"] != "done"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(ended)} runs were not done; the first: {failed[0]}")


class _Clock(RunCallback):
    """Notes when each run ended, and its record without the rows; tells how many have ended."""

    def __init__(self, look: Callable[[int], None]):
        self.ended: list[tuple[float, dict]] = []
        self._look = look

    def on_end(self, job: Job, record: dict) -> None:
        self.ended.append((time.perf_counter(), record))
        self._look(len(self.ended))
