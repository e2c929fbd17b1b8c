"""Grids whose hyper-parameters come from searches. Nothing here starts Ray: searches were trained before."""

import re
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pandas as pd
import pytest

from bench.cli.console import console
from bench.config.code_version import code_version
from bench.errors import ConfigError
from bench.execution.resources import Machines, Resources
from bench.execution.workspace import Workspace
from bench.experiments.grid_loading import make_grid
from bench.experiments.importing import merge_results
from bench.experiments.selection import select_cells, with_chosen
from bench.experiments.spec import ExperimentSpec, TuningOptions
from bench.results.metrics import summarise
from bench.results.store import Store
from bench.tuning import select
from bench.tuning.study import Study
from datasets import resized
from reports import api
from reports.exports import results_diff, search_report
from reports.tables import tuning_notes
from reports.tables.names import Names
from tests.support.earlier_code import earlier
from tests.support.planning import Experiment
from tests.support.searching import finish, make, try_next

SETTINGS = {"clients": 12, "rounds": 4, "local_epochs": 1, "model": "mlp", "lr": 0.1}
TUNING = TuningOptions(searcher="random", samples=3, compares=True)


def content(**changes) -> dict:
    axes = {
        "dataset": ["digits"],
        "partition": ["label-2", "dir-0.5"],
        "algorithm": ["fedavg", "fedprox"],
        "seed": [0, 1],
    }
    return {"axes": axes, "settings": SETTINGS} | changes


def request(options: TuningOptions = TUNING, **changes) -> Experiment:
    grid = make_grid("mine", content(**changes))
    return Experiment(ExperimentSpec(grid, tuning=options))


def trained(asked: Experiment, store: Store, best: float = 0.9) -> dict[str, dict]:
    """What is chosen by searches in which each later configuration is better than the one before."""
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    for search in searches.values():
        study, number = Study(search, store), 0
        while trial := study.propose():
            number += 1
            finish(search, store, dict(trial.params), best - 1 / (1 + number), best, rounds=search.template.rounds)
            study.close(trial, best, complete=True)
    return choose(searches, asked, store)


def choose(searches: dict, asked: Experiment, store: Store) -> dict[str, dict]:
    """`select.choose` on this machine."""
    workspace, said = Workspace(store, Machines(Resources()), asked.options), (console, lambda line: None)
    return select.choose(searches, asked.spec.tuning, workspace, *said, ExitStack(), search_report.write)


def with_test_runs(asked: Experiment, store: Store) -> None:
    """Its final runs, as if they had been trained."""
    plan = asked.plan(store)
    asked.store_grid(plan, store)
    for cell in plan.todo:
        store.start(cell.id, cell.config.canonical())
        rows = [{"round": number, "accuracy": 0.5} for number in range(1, 5)]
        about = {"status": "done", "reason": "", "rounds": 4, "summary": summarise(rows), "versions": {}}
        store.finish(cell.id, rows, {"id": cell.id} | about)


def test_another_choice_elsewhere_is_named_when_results_are_compared_or_imported(tmp_path):
    for name, samples in (("one", 3), ("other", 4)):
        with Store(tmp_path / name).locked() as own:
            asked = request(replace(TUNING, samples=samples))
            asked = replace(asked, chosen=trained(asked, own))
            with_test_runs(asked, own)
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    found = results_diff.compare(asked.label, one, other)
    assert len(found.choices) == 4 and not found.differing
    assert "Searches have chosen otherwise for digits, label-2, fedprox: mu=" in results_diff.render(found)
    here = Store(tmp_path / "here")
    assert not merge_results(one, here).replaced and list((tmp_path / "here" / "searches").glob("*.json"))
    merged = merge_results(other, here)
    assert len(merged.replaced) == 4
    difference = merged.replaced[f"{asked.label}: digits, label-2, fedprox"]
    assert re.match(r"(weight_decay|lr|fedprox\.mu) .* there and .* here", difference), difference


def test_a_search_plays_on_the_engine_that_was_asked_for(store, monkeypatch):
    opened = []

    def fail(searches, *arguments, **more):
        opened.extend(searches)
        for search in searches:
            search.failed = 1
        return True

    monkeypatch.setattr("bench.tuning.runner.run_searches", fail)
    monkeypatch.setattr("bench.execution.ray_session.session", lambda *where: nullcontext())
    asked = request().but(engine="loop")
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    with pytest.raises(
        ValueError,
        match="no configuration has ended, so none can be chosen; .* 1 configuration has failed; the same command tries it",
    ):
        choose(searches, asked, store)
    assert {search.job.options.engine for search in opened} == {"loop"}
    assert [search.label for search in opened] == [f"Search {number} " for number in (1, 2, 3, 4)]


def test_where_configurations_fail_the_others_are_chosen_from_and_a_place_without_any_lacks_its_cell(
    store, monkeypatch
):
    asked = request()
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    *able, (lost, none_ended) = searches.items()
    for _, search in able:
        finish(search, store, dict(Study(search, store).propose().params), 0.1, 0.1)

    def fail(opened, *arguments, **more):
        for one in opened:
            one.failed = 3 if one.search is none_ended else 2
        return True

    monkeypatch.setattr("bench.tuning.runner.run_searches", fail)
    monkeypatch.setattr("bench.execution.ray_session.session", lambda *where: nullcontext())
    chosen = choose(searches, asked, store)
    assert chosen.keys() == {place for place, _ in able}
    assert {(one["tried"], one["failed"]) for one in chosen.values()} == {(1, 2)}
    cells = with_chosen(select_cells(asked.spec), asked.spec, chosen, {lost}).selected
    left = {(cell.config.partition, cell.setting("algorithm")) for cell in cells}
    assert left == {("label-2", "fedavg"), ("label-2", "fedprox"), ("dir-0.5", "fedavg")}
    notes = [*tuning_notes._failures([{**cell.to_json(), "tuned": cell.tuned} for cell in cells], Names())]
    assert (
        notes
        and notes[0].startswith("Configurations that failed, and could not be chosen: ")
        and " of FedAvg" in notes[0]
    )


def test_more_samples_are_advised_only_where_a_space_has_more():
    assert "try more by --samples, another --space" in select._trouble(make(searcher="random", samples=2), 0, 2)
    assert "can be chosen; try another --space, or leave" in select._trouble(make(), 0, 4)


def test_accuracies_on_another_copy_of_the_images_are_named_before_and_in_the_table(store):
    asked, said = request(), []
    trained(asked, store)
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    search = next(iter(searches.values()))
    here = resized.load("digits", search.template.transform, None, None).digest
    for one, digest in zip(Study(search, store).outcomes(), ("deadbeef" * 8, here), strict=False):
        finish(search, store, one.params, 0.5, 0.5, rounds=4, data={"kind": "digits", "digest": digest})
    workspace, save = Workspace(store, Machines(Resources()), asked.options), search_report.write
    chosen = select.choose(searches, asked.spec.tuning, workspace, console, said.append, ExitStack(), save)
    assert any("2 finished runs of searches used another digits (digest deadbeef)" in one for one in said)
    assert [one.get("copies", 1) for one in chosen.values()] == [2, 1, 1, 1]


def test_each_method_searches_its_own_space_in_each_setting_with_as_many_configurations_as_the_others(store):
    asked = request()
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    assert [(s.template.partition, s.template.algorithm["name"], [*s.space], s.wanted) for s in searches.values()] == [
        ("label-2", "fedavg", ["weight_decay"], 3),
        ("label-2", "fedprox", ["mu"], 3),
        ("dir-0.5", "fedavg", ["weight_decay"], 3),
        ("dir-0.5", "fedprox", ["mu"], 3),
    ]
    assert all(
        config.split == "validation" and config.seed == seed
        for s in searches.values()
        for seed, config in s.configs.items()
    )


def test_what_the_table_shows_or_somebody_has_set_is_not_searched(store):
    axes = content()["axes"] | {"weight_decay": [0.001, 0.01]}
    asked = request(axes=axes, report={"rows": ["partition", "weight_decay"]})
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    assert {s.template.algorithm["name"] for s in searches.values()} == {"fedprox"} and len(searches) == 4
    given = request().but(overrides={"mu": 0.3})
    assert {
        s.template.algorithm["name"] for s in select.searches_of(given.spec, given.plan(store).selected).values()
    } == {"fedavg"}


def test_the_chosen_hyper_parameters_are_those_of_the_test_runs_and_the_report_tells_them(store):
    asked = request()
    chosen = trained(asked, store)
    asked = replace(asked, chosen=chosen)
    plan = asked.plan(store)
    assert {cell.config.split for cell in plan.todo} == {"test"} and len(plan.todo) == 8
    for cell in plan.selected:
        key = {"fedavg": "weight_decay", "fedprox": "mu"}[cell.config.algorithm["name"]]
        assert cell.setting(key) == cell.tuned["hparams"][key] != {"weight_decay": 1e-5, "mu": 0.01}[key]
        assert cell.tuned["tried"] == 3 and cell.tuned["defaults"], "which every search tries first"
    with_test_runs(asked, store)
    paths = api.GridReport(store.folder, "mine", "full+searcher=random+space=own+tuned=validation").write()
    lines = pd.read_csv(paths["csv"], keep_default_na=False)
    assert lines["chosen_on"].tolist() == ["validation"] * 4 and lines["choice"].str.contains("=").all()
    assert "Best of 3 configurations per cell" in paths["md"].read_text()


def test_a_choice_at_an_end_of_its_range_is_known(store):
    asked = request(
        replace(TUNING, searcher="grid", samples=None, compares=False),
        axes={**content()["axes"], "algorithm": ["fedprox"]},
    )
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    grids = [search.space["mu"].grid for search in searches.values()]
    chosen = [one["hparams"]["mu"] for one in trained(asked, store).values()]
    ends = [one.get("at_end", []) for one in trained(asked, store).values()]
    assert [("mu" in end) for end in ends] == [
        mu in (min(grid), max(grid)) for mu, grid in zip(chosen, grids, strict=True)
    ]
    assert any(ends)


@pytest.mark.parametrize(("values", "found"), [([1, 0.1, 0.01], ["mu"]), ([0.1, 0.01, 0], [])])
def test_where_no_value_is_allowed_beyond_an_end_it_is_not_named(store, tmp_path, values, found):
    space = tmp_path / "own.yaml"
    space.write_text(f"mu: {{grid: {values}}}")
    tuning = replace(TUNING, searcher="grid", samples=None, compares=False, space=str(space))
    asked = request(tuning, axes={**content()["axes"], "algorithm": ["fedprox"]})
    assert [one.get("at_end", []) for one in trained(asked, store).values()] == [found] * 2


def test_what_a_longer_search_chooses_takes_the_place_of_what_a_shorter_one_has_chosen(store):
    for tuning in (TUNING, replace(TUNING, samples=5)):
        asked = replace(request(tuning), chosen=trained(request(tuning), store))
        asked.store_grid(asked.plan(store), store)
        cells = store.grid(asked.label)["cells"]
        assert len(cells) == 8 and {cell["tuned"]["tried"] for cell in cells} == {tuning.samples}
    again = trained(request(), store)
    assert {one["tried"] for one in again.values()} == {3}, "a shorter search is as it was, whatever was tried later"


def test_a_dry_run_counts_the_runs_that_the_search_will_not_train(store):
    search = make(searcher="random", samples=4)
    study, before = Study(search, store), earlier(store, "algorithm fedprox", "algorithms/fedprox.py", "FedProx")
    try_next(study, store, 0.5, 0.5)
    try_next(study, store, 0.5, 0.5, code=code_version(search.template) | {"algorithm fedprox": before})
    try_next(study, store, 0.0, 0.0, status="failed")
    try_next(study, store, 0.5, 0.5)
    assert select.runs_there(search, store, keep_stale=False) == (4, 2)
    assert select.runs_there(search, store, keep_stale=True) == (6, 0)
    shorter = replace(search, samples=1)
    assert select.runs_there(shorter, store, keep_stale=False) == (2, 0) and shorter.wanted == 1


def test_what_other_searches_have_found_counts_for_none_of_the_methods(store):
    asked = request()
    (key, search), *_ = select.searches_of(asked.spec, asked.plan(store).selected).items()
    finish(search, store, {"weight_decay": 0.005}, 1.0, 1.0, rounds=4)
    assert trained(asked, store)[key]["hparams"] != {"weight_decay": 0.005}


def test_options_that_no_space_has_stay_at_the_named_point_of_the_grid(store):
    tuning_sets = [
        {"when": {"algorithm": "fedprox"}, "options": {"mu": [0.5, 0.7]}, "named": {"mu": 0.7}},
        {"when": {"algorithm": "fedavg"}, "options": {"lr": [0.2, 0.3]}},
    ]
    searches = select.searches_of((asked := request(tuning=tuning_sets)).spec, asked.plan(store).selected).values()
    assert {s.template.algorithm["mu"] for s in searches if s.template.algorithm["name"] == "fedprox"} == {0.7}
    assert {s.template.lr for s in searches if s.template.algorithm["name"] == "fedavg"} == {0.2}


def test_a_wrapper_is_searched_together_with_the_method_inside(store):
    axes = {
        "dataset": ["digits"],
        "partition": ["label-2"],
        "algorithm": ["fedprox"],
        "wrapper": ["none", "ccvr"],
        "seed": [0],
    }
    asked = request(axes=axes, report={"rows": ["partition", "algorithm"], "columns": "wrapper"})
    searches = select.searches_of(asked.spec, asked.plan(store).selected).values()
    assert [[*search.space] for search in searches] == [["mu"], ["mu", "virtual_per_class"]]


def test_a_grid_with_centralized_is_refused_with_what_to_do(store):
    axes = content()["axes"] | {"algorithm": ["fedavg", "centralized"]}
    asked = request(axes=axes)
    with pytest.raises(ConfigError, match=re.escape("(in a grid: --only algorithm=NAME|NAME)")):
        select.searches_of(asked.spec, asked.plan(store).selected)


@pytest.mark.parametrize("key", ["split", "validation_share"])
def test_the_splits_are_not_set_by_hand(key):
    asked = request().but(overrides={key: "test"})
    with pytest.raises(ConfigError, match=f"--set {key} cannot be used here"):
        select.searches_of(asked.spec, [])


@pytest.mark.parametrize(
    ("given", "searched"),
    [("local_epochs", "local_epochs"), ("local_steps", "local_epochs"), ("local_epochs", "local_steps")],
)
def test_a_search_does_not_replace_the_local_steps_or_epochs_that_are_set_by_hand(given, searched, store, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(f"{searched}: {{grid: [1, 3]}}\nlr: {{grid: [0.1, 0.2]}}")
    alone = request(TuningOptions(space=str(path))).but(overrides={given: 2})
    with pytest.raises(ConfigError, match=f"^--set {given} cannot be used here: {searched} is searched; leave it out"):
        select.searches_of(alone.spec, alone.plan(store).selected)
    compared = request(TuningOptions("random", samples=2, space=str(path), compares=True)).but(overrides={given: 2})
    searches = select.searches_of(compared.spec, compared.plan(store).selected).values()
    assert {key for search in searches for key in search.space} == {"lr"}
    assert {getattr(search.template, given) for search in searches} == {2}


def test_a_share_that_leaves_a_client_empty_is_told_before_anything_is_trained(store):
    axes = content()["axes"] | {"partition": ["label-2"]}
    asked = request(axes=axes, settings=SETTINGS | {"train_examples": 40})
    searches = select.searches_of(asked.spec, asked.plan(store).selected)
    with pytest.raises(ValueError, match="A validation part needs two examples of one class at each client"):
        choose(searches, asked, store)
    assert not [*store.folder.glob("runs/*")]
