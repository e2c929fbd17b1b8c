"""What the runs of a results directory are doing, read while a driver may be at work."""

import fcntl
import os
import threading

import pytest

from bench.errors import StoreError
from bench.results.snapshot import RunState, read_snapshot
from bench.results.store import Store
from tests.support.stores import cells, finish, results

FIRST, SECOND, THIRD, *_ = cells()


def states(folder) -> dict[str, RunState]:
    return read_snapshot(Store(folder)).runs


def test_ended_runs_are_known_by_their_records(tmp_path):
    store = results(tmp_path, (FIRST, SECOND), {FIRST.id: 0.5}, seconds=12.5, finished="2026-01-01T12:30:00+0000")
    assert states(tmp_path) == {FIRST.id: RunState("done", 0, 12.5, "2026-01-01T12:30:00+0000")}
    with store.locked():
        finish(store, SECOND, 0.5, status="failed", reason="broken")
    assert states(tmp_path)[SECOND.id].status == "failed"


@pytest.mark.parametrize("jump", [86_400, -86_400], ids=["forwards", "backwards"])
def test_a_run_is_running_only_while_the_driver_is_at_work_that_has_begun_it(tmp_path, jump):
    """Also where the clock was set meanwhile: files of earlier runs are younger than the driver, or its own are older."""
    store = results(tmp_path, (FIRST, SECOND), {FIRST.id: None})
    assert read_snapshot(store).driver is None
    assert states(tmp_path) == {FIRST.id: RunState("interrupted")}
    set_back(store.run_folder(FIRST.id) / "config.json", -jump)
    with store.locked():
        assert states(tmp_path) == {FIRST.id: RunState("interrupted")}, "another driver had begun it"
        finish(store, SECOND, None)
        set_back(store.run_folder(SECOND.id) / "config.json", jump)
        assert read_snapshot(store).running == [SECOND.id]
        finish(store, FIRST, None)
        assert sorted(read_snapshot(Store(tmp_path)).running) == sorted([FIRST.id, SECOND.id])
    assert not read_snapshot(store).running


def set_back(path, seconds: float) -> None:
    """Makes a file older by so many seconds, or younger."""
    os.utime(path, (0, path.stat().st_mtime - seconds))


def test_the_runs_of_a_driver_that_was_killed_are_interrupted(tmp_path):
    store = results(tmp_path, (FIRST,), {FIRST.id: None})
    (tmp_path / ".driver").write_text(f"1000000000.5\n{FIRST.id}\n")
    assert read_snapshot(store) == ((False, 1000000000.5, frozenset([FIRST.id])), {FIRST.id: RunState("interrupted")})


def test_the_round_is_that_of_the_last_complete_line(tmp_path):
    store = results(tmp_path, (FIRST,), {})
    rounds = store.run_folder(FIRST.id) / "rounds.jsonl"
    with store.locked():
        finish(store, FIRST, None)
        for content, trained in [
            ("", 0),
            ('{"round": 1', 0),
            ('{"round": 1, "loss": 2.0}\n', 1),
            ('{"round": 1}\n{"round": 2}\n{"rou', 2),
            ('{"round": "x"}\n', 0),
            ("[]\n", 0),
            ("not JSON\n", 0),
            ("[" * 100_000 + "\n", 0),
        ]:
            rounds.write_text(content)
            assert states(tmp_path)[FIRST.id] == RunState("running", trained), content
        rounds.write_text('{"round": 1, "examples": 640}\n')
        assert states(tmp_path)[FIRST.id] == RunState("running", 1, examples=640)
        rounds.write_text('{"round": 1, "seconds": 2.5}\n')
        assert states(tmp_path)[FIRST.id] == RunState("running", 1, 2.5)
        rounds.write_text('{"round": 1, "seconds": "soon"}\n')
        assert states(tmp_path)[FIRST.id] == RunState("running", 1)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_seconds_that_are_no_time_are_not_known(seconds, tmp_path):
    results(tmp_path, (FIRST,), {FIRST.id: 0.5}, seconds=seconds)
    assert states(tmp_path) == {FIRST.id: RunState("done")}


def test_a_run_that_is_repeated_is_running_and_counts_as_before_when_the_driver_is_gone(tmp_path):
    store = results(tmp_path, (FIRST,), {FIRST.id: 0.5}, seconds=12.5)
    with store.locked():
        finish(store, FIRST, None)
        assert states(tmp_path) == {FIRST.id: RunState("running")}
    assert states(tmp_path) == {FIRST.id: RunState("done", 0, 12.5)}


def test_a_run_that_is_to_be_repeated_waits_for_a_machine(tmp_path):
    store = results(tmp_path, (FIRST,), {FIRST.id: 0.5})
    with store.locked():
        finish(store, FIRST, None)
        store.place(FIRST.id, "")
        assert states(tmp_path) == {FIRST.id: RunState("waiting")}
        store.place(FIRST.id, "node7")
        assert states(tmp_path) == {FIRST.id: RunState("running", machine="node7")}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"id": ', "is not readable JSON"),
        ("[]", "does not hold what it should: it is not a JSON object"),
        ('{"id": "0123456789abcdef", "status": "done"}', "is the record of another run, 0123456789abcdef"),
        (
            '{"id": "0123456789abcdef", "status": "lost"}',
            "does not hold what it should: status is not what it should be",
        ),
    ],
)
def test_a_damaged_record_is_named_and_its_run_left_out(content, what, tmp_path):
    store = results(tmp_path, (FIRST, SECOND), {FIRST.id: 0.5, SECOND.id: 0.5})
    record = store.run_folder(FIRST.id) / "record.json"
    record.write_text(content)
    store = Store(tmp_path)
    assert [*read_snapshot(store).runs] == [SECOND.id]
    assert store.damaged == {record: what}


def test_reading_writes_nothing_and_turns_no_driver_away(tmp_path):
    store = results(tmp_path, (FIRST,), {FIRST.id: 0.5})
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    read_snapshot(store)
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with open(tmp_path / ".driver") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # as one who asks does, for a moment
        threading.Timer(0.2, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with store.locked():
            assert store.driver().is_at_work
    assert store.driver() is None


def test_what_is_no_results_directory_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"holds no results: it has no folder called runs\."):
        read_snapshot(Store(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="holds links"):
        read_snapshot(Store(tmp_path))
