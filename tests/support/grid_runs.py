"""Small grids on digits, and what is on disk of their runs."""

import json
from pathlib import Path

import yaml

from bench.results.store import Store
from tests.support.processes import Driver, family, wait_until

GRID = {
    "title": "Six short runs",
    "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg", "scaffold"], "seed": [0, 1, 2]},
    "settings": {"clients": 10, "rounds": 12, "local_epochs": 1, "batch_size": 16},
}
SHORT = {"rounds": 2, "clients": 5, "local_epochs": 1, "batch_size": 16, "model": "mlp"}
LONG = {"rounds": 60, "local_epochs": 3}  # long enough to be interrupted several times, also on a fast machine
STAGES = {"num_clusters": 2, "encoder_rounds": 45, "classifier_rounds": 15}
TIMES = {
    "seconds",
    "base_seconds",
    "cpu_seconds",
    "base_cpu_seconds",
    "started",
    "finished",
    "peak_memory_mb",
    "unique_memory_mb",
    "sha256",
}


def write_grid(folder: Path, **changes) -> Path:
    path = folder / "six.yaml"
    path.write_text(yaml.safe_dump(GRID | changes))
    return path


def records(results: Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in results.glob("runs/*/record.json")}


def configs(results: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in results.glob("runs/*/config.json")]


def metrics(results: Path) -> dict[str, list]:
    """Everything a run measured that is not a time."""
    timed = ("seconds", "examples_per_second")
    rows = {run_id: Store(results).rows(run_id) for run_id in records(results)}
    return {run_id: [{k: v for k, v in row.items() if k not in timed} for row in run] for run_id, run in rows.items()}


def untimed(results: Path) -> dict[str, list]:
    """Everything that records say but for times and memory, and the rounds and configs."""
    found = {
        run: {key: value for key, value in record.items() if key not in TIMES}
        for run, record in records(results).items()
    }
    return {run: [record, metrics(results)[run], Store(results).config(run)] for run, record in found.items()}


def workers_of(driver: Driver) -> list[int]:
    """Ids of the processes that train the driver's runs."""
    return [pid for pid, command in family(driver.pid).items() if command.startswith("ray::ResourceTrainable")]


def wait_for_records(results: Path, count: int, driver: Driver) -> None:
    wait_until(lambda: len(records(results)) >= count, driver)


def wait_for_rounds(results: Path, count: int, driver: Driver, runs: int = 1) -> None:
    """Until so many runs that have not ended have so many rounds, and this driver has written them, not one before it."""

    def far_enough() -> bool:
        return sum(_rounds(path, driver) >= count for path in results.glob("runs/*/rounds.jsonl")) >= runs

    wait_until(far_enough, driver)


def _rounds(path: Path, driver: Driver) -> int:
    try:
        fresh = path.stat().st_mtime >= driver.started and not path.with_name("record.json").exists()
        return len(path.read_text().splitlines()) if fresh else 0
    except FileNotFoundError:  # the driver has just started the run anew
        return 0
