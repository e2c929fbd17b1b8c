"""Trials that share GPUs: Ray with pretended GPUs, a pretended profile and workers that only pretend to train."""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution import fleet, gpu_sharing, ray_environment, ray_session, scheduler
from bench.execution.gpu_sharing import Profile
from bench.execution.gpus import NO_GPU
from bench.execution.job import Job
from bench.execution.resources import Machines, Resources
from bench.execution.worker import WorkerReport
from bench.execution.workspace import Workspace
from bench.results.store import Store
from bench.simulation.retention import StateRetention

import ray  # isort: skip

pytestmark = pytest.mark.slow
FITS = 0.5  # share of a GPU that a run really needs
LOST = "PRETENDED_LOST"  # the GPUs that are lost, with commas; Ray knows them by these names
PLACES = "PRETENDED_PLACES"  # how many runs fit at once, on the other GPUs


def pretended_profile(config, data_dir, block, engine, own_data, tf32) -> Profile:
    return Profile(used_mb=1000, total_mb=100_000, busy=0.2)


def is_lost() -> bool:
    return {str(gpu) for gpu in ray.get_gpu_ids()} <= {*os.environ.get(LOST, "").split(",")}


class PretendedWorker:
    """Says that it is out of memory with less than it needs, or has lost its GPU; else leaves in the folder of its run when and
    where it worked."""

    def __init__(self, job: Job, share: Resources):
        self._job, self._share = job, share

    def step(self) -> WorkerReport:
        begin, own = time.time(), Path(self._job.folder)
        if is_lost():
            (own / "lost").touch()
            return WorkerReport(machine_error=NO_GPU)
        if self._share.gpus < FITS:
            return WorkerReport(out_of_memory=True)
        (own / "begun").touch()
        expected = {"*/begun": int(os.environ[PLACES]), "*/lost": int(bool(os.environ[LOST]))}
        while time.time() < begin + 120 and any(len([*own.parent.glob(one)]) < expected[one] for one in expected):
            time.sleep(0.1)  # whoever comes first waits for its neighbours
        seen = {"begin": begin, "end": time.time(), "share": self._share.gpus, "gpus": ray.get_gpu_ids()}
        (own / "seen.json").write_text(json.dumps(seen))
        return WorkerReport(result={"status": "done", "summary": dict.fromkeys(("last", "best", "last10"), {})})


class PretendedTrial(scheduler.JobTrainable):
    def new_worker(self, job):
        return PretendedWorker(job, self._resources)


class PretendedGpu(fleet.HeldGpu):
    def works(self):
        return not is_lost()


class RunCallback:
    def __init__(self):
        self.heard, self.waiting = [], 0

    def on_message(self, text):
        self.heard.append(text)

    def on_postponed(self, job):
        self.waiting += 1

    def on_start(self, job): ...
    def on_end(self, job, record): ...


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Runs four jobs on so many GPUs, of which some are lost: what the runs have seen, and what was said."""

    def on(gpus: int, share: Resources, lost: str = "") -> tuple[list[dict], RunCallback]:
        def start_ray(threads, folder):
            ray_environment.require_own_token()
            ray.init(
                address="local",
                num_cpus=4,
                num_gpus=gpus,
                include_dashboard=False,
                object_store_memory=2**27,
                log_to_driver=False,
                _temp_dir=str(folder),
            )

        monkeypatch.setenv(LOST, lost)
        monkeypatch.setenv(PLACES, str(int((gpus - bool(lost)) / FITS)))
        monkeypatch.setenv("PYTHONPATH", ray_environment.python_path(None))
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # Ray sets them; as they were, afterwards
            monkeypatch.setenv(name, "")
        monkeypatch.setattr(ray_session, "_start_local", start_ray)
        monkeypatch.setattr(scheduler, "JobTrainable", PretendedTrial)
        monkeypatch.setattr(gpu_sharing, "measure", pretended_profile)
        monkeypatch.setattr(fleet, "HeldGpu", PretendedGpu)
        flat = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid"}
        configs = [resolve(flat | {"seed": seed}) for seed in range(4)]
        callback = RunCallback()
        with Store(tmp_path).locked() as store:
            jobs = [
                Job(run_id(one), one, str(store.unfinished_folder(run_id(one))), StateRetention()) for one in configs
            ]
            scheduler.run_jobs(jobs, Workspace(store, Machines(share)), callback)
            assert [store.record(job.id)["status"] for job in jobs] == ["done"] * 4
        return [json.loads((Path(job.folder) / "seen.json").read_text()) for job in jobs], callback

    return on


MEASURED, GIVEN = Resources(0.5, 1.0, "cuda", auto=True), Resources(0.5, 0.25, "cuda")
FITTING = Resources(0.5, FITS, "cuda")


def test_a_profile_packs_trials_and_those_that_do_not_fit_are_played_again_with_more_room(play, tmp_path):
    seen, callback = play(1, MEASURED)
    assert {one["share"] for one in seen} == {FITS}
    assert all(len(one["gpus"]) == 1 for one in seen)
    at_once = [sum(one["begin"] <= moment["begin"] < one["end"] for one in seen) for moment in seen]
    assert max(at_once) == 2, "two halves of a GPU"
    assert callback.waiting == 4
    machine, first, *later = callback.heard
    assert machine == "This machine, 4 of 4 CPUs free, 1 of 1 GPUs free."
    assert "one trial needs 1,000 MB and 20 % of a GPU's time, so 4 at once" in first
    assert all("out of GPU memory, so 2 at once instead of 4" in text for text in later)
    (kinds,) = json.loads((tmp_path / "shares.json").read_text()).values()
    assert [kind["at_least"] for kind in kinds.values()] == [FITS]


@pytest.mark.parametrize("share", [MEASURED, GIVEN], ids=["measured", "given"])
def test_trials_are_spread_over_all_gpus_and_fit_where_four_on_one_would_not(share, play):
    seen, callback = play(2, share)
    assert {one["share"] for one in seen} == {0.5}
    assert Counter(str(gpu) for one in seen for gpu in one["gpus"]) == {"0": 2, "1": 2}
    assert callback.waiting == 0 and not any("out of GPU memory" in text for text in callback.heard)


def test_the_runs_of_a_lost_gpu_are_trained_on_the_others(play):
    seen, callback = play(2, FITTING, lost="0")
    assert {str(gpu) for one in seen for gpu in one["gpus"]} == {"1"}
    said = f"Of the 2 GPUs of this machine, 1 gets no more runs: {NO_GPU}."
    assert callback.heard[1:].count(said) == 1


def test_without_any_gpu_that_works_the_command_ends_with_a_sentence_and_no_run_fails(play, tmp_path):
    with pytest.raises(ValueError, match=f"This machine cannot go on: {NO_GPU}. Nothing is lost"):
        play(2, FITTING, lost="0,1")
    assert not Store(tmp_path).records()
