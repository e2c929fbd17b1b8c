"""Runs without Ray: plain processes of this machine, and jobs of a Slurm that is not there (see `tests.support.fake_slurm`)."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from bench import api
from bench.config.resolve import resolve
from bench.errors import StoreError
from bench.execution import job_file, resources, run_recorder, submitted
from bench.execution.gpus import NO_GPU
from bench.execution.job import Job
from bench.execution.resources import Resources
from bench.execution.run_recorder import JobRecorder
from bench.execution.slurm_options import read_slurm
from bench.execution.worker import WorkerReport
from bench.execution.workspace import Workspace
from bench.experiments.execution_options import ExecutionOptions
from bench.results.artifacts import Folder
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from tests.support import fake_slurm
from tests.support.alone import WORKER_WITHOUT_PACKAGES, train_alone
from tests.support.grid_runs import GRID, LONG, metrics, records, untimed, wait_for_rounds, write_grid
from tests.support.lab_files import FILES
from tests.support.processes import ROOT, Driver, call_bench, family, wait_until

SLURM = ("--executor", "slurm", "--slurm", "time=1:00:00,partition=short")


def processes(driver: Driver) -> list[int]:
    """Those that train for the driver."""
    return [pid for pid, command in family(driver.pid).items() if "bench.worker" in command]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pids: list[int]) -> None:
    """A process without a driver ends after a round at most."""
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """The folder with what is known of the jobs of a pretended Slurm."""
    states = tmp_path / "slurm"
    states.mkdir()
    programs = fake_slurm.programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(fake_slurm.VARIABLE, str(states))
    return states


@pytest.mark.slow
def test_records_are_the_same_whatever_executes_the_runs(ray_session, slurm, tmp_path):
    axes = GRID["axes"] | {"algorithm": ["scaffold", "ccvr", "fedconcat"], "seed": [0]}
    settings = {**GRID["settings"], "rounds": 3, "model": "mlp", "encoder_rounds": 2, "classifier_rounds": 1}
    grid = write_grid(tmp_path, axes=axes, settings=settings, save_rounds=[2])
    stored = ("--executor", "local", "--storage", tmp_path / "storage")
    found = {}
    for name, more in {"ray": (), "local": stored, "slurm": SLURM}.items():
        where = ("--grid", grid, "--results-dir", tmp_path / name, "--keep-state", "all")
        code, output = call_bench("run", *where, *more)
        assert code == 0 and "4 done, 0 diverged, 0 failed" in output, output
        found[name] = untimed(tmp_path / name)
    assert found["ray"] == found["local"] == found["slurm"] and len(found["ray"]) == 4
    states = {name: {run: Store(tmp_path / name).states(run) for run in found[name]} for name in found}
    assert states["ray"] == states["local"] == states["slurm"] and any(map(len, states["ray"].values()))
    assert not any((tmp_path / name / "jobs").exists() for name in found)
    assert not list((tmp_path / "storage").glob("*/*"))


@pytest.mark.slow
def test_however_processes_end_runs_go_on_and_nothing_is_lost(tmp_path):
    """Workers killed, and asked to end; the driver killed, and stopped."""
    grid = write_grid(tmp_path, axes=GRID["axes"] | {"seed": [0]}, settings=GRID["settings"] | LONG)
    results = tmp_path / "results"
    command = ("--grid", grid, "--results-dir", results, "--executor", "local", "--checkpoint-seconds", 0)

    driver = Driver(*command, "--max-concurrent", 1)
    wait_for_rounds(results, 3, driver)
    (worker,) = processes(driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.ended()
    wait_until_ended([worker])
    assert (results / "jobs").exists() and not records(results)

    driver = Driver(*command, "--max-concurrent", 1)
    wait_for_rounds(results, 5, driver)
    assert driver.printed().count("continues after round") == 1
    (worker,) = processes(driver)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: driver.printed().count("continues after round") == 2, driver)
    (worker,) = processes(driver)
    os.kill(worker, signal.SIGTERM)
    wait_until(lambda: driver.printed().count("continues after round") == 3, driver)
    assert (left := processes(driver))
    driver.send_signal(signal.SIGINT)
    assert "Stopped. Finished runs are kept" in driver.ended() and driver.returncode == 130
    assert "Traceback" not in driver.printed()
    wait_until_ended(left)
    assert not (results / "jobs").exists()

    driver = Driver(*command)
    assert "0 diverged, 0 failed." in driver.ended() and driver.returncode == 0
    assert metrics(results) == metrics(train_alone(grid, tmp_path / "alone"))


@pytest.mark.slow
@pytest.mark.parametrize("accounts", [True, False], ids=["with accounts", "without accounts"])
def test_a_job_of_slurm_that_is_preempted_or_dies_goes_on_and_one_that_always_dies_is_given_up(
    slurm, tmp_path, monkeypatch, accounts
):
    if not accounts:
        monkeypatch.setenv(fake_slurm.NO_ACCOUNTS, "1")
    grid = write_grid(tmp_path, axes=GRID["axes"] | {"seed": [0]}, settings=GRID["settings"] | LONG)
    results = tmp_path / "results"
    where = ("--grid", grid, "--results-dir", results, "--checkpoint-seconds", 0)
    driver = Driver(*where, *SLURM, "--max-concurrent", 1)
    wait_for_rounds(results, 2, driver)
    (waiting,) = (path.parent for path in results.glob("runs/*/machine") if not path.read_text())
    assert not (waiting / "rounds.jsonl").exists(), "the array has one at once"
    script = (slurm / "101.sh").read_text()
    options = ("--array=0-1%1", "--partition=short", "--time=60", "--requeue", "--cpus-per-task=1", "--signal=USR2@90")
    assert all(f"#SBATCH {option}\n" in script for option in options)

    os.kill(fake_slurm.pid_of(slurm, "101_0"), signal.SIGUSR2)
    wait_until(lambda: driver.printed().count("continues after round") == 1, driver)
    os.kill(fake_slurm.pid_of(slurm, "101_0"), signal.SIGKILL)
    wait_until(lambda: driver.printed().count("continues after round") == 2, driver)
    driver.ended()
    assert driver.returncode == 0, driver.printed()
    assert metrics(results) == metrics(train_alone(grid, tmp_path / "alone"))
    assert "Submitted to Slurm: job 101, 2 runs." in driver.printed()
    assert "Submitted to Slurm: job 102, 1 run." in driver.printed()

    monkeypatch.setenv("FAKE_SLURM_KILLS", "1")
    driver = Driver(*where, *SLURM, "--rerun", "--only", "algorithm=fedavg")
    printed = driver.ended()
    assert driver.returncode == 1
    assert "failed: the worker process died 3 times (killed, or out of memory); see ray.log" in printed
    assert metrics(results) == metrics(tmp_path / "alone"), "the earlier results stay"
    assert "accounting" not in printed


@pytest.mark.slow
def test_stopping_cancels_the_jobs_of_slurm(slurm, tmp_path):
    grid = write_grid(tmp_path, settings=GRID["settings"] | LONG)
    driver = Driver("--grid", grid, "--results-dir", tmp_path / "results", *SLURM, "--max-concurrent", 2)
    wait_for_rounds(tmp_path / "results", 1, driver)
    pids = [int(path.read_text()) for path in slurm.glob("*.srun")]
    code, output = call_bench("run", "--grid", grid, "--results-dir", tmp_path / "results", "--executor", "local")
    assert code == 2 and "Another run is writing to" in output
    driver.send_signal(signal.SIGTERM)
    assert "Stopped. Finished runs are kept" in driver.ended() and driver.returncode == 143
    assert {path.read_text() for path in slurm.glob("*.state")} == {"CANCELLED"}
    assert pids and not any(map(is_alive, pids))


@pytest.mark.slow
def test_plain_processes_find_what_belongs_to_a_lab_and_what_fails_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    lab, results = tmp_path / "mylab", tmp_path / "results"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "datasets").mkdir(parents=True)
    (elsewhere / "datasets" / "__init__.py").write_text("raise ImportError('the datasets of the working directory')")
    own = {"axes": {"dataset": ["pollen"], "partition": ["hospital-0.7", "dir-0.001"], "algorithm": ["fedmine"]}}
    own["settings"] = {"clients": 4, "rounds": 1, "local_epochs": 1}
    for name, content in (FILES | {"grids/mine.yaml": yaml.safe_dump(own)}).items():
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text(content)
    settled = f"import os, sys; sys.path[0] = os.getcwd(); os.chdir({str(elsewhere)!r})"
    driver = Driver("--grid", "mine", "--plugins", lab, "--results-dir", results, "--executor", "local", before=settled)
    printed = driver.ended()
    assert "1 done, 0 diverged, 1 failed." in printed and driver.returncode == 1, printed
    by_status = {record["status"]: record for record in records(results).values()}
    assert "dir-0.001 found no split" in by_status["failed"]["reason"] and by_status["failed"]["traceback"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--executor", "slrum"), "Unknown value of --executor 'slrum'. Did you mean 'slurm'?"),
        (
            ("--executor", "slurm"),
            "--executor slurm needs Slurm's programs (sbatch, srun, sacct, squeue, scancel)",
        ),
        (("--slurm", "time=5"), "--slurm is for --executor slurm"),
        (("--executor", "local", "--slurm", "time=5"), "--slurm is for --executor slurm"),
        (("--executor", "local", "--tuned", "validation"), "Searches of hyper-parameters need Ray Tune"),
        (("--executor", "local", "--address", "auto"), "--address and --wait-for-machines are for --executor ray"),
    ],
)
def test_what_does_not_go_together_is_said_before_any_work(words, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(submitted.shutil, "which", lambda name: None)
    code, output = call_bench("run", "--grid", "quickstart", "--results-dir", tmp_path / "results", *words)
    assert code == 2 and sentence in " ".join(output.split())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("text", "minutes"), [("90", 90), ("4:00:00", 240), ("30:00", 30), ("1-12", 2160), ("2-00:30", 2910), ("0:20", 1)]
)
def test_times_are_those_of_slurm(text, minutes):
    assert read_slurm({"time": text, "gpus-per-node": "1"}) == {"time": minutes, "gpus_per_node": "1"}


def test_a_time_of_none_which_slurm_takes_for_no_limit_is_refused():
    with pytest.raises(ValueError, match="--slurm time must be above 0"):
        read_slurm({"time": "0"})


class Handle:
    """A job of submitit in a state of Slurm, of which submitit says that it has ended."""

    job_id = "7"

    def __init__(self, state: str) -> None:
        self.state = state

    def done(self) -> bool:
        return self.state != "PREEMPTED"


def submitter_of(tmp_path, monkeypatch, store, executor="slurm", at_once=0) -> submitted._Submitter:
    monkeypatch.setattr(submitted, "_executor", lambda machines, folder: None)
    said: list[str] = []
    callback = SimpleNamespace(on_message=said.append, said=said, on_start=said.append, on_postponed=said.append)
    machines = submitted.Machines(Resources(), at_once, executor=executor, slurm={"time": 60})
    return submitted._Submitter(JobRecorder(store, callback), tmp_path, Workspace(store, machines))


def test_a_suspended_job_goes_on_and_a_preempted_one_is_submitted_again_after_a_while(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(submitted.time, "monotonic", lambda: now[0])
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store)
        one = submitted._Submitted(SimpleNamespace(id="a"), Handle("SUSPENDED"), tmp_path / "a.json")
        assert not submitter._is_over(one)
        one.handle.state = "PREEMPTED"
        assert not submitter._is_over(one)
        now[0] += submitted._PREEMPTED_SECONDS / 2
        one.handle.state = "RUNNING"
        one.handle.done = lambda: False
        assert not submitter._is_over(one) and one.preempted_at is None
        one.handle.state = "PREEMPTED"
        assert not submitter._is_over(one)
        now[0] += submitted._PREEMPTED_SECONDS + 1
        assert submitter._is_over(one)
        one.handle = Handle("FAILED")
        assert submitter._is_over(one)
        one.handle = Handle("CONFIGURING")
        assert not submitter._is_over(one), "squeue says so while the machine of a job starts"


def test_the_states_of_jobs_are_read_from_squeue():
    watcher = submitted._watcher_of_queue()
    for job in ("101_0", "101_1", "102"):
        watcher.register_job(job)
    listed = b"CLUSTER: ours\n101_0|RUNNING\n102|CONFIGURING\n99|RUNNING\n\n"
    found = {job: one["State"] for job, one in watcher.read_info(listed).items()}
    assert found == {"101_0": "RUNNING", "101_1": "COMPLETED", "102": "CONFIGURING"}


def test_a_submission_that_slurm_refuses_is_tried_again_while_other_jobs_run(tmp_path, monkeypatch):
    def refuse(paths):
        raise ValueError("Slurm has refused the jobs: Socket timed out.")

    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store)
        monkeypatch.setattr(submitter, "_write", lambda job, slot: tmp_path / f"{job.id}.json")
        monkeypatch.setattr(submitter, "_handles", refuse)
        job = SimpleNamespace(id="b")
        submitter.waiting = [job]
        with pytest.raises(ValueError, match="refused"):
            submitter._submit()
        submitter.waiting, submitter._open = [job], {"a": SimpleNamespace(slot=0)}
        submitter._submit()
        submitter._submit()
        assert submitter.waiting == [job] and len(submitter.recorder.callback.said) == 1
        monkeypatch.setattr(submitter, "_handles", lambda paths: [Handle("PENDING")])
        submitter._refused_at -= submitted._REFUSED_SECONDS
        submitter._submit()
        assert not submitter.waiting and {*submitter._open} == {"a", "b"}


def test_what_slurm_has_refused_waits_without_keeping_a_core_busy(tmp_path, monkeypatch):
    """The jobs that ran when Slurm refused more have ended before it is asked again."""
    now, looks = [1000.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def refuse(paths):
        looks.append(now[0])
        raise ValueError("Slurm has refused the jobs: Socket timed out.")

    monkeypatch.setattr(submitted, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store)
        monkeypatch.setattr(submitter, "_write", lambda job, slot: tmp_path / f"{job.id}.json")
        monkeypatch.setattr(submitter, "_handles", refuse)
        submitter._open = {"a": SimpleNamespace(slot=0)}
        monkeypatch.setattr(submitter, "_look_at", lambda one: submitter._open.clear())
        submit, rounds = submitter._submit, iter(range(100))
        monkeypatch.setattr(submitter, "_submit", lambda: (next(rounds), submit()))
        with pytest.raises(ValueError, match="refused"):
            submitter.run([SimpleNamespace(id="b")])
    assert looks == [1000, 1000 + submitted._REFUSED_SECONDS]


@pytest.mark.parametrize(("at_once", "open_then"), [(0, 5), (2, 3)])
def test_jobs_of_several_arrays_are_no_more_at_once_than_the_command_says(at_once, open_then, tmp_path, monkeypatch):
    """Three jobs are one array, of which Slurm runs two; what is left is not submitted before one of two places is free."""
    monkeypatch.setattr(submitted, "_LARGEST_ARRAY", 3)
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store, at_once=at_once)
        monkeypatch.setattr(submitter, "_write", lambda job, slot: tmp_path / f"{job.id}.json")
        monkeypatch.setattr(submitter, "_handles", lambda paths: [Handle("PENDING") for _ in paths])
        submitter.waiting = [SimpleNamespace(id=one) for one in "abcde"]
        submitter._submit()
        submitter._submit()
        assert len(submitter._open) == open_then
        for one in ("a", "b"):
            del submitter._open[one]
        submitter._submit()
        assert len(submitter._open) == (at_once or 3)


def test_the_place_of_a_run_that_has_ended_is_taken_as_long_as_its_process_is_there(tmp_path, monkeypatch):
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store, "local", at_once=1)
        monkeypatch.setattr(submitter, "_write", lambda job, slot: tmp_path / f"{job.id}.json")
        monkeypatch.setattr(submitter, "_handles", lambda paths: [Handle("RUNNING")])
        submitter.waiting = [SimpleNamespace(id="b")]
        submitter._leaving = [submitted._Submitted(SimpleNamespace(id="a"), Handle("RUNNING"), tmp_path / "a.json")]
        submitter._submit()
        assert not submitter._open and len(submitter.waiting) == 1
        submitter._leaving = []
        submitter._submit()
        assert [*submitter._open] == ["b"] and not submitter.waiting


def test_preemptions_are_no_deaths_of_a_run(tmp_path, monkeypatch):
    job, path = SimpleNamespace(id="a"), tmp_path / "a.json"

    def die(preempted_at):
        one = submitted._Submitted(job, Handle("FAILED"), path, preempted_at=preempted_at)
        path.touch()
        job_file.reports_of(path).touch()
        submitter._open["a"] = one
        submitter._die(one)
        assert submitter.waiting.pop() is job and not submitter._open

    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store)
        monkeypatch.setattr(submitter, "_cancel", list)
        for _ in range(submitted.RETRIES + 1):
            die(preempted_at=1000.0)
        assert submitter._deaths["a"] == 0
        die(preempted_at=None)
        assert submitter._deaths["a"] == 1


@pytest.mark.parametrize("executor", ["local", "slurm"])
def test_a_run_that_has_lost_its_gpu_is_submitted_again_elsewhere_and_not_without_end_where_slurm_may_not_do_so(
    executor, tmp_path, monkeypatch
):
    monkeypatch.setattr(submitted, "_visible_gpus", lambda: ["4", "5", "6", "7"])
    monkeypatch.setattr(resources, "_num_gpus", lambda: 4)
    monkeypatch.setattr(resources, "num_cores", lambda: 8)
    job, path, asked = SimpleNamespace(id="a"), tmp_path / "a.json", {"exclude": "bad"}

    def lose(number):
        one = submitted._Submitted(job, Handle("RUNNING"), path, slot=number, host=f"node{number}")
        path.touch()
        job_file.reports_of(path).touch()
        submitter._open["a"] = one
        submitter._record(one, WorkerReport(machine_error=NO_GPU))

    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store, executor)
        submitter.machines = submitted.Machines(
            Resources(1, 1.0, "cuda"), executor=executor, slurm={"time": 60, **asked}
        )
        submitter._executor = SimpleNamespace(update_parameters=lambda **options: asked.update(options))
        monkeypatch.setattr(submitter, "_cancel", list)
        monkeypatch.setattr(submitter.recorder, "update", lambda *_: None)
        ended = []
        monkeypatch.setattr(submitter.recorder, "end", lambda job, result, machine: ended.append(result["reason"]))
        for number in (0, 1, 0, 0):
            lose(number)
        said = submitter.recorder.callback.said
        assert not ended and submitter.waiting == [job] * 4 and said.count(job) == 4
        lose(1)
        assert ended == [NO_GPU] * (executor == "slurm")
        texts = [text for text in said if text is not job]
        if executor == "slurm":
            assert asked["exclude"] == "bad,node0,node1"
            assert texts == [f"The machine node{number} takes no more runs: {NO_GPU}." for number in (0, 1)]
            return
        assert texts == [f"GPU {number} of this machine takes no more runs: {NO_GPU}." for number in (4, 5)]
        slots = []
        monkeypatch.setattr(submitter, "_write", lambda job, slot: slots.append(slot) or path)
        monkeypatch.setattr(submitter, "_handles", lambda paths: [Handle("RUNNING")] * len(paths))
        submitter._leaving = []
        at_once = submitter.machines
        for submitter.machines in (replace(at_once, max_concurrent=1), at_once):
            submitter.waiting, submitter._open = [job], {}
            submitter._submit()
            submitter.waiting.append(job)
            submitter._submit()
            assert len(submitter._open) == 1 and len(submitter.waiting) == (submitter.machines.max_concurrent or 0)
        assert slots == [2, 2, 3], "places on the GPUs that are left, also where one run at once would have the first"
        slots[:] = [2]
        submitter.waiting, submitter._lost = [job], dict.fromkeys("4567", f"{NO_GPU} that works (devices are busy)")
        submitter._submit()
        assert slots == [2], "what trains beside it goes on"
        submitter._open = {}
        with pytest.raises(
            ValueError, match="cannot go on: .*busy.* A GPU in exclusive mode needs --gpus-per-trial 1. No"
        ):
            submitter._submit()


@pytest.mark.slow
def test_processes_that_torch_shows_no_gpu_fail_no_run(tmp_path, monkeypatch):
    if resources._num_gpus():
        pytest.skip("GPUs are there")
    monkeypatch.setattr(resources, "_num_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    grid = write_grid(tmp_path, axes=GRID["axes"])
    code, output = call_bench("run", "--grid", grid, "--results-dir", tmp_path / "results", "--executor", "local")
    assert code != 0 and f"This machine cannot go on: {NO_GPU}. Nothing is lost" in " ".join(output.split()), output
    assert not records(tmp_path / "results")


@pytest.mark.parametrize("executor", ["local", "slurm"])
def test_what_a_machine_lacks_fails_a_run_of_slurm_and_ends_a_command_on_this_machine_before_others_fail(
    executor, tmp_path, monkeypatch
):
    ended, why = [], "its code of this run is not that of the command."
    one = submitted._Submitted(SimpleNamespace(id="a"), Handle("COMPLETED"), tmp_path / "a.json", host="node7")
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store, executor)
        monkeypatch.setattr(submitter.recorder, "update", lambda *_: None)
        monkeypatch.setattr(submitter.recorder, "end", lambda job, result, machine: ended.append(result["reason"]))
        stops = pytest.raises(ValueError, match=f"This machine cannot go on: {why} Nothing is lost")
        with stops if executor == "local" else contextlib.nullcontext():
            submitter._record(one, WorkerReport(machine_error=why))
    assert ended == [why] * (executor == "slurm")


def test_what_is_lost_while_others_train_gets_none_of_the_jobs_that_start_from_them(tmp_path, monkeypatch):
    seen = []

    def run(submitter, jobs):
        seen.append(([job.id for job in jobs], [*submitter._lost]))
        submitter._lost["node7"] = NO_GPU

    monkeypatch.setattr(submitted, "_executor", lambda machines, folder: None)
    monkeypatch.setattr(submitted._Submitter, "run", run)
    jobs = [SimpleNamespace(id="b", base=str(tmp_path / "a")), SimpleNamespace(id="a", base="")]
    machines = submitted.Machines(Resources(), executor="slurm", slurm={"time": 60})
    with Store(tmp_path / "results").locked() as store:
        submitted.run_jobs(jobs, Workspace(store, machines), SimpleNamespace())
    assert seen == [(["a"], []), (["b"], ["node7"])]


def test_a_worker_that_has_no_room_for_its_report_is_no_run_that_has_died(tmp_path, monkeypatch):
    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    one = submitted._Submitted(SimpleNamespace(id="a"), Handle("FAILED"), tmp_path / "a.json")
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store, "local")
        monkeypatch.setattr(Path, "write_bytes", full)
        said = f"Cannot use {store.folder}: No space left on device. Finished runs are kept; mend this, and the same command"
        with pytest.raises(StoreError, match=re.escape(said)), submitted._folder(store):
            submitter._die(one)
    assert not submitter._deaths and not (tmp_path / "probe").exists()


def test_a_record_names_the_machine_only_where_that_is_wanted(tmp_path, monkeypatch):
    found = []
    one = submitted._Submitted(SimpleNamespace(id="a"), Handle("COMPLETED"), tmp_path / "a.json", host="node7")
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store)
        monkeypatch.setattr(submitter.recorder, "end", lambda job, result, machine: found.append(result))
        for wanted in (True, False):
            submitter.workspace = Workspace(store, submitter.machines, ExecutionOptions(names_hosts=wanted))
            submitter._end(one, {"status": "done"})
    assert found == [{"status": "done", "host": "node7"}, {"status": "done"}]


def test_every_attempt_has_files_of_its_own(tmp_path, monkeypatch):
    """So a process that is left of an earlier one finds its files gone."""
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    job = Job("a" * 16, config, str(tmp_path / "a"), StateRetention())
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store)
        first, second = submitter._write(job, 0), submitter._write(job, 0)
    assert first != second and job_file.reports_of(first).exists() and job_file.reports_of(second).exists()


def test_a_record_has_the_time_at_which_its_run_first_began_without_its_time_in_the_queue(tmp_path, monkeypatch):
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    with Store(tmp_path / "results").locked() as store:
        runs = JobRecorder(store, SimpleNamespace()).runs
        for now, is_queued in (("10:00", True), ("10:05", False), ("10:10", True), ("10:15", False)):
            monkeypatch.setattr(run_recorder, "_now", lambda now=now: now)
            runs.start("a" * 16, config.canonical(), is_queued)
        record = runs.end("a" * 16, {"reason": "none"})
    assert (record["started"], record["finished"]) == ("10:05", "10:15")


def test_rounds_that_are_reported_again_replace_those_before(tmp_path):
    runs = JobRecorder(Store(tmp_path / "results"), SimpleNamespace()).runs
    runs.rows["a"] = [{"round": 1}, {"round": 2}, {"round": 3}]
    runs.update("a", 1, [{"round": 2, "examples": 10}])
    assert runs.rows["a"] == [{"round": 1}, {"round": 2, "examples": 10}]


@pytest.mark.parametrize(("status", "stays"), [("failed", True), ("stopped", True), ("done", False)])
def test_what_a_worker_kept_elsewhere_stays_there_as_long_as_its_run_may_go_on(status, stays, tmp_path):
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    summary = dict.fromkeys(("last", "best", "last10"), {}) if status == "done" else {}
    elsewhere = Folder(tmp_path / "elsewhere")
    elsewhere.save("checkpoint.pt", {"round": 1})
    with Store(tmp_path / "results").locked() as store:
        runs = JobRecorder(store, SimpleNamespace()).runs
        runs.start("a" * 16, config.canonical())
        runs.end("a" * 16, {"status": status, "summary": summary}, str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / "checkpoint.pt").exists() is stays


def test_reports_are_written_whole_and_a_gap_between_them_is_an_error(tmp_path, monkeypatch):
    path, write = tmp_path / "reports", os.write
    path.touch()
    monkeypatch.setattr(job_file.os, "write", lambda file, content: write(file, content[:5]))
    assert job_file._to(path, 0)({"start": 0, "rows": [1, 2, 3]})
    with path.open("ab") as file:
        file.write(b"5\n")  # JSON, but no report
    assert job_file.read(path, 0)[0] == [{"start": 0, "rows": [1, 2, 3]}]
    with Store(tmp_path / "results").locked() as store:
        recorder = JobRecorder(store, SimpleNamespace()).runs
        recorder.rows["a"] = [{"round": 1}]
        with pytest.raises(RuntimeError, match="a report begins after round 2, but only 1 rounds have arrived"):
            recorder.update("a", 2, [{"round": 3}])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "needs the time of a job in minutes, or as --slurm time=4:00:00 .* but got none"),
        ({"time": "soon"}, "or time=1-12:00:00, but got soon"),
        ({"time": "5", "nodes": "2"}, "--slurm nodes cannot be set"),
        ({"time": "5", "cpus-per-task": "2"}, "--slurm cpus_per_task cannot be set"),
    ],
)
def test_options_of_slurm_that_are_not_for_jobs_of_one_process_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_slurm(given)


def test_what_is_asked_of_slurm_says_on_what_a_run_trains(slurm):
    def share(cpus=1, gpus="auto", **options):
        return submitted.machines("slurm", cpus, gpus, 0, {"time": "5", **options}).resources

    assert share(2) == share(2, gpus_per_node="0") == share(2, gres="gpu:0") == Resources(2, 0.0, "cpu")
    assert share(gpus_per_node="1").device == share(gres="gpu:a100:1").device == "cuda"
    assert share(gpus="auto", gpus_per_task="a100:2").device == share(tres_per_task="gres/gpu=1").device == "cuda"
    with pytest.raises(ValueError, match="names GPUs"):
        share(partition="gpu", gres="disk:1")
    assert share(gres="disk:1").device == share(gpus_per_node="a100:0").device == "cpu"
    assert share(gres="gpu:1,disk:0").device == "cuda" and share(gres="gpu:0,disk:1").device == "cpu"
    named = {"account": "gpulab", "exclude": "gpu01", "comment": "no gpu please"}
    assert all(share(**{key: value}).device == "cpu" for key, value in named.items())
    for key, value in {"partition": "gpu", "constraint": "GPU-a100"}.items():
        with pytest.raises(ValueError, match=f"--slurm {key}={value} names GPUs, but no option asks for one"):
            share(**{key: value})
        assert share(**{key: value}, gpus_per_node="0").device == "cpu"
    for wrong in ((1, "1"), (0.5, "auto")):
        with pytest.raises(ValueError, match=r"leave --gpus-per-trial out; but got (1 and 1|0.5 and auto)"):
            share(*wrong)


@pytest.mark.parametrize(
    ("share", "gpus"),
    [
        ("2", {"a": "2,5", "b": "6,7"}),
        ("1", {"a": "2", "b": "5", "c": "6", "d": "7"}),
        ("0.5", {"a": "2", "b": "5", "c": "6", "d": "7", "e": "2", "f": "5"}),
        ("0.7", {"a": "2", "b": "5", "c": "6", "d": "7"}),
        ("0", dict.fromkeys("abcdef", "")),
    ],
)
def test_processes_on_this_machine_are_spread_over_its_gpus(share, gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(submitted, "Process", lambda path, threads: SimpleNamespace(done=lambda: False, cancel=list))
    monkeypatch.setattr(resources, "_num_gpus", lambda: 4)
    monkeypatch.setattr(resources, "num_cores", lambda: 6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,6,7")
    machines = submitted.machines("local", 1, share, 0, {})
    assert machines.resources.device == ("cpu" if share == "0" else "cuda")
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    with Store(tmp_path / "results").locked() as store:
        jobs = [Job(name * 16, config, str(tmp_path / name), StateRetention()) for name in "abcdef"]
        submitter = submitted._Submitter(JobRecorder(store, None), tmp_path, Workspace(store, machines), jobs)
        submitter._submit()
        submitter._submit()
    assert {path.stem[0]: json.loads(path.read_text())["gpus"] for path in tmp_path.glob("*.json")} == gpus
    assert submitted.machines("local", 1, "auto", 0, {}).resources == Resources(1, 1.0, "cuda")


def test_a_run_that_does_not_fit_into_its_share_of_a_gpu_says_what_to_ask_for(tmp_path, monkeypatch):
    found = []
    one = submitted._Submitted(SimpleNamespace(id="a"), Handle("COMPLETED"), tmp_path / "a.json")
    with Store(tmp_path / "results").locked() as store:
        submitter = submitter_of(tmp_path, monkeypatch, store, "local")
        monkeypatch.setattr(submitter.recorder, "update", lambda *given: None)
        monkeypatch.setattr(submitter.recorder, "end", lambda job, result, machine: found.append(result["reason"]))
        for gpus in (1.0, 0.25):
            submitter.machines = submitted.Machines(Resources(1, gpus, "cuda"), executor="local")
            submitter._record(one, WorkerReport(out_of_memory=True))
    assert found == [
        "out of memory, with a whole GPU for itself",
        "out of memory, with a share of a GPU (0.25 of it); ask for more by --gpus-per-trial",
    ]


def test_a_job_comes_back_from_its_file_and_a_half_line_of_a_killed_worker_is_left_out(tmp_path):
    config = resolve({"algorithm": "fedprox", "dataset": "digits", "partition": "label-2"})
    job = Job("a1", config, str(tmp_path / "run"), StateRetention("all", rounds=(2, 5)), 0, "loop", True, 3)
    path = tmp_path / "a1.json"
    job_file.write(path, job, None, Resources(), tmp_path, driver=os.getpid())
    read = job_file._job(json.loads(path.read_text()))
    for name in type(config).model_fields:
        assert getattr(read.config, name) == getattr(config, name), name
    for name in ("population", "cohort_size", "nearest_cohort"):
        assert getattr(read.config, name) == getattr(config, name)
    assert (read.id, read.retention, read.engine, read.tf32, read.max_clients_per_vmap) == (
        *(job.id, job.retention, job.engine),
        *(True, 3),
    )

    assert not job_file._to(job_file.reports_of(path), os.getpid())({}), "it is no child of that process any more"
    say = job_file._to(job_file.reports_of(path), os.getppid())
    with open(job_file.reports_of(path), "a") as file:
        file.write('{"start": 0, "rows": [')
    assert job_file.read(job_file.reports_of(path), 0) == ([], 0), "it may be written on"
    report = WorkerReport(rows=[{"round": 1, "loss": float("inf"), "accuracy": 0.1 + 0.2}])
    assert say(vars(report))
    lines, offset = job_file.read(job_file.reports_of(path), 0)
    assert [WorkerReport(**line) for line in lines] == [report]
    assert job_file.read(job_file.reports_of(path), offset) == ([], offset)
    job_file.reports_of(path).unlink()
    assert not say(vars(report)), "nobody waits for it"


@pytest.mark.slow
def test_a_worker_trains_a_stored_config_alone_without_ray_and_pydantic(tmp_path):
    trained = api.run({"dataset": "digits", "partition": "label-2", "algorithm": "scaffold", "rounds": 2, "clients": 5})
    (tmp_path / "config.json").write_text(json.dumps(trained.config.canonical()))
    words = [sys.executable, "-c", WORKER_WITHOUT_PACKAGES, str(tmp_path / "config.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    begins, *reports = map(json.loads, done.stdout.splitlines())
    assert [*begins] == [job_file.BEGINS]
    rows = [row for report in reports for row in report["rows"]]
    assert [row["loss"] for row in rows] == [*trained.rounds["loss"]] and len(rows) == 2
    assert reports[-1]["result"]["summary"] == trained.record["summary"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("content", "sentence"), [("[1", "is not readable JSON"), ('{"dataset": "digits"}', "does not hold what it should")]
)
def test_a_worker_says_what_is_wrong_with_its_file(content, sentence, tmp_path, capsys):
    from bench.worker import main

    (tmp_path / "config.json").write_text(content)
    assert main([str(tmp_path / "config.json")]) == 2 and sentence in capsys.readouterr().err
