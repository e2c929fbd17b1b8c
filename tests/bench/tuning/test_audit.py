"""Stored grids are compared with their files, and choices of searches with the validation runs; nothing is trained."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import datasets
from bench import plugins
from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.experiments.grid_loading import load_grid
from bench.experiments.selection import select_cells
from bench.experiments.spec import ALL, DEFAULTS, OWN, TUNED, ExperimentSpec, TuningOptions, by_study
from bench.results.store import Store
from bench.tuning import study
from bench.tuning.audit import audit, stops_of_searches
from bench.tuning.select import best_of, describe_choice, searches_of
from bench.tuning.study import Study
from datasets import own_data, partition_files, resized
from tests.support.searching import make, try_next
from tests.support.stored_experiments import store_cells, tamper

FILE = """
title: Toy board
axes: {dataset: [digits], algorithm: [fedavg, fedprox], partition: [label-2, dir-0.1], seed: [0, 1]}
settings: {rounds: 4, lr: 0.3, clients: 10}
report: {rows: [algorithm], columns: partition}
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "board.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


def says(store: Store, label: str, file=None) -> tuple[bool, str]:
    found = audit(store, store.grid(label), file)
    assert not found.follows or not found.differs
    return found.differs, found.says


def of_rules(path, **overrides) -> ExperimentSpec:
    return ExperimentSpec(load_grid(str(path)), ruleset=DEFAULTS, overrides=overrides)


def with_other(cell: dict, **options) -> None:
    """Points a cell at another run."""
    config = with_options(next(one for one in _cells if run_id(one) == cell["run"]), options)
    cell |= {"run": run_id(config), "config": config.canonical()}


_cells: list = []


OURS = {"names": {"algorithm": {"fedprox": "FedProx (ours)"}}}


def in_prox(grid: dict) -> list[dict]:
    return [cell for cell in grid["cells"] if cell["algorithm"] == "fedprox"]


CHANGES = {
    "lr": (lambda grid: with_other(in_prox(grid)[1], lr=0.1), "fedprox label-2 seed 1: lr is 0.1, but 0.3 by its grid"),
    "option": (
        lambda grid: with_other(in_prox(grid)[0], mu=9.0),
        "fedprox label-2 seed 0: mu is 9.0, but 0.01 by its grid",
    ),
    "seed": (
        lambda grid: grid["cells"][0].update(seed_of(grid, 7)),
        "fedavg label-2 seed 7: its grid has no such cell",
    ),
    "overrides": (
        lambda grid: grid.update(overrides={"lr": 0.1}),
        "would be called board@full+lr=0.1+ruleset=defaults",
    ),
    "table": (
        lambda grid: grid["report"].update(names={"algorithm": {"fedavg": "FedProx", "fedprox": "FedAvg"}}),
        "DIFFERS: its table calls fedavg FedProx, which is fedprox",
    ),
    "rounds": (lambda grid: grid["report"].update(rounds_shown="best"), "are best, but last by its file"),
    "compared": (lambda grid: grid["report"].update(compared=["partition"]), "are ['partition'], but [] by its file"),
    "rows": (
        lambda grid: grid["report"].update(rows=["algorithm", "model"]),
        "are ['algorithm', 'model'], but ['algorithm'] by its",
    ),
    "variant": (lambda grid: grid["cells"][0].update(variant="FedProx"), "its table says 'FedProx' beside its method"),
    "choice": (
        lambda grid: grid["cells"][0].update(tuned=TUNED_CELL),
        "fedavg label-2 seed 0: its hyper-parameters are not searched in its grid",
    ),
}
TUNED_CELL = {
    **{"hparams": {"lr": 0.3}, "score": 0.5, "metric": "accuracy", "seeds": [0], "share": 0.15, "searcher": "random"},
    **{"scheduler": "none", "tried": 2, "alike": 1, "space": {"lr": "0.1"}, "search": "fedavg"},
}


def seed_of(grid: dict, seed: int) -> dict:
    config = _cells[0].model_copy(update={"seed": seed})
    return {"seed": seed, "run": run_id(config), "config": config.canonical()}


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_cells_by_the_values_of_papers_are_those_that_the_file_gives(store, path, change):
    spec = of_rules(path)
    _cells[:] = [cell.config for cell in select_cells(spec).selected]
    label = store_cells(store, spec)
    if change is None:
        assert audit(store, store.grid(label)) == (False, "all 8 stored cells follow", True)
        return
    tamper(
        store, label, lambda grid: grid.update(title="Another", report=grid["report"] | {"notes": ["A note."], **OURS})
    )
    assert says(store, label)[1] == ("all 8 stored cells follow; the title or the layout of its table is another one")
    tamper(store, label, CHANGES[change][0])
    differs, said = says(store, label)
    assert differs and said.startswith("DIFFERS") and CHANGES[change][1] in said


def test_a_grid_without_its_file_or_of_another_version_of_it_is_named_and_does_not_differ(store, path, tmp_path):
    label = store_cells(store, of_rules(path))
    (tmp_path / "moved").mkdir()
    moved = path.rename(tmp_path / "moved" / path.name)
    assert says(store, label) == (
        False,
        "cannot be expanded here: its file board.yaml is not here; --grid FILE names one.",
    )
    assert says(store, label, moved)[1].startswith("all 8 stored cells follow")
    moved.write_text(FILE.replace("lr: 0.3", "lr: 0.1"))
    assert says(store, label, moved)[1].startswith(
        "cannot be expanded here: the file of its grid has changed since (its digest"
    )


def search(store, path, **how):
    """A board of two studies, whose searches have tried two configurations each; the runs of the second may be others."""
    grid = load_grid(str(path))
    studies = by_study(grid.seeds_at("full"), 2)
    tuning = TuningOptions("random", samples=2, space=ALL, compares=True, studies=studies)
    spec = ExperimentSpec(grid, only={"partition": ["label-2"]}, tuning=tuning, ruleset=TUNED)
    return search_by(spec, store, **how), spec


def search_by(spec: ExperimentSpec, store, scores=(0.5, 0.7), **how) -> str:
    """Plays the searches of an experiment and stores its cells; returns its name."""
    tuning = spec.tuning
    searches, chosen = searches_of(spec, select_cells(spec).selected), {}
    with store.locked():
        for place, search in searches.items():
            opened = Study(search, store)
            for score in scores:
                changed = how if score == scores[-1] else {}
                try_next(opened, store, *[score] * len(search.configs), **{"rounds": 4} | changed)
            outcomes = opened.outcomes()
            chosen[place] = describe_choice(search, best_of(outcomes, tuning), outcomes)
    return store_cells(store, spec, chosen)


LONG = {"train_examples": 500, "test_examples": 200, "batch_size": 16, "local_epochs": 2}


@pytest.mark.parametrize(
    "tuning",
    [
        TuningOptions("random", samples=2, space=ALL, compares=True),
        TuningOptions("random", "asha", samples=2, search_seeds=(0,), metric="validation_accuracy"),
    ],
    ids=["usual", "all named"],
)
def test_a_name_that_is_cut_is_found_again_by_what_a_choice_says(store, path, tuning):
    spec = ExperimentSpec(load_grid(str(path)), only={"partition": ["label-2"]}, tuning=tuning, overrides=LONG)
    label = search_by(spec, store)
    assert "~" in label and says(store, label)[1].startswith("all 4 stored cells follow; 4 of the grid were not run")
    tamper(store, label, lambda grid: grid["cells"][0]["tuned"].update(share=0.5))
    assert not audit(store, store.grid(label)).follows


@pytest.mark.parametrize(
    ("space", "change", "said"),
    [
        (ALL, {"overrides": {"lr": 0.1}}, "DIFFERS: by its settings and searches it would be called"),
        (
            "training",
            {"title": "Another"},
            "cannot be expanded here: its name is cut, and no way to search that is known",
        ),
    ],
    ids=["settings", "space"],
)
def test_a_name_that_is_cut_excuses_an_unknown_search_but_no_other_settings(store, path, space, change, said):
    tuning = TuningOptions("random", samples=2, space=space, compares=True)
    spec = ExperimentSpec(load_grid(str(path)), only={"partition": ["label-2"]}, tuning=tuning, overrides=LONG)
    label = search_by(spec, store)
    tamper(store, label, lambda grid: grid.update(change))
    assert says(store, label)[1].startswith(said)


def test_a_cut_name_of_a_grid_without_searches_is_that_of_its_settings(store, path):
    label = store_cells(store, of_rules(path, **LONG, momentum=0.5, weight_decay=0.001))
    assert "~" in label and says(store, label) == (False, "all 8 stored cells follow")
    tamper(store, label, lambda grid: grid.update(overrides={"lr": 0.1}))
    assert says(store, label)[0]


def test_spaces_that_methods_cannot_be_compared_by_are_not_those_of_a_search(store, path):
    """All points of the own grid of one method, as `tune` tries them; with those of training they would be too many."""
    tuning = TuningOptions("grid", space=OWN)
    spec = ExperimentSpec(load_grid(str(path)), only={"algorithm": ["fedprox"]}, tuning=tuning)
    label = search_by(spec, store, scores=(0.5, 0.6, 0.4, 0.3))
    assert "2 of 2 choices were made again from validation runs" in says(store, label)[1]


def test_the_file_of_a_grid_is_also_looked_for_in_the_folders_of_labs(store, tmp_path, monkeypatch):
    for lab in ("theirs", "mine"):
        (tmp_path / lab / "grids").mkdir(parents=True)
        (tmp_path / lab / "grids" / "board.yaml").write_text(FILE)
    label = store_cells(store, of_rules(tmp_path / "theirs" / "grids" / "board.yaml"))
    shutil.rmtree(tmp_path / "theirs")
    assert says(store, label)[1].startswith("cannot be expanded here")
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "mine"))
    assert says(store, label) == (False, "all 8 stored cells follow")


def test_a_grid_on_images_of_its_author_does_not_differ_where_these_are_not(store, tmp_path, monkeypatch):
    def forget() -> None:
        monkeypatch.setattr(own_data, "_PATHS", {})
        monkeypatch.setattr(own_data, "_KNOWN", {})
        datasets._facts_of_arrays.cache_clear()
        resized._load.cache_clear()

    images, labels = np.zeros((48, 8, 8), np.uint8), np.arange(48) % 3
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images[:12], y_test=labels[:12])
    path = tmp_path / "board.yaml"
    path.write_text(FILE.replace("[digits]", f"['npz:{tmp_path}/own.npz']").replace("rounds: 4", "model: mlp"))
    spec = ExperimentSpec(load_grid(str(path)), "smoke")
    configs = [cell.config for cell in select_cells(spec).selected]
    assert {config.train_examples for config in configs} == {48}  # and not 100 for each client
    label, other = store_cells(store, spec), with_options(configs[0], {"lr": 0.1})
    there = shutil.move(tmp_path / "own.npz", tmp_path / "theirs.npz")
    forget()
    assert says(store, label) == (
        False,
        "all 4 stored cells follow; of 4 nobody can tell here how many examples they have, which depends on their images: "
        f"The place of the files of {store.grid(label)['cells'][0]['dataset']} is not known: a config has their digest, not "
        "their path; name the dataset by its path, as --dataset npz:PATH. Files that have changed have another digest.",
    )
    own_data.canonical(f"npz:{there}")  # as `verify --dataset` does
    assert says(store, label) == (False, "all 4 stored cells follow")
    forget()
    tamper(store, label, lambda grid: grid["cells"][0].update(run=run_id(other), config=other.canonical()))
    assert "fedavg label-2 seed 0: lr is 0.1, but 0.3 by its grid" in says(store, label)[1]  # which no images excuse


def test_a_partition_file_that_is_not_here_is_the_copy_of_the_results(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dealt = {"train": [[*range(client, 100, 10)] for client in range(10)]}
    Path("mine.json").write_text(json.dumps(dealt))
    path = tmp_path / "board.yaml"
    path.write_text(FILE.replace("dir-0.1", "'file:mine.json'"))
    spec = ExperimentSpec(load_grid(str(path)), "smoke")
    partition_files.keep(partition_files.parse("file:mine.json"), store.folder / partition_files.FOLDER)
    label = store_cells(store, spec)
    Path("mine.json").unlink()
    monkeypatch.setattr(partition_files, "_CONTENTS", {})
    assert says(store, label) == (False, f"all {len(store.grid(label)['cells'])} stored cells follow")
    with pytest.raises(ValueError, match="There is no partition file"):  # outside of that
        partition_files.parse("file:mine.json")
    Path("mine.json").write_text(json.dumps({"train": [*dealt["train"][:9], [9, 19]]}))  # what is there is read
    differs, said = says(store, label)
    assert differs and "mine" in said


@pytest.mark.parametrize(
    ("change", "digest", "said"),
    [
        ({}, "", "all 8 stored cells follow"),
        ({"train_examples": 700}, "", "fedavg label-2 seed 0: train_examples is 700, but 1400 by its grid"),
        (
            {},
            "0badcafe",
            "of 1 nobody can tell here how many examples they have, which depends on their images: its images of digits",
        ),
        ({"train_examples": 700}, "0badcafe", "of 1 nobody can tell here how many examples"),
        ({"lr": 0.1, "train_examples": 700}, "0badcafe", "fedavg label-2 seed 0: lr is 0.1, but 0.3 by its grid"),
    ],
)
def test_incomplete_images_excuse_only_what_they_give(store, path, change, digest, said):
    path.write_text(FILE.replace("clients: 10", "clients: 10, train_examples: 1400"))
    spec = of_rules(path)
    label, first = store_cells(store, spec), select_cells(spec).selected[0]
    config = with_options(first.config, change)
    images = resized.load("digits", config.transform, None)
    tamper(store, label, lambda grid: grid["cells"][0].update(run=run_id(config), config=config.canonical()))
    record = {"data": {"kind": "digits", "digest": digest or images.digest}, "data_note": "half of them"}
    with store.locked():
        store.start(run_id(config), config.canonical())
        rows, summary = [{"round": 1, "accuracy": 0.5}], {key: {"accuracy": 0.5} for key in ("last", "best", "last10")}
        usual = {"id": run_id(config), "status": "done", "reason": "", "rounds": 1, "summary": summary}
        store.finish(run_id(config), rows, usual | record)
    found = audit(store, store.grid(label))
    assert said in found.says and found.differs == found.says.startswith("DIFFERS")
    assert found.follows == (found.says == "all 8 stored cells follow")


@pytest.fixture
def searched(store, path):
    return search(store, path)


def worse(store: Store, grid: dict) -> None:
    """Lets a cell have the other configuration of its search, as if that had been chosen."""
    for cell in in_prox(grid)[:2]:  # of one study
        proposed = store.search(cell["tuned"]["search"])["proposed"]
        other = next(one for one in proposed if one != cell["tuned"]["hparams"])
        config = with_options(
            next(one for one in _cells if one.seed == cell["seed"] and one.algorithm["name"] == "fedprox"), other
        )
        cell |= {"run": run_id(config), "config": config.canonical(), "tuned": {**cell["tuned"], "hparams": other}}


def test_choices_are_those_that_the_stored_validation_runs_give(store, searched):
    label, spec = searched
    assert says(store, label) == (
        False,
        "all 8 stored cells follow; 8 of the grid were not run; 4 of 4 choices were made again from validation runs",
    )
    _cells[:] = [cell.config for cell in select_cells(spec).selected]
    tamper(store, label, lambda grid: worse(store, grid))
    differs, said = says(store, label)
    assert differs and said.startswith("DIFFERS in fedprox label-2 seed 0: ") and " by the choice of its search" in said


def no_choices(grid: dict) -> None:
    """Denies that anything was searched."""
    grid["chosen_on"] = "test"
    for cell in grid["cells"]:
        del cell["tuned"]


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda grid: grid["cells"][0]["tuned"].update(score=0.9),
            "its choice has reached 0.9 by its cell, and 0.7 by its",
        ),
        (
            lambda grid: grid["cells"][0]["tuned"].update(tried=20),
            "the tried of its search are 20, by its grid 2",
        ),
        (
            lambda grid: grid["cells"][0]["tuned"].update(defaults=True),
            "the defaults of its search are True, by its grid False",
        ),
        (no_choices, "its hyper-parameters are searched in its grid"),
        (lambda grid: grid["cells"][0].pop("tuned"), "its hyper-parameters are searched in its grid"),
        (
            lambda grid: grid["ruleset"].update(studies=[[5, 6], [2, 3]]),
            "its studies have the seeds [[5, 6], [2, 3]], those",
        ),
        (
            lambda grid: grid["ruleset"].update(samples=50),
            "would be called board@full+ruleset=tuned+samples=50+studies=2",
        ),
    ],
    ids=["score", "tried", "defaults", "chosen_on", "tuned", "studies", "samples"],
)
def test_what_a_grid_says_of_its_searches_is_what_its_rules_say(store, searched, change, said):
    label, _ = searched
    tamper(store, label, change)
    assert says(store, label)[0] and said in says(store, label)[1]


def test_searches_of_one_grid_may_have_tried_more_or_fewer_configurations(store, path):
    grid = load_grid(str(path))
    tuning = TuningOptions("random", samples=3, space=ALL, compares=True)
    spec = ExperimentSpec(grid, only={"partition": ["label-2"]}, tuning=tuning)
    searches, chosen = searches_of(spec, select_cells(spec).selected), {}
    with store.locked():
        for (place, whole), samples in zip(searches.items(), (3, 2), strict=True):
            opened = Study(whole, store)
            for score in (0.5, 0.7, 0.9):
                try_next(opened, store, score, score, rounds=4)
            own = replace(whole, samples=samples)  # as a later command with fewer --samples, of one method alone
            outcomes = Study(own, store).outcomes()
            chosen[place] = describe_choice(own, best_of(outcomes, tuning), outcomes)
    assert [one["score"] for one in chosen.values()] == [0.9, 0.7]
    label = store_cells(store, spec, chosen)
    assert "2 of 2 choices were made again" in says(store, label)[1]
    tamper(store, label, lambda grid: grid["cells"][0]["tuned"].update(tried=2))
    assert "the tried of its search are 2, by its grid 3" in says(store, label)[1]


def test_a_choice_that_cannot_be_made_again_is_named(store, searched):
    label, spec = searched
    first = next(iter(searches_of(spec, select_cells(spec).selected).values()))
    run = next(iter(first.runs(store.search(first.name)["proposed"][0])))
    shutil.rmtree(store.run_folder(run))
    assert "1 of the 2 validation runs of the search fedavg-digits-label-2-" in says(store, label)[1]
    shutil.rmtree(store.folder / "searches")
    differs, said = says(store, label)
    assert not differs and "0 of 4 choices were made again from validation runs; others cannot be: the search " in said
    tamper(store, label, lambda grid: grid["cells"][0]["tuned"].update(hparams={"rounds": 1}))
    assert says(store, label)[0]


def test_configurations_that_were_not_drawn_are_found(store, path, monkeypatch):
    with monkeypatch.context() as cheating:
        as_it_is = study._SharedDraws.__init__
        cheating.setattr(study._SharedDraws, "__init__", lambda self, *key: as_it_is(self, *key, "a favourite"))
        label, _ = search(store, path)
    differs, said = says(store, label)
    assert differs and said.startswith("DIFFERS: configuration 1 of the search fedavg-digits-label-2-")
    assert " is drawn" in said


def test_what_a_search_at_random_of_an_example_has_proposed_is_what_it_draws():
    store = Store("docs/examples/search-random")
    label = next(name for name in store.grids() if name.startswith("fedprox-"))
    assert audit(store, store.grid(label)) == (
        False,
        "all 2 stored cells follow; 1 of 1 choices were made again from validation runs",
        True,
    )
    name = next(name for name in store.searches() if name.startswith("fedprox-"))
    found = store.search(name)
    store.search = lambda asked: found if asked == name else None
    found["proposed"][3]["mu"] *= 1 + 1e-15  # on a machine that rounds otherwise
    assert not says(store, label)[0]
    found["proposed"][3]["mu"] *= 1.5
    assert "DIFFERS: configuration 4 of the search fedprox-" in audit(store, store.grid(label)).says


def test_a_search_that_stops_no_runs_has_stopped_none(store, path):
    label, _ = search(store, path, rounds=2, status="stopped")
    differs, said = says(store, label)
    assert differs and " says that this stopped it, but it stops no runs" in said
    assert {*stops_of_searches(store).values()} == {"it stops no runs"} and len(stops_of_searches(store)) == 4


@pytest.mark.parametrize(
    ("how", "rounds", "why"),
    [
        ({"scheduler": "asha"}, 3, ""),
        ({"scheduler": "asha"}, 2, "it stops runs after round 1 or 3 of 9, and this one has ended after round 2"),
        ({"scheduler": "asha"}, 9, "it stops runs after round 1 or 3 of 9, and this one has ended after round 9"),
        ({}, 3, "it stops no runs"),
    ],
)
def test_a_search_stops_runs_at_its_rungs_or_where_another_seed_has_failed(store, how, rounds, why):
    with store.locked():
        opened = study.Study(make(searcher="random", samples=1, **how), store)
        params = try_next(opened, store, 0.5, 0.5, rounds=rounds, status="stopped")
        first, second = opened.search.runs(params)
        assert stops_of_searches(store) == {first: why, second: why}
        shutil.rmtree(store.run_folder(second))  # as if it had failed, and were to be tried again
        assert stops_of_searches(store) == {first: ""}
