"""What is said about a run that has ended."""

from types import SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.execution.progress import outcome
from bench.execution.run_recorder import JobRecorder
from bench.results.store import Store

CONFIG = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 4, "rounds": 1})


@pytest.mark.parametrize(
    ("reason", "machine", "said"),
    [
        ("", "vm", "accuracy 50.0 % (1.0 s; on vm)"),
        ("stopped early", "vm", "accuracy 50.0 % (1.0 s; stopped early (on vm))"),
        ("", "", "accuracy 50.0 % (1.0 s)"),
    ],
)
def test_the_end_of_a_run_is_said_with_its_machine(tmp_path, reason, machine, said):
    ended = []
    callback = SimpleNamespace(on_start=ended.append, on_end=lambda job, record: ended.append(outcome(record)))
    job = SimpleNamespace(id="a1", config=CONFIG, base="", folder="")
    with Store(tmp_path).locked() as store:
        recorder = JobRecorder(store, callback)
        recorder.start(job)
        result = {"status": "done", "reason": reason, "seconds": 1.0, "summary": {"last": {"accuracy": 0.5}}}
        recorder.end(job, result, lambda: machine)
    assert ended[-1] == said
