"""What the scheduler makes of workers that die, without starting any."""

import os
import signal
from types import SimpleNamespace

import pytest

from bench import tune as scheduler
from bench.config import resolve
from bench.resources import Machines, Resources
from bench.run import Keep
from bench.store import Store
from bench.tune import _Recorder, python_path, reason_of
from bench.worker import Job

KILLED = """Failure # 1 (occurred at 2026-11-21_07-17-04)
The actor died unexpectedly before finishing this task.
\tclass_name: with_resources.<locals>.ResourceTrainable
\tpid: 28207
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed.

"""
IN_SETUP = """Failure # 1 (occurred at 2026-11-21_07-17-02)
The actor died because of an error raised in its creation task, ray::ResourceTrainable.__init__() (pid=28206)
  File "/bench/tune.py", line 70, in setup
    raise ValueError("boom in setup")
ValueError: boom in setup

"""


def test_the_reason_is_the_error_or_that_the_process_was_killed():
    assert reason_of(KILLED) == reason_of("") == "the worker process died"
    assert reason_of(IN_SETUP) == "ValueError: boom in setup"
    assert reason_of(f"{IN_SETUP}\ndatasets.base.MissingData: No svhn in /data: get it.\n") == (
        "MissingData: No svhn in /data: get it."
    )


def test_a_worker_that_dies_before_it_begins_is_tried_again_and_then_leaves_a_record(tmp_path):
    class Watcher:
        def __init__(self):
            self.calls = []

        def started(self, job):
            self.calls.append("started")

        def postponed(self, job):
            self.calls.append("postponed")

        def ended(self, job, record):
            self.calls.append(record["status"])

    (tmp_path / "error.txt").write_text(IN_SETUP)
    config = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"})
    trial = SimpleNamespace(config={"job": 0}, error_file=str(tmp_path / "error.txt"))
    watcher = Watcher()
    with Store(tmp_path / "results").locked() as store:
        job = Job("a1", config, str(store.playing_folder("a1")), Keep())
        recorder = _Recorder(store, watcher, {}, shares=None)
        recorder.begin([job], Resources())
        for _ in range(2):
            recorder.on_trial_error(0, [trial], trial)
            assert recorder.take_postponed() == [job] and store.record("a1") is None
        recorder.on_trial_error(0, [trial], trial)
        assert recorder.take_postponed() == []
        record = store.record("a1")
    assert (record["status"], record["reason"], record["rounds"]) == ("failed", "ValueError: boom in setup", 0)
    assert watcher.calls == ["started", "postponed", "postponed", "failed"]


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
        scheduler.play([], store, None, data_dir=None, machines=Machines(Resources()))
    assert during == [signal.default_int_handler]
    assert signal.getsignal(signal.SIGTERM) == before != during[0]
