"""GPUs that are not there: Ray counts them, torch is said to see them, and what trials need of them is made up."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.execution import gpu_sharing, ray_environment, ray_session, resources, scheduler
from bench.execution.gpu_sharing import Profile
from bench.execution.gpus import NO_GPU
from bench.execution.worker import Worker, WorkerReport
from bench.tuning import runner
from tests.support.grid_runs import GRID, SHORT, records, write_grid
from tests.support.processes import Driver, call_bench
from tests.support.ray_cluster import running_cluster

import ray  # isort: skip

pytestmark = pytest.mark.slow
FITS = 0.75  # share of a GPU that several seeds together really need


def pretended_profile(config, data_dir, block, engine, own_data, tf32) -> Profile:
    return Profile(used_mb=600 + 1000, total_mb=16_000, busy=0.05)


def seen(path: Path) -> list[dict]:
    """Where trials were trained, in the order in which they began."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class PretendedWorker(Worker):
    """Trains on the CPU, and notes where Ray has placed it; several seeds are out of memory with too small a share."""

    def __init__(self, job, data_dir, share, seeds):
        super().__init__(job, data_dir, "cpu")
        self._share, self._seeds, self._is_noted = share, seeds, False

    def step(self, until_round=None):
        found = ray.get_runtime_context().get_assigned_resources()
        if not self._is_noted:
            with open(os.environ["PRETENDED_LOG"], "a") as file:
                one = {
                    "run": self._job.id,
                    "gpu": found.get("GPU", 0),
                    "ids": ray.get_gpu_ids(),
                    "device": self._share.device,
                }
                file.write(json.dumps(one) + "\n")
            self._is_noted = True
        if self._seeds > 1 and found.get("GPU", 0) < FITS:
            return WorkerReport(out_of_memory=True)
        return super().step(until_round)


class PretendedTrial(scheduler.JobTrainable):
    def new_worker(self, job):
        return PretendedWorker(job, self._data_dir, self._resources, 1)


class PretendedConfiguration(runner.Configuration):
    def new_worker(self, job):
        return PretendedWorker(job, self._data_dir, self._resources, len(self._search.configs))


@pytest.fixture
def log(tmp_path, monkeypatch) -> Iterator[Path]:
    """A file in which workers note where they are."""
    path = tmp_path / "log.jsonl"
    monkeypatch.setenv("PRETENDED_LOG", str(path))
    monkeypatch.setenv("PYTHONPATH", ray_environment.python_path(None))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scheduler, "JobTrainable", PretendedTrial)
    monkeypatch.setattr(runner, "Configuration", PretendedConfiguration)
    monkeypatch.setattr(gpu_sharing, "measure", pretended_profile)
    yield path


@pytest.fixture(params=[2])
def gpus(request, monkeypatch) -> int:
    """This machine has so many GPUs, for Ray and for torch."""

    def start_ray(threads, folder):
        ray_environment.prepare_local(threads)
        ray.init(
            address="local",
            num_cpus=16,
            num_gpus=request.param,
            include_dashboard=False,
            object_store_memory=2**27,
            log_to_driver=False,
            _temp_dir=str(folder),
        )

    monkeypatch.setattr(resources, "_num_gpus", lambda: request.param)
    monkeypatch.setattr(ray_session, "_start_local", start_ray)
    monkeypatch.setattr(ray_session, "sees_gpu", lambda: True)
    return request.param


def test_gpus_are_used_without_being_asked_for_in_a_grid_and_in_its_searches(gpus, log, tmp_path):
    """Three seeds of a configuration need three times the memory of one; where that is not enough, twice the share. Four trials
    at once lie on both GPUs, although four of them fit on one."""
    grid = write_grid(
        tmp_path, axes=GRID["axes"] | {"algorithm": ["fedavg", "fedprox"]}, settings=GRID["settings"] | SHORT
    )
    results = tmp_path / "results"
    code, output = call_bench(
        "run", "--grid", grid, "--results-dir", results, "--tuned", "validation", "--samples", 2, "--max-concurrent", 4
    )
    assert code == 0, output
    assert "This machine, 16 of 16 CPUs free, 2 of 2 GPUs free." in output
    # Of 16,000 MB 85 % are for trials: 8 of 1,600 MB, or 3 of 600 + 3 x 1,000 MB; four trials at once are two on each GPU.
    assert "so 8 at once (bounded by its memory)" in output and "so 3 at once (bounded by its memory)" in output
    assert "3 seeds together: out of GPU memory, so 1 at once instead of 2" in output
    trials = seen(log)
    assert {one["device"] for one in trials} == {"cuda"} and all(one["ids"] for one in trials)
    searched, trained = trials[:-6], trials[-6:]
    assert {one["gpu"] for one in searched} == {0.5, 1.0}
    assert {one["gpu"] for one in trained} == {0.5}
    assert "6 done, 0 diverged, 0 failed." in output
    assert {one["status"] for one in records(results).values()} == {"done"}


@pytest.mark.parametrize("gpus", [1], indirect=True)
def test_a_search_of_one_method_shares_a_gpu_by_the_needs_of_its_seeds(gpus, log, tmp_path):
    setting = ("--algorithm", "fedprox", "--dataset", "digits", "--partition", "label-2", "--seeds", "0,1")
    small = ("--set", ",".join(f"{key}={value}" for key, value in SHORT.items()))
    search = ("--searcher", "random", "--samples", 2, "--max-concurrent", 2)
    code, output = call_bench("tune", *setting, *small, *search, "--results-dir", tmp_path / "results")
    assert code == 0, output
    # Two seeds need 600 + 2 x 1,000 MB: 5 fit, of which there are 2, and half as many where they do not fit.
    assert "so 5 at once (bounded by its memory)" in output
    assert "2 seeds together: out of GPU memory, so 1 at once instead of 2" in output
    searched, trained = seen(log)[:-2], seen(log)[-2:]
    assert {one["gpu"] for one in searched} == {0.5, 1.0} and {one["gpu"] for one in trained} == {0.5}


def pretend_on_a_cluster() -> None:
    """What a driver of a cluster runs first; workers get these modules with the others."""
    ray_environment.PACKAGES = (*ray_environment.PACKAGES, "tests")
    scheduler.inspect_machine, scheduler.JobTrainable = pretended_inspection, PretendedTrial
    gpu_sharing.measure = pretended_profile


def test_on_a_cluster_gpus_that_torch_does_not_see_are_named_before_any_run_and_left_alone(tmp_path, monkeypatch):
    """Torch sees that of the second machine only; it must not have trained all runs before the third has started."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    log = tmp_path / "log.jsonl"
    grid = write_grid(tmp_path, axes=GRID["axes"] | {"seed": [0, 1, 2]}, settings=GRID["settings"] | SHORT)
    noted = {"PRETENDED_LOG": str(log)}
    nodes = [
        {"CPU": 1},
        {"CPU": 1, "GPU": 1, "env": noted | {"PRETENDED_GPU": "1"}},
        {"CPU": 1, "GPU": 1, "env": noted},
    ]
    before = f"from {__name__} import pretend_on_a_cluster; pretend_on_a_cluster()"
    with running_cluster(nodes) as cluster:
        where = ("--address", cluster.address, "--storage", tmp_path / "shared", "--results-dir", tmp_path / "results")
        driver = Driver("--grid", grid, *where, before=before)
        output = driver.ended()
    assert driver.returncode == 0, output
    assert output.count("takes no more runs: A run was given a GPU there, but torch sees none.") == 1
    assert output.index("takes no more runs") < output.index("one trial needs 1,600 MB")
    assert "6 done, 0 diverged, 0 failed." in output
    assert {one["gpu"] for one in seen(log)} == {1.0}


def pretended_inspection(runs, data_dir, device) -> str:
    return "" if device == "cuda" and "PRETENDED_GPU" in os.environ else NO_GPU
