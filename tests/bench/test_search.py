"""Searches: spaces, what is refused, what a study remembers, and configurations in lock step. Nothing here starts Ray."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Console

import algorithms
import search_spaces
from bench import grid as grids
from bench import images
from bench.config import resolve, run_id, with_options
from bench.configuration import Configuration, Place
from bench.grid_spec import single
from bench.mistakes import ConfigError
from bench.outcomes import Played
from bench.progress import RoundsBar
from bench.resources import Resources
from bench.run import Run
from bench.search import _Recorder, asha, bases_of
from bench.search_spec import How, make_searches, on_validation
from bench.searches import Search, stops
from bench.store import Store
from bench.study import Study
from datasets import load
from reports import search_figures, search_report

SETTING = {"algorithm": "fedprox", "dataset": "digits", "partition": "label-2"}
SMALL = {"clients": 12, "rounds": 9, "local_epochs": 1, "model": "mlp", "lr": 0.1}

STAGES = {"rounds": None, "encoder_rounds": 1, "classifier_rounds": 2}


def make(algorithm="fedprox", overrides=None, **how) -> Search:
    settings = {key: value for key, value in (SMALL | (overrides or {})).items() if value is not None}
    grid = single(SETTING | {"algorithm": algorithm}, [0, 1])
    cells = grids.expand(grid, "paper", overrides=settings)
    (search,) = make_searches(cells, grid.report.model_dump(), How(**how)).values()
    return search


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path).locked() as store:
        yield store


def finish(search: Search, store: Store, params: dict, *scores: float, status: str = "done", rounds: int = 9) -> None:
    """Runs of a configuration, as if they had been played."""
    for (run, config), reached in zip(search.runs(params).items(), scores, strict=True):
        store.start(run, config.canonical())
        rows = [{"round": number + 1, "accuracy": reached} for number in range(rounds)]
        store.finish(
            run, rows, {"status": status, "reason": "", "rounds": rounds, "summary": {"last": {"accuracy": reached}}}
        )


def try_next(study: Study, store: Store, *scores: float, **how) -> dict | None:
    """What the study proposes, played with these scores; without any it is left running."""
    trial = study.propose()
    if trial is None:
        return None
    params = dict(trial.params)
    if scores:
        finish(study.search, store, params, *scores, **how)
        study.close(trial, sum(scores) / len(scores), whole=how.get("status", "done") != "stopped")
    return params


def test_every_method_has_a_space_but_the_one_that_has_no_clients():
    assert set(algorithms.REGISTRY) - set(search_spaces.names()) == {"centralized"}


@pytest.mark.parametrize("name", search_spaces.names())
def test_every_space_is_about_training_and_options_of_its_method(name):
    method = "fedavg" if name == "training" else name
    stages = STAGES if hasattr(algorithms.load(method), "encoder_rounds") else {}
    overrides = stages | ({"clients": 20} if method.endswith("fesem") else {})
    search = make(method, overrides, space=name)
    assert search.space and all(parameter.source for parameter in search.space.values())
    assert len([search.runs(params) for params in search.points()]) == search.wanted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("mu: {grid: [1], low: 2, high: 1, source: x}", "the range must not be empty, but low is 2 and high 1."),
        ("mu: {grid: [], source: x}", "grid"),
        ("mu: {grid: [1], low: 0, high: 1, log: true, source: x}", "a logarithmic range needs low above 0, but got 0."),
        ("mu: {grid: [1], low: 0, source: x}", "low and high belong together"),
        ("mu: {grid: [1], hihg: 3, source: x}", "Did you mean 'high'?"),
        ("nu: {grid: [1], source: x}", "Unknown hyper-parameter of fedprox 'nu'. Did you mean 'mu'?"),
        ("mu: {grid: [1, -1], source: x}", "The space of mu has -1: fedprox:"),
        ("mu: {grid: [0.1, 1, 1.0], source: x}", "the grid has a value twice: [0.1, 1, 1.0]."),
        ("rounds: {grid: [1, 2], source: x}", "Unknown hyper-parameter of fedprox 'rounds'."),
        ("clients: {grid: [1, 2], source: x}", "Unknown hyper-parameter of fedprox 'clients'."),
        ("mu: {grid: [[1]], source: x}", "mu must be searched among numbers or texts, but its grid has [1]."),
        ("- mu", "must map hyper-parameters to where they are searched."),
        ("mu: [", "is not valid YAML"),
    ],
)
def test_a_mistake_in_a_space_is_explained(tmp_path, content, said):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        make(space=str(tmp_path / "mine.yaml"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"searcher": "gird"}, "Unknown searcher 'gird'. Did you mean 'grid'?"),
        ({"scheduler": "ahsa"}, "Unknown scheduler 'ahsa'. Did you mean 'asha'?"),
        ({"samples": 3}, "The grid has 4 points, more than --samples 3, and is tried whole"),
        ({"searcher": "optuna"}, "--searcher optuna needs --samples"),
        (
            {"overrides": {"evaluate_every": 3}, "scheduler": "asha"},
            "asha compares runs after round 1, but they are evaluated",
        ),
        ({"validation_share": 0.0}, "--validation-share must lie between 0 and 1, but got 0."),
        ({"samples": 0}, "--samples must be at least 1, but got 0."),
        ({"space": "fedporx"}, "Unknown space 'fedporx'. Did you mean 'fedprox'?"),
        ({"algorithm": "centralized"}, "centralized has no clients that could set validation data aside"),
        ({"metric": "acuracy"}, "Unknown metric 'acuracy'."),
        (
            {"metric": "validation_local_accuracy"},
            "no run reports validation_local_accuracy; choose validation_accuracy.",
        ),
        (
            {"algorithm": "fedconcat", "scheduler": "asha", "overrides": STAGES},
            "fedconcat has no accuracy before its last rounds",
        ),
        ({"algorithm": "local", "scheduler": "asha"}, "local has no accuracy before its last rounds"),
    ],
)
def test_what_a_search_cannot_do_is_refused_in_one_sentence(options, said):
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert said in str(caught.value)


def test_a_search_is_on_validation_data_and_more_samples_continue_it():
    search = make(searcher="random", samples=3)
    assert {config.split for config in search.configs.values()} == {"validation"}
    assert make(searcher="random", samples=30).name == search.name
    assert make(overrides={"mu": 0.7}, searcher="random", samples=3).name != search.name, "it starts elsewhere"
    assert make(overrides={"mu": 0.7}).name == make().name, "a grid does not"
    others = [
        make(searcher="optuna", samples=3),
        make(overrides={"rounds": 8}),
        make(space="fedprox,training"),
        make(validation_share=0.3),
    ]
    assert len({search.name, *(other.name for other in others)}) == 5
    assert make(overrides={"test_examples": 100}).name == make().name, "the final runs may be tested on fewer images"


def test_an_option_goes_to_the_method_that_has_it():
    config = resolve(SETTING | SMALL | {"algorithm": "ccvr", "base": "fedprox"})
    found = with_options(config, {"mu": 0.3, "virtual_per_class": 7, "lr": 0.2}).algorithm
    assert found["base"]["mu"] == 0.3 and found["virtual_per_class"] == 7
    with pytest.raises(ConfigError, match="nu"):
        with_options(config, {"nu": 1})


def test_a_grid_is_tried_once_and_what_a_kill_has_interrupted_is_tried_again_first(store):
    search = make()
    study = Study(search, store)
    assert study.left == 4
    tried = [try_next(study, store, 0.5, 0.5), try_next(study, store, 0.6, 0.6)]
    running = try_next(study, store)
    again = Study(search, store)
    assert again.left == 2
    assert try_next(again, store, 0.7, 0.7) == running
    tried += [running, try_next(again, store, 0.4, 0.4)]
    assert sorted(params["mu"] for params in tried) == [0.001, 0.01, 0.1, 1]
    assert Study(search, store).left == 0 and try_next(again, store) is None


def test_the_choice_does_not_depend_on_a_kill(store, tmp_path):
    found = []
    for kills in (False, True):
        with Store(tmp_path / f"kills-{kills}").locked() as own:
            study = Study(make(), own)
            if kills:
                try_next(study, own)
                study = Study(make(), own)
            while try_next(study, own, 0.5, 0.5):
                pass
            found.append(study.outcomes()[0].params)
    assert found == [{"mu": 0.001}] * 2, "of equal ones the smaller value"


@pytest.mark.parametrize("searcher", ["random", "optuna"])
@pytest.mark.parametrize("kills", [(), (0, 1), (2, 5)])
def test_what_is_proposed_does_not_depend_on_where_a_driver_was_killed(tmp_path, searcher, kills):
    def found(name: str, kills: tuple[int, ...], first: int = 8) -> list[dict]:
        with Store(tmp_path / name).locked() as own:
            for samples in dict.fromkeys((first, 8)):
                search = make(searcher=searcher, samples=samples)
                study = Study(search, own)
                while trial := study.propose():
                    number, params = len(study.optuna.get_trials()), dict(trial.params)
                    if number in kills:
                        study = Study(search, own)
                        assert dict((trial := study.propose()).params) == params
                    score = 1 / (1 + abs(math.log(params["mu"] / 0.02)))
                    finish(search, own, params, score, score)
                    study.close(trial, score, whole=True)
            return [one.params for one in study.outcomes()]

    whole = found("whole", ())
    assert len(whole) == 8 and found("killed", kills) == whole == found("longer", (), first=3)


def test_a_search_tries_what_the_method_has_without_it_first(store):
    usual = {"mu": 0.3, "lr": 0.1, "weight_decay": 1e-5}
    search = make(overrides={"mu": 0.3}, space="fedprox,training", searcher="random", samples=2)
    assert dict(Study(search, store).propose().params) == usual
    outside = make(overrides={"mu": 50}, searcher="random", samples=2)
    assert dict(Study(outside, store).propose().params)["mu"] <= 10


def test_searches_in_other_settings_draw_other_values(store):
    drawn = [
        [try_next(study, store, 0.5, 0.5)["mu"] for _ in range(3)][1:]
        for study in (
            Study(make(searcher="random", samples=3, overrides={"rounds": rounds}), store) for rounds in (8, 9)
        )
    ]
    assert not set(drawn[0]) & set(drawn[1])


def test_a_run_is_worth_the_same_at_a_rung_whether_it_was_just_played_or_stands_in_the_store(store):
    """One seed diverges in round 4; both are evaluated every second round."""
    search = make(scheduler="asha", searcher="random", samples=3)
    params = try_next(study := Study(search, store), store)
    for (run, config), diverges in zip(search.runs(params).items(), (True, False), strict=True):
        store.start(run, config.canonical())
        rows = [
            {"round": number} | ({} if number % 2 else {"accuracy": number / 10})
            for number in range(1, 5 if diverges else 10)
        ]
        status = "diverged" if diverges else "done"
        store.finish(run, rows, {"status": status, "reason": "", "rounds": len(rows), "summary": {}})
    again = Study(search, store)
    (trial,) = again.optuna.get_trials()
    assert trial.intermediate_values == pytest.approx({1: 0.0, 3: 0.2, 9: 0.4})
    (outcome,) = again.outcomes()
    assert outcome.scores == (0.0, 0.8) and outcome.rounds == 9 and outcome.diverged == 1 and outcome.is_choice
    assert study.search.name == again.search.name


def test_a_configuration_that_diverged_with_every_seed_is_no_choice(store):
    study = Study(make(), store)
    try_next(study, store, 0.9, 0.9, status="diverged", rounds=4)
    (outcome,) = study.outcomes()
    assert outcome.mean == 0 and outcome.whole and not outcome.is_choice


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


def test_random_search_goes_on_with_other_points_after_a_restart(store):
    search = make(searcher="random", samples=3)
    first = try_next(Study(search, store), store, 0.5, 0.5)
    later = Study(search, store)
    assert later.left == 2 and try_next(later, store, 0.5, 0.5) != first


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_nothing_is_tried_twice_and_a_space_may_be_used_up(store, searcher):
    study = Study(make("ifca", searcher=searcher, samples=30), store)
    proposed = [params["num_clusters"] for params in iter(lambda: try_next(study, store, 0.5, 0.5), None)]
    assert len(proposed) == len(set(proposed)) and set(proposed) <= set(range(2, 11))


def test_a_configuration_that_failed_is_no_choice_and_is_tried_again(store):
    search = make()
    study = Study(search, store)
    trial = study.propose()
    finish(search, store, trial.params, 0.9, 0.9, status="failed")
    study.close(trial, None, whole=False)
    assert study.outcomes() == []
    assert try_next(Study(search, store), store, 0.5, 0.5) == trial.params


def test_finished_runs_teach_a_new_search_but_count_for_none(store):
    search = make(searcher="optuna", samples=5)
    finish(search, store, {"mu": 0.5}, 0.3, 0.5)
    finish(search, store, {"mu": 1}, 0.2, 0.2)
    finish(search, store, {"mu": 50.0}, 0.9, 0.9)  # outside of the range
    finish(search, store, {"mu": 0.7}, 0.9, 0.9, status="stopped", rounds=3)
    test_runs = {}
    for config in search.configs.values():
        tested = with_options(config, {"mu": 0.9, "split": "test", "validation_share": None})
        test_runs[run_id(tested)] = tested
    for run, config in test_runs.items():
        store.start(run, config.canonical())
        store.finish(run, [], {"status": "done", "rounds": 9, "summary": {"last": {"accuracy": 1.0}}})
    for _ in range(2):
        study = Study(search, store)
        found = {trial.params["mu"]: trial.value for trial in study.optuna.get_trials()}
        assert found == pytest.approx({0.5: 0.4, 1: 0.2}) and study.left == 5
    assert not set(study.ended_runs) & set(test_runs)
    assert study.outcomes()[0].params == {"mu": 0.5}


def test_what_another_search_has_stopped_is_trained_to_the_end_where_nothing_is_stopped(store):
    search = make()
    finish(search, store, {"mu": 0.001}, 0.9, 0.9, status="stopped", rounds=3)
    study = Study(search, store)
    assert try_next(study, store) == {"mu": 0.001}
    assert Study(search, store).left == 4


def test_the_winner_is_the_best_mean_among_what_was_trained_to_the_end(store):
    search = make()
    study = Study(search, store)
    for scores, status, rounds in (
        ((0.5, 0.6), "done", 9),
        ((0.9, 0.9), "stopped", 3),
        ((0.7, 0.5), "done", 9),
        ((0.9, 0.9), "diverged", 4),
    ):
        try_next(study, store, *scores, status=status, rounds=rounds)
    found = study.outcomes()
    assert [one.params["mu"] for one in found] == [0.1, 0.001, 1, 0.01]
    assert [one.whole for one in found] == [True, True, True, False]
    assert found[2].mean == 0, "a run that diverged counts as nothing"
    paths = search_report.write(study, found)
    text = next(path for path in paths if path.suffix == ".md").read_text()
    first = next(line for line in text.splitlines() if "±" in line)
    assert [part.strip() for part in first.split("|")[1:3]] == ["0.1", "60.0±10.0"] and "3 of 9, stopped" in text
    assert {path.suffix for path in paths} == {".md", ".csv", ".png", ".pdf", ".svg"}


def test_a_report_says_what_was_found_and_that_the_best_print_alike(store):
    search = make("fedconcat", STAGES, searcher="optuna", samples=5)
    for clusters in (2, 3):
        finish(search, store, {"num_clusters": clusters}, 0.5, 0.5)
    study = Study(search, store)
    assert study.left == 5, "of the nine there are, two are known"
    while try_next(study, store, 0.4, 0.4):
        pass
    path = search_report.write(study, study.outcomes(), with_figures=False)[0]
    text = path.read_text()
    assert "- 2 of the configurations were found in the store: other searches had played them.\n" in text
    assert "- 2 configurations print alike at the top: what is chosen among them means little.\n" in text
    assert Study(search, store).left == 0


def test_the_course_of_a_search_shows_the_best_so_far(store):
    study = Study(make(), store)
    for score in (0.3, 0.6, 0.5):
        try_next(study, store, score, score)
    (axes,) = search_figures.draw(study, study.outcomes())["history"].axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == pytest.approx([0.3, 0.6, 0.6])


def test_a_table_of_configurations_keeps_small_values(store):
    search = make("fedavg", searcher="random", samples=1)
    study = Study(search, store)
    params = try_next(study, store, 0.5, 0.6)
    csv = next(path for path in search_report.write(study, study.outcomes()) if path.suffix == ".csv")
    assert pd.read_csv(csv)["weight_decay"].tolist() == pytest.approx([params["weight_decay"]], rel=1e-9)


@pytest.mark.parametrize(
    ("scheduler", "rounds", "expected"),
    [("none", 9, [9]), ("asha", 9, [1, 3, 9]), ("asha", 50, [5, 15, 50]), ("asha", 2, [1, 2]), ("asha", 1, [1])],
)
def test_where_configurations_are_compared(scheduler, rounds, expected):
    assert stops(make(scheduler=scheduler, overrides={"rounds": rounds})) == expected


def configuration(search: Search, params: dict, folder, ended=None) -> Configuration:
    """A trial without its scheduler."""
    made = Configuration.__new__(Configuration)
    made.setup(params, search, Place(str(folder), False, "", {}, 0.0), None, Resources(1.0), ended or {})
    return made


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
    monkeypatch.setattr(images, "load", lambda *arguments: poisoned)
    told = next_comparison(configuration(make(), {"mu": 0.1}, tmp_path))
    assert told["done"] and not told["failed"] and told["value"] > 0
    finals = next_comparison(configuration(make(), {"split": "test", "validation_share": None}, tmp_path))
    assert finals["failed"] and "the test split was read" in finals["runs"][0]["ended"]["reason"]


def test_a_dataset_of_which_a_part_is_there_is_searched_as_it_is():
    """All of Tiny-ImageNet has more classes than these clients could share."""
    flat = {"algorithm": "fedprox", "dataset": "tinyimagenet", "partition": "label-2", "clients": 20}
    with pytest.raises(ConfigError):
        resolve(flat)
    config = on_validation(resolve(flat, facts=None), 0.2)
    assert with_options(config, {"mu": 0.5}).algorithm["mu"] == 0.5 and config.split == "validation"


def test_a_method_that_only_changes_what_is_deployed_starts_from_one_run_of_its_base():
    search = make("ccvr")
    assert {seed: config.algorithm for seed, config in bases_of(search).items()} == {
        0: {"name": "fedavg"},
        1: {"name": "fedavg"},
    }
    assert {config.split for config in bases_of(search).values()} == {"validation"}
    assert bases_of(make()) == {} == bases_of(make("ccvr", space="ccvr,training"))
