"""What is said about a run that has ended."""

from types import SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.execution.progress import outcome
from bench.execution.run_recorder import JobRecorder, RunRecorder
from bench.results import authors, json_files
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
    job = SimpleNamespace(id=run_id(CONFIG), config=CONFIG, base="", folder="")
    with Store(tmp_path).locked() as store:
        recorder = JobRecorder(store, callback)
        recorder.start(job)
        summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.5})
        result = {"status": "done", "reason": reason, "seconds": 1.0, "summary": summary}
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


@pytest.mark.parametrize(
    ("row", "result", "fault", "rounds"),
    [
        (
            {"metrics": {"method/a": "high"}},
            {},
            "rounds.jsonl has metrics of round 1 that are no names with numbers",
            0,
        ),
        ({}, {"caveats": "alone"}, "record.json does not hold what it should: caveats is not a list", 1),
        ({"local_models": {"clients": [1] * 1000}}, {}, "rounds.jsonl would have 3,", 0),
    ],
)
def test_a_run_that_could_not_be_read_again_has_failed(tmp_path, monkeypatch, row, result, fault, rounds):
    """Else it would be done, without a number, and trained again by every command."""
    monkeypatch.setitem(json_files._LARGEST, "rounds.jsonl", 2000)
    store, run = Store(tmp_path), run_id(CONFIG)
    with store.locked():
        recorder = RunRecorder(store)
        recorder.start(run, CONFIG.canonical())
        recorder.update(run, 0, [{"round": 1, "accuracy": 0.5} | row])
        summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.5})
        record = recorder.end(run, {"status": "done", "summary": summary} | result)
    read = Store(tmp_path)
    assert read.record(run) == record and not read.damaged
    assert record["status"] == "failed" and len(read.rows(run)) == record["rounds"] == rounds
    assert record["reason"].startswith(f"what it has measured could not be read again: {fault}")


def test_a_failed_run_that_could_not_be_read_again_keeps_its_own_error(tmp_path):
    store, run = Store(tmp_path), run_id(CONFIG)
    with store.locked():
        recorder = RunRecorder(store)
        recorder.start(run, CONFIG.canonical())
        recorder.update(run, 0, [{"round": 1, "metrics": {"method/a": "high"}}])
        record = recorder.end(
            run, {"status": "failed", "reason": "ValueError: the cause", "traceback": "Traceback ..."}
        )
    assert record["reason"].startswith("ValueError: the cause; what it has measured could not be read again: ")
    assert record["traceback"] == "Traceback ..." and Store(tmp_path).record(run) == record
