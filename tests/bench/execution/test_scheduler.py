"""What the scheduler makes of workers that die, without starting any."""

import os
import signal
from types import SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution import scheduler
from bench.execution.job import Job
from bench.execution.resources import Machines, Resources
from bench.execution.scheduler import _Recorder, python_path, reason_of
from bench.results.schema import SCHEMA
from bench.results.store import Store
from bench.simulation.retention import StateRetention

import ray  # isort: skip

KILLED = """Failure # 1 (occurred at 2026-11-21_07-17-04)
The actor died unexpectedly before finishing this task.
\tclass_name: with_resources.<locals>.ResourceTrainable
\tpid: 28207
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed.

"""
IN_SETUP = """Failure # 1 (occurred at 2026-11-21_07-17-02)
The actor died because of an error raised in its creation task, ray::ResourceTrainable.__init__() (pid=28206)
  File "/bench/execution/scheduler.py", line 70, in setup
    raise ValueError("boom in setup")
ValueError: boom in setup

"""


CROWDED = """Failure # 1 (occurred at 2026-11-21_07-17-09)
Task was killed due to the node running low on memory.
Suggestions: use fewer trials at once.

"""


def test_the_reason_is_the_error_or_that_the_process_was_killed():
    assert reason_of(KILLED) == reason_of("") == reason_of(CROWDED) == "the worker process died"
    assert reason_of(IN_SETUP) == "ValueError: boom in setup"
    assert reason_of(f"{IN_SETUP}\ndatasets.base.MissingData: No svhn in /data: get it.\n") == (
        "MissingData: No svhn in /data: get it."
    )


@pytest.mark.parametrize(
    ("text", "reason", "kept"),
    [
        (IN_SETUP, "ValueError: boom in setup", "record"),
        (
            KILLED,
            "the worker process died 3 times (killed, or out of memory); see ray.log in the results directory",
            "ray.log",
        ),
    ],
    ids=["an-error", "killed"],
)
def test_a_worker_that_dies_before_it_begins_is_tried_again_and_then_leaves_a_record(text, reason, kept, tmp_path):
    class RunCallback:
        def __init__(self):
            self.calls = []

        def on_start(self, job):
            self.calls.append("started")

        def on_postponed(self, job):
            self.calls.append("postponed")

        def on_end(self, job, record):
            self.calls.append(record["status"])

    (tmp_path / "error.txt").write_text(text)
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    trial, run = SimpleNamespace(config={"job": 0}, error_file=str(tmp_path / "error.txt")), run_id(config)
    callback = RunCallback()
    with Store(tmp_path / "results").locked() as store:
        job = Job(run, config, str(store.playing_folder(run)), StateRetention())
        recorder = _Recorder(store, callback, {}, allocator=None)
        recorder.begin([job], Resources())
        for _ in range(2):
            recorder.on_trial_error(0, [trial], trial)
            assert recorder.take_postponed() == [job] and store.record(run) is None
        recorder.on_trial_error(0, [trial], trial)
        assert recorder.take_postponed() == []
        record = store.record(run)
    assert (record["status"], record["reason"], record["rounds"]) == ("failed", reason, 0)
    assert record["schema"] == SCHEMA
    assert callback.calls == ["started", "postponed", "postponed", "failed"]
    log = tmp_path / "results" / "ray.log"
    if kept == "record":
        assert record["traceback"] == text and not log.exists()
    else:
        assert "traceback" not in record
        assert f"run {run}\n" + text.rstrip() in log.read_text()


@pytest.mark.parametrize("inherited", [None, ""])
def test_the_path_of_workers_has_no_empty_part(inherited):
    assert "" not in python_path(inherited).split(os.pathsep)
    assert python_path("/more").endswith(f"{os.pathsep}/more")


def test_how_a_polite_kill_is_answered_is_restored_afterwards(tmp_path, monkeypatch):
    during = []

    def stop(*arguments, **options):
        during.append(signal.getsignal(signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler, "_start_ray", lambda address, resources: None)
    monkeypatch.setattr(scheduler, "_check_machines", stop)
    before = signal.getsignal(signal.SIGTERM)
    with Store(tmp_path).locked() as store, pytest.raises(KeyboardInterrupt):
        scheduler.run_jobs([], store, SimpleNamespace(on_message=print), data_dir=None, machines=Machines(Resources()))
    assert during == [signal.default_int_handler]
    assert signal.getsignal(signal.SIGTERM) == before != during[0]


def test_what_ray_says_of_dead_processes_goes_to_the_log_and_not_to_the_terminal(tmp_path, capsys):
    def say(text):
        data = {"lines": [text], "pid": "raylet", "is_err": False}
        ray._private.worker.print_to_stdstream(data, ignore_prefix=False)

    store = Store(tmp_path)
    with scheduler._logged(store):
        say("A worker died.")
        say("Another worker died.")
    said = [line.partition(" ")[2] for line in (tmp_path / "ray.log").read_text().splitlines()]
    assert said == ["A worker died.", "Another worker died."] and capsys.readouterr().out == ""
    say("This is Ray's own way.")
    assert "This is Ray's own way." in capsys.readouterr().out


def refused(*, how: str) -> Exception:
    """What Ray raises where a cluster asks for a token, and this machine has none or another one."""
    if how == "none":
        return ray.exceptions.AuthenticationError("Token authentication is enabled but no token was found")
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError(
        "Last connection error: ... InvalidAuthToken: Authentication token is missing or incorrect"
    )
    return error


@pytest.mark.parametrize("how", ["none", "another"])
def test_a_cluster_that_asks_for_its_token_is_told_from_one_that_does_not_answer(how, monkeypatch):
    def init(**options):
        raise refused(how=how)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        ValueError, match="at --address 10.0.0.1:6379 asks for its token, which this machine does not give"
    ):
        scheduler._start_ray("10.0.0.1:6379", Resources())
