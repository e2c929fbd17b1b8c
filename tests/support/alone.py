"""A grid trained without a scheduler: what every way to train it must end in. Programs that train without Ray or packages."""

from pathlib import Path

import torch

from bench.execution.job import Job
from bench.execution.run_recorder import RunCallback, RunRecorder
from bench.execution.worker import Worker
from bench.execution.workspace import Workspace
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from reports import api

# Put before a command in a program: its runs are then trained in its own process.
WITHOUT_RAY = """
from bench.execution import scheduler
from tests.support.alone import run_jobs_alone
scheduler.run_jobs = run_jobs_alone
"""
# A worker on a machine that has nothing but torch; its arguments follow.
WORKER_WITHOUT_PACKAGES = """
import sys
for name in "ray pydantic submitit optuna pandas typer rich tensorboardX pyarrow matplotlib tabulate vl_convert yaml".split():
    sys.modules[name] = None
from bench.worker import main
sys.exit(main(sys.argv[1:]))
"""


def train_alone(grid_file: Path, results: Path, budget: str = "paper") -> Path:
    """Plays the runs of a grid file one after another in this process, and writes its tables; returns the results directory."""
    grid, threads = load_grid(str(grid_file)), torch.get_num_threads()
    torch.set_num_threads(1)  # as workers have: the number of threads changes how sums are rounded
    try:
        with Store(results).locked() as store:
            cells, recorder = expand(grid, budget), RunRecorder(store)
            store.write_grid(f"{grid.name}@{budget}", to_json(grid, budget, {}, cells))
            for cell in cells:
                run_job_alone(
                    Job(cell.id, cell.config, str(store.unfinished_folder(cell.id)), StateRetention()), recorder
                )
    finally:
        torch.set_num_threads(threads)
    api.GridReport(results, grid.name, budget).write()
    return results


def run_jobs_alone(jobs: list[Job], workspace: Workspace, callback: RunCallback, tracker: object = None) -> None:
    """`bench.execution.scheduler.run_jobs` in this process, one job after another."""
    store, recorder = workspace.store, RunRecorder(workspace.store)
    for job in sorted(jobs, key=lambda job: bool(job.base)):
        callback.on_start(job)
        callback.on_end(job, run_job_alone(job, recorder, store.base_fields(Path(job.base).name) if job.base else {}))


def run_job_alone(job: Job, recorder: RunRecorder, more: dict | None = None) -> dict:
    """Plays one job and returns its record.

    Args:
        more: goes into the record.
    """
    worker, result = Worker(job, None, "cpu"), None
    recorder.start(job.id, job.config.canonical())
    while not result:
        report = worker.step()
        recorder.update(job.id, report.start, report.rows)
        result = report.result
    return recorder.end(job.id, result | (more or {}))
