"""Stored grids are compared with their files, and choices of searches with the validation runs; nothing is trained."""

import shutil

import pytest

from bench.config.resolve import with_options
from bench.config.schema import run_id
from bench.experiments.grid_loading import load_grid
from bench.experiments.selection import select_cells
from bench.experiments.spec import ALL, DEFAULTS, TUNED, ExperimentSpec, TuningOptions, by_study
from bench.results.store import Store
from bench.tuning.audit import audit
from bench.tuning.select import best_of, describe_choice, searches_of
from bench.tuning.study import Study
from tests.support.searching import try_next
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
    return found.differs, found.says


def of_rules(path, **overrides) -> ExperimentSpec:
    return ExperimentSpec(load_grid(str(path)), ruleset=DEFAULTS, overrides=overrides)


def with_other(cell: dict, **options) -> None:
    """Points a cell at another run."""
    config = with_options(next(one for one in _cells if run_id(one) == cell["run"]), options)
    cell |= {"run": run_id(config), "config": config.canonical()}


_cells: list = []


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
        assert says(store, label) == (False, "follows its grid in 8 of 8 cells")
        return
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
    assert says(store, label, moved)[1].startswith("follows its grid")
    moved.write_text(FILE.replace("lr: 0.3", "lr: 0.1"))
    assert says(store, label, moved)[1].startswith(
        "cannot be expanded here: the file of its grid has changed since (its digest"
    )


@pytest.fixture
def searched(store, path):
    """A board of two studies, whose searches have tried two configurations each."""
    grid = load_grid(str(path))
    studies = by_study(grid.seeds_at("full"), 2)
    tuning = TuningOptions("random", samples=2, space=ALL, compares=True, studies=studies)
    spec = ExperimentSpec(grid, only={"partition": ["label-2"]}, tuning=tuning, ruleset=TUNED)
    searches, chosen = searches_of(spec, select_cells(spec).selected), {}
    with store.locked():
        for place, search in searches.items():
            study = Study(search, store)
            for score in (0.5, 0.7):
                try_next(study, store, score, rounds=4)
            outcomes = study.outcomes()
            chosen[place] = describe_choice(search, best_of(outcomes, tuning), outcomes)
    return store_cells(store, spec, chosen), spec


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
        "follows its grid in 8 of 16 cells; 4 of 4 choices were made again from validation runs",
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda grid: grid["cells"][0]["tuned"].update(score=0.9),
            "its choice has reached 0.9 by its cell, and 0.7 by its",
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
    ids=["score", "chosen_on", "tuned", "studies", "samples"],
)
def test_what_a_grid_says_of_its_searches_is_what_its_rules_say(store, searched, change, said):
    label, _ = searched
    tamper(store, label, change)
    assert says(store, label)[0] and said in says(store, label)[1]


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
