"""Configurations in lock step, what is written of them, and searches side by side."""

import dataclasses
import os
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
from rich.console import Console

from bench.errors import StoreError
from bench.execution import ray_session
from bench.execution.progress import RoundsBar
from bench.execution.resources import Machines, Resources
from bench.execution.worker import WorkerReport
from bench.execution.workspace import Workspace
from bench.experiments.execution_options import ExecutionOptions
from bench.results.store import Store
from bench.simulation.run import Run
from bench.tuning.outcomes import ValidationRun
from bench.tuning.runner import ConfigurationRecorder, OpenSearch, bases_of, run_searches
from bench.tuning.search import Search
from bench.tuning.study import Study
from bench.tuning.trainable import Configuration, ConfigurationReport, SearchJob, SeedReport
from datasets import load, resized
from tests.support.searching import make
from tests.support.sessions import ALONE


def search_job(search: Search, folder, ended=None, **options) -> SearchJob:
    return SearchJob(search, str(folder), {}, ended or {}, ExecutionOptions(checkpoint_seconds=0.0, **options))


def recorder_of(
    study: Study, store: Store, said: list[str], deaths: Counter[str] | None = None, **words: str
) -> ConfigurationRecorder:
    search = OpenSearch(study, search_job(study.search, store.folder / "runs", study.ended_runs), **words)
    bar = RoundsBar(Console(quiet=True), 4, 72)
    shares = {study.search.name: Resources()}
    return ConfigurationRecorder(
        {study.search.name: search},
        store,
        said.append,
        bar,
        ALONE,
        allocator=None,
        shares=shares,
        deaths=Counter() if deaths is None else deaths,
    )


def trial_of(study: Study, **more) -> SimpleNamespace:
    """What the study proposes, as a trial of Ray."""
    config = {"search": study.search.name, "params": dict(study.propose().params), "repeated": {}}
    return SimpleNamespace(trial_id="t", config=config, **more)


def test_a_worker_that_dies_leaves_what_had_ended_as_it_is(store):
    search = make()
    study = Study(search, store)
    trial, recorder = trial_of(study), recorder_of(study, store, [])
    configs = search.runs(trial.config["params"])
    first, second = configs

    def report(run: str, accuracy: float) -> None:
        rows = [{"round": number, "accuracy": accuracy} for number in range(1, 10)]
        summary = dict.fromkeys(("last", "best", "last10"), {"accuracy": accuracy})
        result = {"status": "done", "reason": "", "summary": summary}
        seed = SeedReport(run, configs[run], 9, WorkerReport(rows=rows, result=result))
        told = ConfigurationReport(seed, failed=False, round=0, value=0.0, is_last=False)
        recorder.on_trial_result(0, [], trial, {"report": told, "node": "n"})

    recorder.on_trial_start(0, [], trial)
    report(first, 0.5)
    recorder.on_trial_start(0, [], trial)  # Ray starts it again, and all seeds are trained again
    report(first, 0.6)
    report(second, 0.7)
    assert [store.rows(run)[-1]["accuracy"] for run in (first, second)] == [0.5, 0.7]
    assert not list(store.folder.glob("superseded/*")) and not list(store.folder.glob("repeating/*"))


def test_a_configuration_whose_run_could_not_be_read_again_has_failed(store):
    search, said = make(), []
    study = Study(search, store)
    trial, recorder = trial_of(study), recorder_of(study, store, said)
    recorder.on_trial_start(0, [], trial)
    for run, config in search.runs(trial.config["params"]).items():
        rows = [{"round": number, "accuracy": 0.5, "metrics": {"method/a": "high"}} for number in range(1, 10)]
        result = {"status": "done", "summary": dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.5})}
        seed = SeedReport(run, config, 9, WorkerReport(rows=rows, result=result))
        report = ConfigurationReport(seed, failed=False, round=9, value=0.5, is_last=True)
        trial.last_result = {"report": report, "node": "n"}
        recorder.on_trial_result(0, [], trial, trial.last_result)
    recorder.complete(trial)
    assert all("failed: what it has measured could not be read again" in line for line in said[:2])
    assert said[2].endswith("failed")


def test_a_configuration_whose_worker_is_killed_is_given_up_in_one_sentence(store, tmp_path):
    search = make()
    study, said = Study(search, store), []
    killed = "".join(f"Failure # {number}\nThe actor died unexpectedly: see the logs.\n" for number in (1, 2, 3))
    (tmp_path / "error.txt").write_text(killed)
    trial = trial_of(study, error_file=str(tmp_path / "error.txt"))
    recorder = recorder_of(study, store, said)
    recorder.on_trial_start(0, [], trial)
    recorder.on_trial_error(0, [], trial)
    reason = "the worker process died 3 times (killed, or out of memory); see ray.log in the results directory"
    records = [store.record(run) for run in search.runs(trial.config["params"])]
    assert [record["reason"] for record in records] == [reason, reason] and "traceback" not in records[0]
    assert len(said) == 1 and said[0].endswith(f"failed: {reason}")
    assert (store.folder / "ray.log").read_text().count("The actor died unexpectedly") == 3, "once, for both seeds"


def test_a_configuration_is_tried_again_until_its_own_worker_has_died_three_times(store, tmp_path):
    """Ray may give up earlier: between two trials after one death, and it counts the deaths of machines."""
    killed, gone = ("The actor died unexpectedly: see the logs.\n", "The actor died because its node has died.\n")
    study, said, deaths = Study(make(), store), [], Counter()
    trial = trial_of(study, error_file=str(tmp_path / "error.txt"))
    runs = study.search.runs(trial.config["params"])
    for texts, again in (([killed], True), ([killed, gone, gone], True), ([gone] * 3, True), ([killed], False)):
        (tmp_path / "error.txt").write_text("".join(f"Failure # {number}\n{text}" for number, text in enumerate(texts)))
        recorder = recorder_of(study, store, said, deaths)  # another one each time: what has not ended is placed anew
        recorder.on_trial_error(0, [], trial)
        assert recorder.is_interrupted == again and [bool(store.record(run)) for run in runs] == [not again] * 2
    assert len(said) == 1 and "the worker process died 3 times" in said[0]


def test_an_error_in_writing_is_remembered_where_ray_keeps_it_to_itself(store, tmp_path):
    study = Study(make(), store)
    trial, recorder = trial_of(study), recorder_of(study, store, [])
    broken = SeedReport("a1", study.search.template, 0, WorkerReport(storage_error="No space left."))
    recorder.check()
    with pytest.raises(StoreError):
        report = ConfigurationReport(broken, failed=False, round=0, value=0.0, is_last=True)
        recorder.on_trial_result(0, [], trial, {"report": report, "node": "n"})
    with pytest.raises(StoreError, match="No space left."):
        recorder.check()


def test_messages_of_several_searches_name_theirs(store):
    study, said = Study(make(), store), []
    recorder = recorder_of(study, store, said, label="Search 2 ", title="Search 2 of 3: digits label-2 fedprox")
    trial = trial_of(study)
    recorder.on_trial_start(0, [], trial)
    trial.last_result = {"report": ConfigurationReport(None, failed=False, round=9, value=0.5, is_last=True)}
    recorder.on_trial_complete(0, [], trial)
    trial = trial_of(study)
    recorder.on_trial_start(0, [], trial)
    assert said == [
        "Search 2 of 3: digits label-2 fedprox",
        "Search 2 [1/4] mu=0.001: validation accuracy 50.0 %, stopped after round 9",
    ]


def test_a_configuration_that_diverged_is_not_said_to_have_an_accuracy(store):
    study, said = Study(make(), store), []
    recorder = recorder_of(study, store, said)
    trial = trial_of(study)
    run, config = next(iter(study.search.runs(trial.config["params"]).items()))
    recorder.on_trial_start(0, [], trial)
    ended = WorkerReport(result={"status": "diverged", "reason": "The loss is not finite.", "summary": {}})
    told = ConfigurationReport(SeedReport(run, config, 3, ended), failed=False, round=0, value=0.0, is_last=False)
    recorder.on_trial_result(0, [], trial, {"report": told, "node": "n"})
    trial.last_result = {"report": ConfigurationReport(None, failed=False, round=9, value=0.4, is_last=True)}
    recorder.on_trial_complete(0, [], trial)
    seeds = len(study.search.configs)
    assert said[-1].startswith(f"[1/4] mu=0.001: diverged with 1 of {seeds} seeds") and "%" not in said[-1]


def configuration(search: Search, params: dict, folder, ended=None, **options) -> Configuration:
    """A trial without its scheduler, which has said where it is."""
    made = Configuration.__new__(Configuration)
    jobs = {search.name: search_job(search, folder, ended, **options)}
    made.setup({"search": search.name, "params": params, "repeated": {}}, None, Resources(1.0), jobs)
    assert made.step() == {"report": None, "node": "", "done": False, "round": 0, "value": 0.0}
    return made


def test_the_runs_of_a_search_are_played_on_the_engine_that_was_asked_for(tmp_path):
    seeds, _ = next_comparison(configuration(make(), {"mu": 0.1}, tmp_path, engine="loop"))
    assert [seed.worker.result["engine"] for seed in seeds if seed.worker.result] == ["loop", "loop"]


def next_comparison(trial: Configuration) -> tuple[list[SeedReport], dict]:
    """Steps until all seeds have come to a round at which configurations are compared; the reports of the seeds until then, and
    the last result."""
    seeds = []
    while True:
        result = trial.step()
        if result["report"].seed:
            seeds.append(result["report"].seed)
        if result["round"] or result["done"]:
            return seeds, result


def test_seeds_are_trained_in_lock_step_and_the_mean_is_reported(tmp_path):
    search = make(scheduler="asha")
    trial = configuration(search, {"mu": 0.1}, tmp_path)
    found = [next_comparison(trial) for _ in range(3)]
    assert [(result["round"], result["done"]) for _, result in found] == [(1, False), (3, False), (9, True)]
    configs = search.runs({"mu": 0.1})
    for before, (seeds, result) in zip([0, 1, 3], found, strict=True):
        rows = {run: [row for one in seeds if one.run == run for row in one.worker.rows] for run in configs}
        assert all([row["round"] for row in own] == [*range(before + 1, result["round"] + 1)] for own in rows.values())
        at = [own[-1]["accuracy"] for own in rows.values()]
        assert result["value"] == pytest.approx(sum(at) / 2) and at[0] != at[1]
    assert {seed.run: seed.config for seed in found[0][0]} == configs


def test_a_seed_reports_its_rounds_while_others_wait_and_has_no_value_yet(tmp_path):
    result = configuration(make(), {"mu": 0.1}, tmp_path).step()
    assert result["report"].seed.worker.rows
    assert (result["round"], result["value"], result["done"]) == (0, 0.0, False)


def test_one_process_trains_configurations_of_one_search_after_another(tmp_path):
    searches = [make("fedprox"), make("fedavg", space="training")]
    jobs = {search.name: search_job(search, tmp_path) for search in searches}
    trial = Configuration.__new__(Configuration)
    trial.setup({"search": searches[0].name, "params": {"mu": 0.1}, "repeated": {}}, None, Resources(1.0), jobs)
    trial.step()
    assert trial.reset_config({"search": searches[1].name, "params": {"lr": 0.1}, "repeated": {}})
    assert trial.step()["report"] is None, "it says where it is"
    assert trial.step()["report"].seed.config.algorithm["name"] == "fedavg"


def test_a_configuration_that_continues_from_a_checkpoint_is_compared_at_the_same_rounds(tmp_path):
    search = make(scheduler="asha")
    first = configuration(search, {"mu": 0.1}, tmp_path)
    values = [next_comparison(first)[1]["value"] for _ in range(2)]
    again = configuration(search, {"mu": 0.1}, tmp_path)
    seeds, result = next_comparison(again)
    assert result["round"] == 1 and result["value"] == pytest.approx(values[0])
    assert all("continues after round 3" in seed.worker.note for seed in seeds)
    assert next_comparison(again)[1]["value"] == pytest.approx(values[1])


def test_runs_that_have_ended_are_not_trained_again_and_count_as_they_were_at_each_round(tmp_path):
    search = make(scheduler="asha")
    first, second = search.runs({"mu": 0.1})
    curves = {first: {1: 0.1, 3: 0.2, 9: 0.25}, second: {1: 0.3, 3: 0.4, 9: 0.75}}
    known = {run: ValidationRun(curve, "done", 9) for run, curve in curves.items()}
    trial = configuration(search, {"mu": 0.1}, tmp_path, ended=known)
    results = [trial.step() for _ in range(3)]
    assert [result["value"] for result in results] == pytest.approx([0.2, 0.3, 0.5])
    assert [result["done"] for result in results] == [False, False, True]
    assert not any(result["report"].seed for result in results)
    part = configuration(search, {"mu": 0.1}, tmp_path, ended={first: known[first]})
    assert part.step()["report"].seed.run == second


def test_a_seed_that_fails_ends_its_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "step", lambda self: 1 / 0)
    result = configuration(make(), {"mu": 0.1}, tmp_path).step()
    report = result["report"]
    assert report.failed and result["done"] and report.seed.worker.result["reason"].startswith("ZeroDivisionError")


def test_no_test_image_is_read_while_a_configuration_is_trained(tmp_path, monkeypatch):
    class Poison:
        def __getattribute__(self, name):
            raise AssertionError(f"the test split was read: {name}")

    poisoned = dataclasses.replace(load("digits", None), test=Poison())
    monkeypatch.setattr(resized, "load", lambda *arguments: poisoned)
    _, result = next_comparison(configuration(make(), {"mu": 0.1}, tmp_path))
    assert result["done"] and not result["report"].failed and result["value"] > 0
    seeds, result = next_comparison(configuration(make(), {"split": "test", "validation_share": None}, tmp_path))
    assert result["report"].failed and "the test split was read" in seeds[0].worker.result["reason"]


def test_a_method_that_only_changes_what_is_deployed_starts_from_one_run_of_its_base():
    search = make("ccvr")
    assert {seed: config.algorithm for seed, config in bases_of(search).items()} == {
        0: {"name": "fedavg"},
        1: {"name": "fedavg"},
    }
    assert {config.split for config in bases_of(search).values()} == {"validation"}
    assert bases_of(make()) == {} == bases_of(make("ccvr", space="ccvr,training"))


@pytest.mark.slow
def test_searches_run_side_by_side_and_reach_what_they_reach_one_after_another(tmp_path):
    long = {"local_epochs": 10}  # so that the second worker has started before the first one is done with its search
    searches = [
        make("fedprox", long, searcher="random", samples=3),
        make("fedavg", long, searcher="random", samples=2),
    ]
    said: list[str] = []
    machines = Machines(Resources(0.5), max_concurrent=2)

    def run(store: Store, chosen: list[Search]) -> None:
        studies = [Study(search, store) for search in chosen]
        opened = [
            OpenSearch(s, search_job(s.search, store.folder / "runs"), f"{s.search.name} ", f"{s.search.name} begins")
            for s in studies
        ]
        run_searches(opened, Workspace(store, machines), Console(quiet=True), said.append, Counter())
        assert [search.failed for search in opened] == [0] * len(opened)

    def reached(store: Store) -> list:
        """What the configurations of each search have reached, and their rounds, without times."""
        found = [Study(search, store).outcomes() for search in searches]
        runs = [run for outcomes in found for outcome in outcomes for run in outcome.runs]
        return [found, [[(row["round"], row.get("accuracy")) for row in store.rows(run)] for run in runs]]

    with (
        mock.patch.dict(os.environ),
        Store(tmp_path / "together").locked() as together,
        Store(tmp_path / "alone").locked() as alone,
        ray_session.session(Workspace(together, machines), said.append),
    ):
        run(together, searches)
        first, second = (f"{search.name} " for search in searches)
        ends = [number for number, line in enumerate(said) if line.startswith(f"{first}[")]
        assert len(ends) == 3 and said.index(f"{second}begins") < ends[-1], said
        for search in searches:
            run(alone, [search])
        assert reached(together) == reached(alone)
        assert [len(outcomes) for outcomes in reached(alone)[0]] == [3, 2]
