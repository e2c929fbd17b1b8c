"""What is said about a run that has ended."""

from types import SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution.progress import outcome
from bench.execution.run_recorder import JobRecorder, RunRecorder
from bench.results import authors
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


@pytest.mark.parametrize(
    ("before", "now", "who"),
    [("failed", "done", "Bob"), ("failed", "failed", "Bob"), ("done", "done", "Bob"), ("done", "failed", "Ann")],
)
def test_who_trained_a_run_of_others_is_not_said_of_what_is_trained_here(tmp_path, before, now, who):
    """Ann's run is trained again here, in Bob's directory; where that fails, her results stay."""
    store, run = Store(tmp_path), run_id(CONFIG)
    summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.5})
    with store.locked():
        for status, said in ((before, authors.Authors({run: "Ann", "0" * 16: "Ann"}, "Bob")), (now, None)):
            recorder = RunRecorder(store)
            recorder.start(run, CONFIG.canonical())
            recorder.update(run, 0, [{"round": 1, "accuracy": 0.5}])
            recorder.end(run, {"status": status, "summary": summary if status == "done" else {}})
            if said:
                (store.folder / authors.FILE).write_text(authors.text(said))
    assert authors.read(store).of(run) == who
    assert authors.read(store).of("0" * 16) == "Ann"


def test_a_damaged_file_of_authors_ends_no_run(tmp_path):
    store, run = Store(tmp_path), run_id(CONFIG)
    with store.locked():
        (store.folder / authors.FILE).write_text("[]")
        recorder = RunRecorder(store)
        recorder.start(run, CONFIG.canonical())
        assert recorder.end(run, {"status": "failed"})["status"] == "failed"
