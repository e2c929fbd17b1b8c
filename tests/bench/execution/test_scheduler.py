"""What the scheduler makes of workers that die, without starting any."""

from types import SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution.job import Job
from bench.execution.recorder import own_deaths
from bench.execution.resources import Resources
from bench.execution.run_recorder import reason_of
from bench.execution.scheduler import JobTrials
from bench.results.schema import SCHEMA
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from tests.support.sessions import ALONE

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
    trial, run = (
        SimpleNamespace(trial_id="t", config={"job": 0}, error_file=str(tmp_path / "error.txt")),
        run_id(config),
    )
    callback = RunCallback()
    with Store(tmp_path / "results").locked() as store:
        job = Job(run, config, str(store.unfinished_folder(run)), StateRetention())
        recorder = JobTrials(store, callback, allocator=None, session=ALONE)
        recorder.assign([job], Resources())
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


GONE = """Failure # 2 (occurred at 2026-11-21_07-18-04)
The actor died unexpectedly before finishing this task.
The actor is dead because its node has died. Node Id: 4f1c0d

"""


TERMINATED = GONE.replace("its node has died. Node Id: 4f1c0d", "the node was terminated: its lease has ended.")


def test_deaths_of_machines_are_not_those_of_a_run():
    assert [own_deaths(text) for text in (KILLED, GONE, TERMINATED, "")] == [1, 0, 0, 1]
    assert own_deaths(KILLED + GONE + KILLED + TERMINATED) == 2
