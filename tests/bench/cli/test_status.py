"""`python -m bench status`: what it says of made-up results, and of a driver that is at work."""

import json
import os
import re
import signal
import time
from datetime import datetime, timedelta, timezone

import pytest

from bench.cli.status import _ago, _last_ended, _name_of
from bench.config.code_version import code_version
from bench.config.schema import run_id
from bench.experiments.labels import name_of_config
from bench.results.ids import hash_of
from bench.results.snapshot import RunState
from bench.results.store import Store
from bench.results.time_left import duration_in_words
from tests.support.earlier_code import earlier
from tests.support.grid_runs import wait_for_records, wait_for_rounds
from tests.support.processes import Driver, call_bench
from tests.support.stores import LABEL, cells, finish, results

SIX = cells(partition="label-2")[:6]
EXPECTED = "round 3 of "


def status(folder, *arguments: object) -> str:
    code, text = call_bench("status", "--results-dir", folder, *arguments)
    assert code == 0, text
    return text


def counts(text: str, grid: str = LABEL) -> dict[str, str]:
    """Column -> what it says in the line of a grid."""
    header, line = (
        re.split(r" *[┃│] *", line) for line in text.splitlines() if re.match(rf"[┃│] ({grid}|grid) ", line)
    )
    return dict(zip(header, line, strict=True))


def test_every_state_of_a_run_has_its_column(tmp_path):
    done, diverged, failed, interrupted, running, _ = SIX
    store = results(tmp_path, SIX, {done.id: 0.5, interrupted.id: None}, seconds=100.0)
    begun = store.run_folder(interrupted.id) / "config.json"
    os.utime(begun, (0, begun.stat().st_mtime - 60))
    with store.locked():
        finish(store, diverged, 0.5, status="diverged", reason="loss is nan")
        finish(store, failed, 0.5, status="failed", reason="out of memory")
        finish(store, running, None)
        store.append(running.id, [{"round": number} for number in (1, 2, 3)])
        text, told = status(tmp_path), json.loads(status(tmp_path, "--json"))
    found = counts(text)
    states = ("finished", "diverged", "running", "interrupted", "failed", "not begun")
    assert {found[name] for name in states} == {"1"}, text
    rounds = running.config.rounds
    seconds = 100 + 100 + 100 * (rounds - 3) / rounds  # interrupted before its first round, not begun, running
    assert found["left"] == f"about {duration_in_words(seconds)}"
    assert f"A command is training in {tmp_path} since " in text and "running: 1 trial." in text
    (row,) = told["grids"]
    assert {row[name.replace(" ", "_")] for name in states} == {1} and row["grid"] == LABEL
    assert row["seconds_left"] == pytest.approx(seconds) and row["last_ended"] is None
    running_now = {
        "run": running.id,
        "name": f"digits label-2 {running.setting('algorithm')} seed {running.config.seed}",
    }
    assert told["running"] == [running_now | {"round": 3, "rounds": rounds, "machine": ""}]
    assert told["driver"]["at_work"] and (told["stale"], told["searches"]) == ([], [])
    lines = [line for line in text.splitlines() if EXPECTED in line]
    assert lines == [
        f"{running.id}  digits label-2 {running.setting('algorithm')} seed {running.config.seed}: round 3 of {rounds}"
    ]
    with store.locked():
        store.start(running.id, running.config.canonical())
        store.append(running.id, [{"round": number} for number in (1, 2, 3)])
        store.place(running.id, "node7")
        assert status(tmp_path).splitlines()[-1].endswith(f": round 3 of {rounds} on node7")
        store.place(running.id, "")
        text = status(tmp_path)
        assert (counts(text)["waiting"], counts(text)["running"]) == ("1", "0") and EXPECTED not in text
    text = status(tmp_path)
    assert f"No command is training in {tmp_path}." in text and EXPECTED not in text
    assert counts(text)["running"] == "0" and counts(text)["interrupted"] == "2"


def test_stale_runs_are_named_with_what_has_changed(tmp_path):
    store = results(tmp_path, SIX, {SIX[0].id: 0.5})
    with store.locked():
        digest = earlier(store, "algorithm fedavg", "algorithms/fedavg.py", "FedAvg")
        for cell, end in zip(SIX[1:3], ("done", "diverged"), strict=True):
            assert cell.setting("algorithm") == "fedavg"
            finish(store, cell, 0.5, status=end, code=code_version(cell.config) | {"algorithm fedavg": digest})
    text = status(tmp_path)
    assert (counts(text)["finished"], counts(text)["diverged"]) == ("2", "1"), "they are finished"
    sentence = (
        "2 finished runs are stale, because the code has changed since (algorithms/fedavg.py: FedAvg); a command that "
        "needs them repeats them."
    )
    assert text.count("stale, because") == 1 and sentence in re.sub(r"\s+", " ", text)
    code, text = call_bench("describe", "--grid", "quickstart", "--results-dir", tmp_path)
    assert code == 0, text
    assert re.search(r"all\W+48\W+48\W+48\W+1\W", text), "those to be repeated are not done"
    assert text.count("stale, because") == 1 and sentence in re.sub(r"\s+", " ", text)


def test_running_trials_of_no_grid_are_told_apart_by_their_settings(tmp_path):
    store = Store(tmp_path)
    changed = [SIX[2].config.model_copy(update={"momentum": momentum}) for momentum in (0.0, 0.25)]
    with store.locked():
        for config in changed:
            store.start(run_id(config), config.canonical())
        text = status(tmp_path)
    for config in changed:
        name = f"{name_of_config(config.canonical())} momentum={config.momentum:g}"
        assert f"{run_id(config)}  {name}: round 0 of " in text


def test_a_running_trial_whose_config_cannot_be_read_is_shown(tmp_path):
    store, (one, other) = Store(tmp_path), [cell.config for cell in SIX[:2]]
    with store.locked():
        for config in (one, other):
            store.start(run_id(config), config.canonical())
        (store.run_folder(run_id(one)) / "config.json").write_text("{")
        text = status(tmp_path)
    assert f"{run_id(one)}  " in text and ": round 0 of ?" in text
    assert f"{run_id(other)}  {name_of_config(other.canonical())}: round 0 of " in text


def test_one_grid_is_shown_alone_and_an_unknown_one_is_named(tmp_path):
    store = results(tmp_path, SIX[:2], {SIX[0].id: 0.5}, seconds=100.0)
    with store.locked():
        store.write_grid("quickstart@small", store.grid(LABEL) | {"budget": "small"})
        finish(store, SIX[2], None)  # of no grid
        text = status(tmp_path)
        assert counts(text, "other runs")["running"] == "1" and f"{SIX[2].id}  digits label-2 " in text
        text = status(tmp_path, "--grid", LABEL)
    assert counts(text)["not begun"] == "1"
    assert "quickstart@small" not in text and "other runs" not in text and SIX[2].id not in text
    code, text = call_bench("status", "--results-dir", tmp_path, "--grid", "mine")
    assert code == 2
    assert f"error: {tmp_path} holds no results of mine, only: {LABEL}, quickstart@small." in text
    with store.locked():
        set_there = f"{LABEL}+rounds=3"
        store.write_grid(set_there, store.grid(LABEL) | {"budget": set_there.partition("@")[2]})
        store.write_grid("slowstart@paper", store.grid(LABEL) | {"grid": "slowstart"})
        (tmp_path / "grids" / f"{LABEL}.json").unlink()
    code, text = call_bench("status", "--results-dir", tmp_path, "--grid", LABEL)
    assert code == 2 and f"only: {set_there}, quickstart@small. Did you mean '{set_there}'?" in text


def test_a_run_is_called_by_what_tells_it_from_others():
    grid = {"report": {"rows": ["dataset", "clients"], "columns": "algorithm"}}
    config = SIX[0].config.canonical() | {"algorithm": {"name": "fedprox", "mu": 0.1}, "clients": 200}
    cell = {"dataset": "digits", "config": config, "choice": {"mu": 0.1}, "algorithm": "fedprox", "seed": 1}
    assert _name_of(cell, grid) == "digits label-2 fedprox clients=200 mu=0.1 seed 1"
    searched = config | {"split": "validation", "validation_share": 0.15, "seed": 1}
    assert name_of_config(searched) == "digits label-2 fedprox mu=0.1 seed 1 on validation data"


def test_of_cells_that_differ_in_versions_only_one_counts(tmp_path):
    store = results(tmp_path, SIX[:1], {SIX[0].id: 0.5})
    newer = SIX[0].config.model_copy(update={"versions": {**SIX[0].config.versions, "algorithm": 99}})
    grid = store.grid(LABEL)
    grid["cells"].append({**grid["cells"][0], "config": newer.canonical(), "run": hash_of(newer.canonical())})
    with store.locked():
        store.write_grid(LABEL, grid)
    text = status(tmp_path)
    found = counts(text)
    assert (found["finished"], found["not begun"], found["left"]) == ("1", "0", "") and "at the speed of" not in text


def test_a_damaged_record_is_named_and_the_rest_is_shown(tmp_path):
    store = results(tmp_path, SIX[:2], {SIX[0].id: 0.5, SIX[1].id: 0.5}, seconds=100.0)
    (store.run_folder(SIX[0].id) / "record.json").write_text("{")
    text = status(tmp_path)
    assert "1 entry of" in text and f"runs/{SIX[0].id}/record.json is not readable JSON" in text
    found = counts(text)
    assert (found["finished"], found["not begun"], found["left"]) == (
        "1",
        "1",
        "about 2 min",
    ) and "at the speed of" in text


def test_a_search_says_how_many_configurations_it_has_begun(tmp_path):
    store = results(tmp_path, SIX[:1], {})
    config = SIX[0].config.canonical()
    search = {"configs": {"0": config, "1": config}, "space": {"lr": {}}, "proposed": [{"lr": 0.1}, {"lr": 0.2}]}
    with store.locked():
        store.write_search("fedavg-digits", search | {"samples": 8})
        store.write_search("whole-grid", search | {"samples": None, "configs": {"0": config}})
    text = status(tmp_path)
    assert "Search fedavg-digits: 2 of 8 configurations begun, 2 runs each." in text
    assert counts(text, "searches")["left"] == "?", "no run has ended, nor a round"
    assert "Search whole-grid: 2 configurations begun, 1 run each." in text


def test_runs_of_searches_have_a_row_and_the_time_that_is_left_of_them(tmp_path):
    usual = {str(seed): SIX[0].config.model_copy(update={"seed": seed}).canonical() for seed in (0, 1)}
    method = usual["0"]["algorithm"] | {"name": "fedprox", "mu": 0.1}
    usual = {seed: config | {"algorithm": method, "rounds": 10} for seed, config in usual.items()}
    tried = [{"mu": mu, "lr": lr} for mu, lr in ((0.1, 0.01), (1, 0.02))]
    runs = [
        config | {"algorithm": method | {"mu": one["mu"]}, "lr": one["lr"]}
        for one in tried
        for config in usual.values()
    ]
    other = runs[0] | {"lr": 0.5}  # which the search has not proposed
    store = results(tmp_path, SIX[:1], {})
    search = {"configs": usual, "space": {"mu": {}, "lr": {}}, "proposed": tried, "samples": 8, "wanted": 5}

    def end(config: dict, **record: object) -> None:
        store.start(hash_of(config), config, {})
        store.finish(hash_of(config), [], {"id": hash_of(config), "seconds": 100.0} | record)

    with store.locked():
        store.write_search("fedprox-digits", search)
        for config in (runs[0], runs[1], other):
            end(config, status="done")
        for config in runs[2:]:
            store.start(hash_of(config), config, {})
            store.append(hash_of(config), [{"round": number} for number in range(1, 6)])
        text, told = status(tmp_path), json.loads(status(tmp_path, "--json"))
    assert "running: 1 trial." in text, "one trial trains both seeds"
    found = counts(text, "searches")
    assert [found[name] for name in ("finished", "running", "not begun")] == ["2", "2", "6"]
    assert found["left"] == f"about {duration_in_words(2 * 50 + 6 * 100)}"
    assert counts(text, "other runs")["finished"] == "1"
    with store.locked():
        for config in runs[2:]:
            store.start(hash_of(config), config, {})
            store.append(hash_of(config), [{"round": number} for number in range(1, 6)])
        alone = status(tmp_path, "--grid", LABEL)
    assert "running: 1 trial." in alone and "1 trial at once" in alone and "│ searches" not in alone
    rows = {row["of_searches"]: row for row in told["grids"] if row["grid"] is None}
    assert (rows[True]["seconds_left"], rows[True]["not_begun"]) == (700, 6) and rows[False]["finished"] == 1
    assert told["searches"] == [{"search": "fedprox-digits", "begun": 2, "of": 5}]
    with store.locked():
        for config in runs[2:]:
            end(config, status="stopped")
        text = status(tmp_path)
    found = counts(text, "searches")
    assert (found["finished"], found["stopped"], found["not begun"]) == ("2", "2", "6")
    assert "Search fedprox-digits: 2 of 5 configurations begun, 2 runs each." in text
    for change, not_begun in (
        ({"wanted": 2}, "0"),
        ({"samples": 8}, "12"),
        ({"samples": None}, "0"),
        ({"configs": {}}, ""),
    ):
        with store.locked():
            kept = {key: value for key, value in search.items() if key != "wanted"}  # of an earlier version
            store.write_search("fedprox-digits", kept | change)
            text = status(tmp_path)
        if "configs" in change:
            assert "1 search ended" in text
            continue
        assert counts(text, "searches")["not begun"] == not_begun
        assert ("1 search ended, with 2 configurations." in text) == (not_begun == "0")


def test_what_is_no_results_directory_gets_one_sentence(tmp_path):
    code, text = call_bench("status", "--results-dir", tmp_path)
    assert code == 2
    assert text == f"error: {tmp_path} holds no results: it has no folder called runs.\n"
    (tmp_path / "mine" / "runs").mkdir(parents=True)
    code, text = call_bench("status", "--results-dir", tmp_path)
    assert text.endswith("it has no folder called runs. Results directories lie in it: mine.\n")
    code, text = call_bench("status", "--results-dir", tmp_path / "none")
    assert (code, text) == (
        2,
        f"error: There is no results directory {tmp_path}/none; `python -m bench run` writes one.\n",
    )
    (tmp_path / "mine.zip").touch()
    code, text = call_bench("status", "--results-dir", tmp_path / "mine.zip")
    assert code == 2 and text.startswith(
        f"error: {tmp_path}/mine.zip is a file; `python -m bench import FILE.zip` takes"
    )


def test_an_empty_results_directory_has_no_table(tmp_path):
    with Store(tmp_path).locked():
        pass
    assert status(tmp_path) == f"No command is training in {tmp_path}.\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599, "1 h 0 min"),
        (7800, "2 h 10 min"),
        (86399, "1 d 0 h"),
        (100 * 3600, "4 d 4 h"),
    ],
)
def test_times_are_as_people_read_them(seconds, words):
    assert duration_in_words(seconds) == words


def test_the_last_end_is_told_in_local_time_whatever_the_zone_of_the_record(monkeypatch):
    now = datetime(2026, 1, 1, 12, 0, tzinfo=timezone(timedelta(hours=3))).timestamp()
    monkeypatch.setattr(time, "time", lambda: now)
    ended = [
        RunState("done", finished=text)
        for text in ("2026-01-01T08:57:00+0000", "2026-01-01T11:59:00+0400", "soon", "9999-12-31T23:59:59-2359")
    ]
    assert _ago(_last_ended(ended)) == f"{datetime.fromtimestamp(now - 180):%Y-%m-%d %H:%M}, 3 min ago"
    assert _ago(_last_ended([RunState("running"), RunState("failed", finished="soon")])) == ""


@pytest.mark.slow
def test_while_a_driver_is_at_work_its_trial_has_the_round_that_is_written(tmp_path):
    """The driver is held while it is asked about, so that it does not write meanwhile."""
    folder = tmp_path / "results"
    setting = ("--algorithm", "fedavg", "--dataset", "digits", "--partition", "label-2", "--seeds", "0,1,2")
    small = ("--set", "clients=10,rounds=60,local_epochs=3,model=mlp", "--max-concurrent", 1)
    driver = Driver(*setting, *small, "--results-dir", folder)
    wait_for_records(folder, 1, driver)
    wait_for_rounds(folder, 3, driver)
    os.kill(driver.pid, signal.SIGSTOP)
    text = status(folder)
    [running] = [
        path.parent for path in folder.glob("runs/*/rounds.jsonl") if not (path.parent / "record.json").exists()
    ]
    trained = len((running / "rounds.jsonl").read_text().splitlines())
    assert re.search(rf"^{running.name}  digits label-2 fedavg seed \d: round {trained} of 60$", text, re.MULTILINE), (
        text
    )
    [label] = Store(folder).grids()
    found = counts(text, re.escape(label))
    assert (found["running"], found["failed"], found.get("interrupted")) == ("1", "0", None)
    assert int(found["finished"]) + int(found["not begun"]) == 2 and found["left"].startswith("about ")
    assert len(Store(folder).grid(label)["planned_examples"]) == 3
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    text = status(folder)
    assert f"No command is training in {folder}; the last on" in text and "round " not in text
    assert counts(text, re.escape(label))["interrupted"] == "1"
