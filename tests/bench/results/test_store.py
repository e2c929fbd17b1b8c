"""The result store: nothing half-written counts, nothing finished is lost, one driver at a time."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from bench.errors import StoreError
from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.results.ids import hash_of
from bench.results.locks import holder
from bench.results.schema import SCHEMA
from bench.results.store import Store
from tests.support.processes import ROOT
from tests.support.untrained_run import CONFIG, RECORD, ROWS, RUN


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results").locked() as store:
        yield store


def train(store: Store, run_id: str = RUN) -> None:
    store.start(run_id, CONFIG)
    store.append(run_id, ROWS[:1])
    store.finish(run_id, ROWS, RECORD | {"id": run_id})


def test_a_run_counts_once_its_record_is_written(store):
    store.start(RUN, CONFIG)
    store.append(RUN, ROWS[:1])
    assert store.record(RUN) is None
    store.finish(RUN, ROWS, RECORD)
    assert store.record(RUN) == RECORD
    assert store.rows(RUN) == ROWS
    assert json.loads((store.run_folder(RUN) / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize("schema", [{}, {"schema": SCHEMA}])
def test_a_record_without_a_schema_is_read_under_the_names_of_today_and_stays_as_it_is(store, schema):
    first = RECORD | schema | {"remarks": ["So it is."], "findings": {"clusters": [0, 1]}}
    store.start(RUN, CONFIG)
    store.finish(RUN, ROWS, first)
    now = RECORD | {"caveats": ["So it is."], "diagnostics": {"clusters": [0, 1]}}
    assert store.record(RUN) == (first if schema else now)
    assert json.loads((store.run_folder(RUN) / "record.json").read_text()).items() >= first.items()


def test_rounds_can_be_read_while_the_run_trains(store):
    store.start(RUN, CONFIG)
    store.append(RUN, ROWS[:1])
    assert store.rows(RUN) == ROWS[:1]


def test_a_half_written_run_starts_afresh(store):
    store.start(RUN, CONFIG)
    store.append(RUN, ROWS)
    with open(store.run_folder(RUN) / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "accu')
    (store.run_folder(RUN) / ".record.json.partial").write_text('{"id": RUN, "sta')
    assert store.record(RUN) is None
    train(store)
    assert store.rows(RUN) == ROWS


def test_repeating_a_run_keeps_the_old_results_beside_the_new(store):
    train(store)
    (store.run_folder(RUN) / "final.pt").write_bytes(b"state")
    train(store)
    first = store.folder / "superseded" / f"{RUN}-1"
    assert json.loads((first / "record.json").read_text()).items() >= RECORD.items()
    assert (first / "final.pt").read_bytes() == b"state"
    assert not (store.run_folder(RUN) / "final.pt").exists()
    train(store)
    assert sorted(path.name for path in (store.folder / "superseded").iterdir()) == [f"{RUN}-1", f"{RUN}-2"]


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_a_repeated_run_that_does_not_finish_leaves_the_old_results_in_place(store, end):
    train(store)
    store.start(RUN, CONFIG)
    store.append(RUN, [{"round": 1, "accuracy": 0.1}])
    if end == "failed":
        store.finish(RUN, [], RECORD | {"status": "failed", "summary": {}})
    assert (store.record(RUN), store.rows(RUN)) == (RECORD, ROWS)
    store.start(RUN, CONFIG)
    store.finish(RUN, ROWS[1:], RECORD | {"again": True})
    assert (store.record(RUN)["again"], store.rows(RUN)) == (True, ROWS[1:])
    assert not (store.folder / "repeating" / RUN).exists()


def test_a_repeated_run_that_had_ended_when_its_driver_was_killed_is_not_repeated_again(tmp_path, monkeypatch):
    with Store(tmp_path).locked() as store:
        train(store)
        store.start(RUN, CONFIG)
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(Store, "quarantine", lambda self, path: (_ for _ in ()).throw(KeyboardInterrupt))
            store.finish(RUN, ROWS[1:], RECORD | {"again": True})
        assert "again" not in store.record(RUN)
    with Store(tmp_path).locked() as store:
        assert store.record(RUN)["again"] and not (tmp_path / "repeating" / RUN).exists()
        assert (tmp_path / "superseded" / f"{RUN}-1" / "record.json").exists()


def test_its_key_is_the_same_on_every_machine_and_another_one_for_a_copy(tmp_path, monkeypatch):
    with Store(tmp_path / "a").locked() as store:
        key = store.key
    monkeypatch.setattr("platform.node", lambda: "another")
    with Store(tmp_path / "a").locked() as store:
        assert store.key == key
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Store(tmp_path / "b").locked() as store:
        assert store.key != key


def test_a_kill_between_old_and_new_results_is_mended_by_the_next_driver(tmp_path):
    with Store(tmp_path).locked() as store:
        train(store)
        store.start(RUN, CONFIG)
        (store.unfinished_folder(RUN) / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        (store.unfinished_folder(RUN) / "record.json").write_text(json.dumps(RECORD | {"again": True}))
        store.quarantine(store.run_folder(RUN))
    with Store(tmp_path).locked() as store:
        assert store.record(RUN)["again"]


def test_a_failed_run_makes_room_for_the_next_attempt(store):
    store.start(RUN, CONFIG)
    store.finish(RUN, [], RECORD | {"status": "failed", "summary": {}})
    train(store)
    assert store.record(RUN)["status"] == "done"
    assert not (store.folder / "superseded").exists()


def test_grids_are_found_by_name(store):
    spec = load_grid("quickstart")
    grid = to_json(spec, "paper", {}, expand(spec, "paper")[:2])
    store.write_grid("quickstart@paper", grid)
    assert store.grids() == ["quickstart@paper"]
    assert store.grid("quickstart@paper") == grid
    assert store.grid("quickstart@small") is None


def test_the_states_of_a_run_are_named(store):
    train(store)
    for name in ("round-0001.pt", "final.pt", ".final.pt-x1"):
        (store.run_folder(RUN) / name).touch()
    (store.folder.parent / "elsewhere.pt").touch()
    (store.run_folder(RUN) / "round-0002.pt").symlink_to(store.folder.parent / "elsewhere.pt")
    (store.run_folder(RUN) / "round-0003.pt").mkdir()
    assert store.states(RUN) == ["final.pt", "round-0001.pt"], "a link leads out, and a folder holds no state"
    assert store.states("0123456789abcdef") == []


def test_the_digest_of_a_grid_is_of_all_that_reports_read_of_its_runs(store):
    spec = load_grid("quickstart")
    store.write_grid("quickstart@paper", to_json(spec, "paper", {}, expand(spec, "paper")[:1]))
    (run,) = (cell["run"] for cell in store.grid("quickstart@paper")["cells"])
    train(store, run)
    seen = [store.digest("quickstart@paper")]
    folder = store.run_folder(run)
    for change in (
        lambda: (folder / "final.pt").write_bytes(b"state"),  # which figures name as there
        lambda: (folder / "probe-x.json").write_text("{}"),
        lambda: (folder / "probe-x.json").write_text("[]"),
        lambda: store.write_code(hash_of(CODE), CODE),
        lambda: (folder / "probe-x.json").rename(folder / "probe-y.json"),
        lambda: (folder / "rounds.jsonl").unlink(),
    ):
        change()
        seen.append(store.digest("quickstart@paper"))
    assert len({*seen}) == len(seen)
    (folder / "final.pt").write_bytes(b"other")
    train(store)
    assert store.digest("quickstart@paper") == seen[-1], "of states only the name, of runs of other grids nothing"


def test_reading_an_absent_store_makes_nothing(tmp_path):
    store = Store(tmp_path / "nowhere")
    assert (store.grids(), store.grid("a@b"), store.record(RUN)) == ([], None, None)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_cannot_be_written_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="Cannot write to the results directory .*--results-dir"):
            with Store(folder).locked():
                pass


@pytest.mark.parametrize("part", ["runs", "grids", "reports"])
def test_a_part_of_the_directory_that_cannot_be_written_is_named_before_anything_runs(tmp_path, part):
    (tmp_path / part).touch()
    with pytest.raises(
        StoreError, match=f"{part} is a file, not a folder; move it away, or choose another --results-dir"
    ):
        with Store(tmp_path).locked():
            pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    with Store(tmp_path).locked():
        pass

    def flock(file, kind):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    said = rf"Cannot lock {tmp_path}/\.lock \(Function not implemented\): its file system seems to have no locks"
    with pytest.raises(StoreError, match=said), Store(tmp_path).locked():
        pass
    assert Store(tmp_path).driver() is None
    with Store(tmp_path).unchanging():
        pass  # nobody can write there


@pytest.mark.parametrize("kind", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_a_stranger_who_holds_the_mark_of_a_driver_keeps_nobody_waiting(tmp_path, monkeypatch, kind):
    """Whoever may read a file can lock it."""
    monkeypatch.setattr("bench.results.driver_mark._PATIENCE", 0.1)
    with Store(tmp_path).locked():
        pass
    said: list[str] = []
    with open(tmp_path / ".driver") as stranger:
        fcntl.flock(stranger, kind)
        with Store(tmp_path).locked(said.append) as own:
            assert own.folder == tmp_path
    assert len(said) == 1 and said[0].startswith(f"Another program has locked {tmp_path}/.driver")
    assert "the run goes on, but `status` may not say that it is at work" in said[0]
    with Store(tmp_path).locked(said.append):
        assert len(said) == 1 and Store(tmp_path).driver().is_at_work, "once it is gone, the mark is there again"


def test_a_driver_that_was_killed_is_told_to_the_next_one_and_only_to_that(tmp_path):
    store, said = Store(tmp_path), []
    with pytest.raises(KeyboardInterrupt), store.locked(said.append):
        raise KeyboardInterrupt
    killed = "import os, signal; from bench.results.store import Store; own = Store('{}').locked(); own.__enter__(); {}"
    for end in ("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"):
        with store.locked(said.append):
            assert not said, "the last one has ended by itself, if only by Ctrl-C"
        subprocess.run([sys.executable, "-c", killed.format(tmp_path, end)], cwd=ROOT)
        left = store.driver()
        assert not left.is_at_work and abs(left.since - time.time()) < 60
        with store.locked(said.append):
            pass
        (sentence,) = said
        assert (
            sentence.startswith(f"The last command that wrote to {tmp_path}, begun at 20") and sentence.count(". ") == 0
        )
        assert (
            "did not end by itself: it was killed, as happens where memory runs out, or its machine stopped" in sentence
        )
        said.clear()


def test_a_driver_that_ends_its_process_with_a_sentence_leaves_no_mark(tmp_path):
    store = Store(tmp_path)
    with store.locked():
        store.remove_mark()
        assert (tmp_path / ".driver").read_bytes() == b""


@pytest.mark.parametrize("content", [b"soon\n", b"1e400\n", b"nan\n" * 3, b"\xff\xfe\n", b"-5\n"])
def test_a_mark_that_somebody_else_has_written_is_a_killed_driver_of_the_time_of_the_file(tmp_path, content):
    (tmp_path / ".driver").write_bytes(content)
    os.utime(tmp_path / ".driver", (0, 1_000_000_000))
    assert Store(tmp_path).driver() == (False, 1_000_000_000.0, frozenset())


def test_the_process_that_holds_the_lock_is_named(tmp_path):
    with Store(tmp_path).locked():
        pass
    with open(tmp_path / ".lock") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_SH)
        if not holder(stranger.fileno()):
            pytest.skip("this system does not tell who holds a lock")
        named = (
            rf"Another run is writing to .* \(process {os.getpid()}, .*python.*, of the user \w+\); wait until it ends"
        )
        with pytest.raises(StoreError, match=named):
            with Store(tmp_path).locked():
                pass
        with open(tmp_path / ".lock") as driver:
            fcntl.flock(stranger, fcntl.LOCK_UN)
            fcntl.flock(driver, fcntl.LOCK_EX)
            with pytest.raises(StoreError, match=named):
                with Store(tmp_path).unchanging():
                    pass


def test_a_system_that_does_not_tell_who_holds_a_lock_names_nobody(tmp_path):
    (tmp_path / "locks").write_text("")
    with open(tmp_path / "locks") as file:
        found = os.fstat(file.fileno())
        assert holder(file.fileno(), tmp_path / "none") == holder(file.fileno(), tmp_path / "locks") == ""
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        (tmp_path / "locks").write_text(
            f"1: FLOCK  ADVISORY  WRITE 0 {place} 0 EOF\n1: -> FLOCK ADVISORY WRITE 9 {place} 0 EOF\n"
        )
        assert holder(file.fileno(), tmp_path / "locks") == ""


def test_a_second_driver_is_refused_until_the_first_is_gone(tmp_path):
    hold = """
import sys, time
from bench.results.store import Store
with Store(sys.argv[1]).locked():
    print("held", flush=True)
    time.sleep(60)
"""
    first = subprocess.Popen([sys.executable, "-c", hold, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="Another run is writing to"):
            with Store(tmp_path).locked():
                pass
    finally:
        first.kill()
        first.wait()
    with Store(tmp_path).locked() as store:
        assert store.driver().is_at_work


CODE = {"algorithms/mine.py": {"Mine": "0" * 12, "Mine.step": "1" * 12}}


def test_what_a_hash_of_the_code_stands_for_is_stored_once(tmp_path):
    with Store(tmp_path).locked() as store:
        digest = hash_of(CODE)
        assert store.code(digest) is None and store.code("../../etc") is None
        store.write_code(digest, CODE)
        path = store.folder / "code" / f"{digest}.json"
        written = path.stat().st_mtime_ns
        store.write_code(digest, CODE)
        assert store.code(digest) == CODE and path.stat().st_mtime_ns == written
        path.write_text("{}")
        assert store.code(digest) is None and path in store.damaged
        store.write_code(digest, CODE)
        assert store.code(digest) == CODE
        assert (store.folder / "superseded" / f"{path.name}-1").read_text() == "{}"


def test_a_description_of_code_is_not_larger_than_these_are(tmp_path):
    with Store(tmp_path).locked() as store:
        content = {"algorithms/mine.py": {f"f{number}": "0" * 12 for number in range(250_000)}}
        (store.folder / "code").mkdir()
        path = store.folder / "code" / f"{hash_of(content)}.json"
        path.write_text(json.dumps(content))
        assert store.code(path.stem) is None and "such a file has at most 4,194,304" in store.damaged[path]


def test_what_a_search_has_stopped_is_kept_when_other_code_trains_it_again(tmp_path):
    with Store(tmp_path).locked() as store:
        before, now = {"engine": "0" * 16}, {"engine": "1" * 16}
        store.start(RUN, CONFIG, before)
        store.finish(RUN, [], {"id": RUN, "status": "stopped", "summary": {}, "code": before})
        store.start(RUN, CONFIG, before)
        assert not (store.folder / "superseded").exists(), "it goes on"
        store.finish(RUN, [], {"id": RUN, "status": "stopped", "summary": {}, "code": before})
        store.start(RUN, CONFIG, now)
        assert (store.folder / "superseded" / f"{RUN}-1" / "record.json").exists() and store.record(RUN) is None
