"""Configurations in lock step, and what is written of them. Nothing here starts Ray."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.execution.progress import RoundsBar
from bench.execution.resources import Resources
from bench.results.store import Store
from bench.simulation.run import Run
from bench.tuning.outcomes import Played
from bench.tuning.runner import _Recorder, asha, bases_of
from bench.tuning.search import Search
from bench.tuning.study import Study
from bench.tuning.trainable import Configuration, Place
from datasets import load, resized
from tests.support.searching import make, try_next


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path).locked() as store:
        yield store


def test_a_worker_that_dies_leaves_what_had_ended_as_it_is(store):
    search = make()
    study = Study(search, store)
    trial = SimpleNamespace(trial_id="t", config=dict(study.propose().params))
    said = []
    place = Place(str(store.folder / "runs"), False, "", {}, 0.0)
    recorder = _Recorder(study, place, said.append, {}, RoundsBar(Console(quiet=True), 18, 4))
    first, second = search.runs(trial.config)

    def tell(run: str, accuracy: float) -> None:
        rows = [{"round": number, "accuracy": accuracy} for number in range(1, 10)]
        summary = {"last": {"accuracy": accuracy}}
        ended = {"status": "done", "reason": "", "summary": summary}
        told = {"id": run, "config": search.runs(trial.config)[run].canonical(), "first": 0, "rows": rows, "until": 9}
        recorder.on_trial_result(0, [], trial, {"runs": [told | {"note": "", "ended": ended}], "broken": ""})

    recorder.on_trial_start(0, [], trial)
    tell(first, 0.5)
    recorder.on_trial_start(0, [], trial)  # Ray starts it again, and all seeds are played again
    tell(first, 0.6)
    tell(second, 0.7)
    assert [store.rows(run)[-1]["accuracy"] for run in (first, second)] == [0.5, 0.7]
    assert not list(store.folder.glob("superseded/*")) and not list(store.folder.glob("repeating/*"))


def test_a_configuration_whose_worker_is_killed_is_given_up_in_one_sentence(store, tmp_path):
    search = make()
    study = Study(search, store)
    killed = "".join(f"Failure # {number}\nThe actor died unexpectedly: see the logs.\n" for number in (1, 2, 3))
    (tmp_path / "error.txt").write_text(killed)
    params = dict(study.propose().params)
    trial = SimpleNamespace(trial_id="t", config=params, error_file=str(tmp_path / "error.txt"))
    said = []
    place = Place(str(store.folder / "runs"), False, "", {}, 0.0)
    recorder = _Recorder(study, place, said.append, {}, RoundsBar(Console(quiet=True), 18, 4))
    recorder.on_trial_start(0, [], trial)
    recorder.on_trial_error(0, [], trial)
    reason = "the worker process died 3 times (killed, or out of memory); see ray.log in the results directory"
    records = [store.record(run) for run in search.runs(params)]
    assert [record["reason"] for record in records] == [reason, reason] and "traceback" not in records[0]
    assert len(said) == 1 and said[0].endswith(f"failed: {reason}")
    assert (store.folder / "ray.log").read_text().count("The actor died unexpectedly") == 3, "once, for both seeds"


def configuration(search: Search, params: dict, folder, ended=None) -> Configuration:
    """A trial without its scheduler."""
    made = Configuration.__new__(Configuration)
    made.setup(params, search, Place(str(folder), False, "", {}, 0.0), None, Resources(1.0), ended or {})
    return made


def test_the_runs_of_a_search_are_played_on_the_engine_that_was_asked_for(tmp_path):
    trial = Configuration.__new__(Configuration)
    trial.setup({"mu": 0.1}, make(), Place(str(tmp_path), False, "", {}, engine="loop"), None, Resources(1.0), {})
    told = next_comparison(trial)["runs"]
    assert [one["ended"]["engine"] for one in told if one["ended"]] == ["loop", "loop"]


def next_comparison(trial: Configuration) -> dict:
    """Steps until all seeds have come to a round at which configurations are compared; "runs" are those of all steps."""
    runs = []
    while True:
        told = trial.step()
        runs += told["runs"]
        if told["round"] or told["done"]:
            return told | {"runs": runs}


def test_seeds_are_played_in_lock_step_and_the_mean_is_reported(tmp_path):
    search = make(scheduler="asha")
    trial = configuration(search, {"mu": 0.1}, tmp_path)
    found = [next_comparison(trial) for _ in range(3)]
    assert [told["round"] for told in found] == [1, 3, 9] and [told["done"] for told in found] == [False, False, True]
    first, second = search.runs({"mu": 0.1})
    for before, told in zip([0, 1, 3], found, strict=True):
        rows = {
            run: [row for one in told["runs"] if one["id"] == run for row in one["rows"]] for run in (first, second)
        }
        assert all([row["round"] for row in own] == list(range(before + 1, told["round"] + 1)) for own in rows.values())
        at = [own[-1]["accuracy"] for own in rows.values()]
        assert told["value"] == pytest.approx(sum(at) / 2) and at[0] != at[1]
    assert {json.dumps(told["config"]) for told in found[0]["runs"]} == {
        json.dumps(config.canonical()) for config in search.runs({"mu": 0.1}).values()
    }


def test_a_seed_tells_its_rounds_while_others_wait_and_counts_for_nothing_yet(tmp_path):
    trial = configuration(make(), {"mu": 0.1}, tmp_path)
    told = trial.step()
    assert told["runs"][0]["rows"] and (told["round"], told["value"], told["done"]) == (0, 0.0, False)


def test_a_configuration_that_goes_on_from_a_checkpoint_is_compared_at_the_same_rounds(tmp_path):
    search = make(scheduler="asha")
    first = configuration(search, {"mu": 0.1}, tmp_path)
    values = [next_comparison(first)["value"] for _ in range(2)]
    again = configuration(search, {"mu": 0.1}, tmp_path)
    told = next_comparison(again)
    assert told["round"] == 1 and told["value"] == pytest.approx(values[0])
    assert all("goes on after round 3" in run["note"] for run in told["runs"])
    assert next_comparison(again)["value"] == pytest.approx(values[1])


def test_runs_that_have_ended_are_not_played_again_and_count_as_they_were_at_each_round(tmp_path):
    search = make(scheduler="asha")
    first, second = search.runs({"mu": 0.1})
    curves = {first: {1: 0.1, 3: 0.2, 9: 0.25}, second: {1: 0.3, 3: 0.4, 9: 0.75}}
    known = {run: Played(curve, "done", 9) for run, curve in curves.items()}
    trial = configuration(search, {"mu": 0.1}, tmp_path, ended=known)
    values = [trial.step() for _ in range(3)]
    assert [value["value"] for value in values] == pytest.approx([0.2, 0.3, 0.5])
    assert [value["done"] for value in values] == [False, False, True] and not any(value["runs"] for value in values)
    part = configuration(search, {"mu": 0.1}, tmp_path, ended={first: known[first]})
    assert [told["id"] for told in part.step()["runs"]] == [second]


def test_after_a_restart_a_configuration_is_still_compared_with_those_that_were_tried_before(store):
    search = make(scheduler="asha", searcher="random", samples=5)
    (study := Study(search, store)).propose()
    late, bad = SimpleNamespace(trial_id="new"), {"round": 1, "value": 0.1}
    fresh = asha(study)
    fresh.on_trial_add(None, late)
    assert fresh.on_trial_result(None, late, bad) == "CONTINUE"
    for score in (0.5, 0.6, 0.7):
        try_next(study, store, score, score)
    again = asha(Study(search, store))
    again.on_trial_add(None, late)
    assert again.on_trial_result(None, late, bad) == "STOP"


def test_a_seed_that_fails_ends_its_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "step", lambda self: 1 / 0)
    told = configuration(make(), {"mu": 0.1}, tmp_path).step()
    assert told["failed"] and told["done"] and told["runs"][0]["ended"]["reason"].startswith("ZeroDivisionError")


def test_no_test_image_is_read_while_a_configuration_is_played(tmp_path, monkeypatch):
    class Poison:
        def __getattribute__(self, name):
            raise AssertionError(f"the test split was read: {name}")

    poisoned = dataclasses.replace(load("digits", None), test=Poison())
    monkeypatch.setattr(resized, "load", lambda *arguments: poisoned)
    told = next_comparison(configuration(make(), {"mu": 0.1}, tmp_path))
    assert told["done"] and not told["failed"] and told["value"] > 0
    finals = next_comparison(configuration(make(), {"split": "test", "validation_share": None}, tmp_path))
    assert finals["failed"] and "the test split was read" in finals["runs"][0]["ended"]["reason"]


def test_a_method_that_only_changes_what_is_deployed_starts_from_one_run_of_its_base():
    search = make("ccvr")
    assert {seed: config.algorithm for seed, config in bases_of(search).items()} == {
        0: {"name": "fedavg"},
        1: {"name": "fedavg"},
    }
    assert {config.split for config in bases_of(search).values()} == {"validation"}
    assert bases_of(make()) == {} == bases_of(make("ccvr", space="ccvr,training"))
