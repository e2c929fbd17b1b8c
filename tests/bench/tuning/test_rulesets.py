"""Rulesets: studies with seeds, searches and choices of their own; what they are called, cost, and refuse."""

import json
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest
import yaml

from bench.execution.resources import Machines, Resources
from bench.execution.workspace import Workspace
from bench.experiments.grid_loading import make_grid
from bench.experiments.selection import select_cells, with_chosen
from bench.experiments.spec import ExperimentSpec, TuningOptions, by_study
from bench.experiments.stored_grid import merge_cells
from bench.tuning import select
from bench.tuning.study import Study
from tests.support.planning import Experiment
from tests.support.processes import call_bench
from tests.support.searching import finish

CONTENT = {
    "axes": {"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
    "settings": {"clients": 12, "rounds": 4, "local_epochs": 1, "model": "mlp"},
}
SPEC = ExperimentSpec(
    make_grid("mine", CONTENT),
    tuning=TuningOptions("random", samples=5, space="own,training", compares=True, studies=by_study([0, 1], 3)),
    ruleset="tuned",
)

CHOICE = {"score": 0.5, "metric": "accuracy", "seeds": [0], "share": 0.15, "searcher": "random", "scheduler": "none"}
CHOICE |= {"tried": 5, "alike": 1, "space": {"lr": "0 to 1"}, "search": "s"}
OF_RUN = 4 * 1437  # examples, all of them in 4 rounds
OF_TRIAL = 4 * (9 * 102 + 3 * 101)  # the same without the 15 % of 120 or 119 that clients set aside, 18


def test_a_study_has_seeds_that_no_other_has():
    assert by_study([0, 1], 3) == ((0, 1), (2, 3), (4, 5)) and by_study([3, 7], 2) == ((3, 7), (11, 15))
    assert SPEC.all_seeds == [0, 1, 2, 3, 4, 5] and SPEC.label == "mine@full+ruleset=tuned"
    assert {cell.config.seed for cell in select_cells(SPEC).selected} == {*range(6)}


def test_each_study_searches_on_a_seed_that_is_not_evaluated_and_draws_configurations_of_its_own(store):
    searches = select.searches_of(SPEC, select_cells(SPEC).selected)
    of_fedavg = [one for one in searches.values() if one.template.algorithm["name"] == "fedavg"]
    assert len(searches) == 6 and [[*one.configs] for one in of_fedavg] == [[6], [7], [8]]
    drawn = [dict(Study(one, store).propose().params) for one in of_fedavg]
    assert len({json.dumps(params) for params in drawn}) == 3 and of_fedavg[0].usual not in drawn


def test_methods_try_the_same_values_of_what_they_search_in_the_same_range(store):
    searches = select.searches_of(SPEC, select_cells(SPEC).selected).values()
    tried = {}
    for search in searches:
        study, key = Study(search, store), (min(search.configs), search.template.algorithm["name"])
        tried[key] = [dict(study.propose().params) for _ in range(5)]
    shared = ("lr", "weight_decay")
    of = {key: [[one[name] for name in shared] for one in found] for key, found in tried.items()}
    assert all(of[seed, "fedavg"] == of[seed, "fedprox"] for seed in (6, 7, 8)) and of[6, "fedavg"] != of[7, "fedavg"]
    assert all(len({one[key] for one in tried[6, "fedprox"]}) == 5 for key in ("mu", *shared))


def test_a_configuration_that_has_failed_is_not_chosen_and_the_study_goes_on(store, monkeypatch):
    searches = select.searches_of(SPEC, select_cells(SPEC).selected)
    for search in searches.values():
        finish(search, store, dict(Study(search, store).propose().params), 0.1)

    def fail(opened, *arguments, **more):
        for one in opened:
            one.failed = 4
        return True

    monkeypatch.setattr("bench.tuning.runner.run_searches", fail)
    monkeypatch.setattr("bench.execution.ray_session.session", lambda *where: nullcontext())
    said, asked = [], Experiment(SPEC)
    workspace = Workspace(store, Machines(Resources()), asked.options)
    about = SPEC.tuning, workspace, None, said.append, ExitStack()
    found = select.choose(searches, *about, lambda *what: [store.folder])
    assert len(found) == 6 and {one["tried"] for one in found.values()} == {1}
    assert (
        sum("4 configurations have failed and cannot be chosen, and tables will say so" in line for line in said) == 6
    )
    assert not any("spaces" in one for one in found.values())
    search = next(iter(searches.values()))
    other = replace(search, space={"lr": search.space["lr"].model_copy(update={"high": 0.5})})
    finish(other, store, dict(Study(other, store).propose().params), 0.1)
    found = select.choose(searches | {"other": other}, *about, lambda *what: [store.folder])
    assert found["other"]["spaces"] == 2 and sum("spaces" in one for one in found.values()) == 2
    assert sum("one of 2 spaces searched here" in line for line in said) == 2


def test_each_study_trains_its_choice_with_its_own_seeds():
    selection = select_cells(SPEC)
    chosen = {
        place: {"hparams": {"lr": 0.01 * (number + 1)}}
        for number, place in enumerate(select.searches_of(SPEC, selection.selected))
    }
    cells = [cell for cell in with_chosen(selection, SPEC, chosen).selected if cell.setting("algorithm") == "fedavg"]
    rates = {cell.config.seed: cell.config.lr for cell in cells}
    assert rates[0] == rates[1] and rates[2] == rates[3] and len({*rates.values()}) == 3


def test_a_choice_that_changes_takes_the_place_of_all_earlier_runs_of_its_cell(store):
    def stored(rate: float) -> dict:
        selection = select_cells(SPEC)
        searches = select.searches_of(SPEC, selection.selected)
        chosen = {place: CHOICE | {"hparams": {"lr": rate * (number + 1)}} for number, place in enumerate(searches)}
        asked = Experiment(SPEC, chosen=chosen)
        asked.store_grid(asked.plan(store), store)
        return store.grid(SPEC.label)

    first, second = stored(0.01), stored(0.02)
    assert second["ruleset"] == {"name": "tuned", "studies": [[0, 1], [2, 3], [4, 5]], "samples": 5}
    assert len(second["cells"]) == len(first["cells"]) == 12
    assert merge_cells(first, second, first["cells"], lambda run: True)["cells"] == first["cells"]


def test_runs_of_other_studies_are_in_no_table_with_those_of_these(store):
    """With more seeds in a grid its studies are others; of a method that is not run again nothing is left in the table."""

    def stored(seeds: list[int], only: dict) -> tuple[dict, int | None]:
        grid = make_grid("mine", CONTENT | {"axes": CONTENT["axes"] | {"seed": seeds}})
        spec = replace(SPEC, grid=grid, only=only, tuning=replace(SPEC.tuning, studies=by_study(seeds, 3)))
        searches = select.searches_of(spec, select_cells(spec).selected)
        asked = Experiment(spec, chosen={place: CHOICE | {"hparams": {"lr": 0.1}} for place in searches})
        left_out = asked.store_grid(asked.plan(store), store)
        return store.grid(spec.label), left_out

    earlier, _ = stored([0, 1], {})
    now, left_out = stored([0, 1, 2], {"algorithm": ["fedavg"]})
    assert {cell["algorithm"] for cell in earlier["cells"]} == {"fedavg", "fedprox"}
    assert {cell["algorithm"] for cell in now["cells"]} == {"fedavg"} and left_out == 1
    assert stored([0, 1, 2], {"algorithm": ["fedprox"]})[1] is None, "the same studies stand together"


def test_where_all_configurations_diverge_the_first_is_trained_and_the_study_may_miss(store):
    (search, *_) = select.searches_of(SPEC, select_cells(SPEC).selected).values()
    study = Study(search, store)
    first = dict(study.propose().params)
    finish(search, store, first, 0.1, status="diverged", rounds=4)
    (found,) = Study(search, store).outcomes()
    assert not found.is_choice and select.best_of([found], SPEC.tuning).params == first
    assert select.best_of([found], TuningOptions()) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ruleset", "tunde"], "Unknown value of --ruleset 'tunde'. Did you mean 'tuned'?"),
        (["--ruleset", "tuned", "--tuned", "validation"], "--tuned: the ruleset tuned decides that itself"),
        (["--ruleset", "tuned", "--seeds", "0", "--searcher", "grid"], "--seeds and --searcher: the ruleset tuned"),
        (["--ruleset", "tuned", "--only", "seed=0"], "--only seed: the ruleset tuned decides that itself"),
        (["--ruleset", "tuned", "--studies", "0"], "--studies must be at least 1, but got 0."),
        (["--ruleset", "defaults", "--samples", "3"], "--samples: the ruleset defaults searches nothing; leave one"),
        (["--ruleset", "defaults", "--studies", "3"], "--studies: the ruleset defaults searches nothing"),
        (["--ruleset", "defaults", "--seeds", "0"], "--seeds: the ruleset defaults decides that itself"),
        (
            ["--ruleset", "defaults", "--budget", "smoke", "--seeds", "0,1"],
            "leave one of the two out, or set seeds in the grid, as budgets: {smoke: {seeds: [0,1]}}.",
        ),
        (["--ruleset", "tuned", "--executor", "local"], "leave --executor local out, or take --ruleset defaults."),
        (["--studies", "3"], "--studies is for --ruleset tuned; leave it out, or name that ruleset."),
    ],
)
def test_what_a_ruleset_decides_cannot_be_asked_for(tmp_path, options, said):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONTENT))
    words = ["run", "--grid", str(tmp_path / "mine.yaml"), "--results-dir", str(tmp_path / "results"), "--dry-run"]
    code, text = call_bench(*words, *options)
    assert code == 2 and said in text


def test_the_defaults_of_a_grid_with_points_to_choose_from_are_not_known(tmp_path):
    mine = tmp_path / "mine.yaml"
    tuning = [{"when": {"algorithm": "fedprox"}, "options": {"mu": [0.1, 1]}, "named": {"mu": 1}}]
    mine.write_text(yaml.safe_dump(CONTENT | {"tuning": tuning}))
    code, text = call_bench("describe", "--grid", mine, "--ruleset", "defaults")
    assert code == 2 and "has several values of mu to choose from" in text


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (
            ["--ruleset", "tuned"],
            {"trials": 12, "searched": 30, "examples": 12 * OF_RUN + 30 * OF_TRIAL},
        ),
        (["--ruleset", "tuned", "--studies", "2", "--samples", "1"], {"trials": 8, "searched": 4}),
        (["--ruleset", "defaults"], {"trials": 4, "examples": 4 * OF_RUN}),
    ],
)
def test_what_a_ruleset_costs_is_said_before(tmp_path, options, numbers):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONTENT))
    words = ["describe", "--grid", str(tmp_path / "mine.yaml"), "--results-dir", str(tmp_path / "results"), "--json"]
    total = json.loads(call_bench(*words, *options)[1])["costs"][-1]
    assert {key: total.get(key) for key in numbers} == numbers
    assert ("searched" in total, "done" in total) == ("tuned" in options, "defaults" in options)
    _, said = call_bench(*words[:-1], *options)
    assert ("searched: runs of searches on validation data, beside those of trainings" in said) == ("tuned" in options)
    assert ("2 studies x (1 configuration with one seed + 2 seeds of the choice) = 6 runs." in said) == ("1" in options)
