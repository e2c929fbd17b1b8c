"""Tuning sets of a grid, searched on validation data; one choice for each base. Nothing here starts Ray."""

import pytest
import yaml

from bench.config.resolve import base_of
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments.cells import cell_key
from bench.experiments.grid_loading import load_grid, make_grid
from bench.experiments.selection import select_cells, with_chosen
from bench.experiments.spec import PROTOCOL, ExperimentSpec, TuningOptions
from bench.tuning import select
from tests.support.processes import call_bench

SET = {
    "when": {"algorithm": "fedprox"},
    "options": {"mu": [0.1, 1, 2]},
    "named": {"mu": 1},
    "chosen_on": "validation",
}
GRID = {
    "axes": {
        "dataset": ["digits"],
        "partition": ["label-2"],
        "algorithm": ["fedavg", "fedprox"],
        "wrapper": ["none", "ccvr", "oracle", "clsnorm"],
        "seed": [1, 2],
    },
    "settings": {"clients": 12, "rounds": 4, "local_epochs": 1, "model": "mlp"},
    "tuning": [SET, {"when": {"wrapper": "ccvr"}, "options": {"virtual_per_class": [7]}}],
    "report": {"rows": ["partition", "algorithm"], "columns": "wrapper"},
}


def searches(spec: ExperimentSpec) -> dict:
    """Method, wrapper, dataset and partition of a cell -> its search."""
    selected = select_cells(spec).selected
    found = select.searches_of(spec, selected)
    layout = spec.grid.report.model_dump()
    named = {
        cell_key(layout, cell.to_json()): (cell.setting("algorithm"), cell.wrapper, cell.dataset, cell.config.partition)
        for cell in selected
    }
    return {named[key]: search for key, search in found.items()}


def test_what_calibrates_shares_the_search_of_its_base_and_what_trains_otherwise_has_its_own():
    found = {
        key[:2]: search for key, search in searches(ExperimentSpec(make_grid("mine", GRID), tuning=PROTOCOL)).items()
    }
    assert set(found) == {("fedprox", wrapper) for wrapper in ("none", "ccvr", "oracle", "clsnorm")}
    shared = {found["fedprox", wrapper].name for wrapper in ("none", "ccvr", "oracle")}
    assert len(shared) == 1 and found["fedprox", "clsnorm"].name not in shared
    for (_, wrapper), search in found.items():
        assert [*search.points()] == [{"mu": 0.1}, {"mu": 1}, {"mu": 2}] and search.wanted == 3
        assert search.template.algorithm["name"] == ("clsnorm" if wrapper == "clsnorm" else "fedprox")
        assert {config.split for config in search.configs.values()} == {"validation"} and [*search.configs] == [0]


def test_one_choice_is_that_of_all_rows_of_a_base_which_start_from_one_training():
    spec = ExperimentSpec(make_grid("mine", GRID), tuning=PROTOCOL)
    selection = select_cells(spec)
    chosen = {key: {"hparams": {"mu": 2}} for key in select.searches_of(spec, selection.selected)}
    cells = [cell for cell in with_chosen(selection, spec, chosen).selected if cell.setting("algorithm") == "fedprox"]
    assert {cell.setting("mu") for cell in cells} == {2} and len(cells) == 8
    trained = {cell.id for cell in cells if cell.wrapper == "none"}
    assert {run_id(base_of(cell.config)) for cell in cells if cell.wrapper in ("ccvr", "oracle")} == trained
    assert {cell.setting("virtual_per_class") for cell in cells if cell.wrapper == "ccvr"} == {7}


def test_without_a_search_cells_have_the_named_point():
    grid = make_grid("mine", GRID)
    for budget in ("paper", "small", "smoke"):
        cells = select_cells(ExperimentSpec(grid, budget)).selected
        assert {cell.setting("mu") for cell in cells if cell.setting("algorithm") == "fedprox"} == {1}
    assert [grid.is_searched(budget) for budget in ("paper", "small", "smoke", "none")] == [True, False, False, False]
    assert not make_grid("mine", {**GRID, "axes": GRID["axes"] | {"algorithm": ["fedavg"]}}).is_searched("paper")


def test_options_with_several_points_leave_nothing_to_search_once_all_are_overridden():
    grid = make_grid(
        "mine", {**GRID, "tuning": [*GRID["tuning"], {"when": {"wrapper": "clsnorm"}, "options": {"tau": [1, 2]}}]}
    )
    overrides = ({}, {"mu": 1}, {"tau": 1}, {"mu": 1, "tau": 1}, {"mu": 1, "tau": 1, "rounds": 2})
    assert [grid.is_fixed_by(given) for given in overrides] == [False, False, False, True, True]


def test_a_grid_that_says_where_points_are_chosen_is_the_one_that_it_was_otherwise():
    without, said = ({**GRID, "tuning": [{**SET, "chosen_on": split}]} for split in ("test", "validation"))
    left_out = {**GRID, "tuning": [{key: value for key, value in SET.items() if key != "chosen_on"}]}
    digests = [make_grid("mine", content).digest("paper") for content in (left_out, without, said)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"named": {}}, "is chosen on validation data: set `named` to the one that cells have without a search."),
        ({"chosen_on": "train"}, "chosen_on must be 'test' or 'validation', but got 'train'."),
    ],
)
def test_wrong_sets_are_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        make_grid("mine", {**GRID, "tuning": [{**SET, **changes}]})
    assert sentence in " ".join(caught.value.mistakes)


def test_the_space_of_sets_needs_some():
    spec = ExperimentSpec(make_grid("mine", {**GRID, "tuning": GRID["tuning"][1:]}), tuning=PROTOCOL)
    with pytest.raises(ConfigError, match="mine has no tuning set with several points, so --space sets has nothing"):
        select.searches_of(spec, select_cells(spec).selected)


def test_the_protocol_of_a_grid_is_part_of_the_whole_budget_and_no_other_search_is():
    grid = make_grid("mine", GRID)
    assert ExperimentSpec(grid, tuning=PROTOCOL).label == "mine@full"
    other = TuningOptions(space="sets", search_seeds=(1,), compares=True)
    tuned = "searcher=grid+space=sets+tuned=validation"
    assert ExperimentSpec(grid, tuning=other).earlier_labels[0] == f"mine@full+search_seeds=1+{tuned}"
    assert ExperimentSpec(grid, "small", tuning=PROTOCOL).earlier_labels[0] == f"mine@small+search_seeds=0+{tuned}"
    own_file = TuningOptions("random", samples=2, space="/home/me/lr.yaml,own", compares=True)
    (label, _) = ExperimentSpec(grid, tuning=own_file).earlier_labels
    assert label == "mine@full+searcher=random+space=lr.yaml,own+tuned=validation"
    on_test = make_grid("mine", {**GRID, "tuning": [{**SET, "chosen_on": "test"}]})
    assert ExperimentSpec(on_test, tuning=PROTOCOL).earlier_labels[0] == f"mine@full+search_seeds=0+{tuned}"


def bench(*arguments: str) -> tuple[int, str]:
    code, text = call_bench(*arguments, SKEWBENCH_DATA="")
    return code, " ".join(text.split())


def test_the_command_line_searches_where_the_grid_says_so(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(GRID))
    run = ("run", "--grid", str(path), "--results-dir", str(tmp_path / "results"), "--dry-run")
    code, text = bench(*run)
    assert code == 0 and text == (
        "digits label-2 fedprox: mu; 3 configurations, seeds 0; 0 of 3 runs finished "
        "digits label-2 clsnorm with base fedprox: mu; 3 configurations, seeds 0; 0 of 3 runs finished "
        "After the searches, the chosen configurations are trained with all seeds, those that have not finished."
    )
    code, text = bench(*run, "--set", "mu=0.5")
    assert code == 0 and "0 finished, 16 to run mine@full+mu=0.5" in text
    assert bench(*run, "--set", "mu=0.5", "--executor", "local") == (code, text), "no search is left, which needs Ray"
    code, text = bench(*run, "--executor", "local")
    assert code == 2 and "leave --executor local out, or fix what is searched by --set, or take --budget small" in text
    code, text = bench(*run, "--budget", "small")
    assert code == 0 and "0 finished, 16 to run mine@small" in text
    code, text = bench(*run, "--tuned", "test")
    assert code == 2 and "mine chooses hyper-parameters on validation data, as published: leave --tuned out" in text
    describe = ("describe", "--grid", str(path), "--results-dir", str(tmp_path / "results"))
    code, text = bench(*describe)
    assert code == 0 and "Not counted: the searches on validation data that come before" in text
    code, text = bench(*describe, "--set", "mu=0.5")
    assert code == 0 and "searches" not in text


@pytest.mark.slow
def test_the_tables_of_ccvr_search_mu_once_for_each_base():
    """Section 5.1 of the paper; the ranges are ours."""
    proximal = [{"mu": mu} for mu in (0.001, 0.01, 0.1, 1)]
    contrastive = [{"mu": mu} for mu in (0.1, 1, 5, 10)]
    found = {}
    for name in ("ccvr_table2", "ccvr_table1"):
        grid = load_grid(name)
        assert grid.is_searched("paper") and not grid.is_searched("small")
        found[name] = searches(ExperimentSpec(grid, tuning=PROTOCOL))
    assert {key[0] for key in found["ccvr_table2"]} == {"fedprox", "moon"}
    assert len(found["ccvr_table2"]) == 30 and len({search.name for search in found["ccvr_table2"].values()}) == 10
    for (algorithm, *_), search in found["ccvr_table2"].items():
        assert [*search.points()] == {"fedprox": proximal, "moon": contrastive}[algorithm]
        assert search.template.algorithm["name"] == algorithm
        modes = {"moon-cnn": "train", "mobilenetv2": "eval"}
        assert algorithm != "moon" or search.template.algorithm["global_model_mode"] == modes[search.template.model]
    assert {key[:2] for key in found["ccvr_table1"]} == {("clsprox", "none"), ("clsprox", "clsnorm")}
    assert all([*search.points()] == proximal for search in found["ccvr_table1"].values())
    shared = searches(ExperimentSpec(load_grid("ccvr_figure4"), tuning=PROTOCOL)).values()
    assert {search.name for search in shared} < {search.name for search in found["ccvr_table2"].values()}
