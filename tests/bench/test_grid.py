"""Grids: from a YAML file to the cells of a table."""

import json

import pytest
import yaml

from bench import grid_files
from bench.config import resolve, run_id
from bench.grid import budget_label, expand, select, to_json
from bench.grid_spec import load_grid, single
from bench.mistakes import ConfigError
from bench.overview import chosen

SMALL = {
    "axes": {
        "dataset": ["digits"],
        "partition": ["label-2", "iid"],
        "algorithm": ["fedavg", "fedprox"],
        "seed": [0, 1],
    },
    "settings": {"clients": 20, "rounds": 3},
    "tuning": [{"when": {"algorithm": "fedprox"}, "options": {"mu": [0.1, 1]}, "named": {"mu": 1}}],
}


@pytest.fixture
def grid_of(tmp_path):
    def write(**changes):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(SMALL | changes))
        return load_grid(str(path))

    return write


@pytest.mark.parametrize(("budget", "trials", "one_point_each"), [("paper", 405, 189), ("small", 189, 189)])
def test_table_1_has_the_published_number_of_trials(budget, trials, one_point_each):
    cells = expand(load_grid("paper_table1"), budget)
    assert (len(cells), chosen(cells), len({cell.id for cell in cells})) == (trials, one_point_each, trials)


def test_table_1_at_the_budget_small_follows_the_issue():
    cells = select(expand(load_grid("paper_table1"), "small"), {"dataset": ["cifar10"]})
    assert len(cells) == 63
    pooled = [cell.config for cell in cells if cell.setting("algorithm") == "centralized"]
    others = [cell.config for cell in cells if cell.setting("algorithm") != "centralized"]
    assert {(c.rounds, c.local_epochs, c.clients, c.partition) for c in pooled} == {(20, 1, 1, "none")}
    assert {(c.rounds, c.local_epochs, c.clients) for c in others} == {(10, 2, 10)}
    named = {cell.setting("algorithm"): cell.choice for cell in cells}
    assert named["fedprox"] == {"mu": 0.01} and named["moon"] == {"mu": 1} and named["fedlc"] == {"tau": 1}


def test_smoke_has_a_client_for_every_class_and_100_images_for_every_client():
    smoke = expand(single({"algorithm": "fedavg", "dataset": "cifar100", "partition": "label-2"}, [0]), "smoke")
    config = smoke[0].config
    assert (config.clients, config.train_examples, config.test_examples) == (100, 10_000, 1000)
    assert (config.model, config.model_width, config.rounds, config.local_epochs) == ("resnet50", 0.125, 2, 1)
    table1 = expand(load_grid("paper_table1"), "smoke")
    assert {cell.setting("seed") for cell in table1} == {0}
    assert {cell.config.train_examples for cell in table1} == {2000}


def test_moon_tries_more_values_on_svhn_than_on_cifar10():
    cells = select(expand(load_grid("paper_table1"), "paper"), {"algorithm": ["moon"], "seed": [0]})
    tried = {name: {cell.choice["mu"] for cell in cells if cell.dataset == name} for name in ("cifar10", "svhn")}
    assert tried == {"cifar10": {1, 5}, "svhn": {0.001, 0.01, 0.1, 1, 5}}


@pytest.mark.parametrize("name", grid_files.names())
@pytest.mark.parametrize("budget", ["paper", "small", "smoke"])
def test_every_grid_expands_at_every_budget(name, budget):
    grid = load_grid(name)
    cells = expand(grid, budget)
    described = to_json(grid, budget, {}, cells)
    assert len(described["cells"]) == len(cells) > 0
    assert json.loads(json.dumps(described)) == described
    assert all(run_id(cell["config"]) == cell["run"] for cell in described["cells"])


def test_a_single_setting_is_the_same_run_as_the_cell_of_a_grid():
    cell = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "label-2"}
    (alone,) = expand(single(cell, [0]), "paper")
    wanted = {key: [value] for key, value in cell.items()} | {"seed": [0]}
    (in_table,) = select(expand(load_grid("paper_table1"), "paper"), wanted)
    assert alone.id == in_table.id
    (pooled,) = expand(single({"algorithm": "centralized", "dataset": "cifar10", "partition": "none"}, [2]), "paper")
    assert pooled.id in {cell.id for cell in expand(load_grid("paper_table1"), "paper")}


def test_tuning_points_are_cells_of_their_own(grid_of):
    choices = [cell.choice for cell in expand(grid_of(), "paper") if cell.setting("algorithm") == "fedprox"]
    assert choices == [{"mu": 0.1}, {"mu": 1.0}] * 4, "2 partitions x 2 seeds"
    assert {cell.choice["mu"] for cell in expand(grid_of(), "small") if cell.choice} == {1.0}
    assert {cell.choice["mu"] for cell in expand(grid_of(), "smoke") if cell.choice} == {0.1}


def test_overrides_win_over_grid_budget_and_tuning(grid_of):
    cells = expand(grid_of(), "small", overrides={"rounds": 7, "mu": 5, "partition": "dir-1"})
    assert {(cell.config.rounds, cell.config.partition) for cell in cells} == {(7, "dir-1")}
    assert {cell.choice.get("mu") for cell in cells} == {None, 5.0}
    assert len(cells) == 4
    assert budget_label("small", {"rounds": 7, "mu": 5}) == "small+mu=5+rounds=7"


def test_overrides_do_not_give_clients_to_centralized():
    cells = expand(load_grid("paper_table1"), "paper", overrides={"clients": 20, "rounds": 5})
    found = {cell.config.clients: cell.setting("algorithm") for cell in cells}
    assert found == {1: "centralized", 20: "fedlc"}
    assert {cell.config.rounds for cell in cells} == {5}


def test_any_setting_can_be_an_axis(grid_of):
    cells = expand(grid_of(axes=SMALL["axes"] | {"lr": [0.1, 0.2], "clients": [10, 20]}), "paper")
    assert {(cell.config.lr, cell.config.clients) for cell in cells} == {(0.1, 10), (0.1, 20), (0.2, 10), (0.2, 20)}


def test_conditions_hold_where_their_settings_do(grid_of):
    condition = {"when": {"partition": ["label-2"], "algorithm": "fedavg"}, "set": {"batch_size": 8}}
    cells = expand(grid_of(conditions=[condition]), "paper")
    small = {(cell.config.partition, cell.setting("algorithm")) for cell in cells if cell.config.batch_size == 8}
    assert small == {("label-2", "fedavg")}


def test_a_grid_may_change_a_shared_budget_and_add_its_own(grid_of):
    grid = grid_of(budgets={"small": {"settings": {"rounds": 1}}, "tiny": {"seeds": [5], "settings": {"rounds": 2}}})
    small, tiny = expand(grid, "small"), expand(grid, "tiny")
    assert {cell.config.rounds for cell in small} == {1}
    assert {cell.choice["mu"] for cell in small if cell.choice} == {1.0}, "the tuning of the shared budget stays"
    assert {(cell.config.rounds, cell.config.seed) for cell in tiny} == {(2, 5)}


def test_cells_without_images_stay_in_the_grid_and_say_so(grid_of):
    grid = grid_of(axes=SMALL["axes"] | {"dataset": ["digits", "svhn"]})
    described = to_json(grid, "paper", {}, expand(grid, "paper", missing=["svhn"]))
    absent = [cell for cell in described["cells"] if cell["dataset"] == "svhn"]
    assert len(absent) == 12
    assert {(cell["run"], cell["missing"], cell["substitute"]) for cell in absent} == {(None, "no data: svhn", None)}


def test_a_substitute_stands_in_only_where_images_are_missing(grid_of):
    grid = grid_of(axes=SMALL["axes"] | {"dataset": ["digits", "svhn"]})
    cells = expand(grid, "paper", missing=["svhn"], substitutes={"svhn": "cifar10"})
    found = {(cell.dataset, cell.substitute, cell.config.dataset, cell.missing) for cell in cells}
    assert found == {("digits", None, "digits", None), ("svhn", "cifar10", "cifar10", None)}
    present = expand(grid, "paper", substitutes={"svhn": "cifar10"})
    assert {cell.config.dataset for cell in present} == {"digits", "svhn"}


def test_rows_and_columns_keep_the_order_of_the_file(grid_of):
    described = to_json(grid_of(), "paper", {}, expand(grid_of(), "paper"))
    assert described["row_order"] == [["digits", "label-2"], ["digits", "iid"]]
    assert described["column_order"] == ["fedavg", "fedprox"]


def test_unknown_names_in_a_grid_come_with_the_nearest_one(grid_of):
    with pytest.raises(ConfigError) as caught:
        grid_of(settngs={}, report={"rowz": []}, tuning=[{"when": {}, "options": {}, "nmaed": {}}])
    text = str(caught.value)
    assert "3 mistakes" in text
    for nearest in ("settings", "rows", "named"):
        assert f"Did you mean '{nearest}'?" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {"batchsize": 3}}, "Did you mean 'batch_size'?"),
        ({"conditions": [{"when": {"datset": "digits"}, "set": {}}]}, "Did you mean 'dataset'?"),
        ({"axes": {"dataset": ["digit"], "partition": ["iid"], "algorithm": ["fedavg"]}}, "Did you mean 'digits'?"),
        ({"axes": {"partition": ["iid"], "algorithm": ["fedavg"]}}, "dataset is missing."),
        ({"axes": {"dataset": ["digits"], "partition": ["iid"]}}, "algorithm is missing."),
    ],
)
def test_mistakes_in_the_cells_are_found_before_anything_runs(grid_of, changes, said):
    with pytest.raises(ConfigError) as caught:
        expand(grid_of(**changes), "paper")
    assert said in str(caught.value)


def test_wrong_grids_budgets_and_selections_are_explained(grid_of, tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'quickstart'?"):
        load_grid("quickstrat")
    with pytest.raises(ConfigError, match="There is no grid file"):
        load_grid(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("axes: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_grid(str(tmp_path / "bad.yaml"))
    with pytest.raises(ConfigError, match="Did you mean 'small'?"):
        expand(grid_of(), "smal")
    with pytest.raises(ConfigError, match="Did you mean 'rounds'?"):
        expand(grid_of(), "paper", overrides={"round": 3})
    cells = expand(grid_of(), "paper")
    with pytest.raises(ConfigError, match="Did you mean 'fedprox'?"):
        select(cells, {"algorithm": ["fedporx"]})
    with pytest.raises(ConfigError, match="Did you mean 'algorithm'?"):
        select(cells, {"algoritm": ["fedavg"]})


def test_select_matches_settings_and_method_options(grid_of):
    cells = expand(grid_of(), "paper")
    assert {cell.setting("algorithm") for cell in select(cells, {"mu": [1]})} == {"fedprox"}
    assert len(select(cells, {"partition": ["iid"], "seed": [0, 1], "algorithm": ["fedavg"]})) == 2


def test_a_cell_has_the_run_id_of_its_settings(grid_of):
    flat = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 20, "rounds": 3, "seed": 1}
    assert run_id(resolve(flat)) in {cell.id for cell in expand(grid_of(), "paper")}
