"""What a study proposes and remembers, and what is reported of it."""

import inspect
import math
from types import SimpleNamespace

import pandas as pd
import pytest
from optuna.samplers import TPESampler

from algorithms.fedavg import FedAvg
from bench.config.code_version import code_version
from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.results.metrics import summarise
from bench.results.store import Store
from bench.tuning.outcomes import _place
from bench.tuning.search import TPE
from bench.tuning.study import Study, could_propose, draws
from reports.exports import search_figures, search_report
from search_spaces import Parameter
from tests.support.earlier_code import earlier
from tests.support.searching import STAGES, finish, make, try_next


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


@pytest.mark.parametrize("searcher", ["grid", "optuna"])
@pytest.mark.parametrize("status", ["done", "stopped"])
def test_a_search_that_goes_on_compares_no_scores_of_earlier_code(store, searcher, status):
    search = make(searcher=searcher, samples=None if searcher == "grid" else 4, scheduler="asha")
    now = code_version(search.template)
    digest = earlier(store, "algorithm fedprox", "algorithms/fedprox.py", "FedProx")
    study, before = Study(search, store), now | {"algorithm fedprox": digest}
    rounds = 9 if status == "done" else 1
    first = try_next(study, store, 0.9, 0.9, code=before, status=status, rounds=rounds)
    second = try_next(study, store, 0.5, 0.5, code=now)
    again = Study(search, store)
    assert again.left == 3 and [one.params for one in again.outcomes()] == [second]
    assert (
        again.stale_runs().keys() == search.runs(first).keys()
        and not again.ended_runs.keys() & search.runs(first).keys()
    )
    kept = Study(search, store, keep_stale=True)
    assert kept.left == 2 and not kept.stale_runs() and {one.mean for one in kept.outcomes()} == {0.9, 0.5}
    assert try_next(Study(search, store), store, 0.6, 0.6, code=now) == first, "it is tried again first"
    assert [one.mean for one in Study(search, store).outcomes()] == [0.6, 0.5]


def test_a_search_learns_nothing_from_runs_of_earlier_code_of_others(store):
    search = make(searcher="optuna", samples=4)
    before = code_version(search.template) | {
        "engine": earlier(store, "engine", "bench/seeding.py", "seed_for"),
    }
    finish(search, store, {"mu": 0.5}, 0.9, 0.9, code=before)
    assert [one.params for one in Study(search, store).outcomes()] == []
    assert [one.params for one in Study(search, store, keep_stale=True).outcomes()] == [{"mu": 0.5}]


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


def test_the_choice_of_a_grid_does_not_depend_on_what_other_searches_had_finished_before(store):
    search = make()
    finish(search, store, {"mu": 0.1}, 0.5, 0.5)
    study = Study(search, store)
    assert study.left == 3
    while try_next(study, store, 0.5, 0.5):
        pass
    assert [one.params["mu"] for one in study.outcomes()] == [0.001, 0.01, 0.1, 1], (
        "of equal ones the first of the grid"
    )


@pytest.mark.slow_but_first
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
                    study.close(trial, score, complete=True)
            return [one.params for one in study.outcomes()]

    whole = found("whole", ())
    assert len(whole) == 8 and found("killed", kills) == whole == found("longer", (), first=3)


def test_what_a_seed_proposes_does_not_depend_on_the_defaults_of_optuna(store, monkeypatch):
    """Ten configurations are drawn at random, the others by TPE from those before them; the values are those of the defaults of
    Optuna 5.0."""
    search = make(space="fedprox,training", searcher="optuna", samples=13)
    others = {"n_startup_trials": 3, "n_ei_candidates": 5, "multivariate": False, "constant_liar": False}
    sampler = inspect.unwrap(TPESampler.__init__)
    assert others.keys() <= sampler.__kwdefaults__.keys()
    monkeypatch.setattr(sampler, "__kwdefaults__", sampler.__kwdefaults__ | others)
    study = Study(search, store)
    while trial := study.propose():
        params = dict(trial.params)
        score = 1 / (1 + abs(math.log(params["mu"] / 0.02)) + abs(math.log(params["lr"] / 0.05)))
        finish(search, store, params, score, score)
        study.close(trial, score, complete=True)
    stored = store.search(search.name)
    assert study.optuna.metric_names == ["validation_accuracy"]
    assert stored["sampler"] == study.optuna.user_attrs["sampler"] == TPE
    assert [list(stored["proposed"][number].values()) for number in (0, 1, 9, 10, 11, 12)] == [
        pytest.approx(values, rel=1e-6)
        for values in (
            [0.01, 0.1, 1e-05],
            [0.0002872015803932228, 0.023328051184746443, 1.6427652927377958e-06],
            [1.0920820401043816, 0.07168795188283061, 6.14159918520905e-06],
            [0.00016776399269117216, 0.06081064911067118, 0.001060273712154095],
            [0.006617852601214736, 0.029393121769992762, 1.4703211786540948e-05],
            [0.0036589876519657755, 0.09587437398703896, 1.2774279802507236e-05],
        )
    ]


def test_a_search_without_optuna_names_no_sampler(store):
    search = make(searcher="random", samples=2)
    assert "sampler" not in Study(search, store).optuna.user_attrs and "sampler" not in store.search(search.name)


def test_a_search_tries_what_the_method_has_without_it_first(store):
    usual = {"mu": 0.3, "lr": 0.1, "weight_decay": 1e-5}
    search = make(overrides={"mu": 0.3}, space="fedprox,training", searcher="random", samples=2)
    assert dict(Study(search, store).propose().params) == usual
    outside = make(overrides={"mu": 50}, searcher="random", samples=2)
    assert dict(Study(outside, store).propose().params)["mu"] <= 10


def test_a_setting_that_is_searched_in_one_value_has_it_from_the_first_configuration_on(store):
    study = Study(make("feddyn", space="own,training", searcher="random", samples=2), store)
    first = dict(study.propose().params)
    assert first == {"alpha": 0.01, "momentum": 0.9, "weight_decay": 0.001, "lr": 0.1}


def test_at_random_all_methods_and_versions_try_the_same_values_of_a_common_range(store, monkeypatch):
    def drawn(algorithm="fedavg", **overrides):
        search = make(algorithm, overrides, space="training", searcher="random", samples=4)
        return search.name, [params["lr"] for params in draws(search, 4)][1:]

    name, values = drawn()
    assert len({*values}) == 3
    assert drawn("fedprox")[1] == drawn(rounds=5)[1] == values
    monkeypatch.setattr(FedAvg, "version", 9)
    assert drawn()[0] != name and drawn()[1] == values, (
        "an edit of a method is compared on the configurations of before"
    )
    assert not {*drawn(partition="iid")[1]} & {*values}


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
        store.finish(run, rows, {"id": run, "status": status, "rounds": len(rows), "summary": summarise(rows)})
    again = Study(search, store)
    (trial,) = again.optuna.get_trials()
    assert trial.intermediate_values == pytest.approx({1: 0.0, 3: 0.2, 9: 0.4})
    (outcome,) = again.outcomes()
    assert outcome.scores == (0.0, 0.8) and outcome.rounds == 9 and outcome.diverged == 1 and not outcome.is_choice
    assert study.search.name == again.search.name


def test_a_configuration_that_diverged_with_every_seed_is_no_choice(store):
    study = Study(make(), store)
    try_next(study, store, 0.9, 0.9, status="diverged", rounds=4)
    (outcome,) = study.outcomes()
    assert outcome.mean == 0 and outcome.complete and not outcome.is_choice


def test_a_configuration_that_diverged_with_one_seed_is_no_choice_and_stands_behind_those_that_did_not(store):
    study = Study(make(), store)
    for scores, status in (((0.9, 0.9), "diverged"), ((0.2, 0.2), "done")):
        try_next(study, store, *scores, status=status)
    first, second = study.outcomes()
    assert (first.mean, first.is_choice, second.is_choice) == (0.2, True, False)
    better = second._replace(scores=(0.9, 0.0), diverged=1)
    assert better.mean > first.mean and not better.is_choice
    assert sorted([better, first], key=_place) == [first, better]


def test_of_stopped_configurations_those_that_went_furthest_come_first_and_all_behind_those_that_ended(store):
    study = Study(make(scheduler="asha"), store)
    for score, status, rounds in ((0.9, "stopped", 1), (0.2, "stopped", 3), (0.3, "stopped", 3), (0.1, "done", 9)):
        try_next(study, store, score, score, status=status, rounds=rounds)
    assert [one.mean for one in study.outcomes()] == [0.1, 0.3, 0.2, 0.9]


def test_random_search_goes_on_with_other_points_after_a_restart(store):
    search = make(searcher="random", samples=3)
    first = try_next(Study(search, store), store, 0.5, 0.5)
    later = Study(search, store)
    assert later.left == 2 and try_next(later, store, 0.5, 0.5) != first


@pytest.mark.parametrize("searcher", ["random", "optuna"])
@pytest.mark.parametrize("draws", [100, 0])
def test_every_configuration_of_a_small_space_is_tried_once_also_where_no_sampler_draws_a_new_one(
    store, searcher, draws, monkeypatch
):
    monkeypatch.setattr("bench.tuning.study._MOST_DRAWS", draws)
    of_ifca = Study(make("ifca", searcher=searcher, samples=30), store)
    proposed = [params["num_clusters"] for params in iter(lambda: try_next(of_ifca, store, 0.5, 0.5), None)]
    assert sorted(proposed) == [*range(2, 11)] and of_ifca.left == 0


def test_a_model_that_proposes_the_same_good_configurations_again_and_again_ends_no_search(store, tmp_path):
    grids = {"lr": [0.001, 0.003, 0.01, 0.03, 0.1], "batch_size": [8, 16, 32, 64], "momentum": [0.0, 0.5, 0.9]}
    (tmp_path / "small.yaml").write_text("".join(f"{key}: {{grid: {grid}}}\n" for key, grid in grids.items()))
    small = Study(
        make("fedavg", {"lr": None}, space=str(tmp_path / "small.yaml"), searcher="optuna", samples=15), store
    )
    while trial := small.propose():
        score = 0.5 + trial.params["momentum"] / 3 - abs(trial.params["lr"] - 0.03)
        finish(small.search, store, dict(trial.params), score, score)
        small.close(trial, score, complete=True)
    assert len(small.outcomes()) == 15


def test_a_configuration_that_failed_is_no_choice_and_is_tried_again(store):
    search = make()
    study = Study(search, store)
    trial = study.propose()
    finish(search, store, trial.params, 0.9, 0.9, status="failed")
    study.close(trial, None, complete=False)
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
        rows = [{"round": number, "accuracy": 1.0} for number in range(1, 10)]
        store.finish(run, rows, {"id": run, "status": "done", "rounds": 9, "summary": summarise(rows)})
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
    assert [one.complete for one in found] == [True, True, True, False]
    assert found[2].mean == 0, "a run that diverged counts as nothing"
    paths = search_report.write(study, found)
    text = next(path for path in paths if path.suffix == ".md").read_text()
    first = next(line for line in text.splitlines() if "±" in line)
    assert [part.strip() for part in first.split("|")[1:3]] == ["0.1", "60.0±10.0"] and "3 of 9, stopped" in text
    assert {path.suffix for path in paths} == {".md", ".csv", ".png", ".pdf", ".svg"}


def test_a_report_says_how_many_rounds_a_scheduler_has_saved(store):
    study = Study(make(searcher="random", scheduler="asha", samples=3), store)
    for scores, how in (
        ((0.5, 0.6), {}),
        ((0.1, 0.2), {"status": "stopped", "rounds": 1}),
        ((0.0, 0.0), {"status": "diverged", "rounds": 4}),
    ):
        try_next(study, store, *scores, **how)
    path = search_report.write(study, study.outcomes(), with_figures=False)[0]
    assert "\n- Stopping has saved 16 rounds; this search has trained 28, those of all seeds.\n" in path.read_text()


def test_a_title_names_what_a_method_wraps_unless_that_is_fedavg():
    titles = {"fedconcat": "FedConcat", "ccvr": "CCVR", "fedprox": "FedProx"}
    overrides = {"fedconcat": STAGES}
    for method, title in titles.items():
        assert search_figures.title(make(method, overrides.get(method))) == f"{title} on Digits, #C = 2"


def test_a_report_has_names_for_people(store):
    study = Study(make("ccvr", {"base": "moon"}, searcher="random", samples=1), store)
    try_next(study, store, 0.5, 0.6)
    outcomes = study.outcomes()
    text = search_report.write(study, outcomes, with_figures=False)[0].read_text()
    assert (
        text.startswith("# Search: MOON + CCVR on Digits, #C = 2\n\n| M_c ") and "\n- M_c (virtual_per_class): " in text
    )
    figure = search_figures.draw(study, outcomes)["slice"]
    assert figure.axes[0].get_xlabel() == "Virtual per class ($M_c$)"
    assert figure.get_suptitle() == "MOON + CCVR on Digits, #C = 2"


@pytest.mark.parametrize(("value", "holds"), [(2, True), (2.0, False), (1.5, False), (True, False), (11, False)])
def test_a_stored_proposal_of_a_whole_number_is_one(value, holds):
    assert could_propose(Parameter(grid=[1, 2], low=1, high=10), value) == holds


@pytest.mark.parametrize(("value", "holds"), [(1, True), (0.5, False), (10.0, True), (11, False), ("1", False)])
def test_a_stored_proposal_lies_in_the_range_of_its_number(value, holds):
    assert could_propose(Parameter(grid=[1.5, 2], low=1, high=10), value) == holds


def test_a_stored_proposal_of_a_choice_is_one_of_them():
    choices = Parameter(grid=["a", "b"])
    assert could_propose(choices, "b") and not could_propose(choices, "c")
    between = Parameter(grid=[1, 2], low=1, high=10)
    assert could_propose(between, 3) and not could_propose(between, 3, "grid"), "a grid has its points alone"


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
    assert "- 2 of the configurations were found in the store: other searches had trained them.\n" in text
    assert "- 2 configurations print alike at the top: what is chosen among them means little.\n" in text
    assert Study(search, store).left == 0


def test_the_course_of_a_search_shows_the_best_so_far(store):
    study = Study(make(), store)
    for score in (0.3, 0.6, 0.5):
        try_next(study, store, score, score)
    (axes,) = search_figures.draw(study, study.outcomes())["history"].axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == pytest.approx([0.3, 0.6, 0.6])


@pytest.mark.slow
def test_a_table_of_configurations_keeps_small_values(store):
    search = make("fedavg", searcher="random", samples=1)
    study = Study(search, store)
    params = try_next(study, store, 0.5, 0.6)
    csv = next(path for path in search_report.write(study, study.outcomes()) if path.suffix == ".csv")
    assert pd.read_csv(csv)["weight_decay"].tolist() == pytest.approx([params["weight_decay"]], rel=1e-9)


def test_rounds_that_stopping_has_saved_are_those_of_the_search_itself():
    search = SimpleNamespace(
        configs={0: None},
        template=SimpleNamespace(validation_share=0.15),
        space={},
        searcher="optuna",
        scheduler="asha",
        wanted=2,
    )
    lines = {"found": [False, True], "saved": [6, 0], "trained": [3, 9], "whole": [False, True], "diverged": [0, 0]}
    notes = [*search_report._notes(search, pd.DataFrame(lines), alike=1)]
    assert "Stopping has saved 6 rounds; this search has trained 3, those of all seeds." in notes
