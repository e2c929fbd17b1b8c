"""What trials of Ray Tune cost beyond their training: time of the scheduler, memory, each other's speed, and reports."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution import ray_environment, resources, scheduler
from bench.execution.job import Job
from bench.experiments import expansion
from bench.experiments.cells import Cell, to_json
from bench.experiments.grid_loading import make_grid
from bench.profiling import unique_memory_mb
from bench.results.metrics import summarise
from bench.results.schema import SCHEMA
from bench.results.store import Store
from bench.simulation.retention import StateRetention

WORKLOAD = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "label-2", "local_epochs": 1}
SHORT = {"algorithm": "fedavg", "dataset": "digits", "partition": "label-2", "rounds": 2, "local_epochs": 1}
TRIVIAL = {  # one step of one client
    "algorithm": "fedavg",
    "dataset": "digits",
    "partition": "label-2",
    "clients": 10,
    "participation": 0.1,
    "rounds": 1,
    "local_steps": 1,
}


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
    ended = _play(SHORT, count).ended
    workers = os.cpu_count()
    warm = ended[workers - 1 :]
    wall = warm[-1][0] - warm[0][0]
    return (wall * workers - sum(record["seconds"] for _, record in warm[1:])) / (len(warm) - 1)


def side_by_side(data_dir: Path, count: int, rounds: int = 3) -> list[Trial]:
    """The workload of the speed benchmark in this many trials at once, on one core each, and a GPU that they share if
    there is one; the first round only warms up."""
    import torch

    gpus = f"{1 / count:.3g}" if torch.cuda.is_available() else "0"
    played = _play({**WORKLOAD, "rounds": rounds}, count, data_dir=data_dir, gpus=gpus, max_concurrent=count)
    trials = []
    for (_, record), rows in zip(played.ended, played.rows, strict=True):
        first, last = rows[0], rows[-1]
        rate = (last["examples"] - first["examples"]) / (last["seconds"] - first["seconds"])
        trials.append(Trial(rate, record["unique_memory_mb"]))
    return trials


def wall_of_many(count: int = 1000) -> float:
    """Seconds that trivial runs take, from their settings to the last record, Ray's start and end included."""
    begin = time.perf_counter()
    played = _play(TRIVIAL, count, read=False)
    _check_done(played)
    return time.perf_counter() - begin


def memory_per_trial(first: int = 200, last: int = 2000) -> float | None:
    """Bytes by which the driver grows per trivial run, between the end of one run and that of a later one; None where
    the system does not tell."""
    memory = []

    def look(num_ended: int) -> None:
        if num_ended in (first, last):
            memory.append(unique_memory_mb())

    _check_done(_play(TRIVIAL, last, read=False, look=look))
    return None if None in memory else (memory[1] - memory[0]) * 1e6 / (last - first)


def report_seconds(num_seeds: int = 100) -> tuple[int, float]:
    """Seconds of the command `report --format md` over 25 stored runs per seed, from its start to its end.

    Returns:
        Number of runs, seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        count = write_store(Path(folder), num_seeds)
        command = [sys.executable, "-m", "bench", "report", "--format", "md", "--results-dir", folder]
        paths = {"PYTHONPATH": ray_environment.python_path(os.environ.get("PYTHONPATH"))}
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | paths)
        return count, time.perf_counter() - begin


def write_store(folder: Path, num_seeds: int, rounds: int = 50) -> int:
    """A result store as if a grid of five partitions and five methods had been played; returns the number of runs."""
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


@dataclass(frozen=True)
class _Played:
    """Runs in the order in which they ended: (moment, record) of each, and its rows if they were to be read."""

    ended: list[tuple[float, dict]]
    rows: list[list[dict]]


def _play(
    settings: dict,
    count: int,
    *,
    data_dir: Path | None = None,
    gpus: str = "0",
    max_concurrent: int = 0,
    read: bool = True,
    look: Callable[[int], None] = lambda num_ended: None,
) -> _Played:
    """Plays a setting with so many seeds; look is told after each run how many have ended."""
    clock = _Clock(look)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        configs = [resolve({**settings, "seed": seed}) for seed in range(count)]
        jobs = [Job(run_id(c), c, str(store.run_folder(run_id(c))), StateRetention(final="none")) for c in configs]
        with store.locked():
            share = resources.choose(1.0, gpus, None)
            scheduler.run_jobs(
                jobs, store, clock, data_dir=data_dir, machines=resources.Machines(share, max_concurrent)
            )
            rows = [store.rows(record["id"]) for _, record in clock.ended_at] if read else []
            return _Played(clock.ended_at, rows)


def _check_done(played: _Played) -> None:
    """Runs that fail are quick."""
    failed = [record["reason"] for _, record in played.ended if record["status"] != "done"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(played.ended)} runs were not done; the first: {failed[0]}")


class _Clock:
    """Notes when each run ended, and its record without the rows; tells how many have ended."""

    def __init__(self, look: Callable[[int], None]):
        self.ended_at: list[tuple[float, dict]] = []
        self._look = look

    def on_start(self, job) -> None:
        pass

    def on_message(self, text) -> None:
        pass

    def on_postponed(self, job) -> None:
        pass

    def on_note(self, job, note) -> None:
        pass

    def on_progress(self, job, rounds) -> None:
        pass

    def on_end(self, job, record) -> None:
        self.ended_at.append((time.perf_counter(), record))
        self._look(len(self.ended_at))
