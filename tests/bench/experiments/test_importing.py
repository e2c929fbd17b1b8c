"""Results of two directories become one, and nothing here is lost on the way."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.config.code_version import code_version, definitions_of
from bench.config.resolve import resolve
from bench.config.schema import run_id, settings_of
from bench.errors import StoreError
from bench.experiments.importing import merge_results
from bench.results import authors, copies
from bench.results.equality import differences
from bench.results.store import Store
from reports import api
from tests.support.stores import LABEL, cells, finish, results

LABEL_2, DIR = cells("label-2", "fedavg"), cells("dir-0.1", "fedavg")


def files(store: Store) -> dict[str, bytes]:
    """Every file of a results directory without those of drivers."""
    paths = (path for path in store.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(store.folder)): path.read_bytes() for path in paths}


def watch_steps(monkeypatch, on_step) -> None:
    """Calls `on_step` before each step of an import: "copy 1" before the first file, "sync 1" before the first wait for the
    disk, "replace 1" before the first copy becomes a run."""
    counts = Counter()

    def watched(name: str, step):
        def reached(first, *others):
            if name != "replace" or Path(first).parent.name == "importing":
                counts[name] += 1
                on_step(f"{name} {counts[name]}")
            return step(first, *others)

        return reached

    for name, path in (("copy", "_copy"), ("sync", "sync_disk"), ("replace", "os.replace")):
        step = os.replace if name == "replace" else getattr(copies, path)
        monkeypatch.setattr(f"bench.results.copies.{path}", watched(name, step))


def scores(cells_: tuple, *values: float | None) -> dict:
    return {cell.id: value for cell, value in zip(cells_, values, strict=False)}


def test_what_is_finished_elsewhere_is_here_afterwards_as_if_it_had_been_run_here(tmp_path):
    here = results(tmp_path / "here", DIR, scores(DIR, 0.3, 0.4, 0.5))
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.6, 0.7, 0.8))
    together = tuple(cell for cell in cells(algorithm="fedavg"))
    expected = results(tmp_path / "both", together, scores(DIR, 0.3, 0.4, 0.5) | scores(LABEL_2, 0.6, 0.7, 0.8))
    before = files(there)
    found = merge_results(there, here)
    assert sorted(found.taken) == sorted(cell.id for cell in LABEL_2) and found.grids == [LABEL]
    assert files(here) == files(expected), "runs, states, and the grid in the order of its tables"
    assert files(there) == before and not (here.folder / "importing").exists()
    table = api.GridReport(here.folder, "quickstart", "paper").render()
    assert "70.0±8.2" in table and table.index("#C = 2") < table.index("Dir(0.1)")


def test_a_second_time_nothing_is_left_to_do(tmp_path):
    here = results(tmp_path / "here", DIR, scores(DIR, 0.3))
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.6, 0.7))
    merge_results(there, here)
    before = files(here)
    found = merge_results(there, here)
    assert (found.taken, found.grids, len(found.both)) == ([], [], 2)
    assert files(here) == before


def test_seeds_of_one_cell_from_two_machines_stand_in_one_cell(tmp_path):
    here = results(tmp_path / "here", LABEL_2[:1], scores(LABEL_2, 0.5))
    there = results(tmp_path / "there", LABEL_2[1:], scores(LABEL_2[1:], 0.6, 0.7))
    merge_results(there, here)
    assert [cell["seed"] for cell in here.grid(LABEL)["cells"]] == [0, 1, 2]
    assert "60.0±8.2" in api.GridReport(here.folder, "quickstart", "paper").render()


def test_settings_are_compared_with_those_of_the_same_seed(tmp_path):
    """By a ruleset each seed may have chosen others."""

    def chosen(*rates):
        configs = [resolve(settings_of(cell.config) | {"lr": rate}) for cell, rate in zip(LABEL_2, rates, strict=True)]
        return tuple(replace(cell, config=one, id=run_id(one)) for cell, one in zip(LABEL_2, configs, strict=True))

    ours, theirs = chosen(0.1, 0.2, 0.3), chosen(0.1, 0.2, 0.4)
    here = results(tmp_path / "here", ours, scores(ours, 0.5, 0.5, 0.5))
    there = results(tmp_path / "there", theirs, scores(theirs, 0.5, 0.5, 0.6))
    ruleset = {"name": "tuned", "studies": [[0], [1], [2]], "samples": 3}
    for store in (here, there):
        store.write_grid(LABEL, store.grid(LABEL) | {"ruleset": ruleset})
    found = merge_results(there, here)
    assert found.replaced == {f"{LABEL}: digits, label-2, fedavg": "lr 0.4 there and 0.3 here"}


def test_a_cell_with_other_settings_there_stays_as_it_is_here_and_the_settings_are_named(tmp_path):
    configs = [resolve(settings_of(cell.config) | {"lr": 0.3}) for cell in LABEL_2]
    others = tuple(replace(cell, config=one, id=run_id(one)) for cell, one in zip(LABEL_2, configs, strict=True))
    here = results(tmp_path / "here", LABEL_2, scores(LABEL_2, 0.5, 0.5, 0.5))
    there = results(tmp_path / "there", others, scores(others, 0.6, 0.7, 0.8))
    before, lr = here.grid(LABEL), LABEL_2[0].config.lr
    found = merge_results(there, here)
    assert found.replaced == {f"{LABEL}: digits, label-2, fedavg": f"lr 0.3 there and {lr} here"}
    assert here.grid(LABEL) == before and len(found.taken) == 3


def test_a_grid_that_is_only_there_is_taken_into_a_new_directory(tmp_path):
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.6))
    here = Store(tmp_path / "new")
    merge_results(there, here)
    assert here.grid(LABEL) == there.grid(LABEL) and here.rows(LABEL_2[0].id) == there.rows(LABEL_2[0].id)


def test_of_a_run_on_both_sides_the_one_here_stays_and_other_numbers_are_named(tmp_path):
    here = results(tmp_path / "here", LABEL_2, scores(LABEL_2, 0.5, 0.6), device="cpu", seconds=1.0)
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.5, 0.61), device="cuda", seconds=9.0)
    before = files(here)
    found = merge_results(there, here)
    assert sorted(found.both) == sorted(cell.id for cell in LABEL_2[:2]) and found.taken == []
    assert found.disagreeing == {LABEL_2[1].id: "accuracy of round 1: 0.51 and 0.5"}
    assert files(here) == before


def test_runs_that_failed_or_have_not_ended_give_way_and_are_taken_where_nothing_is(tmp_path):
    here = results(tmp_path / "here", LABEL_2, {})
    with here.locked():
        finish(here, LABEL_2[0], 0.1, status="failed")
        finish(here, LABEL_2[1], None)
        finish(here, DIR[2], None)
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.5, 0.6))
    with there.locked():
        finish(there, LABEL_2[2], 0.2, status="failed")
        finish(there, DIR[0], None)
        finish(there, DIR[1], 0.3, status="diverged")
        finish(there, DIR[2], 0.3, status="failed")
    found = merge_results(there, here)
    assert (found.unfinished, found.failed) == ([DIR[0].id], [LABEL_2[2].id])
    assert here.record(DIR[2].id) is None, "it has begun here, and may have a checkpoint"
    assert here.record(LABEL_2[0].id)["status"] == here.record(LABEL_2[1].id)["status"] == "done"
    assert here.record(DIR[1].id)["status"] == "diverged" and here.record(LABEL_2[2].id)["status"] == "failed"
    aside = here.folder / "superseded" / f"{LABEL_2[0].id}-1" / "record.json"
    assert json.loads(aside.read_text())["status"] == "failed", "nothing is lost"


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path):
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.6))
    here = Store(tmp_path / "here")
    found = merge_results(there, here, dry_run=True)
    assert (found.taken, found.grids) == ([LABEL_2[0].id], [LABEL])
    assert not here.folder.exists()


def test_an_import_that_is_interrupted_goes_on(tmp_path, monkeypatch):
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.5, 0.6, 0.7))
    here, copied = Store(tmp_path / "here"), []

    def stop(source, target, copy=shutil.copyfile):
        copied.append(target)
        if len(copied) == 6:  # in the middle of the second run
            raise KeyboardInterrupt
        copy(source, target)

    authors.add(there, {LABEL_2[0].id: "Ann"})
    monkeypatch.setattr("bench.results.copies._copy", stop)
    with pytest.raises(KeyboardInterrupt):
        merge_results(there, here)
    assert authors.read(here).of(LABEL_2[0].id) == "Ann", "runs are taken once, so their authors are there before"
    assert here.records() == {} and list((here.folder / "runs").iterdir()) == []
    monkeypatch.undo()
    assert len(merge_results(there, here).taken) == 3
    assert files(here) == files(there)


@pytest.mark.parametrize(
    ("step", "whole"), [("copy 6", 0), ("sync 1", 0), ("replace 1", 0), ("replace 2", 1), ("replace 3", 2)]
)
def test_an_import_that_is_killed_in_the_middle_of_a_batch_leaves_whole_runs_or_none(
    tmp_path, monkeypatch, step, whole
):
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.5, 0.6, 0.7))
    here = Store(tmp_path / "here")
    if (child := os.fork()) == 0:
        try:
            watch_steps(monkeypatch, lambda reached: os._exit(9) if reached == step else None)
            merge_results(there, here)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    runs = {path: content for path, content in files(here).items() if path.startswith("runs/")}
    assert runs.items() <= files(there).items()
    assert len(here.records()) == whole and len({path.split("/")[1] for path in runs}) == whole
    with here.locked():
        assert not (here.folder / "importing").exists(), "no command leaves half of an import there"
    assert len(merge_results(there, here).taken) == 3 - whole
    assert files(here) == files(there)


def test_an_import_awaits_the_disk_once_for_a_batch_before_its_first_run_counts(tmp_path, monkeypatch):
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.5, 0.6, 0.7))
    events = []
    watch_steps(monkeypatch, lambda reached: events.append(reached.split()[0]))
    monkeypatch.setattr("bench.experiments.importing._BATCH", 2)
    merge_results(there, Store(tmp_path / "here"))
    kinds = [kind for kind, _ in itertools.groupby(events)]
    assert kinds == ["copy", "sync", "replace"] * 2
    assert (events.count("sync"), events.count("replace")) == (2, 3)


def test_a_run_whose_folder_is_not_its_own_is_not_taken(tmp_path):
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.5))
    there.run_folder(LABEL_2[0].id).rename(there.run_folder("0123456789abcdef"))
    here = Store(tmp_path / "here")
    assert merge_results(there, here).taken == [] and here.records() == {}
    path = there.run_folder("0123456789abcdef") / "config.json"
    assert there.damaged == {path: "is the config of another run: the folder is not named after it"}


def test_another_grid_of_the_same_name_keeps_its_cells(tmp_path):
    here = results(tmp_path / "here", DIR, scores(DIR, 0.3))
    there = results(tmp_path / "there", LABEL_2, scores(LABEL_2, 0.6))
    there.write_grid(LABEL, there.grid(LABEL) | {"digest": "other"})
    before = here.grid(LABEL)
    found = merge_results(there, here)
    assert found.others == [LABEL] and here.grid(LABEL) == before and found.taken == [LABEL_2[0].id]


def test_a_grid_without_a_file_is_merged_in_the_order_of_both_sides(tmp_path):
    third = cells("label-2", "fedprox")[:1]
    here = results(tmp_path / "here", (LABEL_2[0], DIR[0]), {})
    there = results(tmp_path / "there", (LABEL_2[0], *third, DIR[0]), {})
    for store in (here, there):
        store.write_grid(LABEL, store.grid(LABEL) | {"source": "/gone/mine.yaml"})
    merge_results(there, here)
    assert [cell["run"] for cell in here.grid(LABEL)["cells"]] == [LABEL_2[0].id, third[0].id, DIR[0].id]


def test_what_cannot_be_imported_is_said_in_one_sentence(tmp_path):
    here = results(tmp_path / "here", LABEL_2, {})
    with pytest.raises(StoreError, match="is the results directory itself; name another one"):
        merge_results(Store(tmp_path / "here" / "runs" / ".."), here)
    with pytest.raises(StoreError, match="There is no results directory .*nowhere; "):
        merge_results(Store(tmp_path / "nowhere"), here)


def test_results_are_not_read_while_a_driver_writes_them(tmp_path):
    results(tmp_path / "there", LABEL_2, {})
    code = (
        "import sys\nfrom bench.results.store import Store\n"
        "with Store(sys.argv[1]).locked(): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, tmp_path / "there"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="Another run is writing to .*there.*; wait until it ends"):
            with Store(tmp_path / "there").unchanging():
                pass
        driver.communicate("\n")
    with Store(tmp_path / "there").unchanging() as one, Store(tmp_path / "there").unchanging():
        assert one.grids() == [LABEL]


@pytest.mark.parametrize(
    ("rows", "record", "said"),
    [
        ({}, {}, ""),
        ({"seconds": 9.0, "examples_per_second": 1}, {"seconds": 9.0, "commit": "b", "device": "cuda"}, ""),
        ({"loss": float("nan")}, {}, "loss of round 1: 0.5 and nan"),
        ({"local_models": {"clients": [1, 2]}}, {}, "local_models of round 1: None and {'clients': [1, 2]}"),
        ({}, {"status": "diverged"}, "status: done and diverged"),
        ({}, {"summary": {"last": {"accuracy": 0.6}}}, "summary"),
        ({}, {"summary": {"last": {"accuracy": 0.5}, "last10_std": {}}}, ""),  # records of earlier versions lack it
        ({}, {"diagnostics": {"clusters": [0, 1]}}, "diagnostics"),
        ({}, {"client_accuracies": [0.5]}, "client_accuracies"),
    ],
)
def test_numbers_are_compared_bit_for_bit_and_clocks_are_not(rows, record, said):
    summary = {"last": {"accuracy": 0.5}}
    one = [{"round": 1, "loss": 0.5, "seconds": 1.0}], {"status": "done", "summary": summary, "commit": "a"}
    assert differences(one, ([one[0][0] | rows], one[1] | record)) == said
    both = [{"round": 1, "loss": float("nan")}], one[1]
    assert differences(both, ([{"round": 1, "loss": float("nan")}], one[1])) == ""
    assert differences(one, ([], one[1])) == "rounds: 1 and 0"


def test_what_the_hashes_of_the_code_stand_for_is_taken_too_and_hostile_files_are_not(tmp_path):
    here, there = Store(tmp_path / "here"), results(tmp_path / "there", LABEL_2, {})
    run, base = code_version(LABEL_2[0].config), {"engine": "1" * 16}
    with there.locked(), here.locked():
        for part, digest in run.items():
            there.write_code(digest, definitions_of(part))
        finish(there, LABEL_2[0], 0.5, code=run, base_code=base)
    (there.folder / "code" / f"{'1' * 16}.json").write_text('{"algorithms/a.py": {"\\u001b[2J": "0"}}')
    (there.folder / "code" / f"{'2' * 16}.json").write_text("{}")
    (there.folder / "code" / "notes.txt").write_text("")
    merge_results(there, here, dry_run=True)
    assert not (here.folder / "code").exists()
    found = merge_results(there, here)
    assert found.taken == [LABEL_2[0].id]
    assert {path.stem for path in (here.folder / "code").iterdir()} == {*run.values()}
    assert {digest: here.code(digest) for digest in run.values()} == {run[part]: definitions_of(part) for part in run}
    named = {path.name: what for path, what in there.damaged.items()}
    assert named == {
        f"{'1' * 16}.json": "does not hold what it should: a name cannot be shown",
        f"{'2' * 16}.json": "does not hold what it should: it is not named after the hash of its content",
        "notes.txt": "is no description of code",
    }
