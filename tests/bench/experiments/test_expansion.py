"""Grids: from a YAML file to the cells of a table."""

import dataclasses
import json
import os
import re
from contextlib import nullcontext

import numpy as np
import pytest
import yaml

import datasets
from bench.cli.costs import chosen
from bench.config.resolve import base_of, resolve
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.experiments import grid_files
from bench.experiments.cells import budget_label, select, to_json
from bench.experiments.cost import bytes_per_client, examples_to_train
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid, make_grid, single
from bench.experiments.planning import training_of
from bench.experiments.settings_schema import without
from datasets import partitions
from reports.tables.aggregate import label

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


@pytest.mark.parametrize(("budget", "trials", "one_point_each"), [("paper", 477, 261), ("small", 261, 261)])
def test_table_1_has_the_published_number_of_trials(budget, trials, one_point_each):
    cells = expand(load_grid("paper_table1"), budget)
    assert (len(cells), chosen(cells), len({cell.id for cell in cells})) == (trials, one_point_each, trials)


def test_table_1_at_the_budget_small_follows_the_issue():
    cells = select(expand(load_grid("paper_table1"), "small"), {"dataset": ["cifar10"]})
    assert len(cells) == 87
    pooled = [cell.config for cell in cells if cell.setting("algorithm") == "centralized"]
    others = [cell.config for cell in cells if cell.setting("algorithm") != "centralized"]
    assert {(c.rounds, c.local_epochs, c.clients, c.partition) for c in pooled} == {(20, 1, 1, "none")}
    staged = [config for config in others if "encoder_rounds" in config.algorithm]
    assert {(c.rounds, c.local_epochs, c.clients) for c in others if c not in staged} == {(10, 2, 10)}
    assert {(c.algorithm["num_clusters"], c.rounds, c.local_epochs, c.clients) for c in staged} == {(2, 7 + 65, 2, 10)}
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


def test_clients_with_one_label_are_a_grid():
    """Appendix A.3 of FedConcat: the settings of Table 1 under #C = 1."""
    cells = expand(load_grid("paper_appendix_a3"), "paper")
    assert {cell.config.partition for cell in cells} == {"label-1"} and len({cell.dataset for cell in cells}) == 3
    first = next(cell for cell in expand(load_grid("paper_table1"), "paper") if cell.setting("algorithm") == "fedavg")
    same = next(cell for cell in cells if cell.setting("algorithm") == "fedavg")
    assert same.config.model_copy(update={"partition": "label-2"}) == first.config


def test_a_budget_may_replace_the_values_of_an_axis():
    grid = load_grid("paper_figure7")
    rounds = {}
    for budget in ("paper", "small", "smoke"):
        cells = select(expand(grid, budget), {"algorithm": ["fedconcat"]})
        rounds[budget] = sorted({cell.setting("encoder_rounds") for cell in cells})
    assert rounds == {"paper": [31, 50, 100], "small": [7, 10, 20], "smoke": [1, 2, 4]}
    given = expand(grid, "smoke", overrides={"encoder_rounds": 3})
    assert {cell.setting("encoder_rounds") for cell in given} == {None, 3}
    settings = {"axes": {"algorithm": ["fedavg"], "dataset": ["digits"], "seed": [0]}, "settings": {"partition": "iid"}}
    for axis in ("algoritm", "seed"):
        with pytest.raises(ConfigError, match=f"Unknown axis of the budget few '{axis}'"):
            make_grid("mine", settings | {"budgets": {"few": {"axes": {axis: [1]}}}})


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", grid_files.names())
@pytest.mark.parametrize("budget", ["paper", "small", "smoke"])
def test_every_grid_expands_at_every_budget(name, budget):
    grid = load_grid(name)
    cells = expand(grid, budget)
    described = to_json(grid, budget, {}, cells)
    assert len(described["cells"]) == len(cells) > 0
    conditions = [note.when for note in grid.report.notes if not isinstance(note, str)]
    assert all({*those} <= {*grid.axes[key]} for when in conditions for key, those in when.items())
    assert json.loads(json.dumps(described)) == described
    assert all(run_id(cell["config"]) == cell["run"] for cell in described["cells"])


@pytest.mark.slow
def test_every_dirichlet_partition_of_the_smoke_budget_can_be_drawn():
    cells = [cell for name in grid_files.names() for cell in expand(load_grid(name), "smoke")]
    configs = [cell.config for cell in cells if cell.config.partition.startswith("dir-") and cell.config.train_examples]
    drawn = {(c.dataset, c.partition, c.clients, c.train_examples, c.seed) for c in configs}
    for dataset, partition, clients, examples, seed in sorted(drawn):
        classes = datasets.INFO[dataset].num_classes
        assert len(partitions.parse(partition).split(np.arange(examples) % classes, clients, classes, seed)) == clients


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


@pytest.mark.parametrize("overrides", [{"local_steps": 3}, {"local_steps": 3, "local_epochs": None}])
def test_local_steps_that_are_set_by_hand_take_the_place_of_the_epochs_of_a_grid(grid_of, overrides):
    axes = {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg"]}
    for given in ({"settings": {"local_epochs": 2}}, {"axes": axes | {"local_epochs": [1, 2]}}):
        cells = expand(make_grid("mine", {"axes": axes, "settings": {}} | given), "full", overrides=overrides)
        assert [(cell.config.local_steps, cell.config.local_epochs) for cell in cells] == [(3, None)]
    with pytest.raises(ConfigError, match="^Set either local_epochs or local_steps, but not both.$"):
        expand(grid_of(), "small", overrides={"local_steps": 3, "local_epochs": 1})


@pytest.mark.parametrize(("own", "other"), [("local_steps", "local_epochs"), ("local_epochs", "local_steps")])
def test_a_length_of_training_that_a_condition_sets_is_told_from_the_one_set_by_hand(own, other):
    when = {"algorithm": ["fedprox", "moon"], "partition": "iid"}
    axes = {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}
    mine = make_grid("mine", {"axes": axes, "conditions": [{"when": when, "set": {other: 3}}]})
    with pytest.raises(ConfigError) as raised:
        expand(mine, "full", overrides={own: 4})
    assert {*raised.value.mistakes} == {
        f"--set {own} cannot be used for algorithm fedprox or moon and partition iid: a condition of the grid sets {other} "
        "there, which no --set replaces; leave these cells out by --only, or change the condition."
    }


def test_overrides_do_not_give_clients_to_centralized():
    cells = expand(load_grid("paper_table1"), "paper", overrides={"clients": 20, "rounds": 5})
    found = {cell.config.clients: cell.setting("algorithm") for cell in cells}
    assert found == {1: "centralized", 20: "fedconcat-id"}
    assert {cell.config.rounds for cell in cells if "encoder_rounds" not in cell.config.algorithm} == {5}


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("table", "tuned", "one_point_each"),
    [
        (2, 88, 56),
        (3, 360, 58),
        (4, 36 + 24, 36 + 24),
        (5, 36 + 36 + 36, 36 + 36 + 36),
        (9, 468, 252),
        (10, 72 + 48, 72 + 48),
        (11, 468, 252),
        (12, 64, 16),
        (13, 224, 112),
        (14, 36 + 36, 36 + 36),
    ],
)
def test_the_tables_of_fedconcat_have_the_published_number_of_trials(table, tuned, one_point_each):
    """Section 13 of the digest; reused columns of Table 1, and random clusters in Table 5, counted too."""
    cells = expand(load_grid(f"paper_table{table}"), "paper")
    assert (len(cells), chosen(cells)) == (tuned, one_point_each)


def test_tables_share_the_runs_of_table_1():
    first = {cell.id for cell in expand(load_grid("paper_table1"), "paper")}
    for table, algorithms in ((4, ("fedconcat", "fedconcat-id")), (5, ("fedavg",)), (14, ("fedconcat-id",))):
        cells = expand(load_grid(f"paper_table{table}"), "paper")
        shared = [cell for cell in cells if cell.setting("algorithm") in algorithms]
        assert len(shared) in (24, 36) and {cell.id for cell in shared} <= first
    table9 = expand(load_grid("paper_table9"), "paper")
    assert not first & {cell.id for cell in table9}
    staged = next(cell for cell in table9 if cell.setting("algorithm") == "fedconcat")
    assert (staged.config.model, staged.config.rounds, staged.variant) == ("simple-cnn", 431, "encoder-rounds-plus-200")


def test_fmnist_is_read_off_at_classifier_round_173_of_the_paper_only():
    cells = expand(load_grid("paper_table1"), "paper")
    rounds = {
        c.dataset: c.config.algorithm["classifier_rounds"] for c in cells if c.setting("algorithm") == "fedconcat"
    }
    assert rounds == {"cifar10": 200, "svhn": 200, "fmnist": 173}
    doubled = expand(load_grid("paper_table11"), "paper")
    assert {c.config.algorithm.get("classifier_rounds") for c in doubled if c.dataset == "fmnist"} == {None, 346}


def test_an_option_on_an_axis_goes_to_the_methods_that_have_it():
    axes = {
        "dataset": ["digits"],
        "partition": ["label-2"],
        "algorithm": ["fedavg", "fedconcat"],
        "num_clusters": [2, 4],
    }
    cells = expand(make_grid("mine", {"axes": axes}), "paper")
    assert [(c.setting("algorithm"), c.setting("num_clusters")) for c in cells] == [
        ("fedavg", None),
        ("fedconcat", 2),
        ("fedconcat", 4),
    ]
    with pytest.raises(ConfigError, match="Unknown setting 'num_cluster'. Did you mean 'num_clusters'"):
        expand(make_grid("mine", {"axes": axes, "settings": {"num_cluster": 3}}), "paper")


@pytest.mark.parametrize(
    ("method", "rounds", "most"),
    [
        ("fedavg", [99], 5),
        ("fedavg", [1, 99], None),
        ("fedavg", ["last"], None),
        ("fedconcat", [11], 10),
        ("fedconcat", [10], None),
    ],
)
def test_a_figure_of_rounds_that_no_run_has_is_refused(method, rounds, most):
    """A method with stages has other rounds than the setting says; smaller budgets leave out what they do not have."""
    axes = {"dataset": ["digits"], "partition": ["iid"], "algorithm": [method]}
    stages = (
        {"encoder_rounds": 3, "classifier_rounds": 7, "num_clusters": 2} if method == "fedconcat" else {"rounds": 5}
    )
    report = {"figures": [{"kind": "weight-norms", "rounds": rounds}]}
    grid = make_grid("mine", {"title": "t", "axes": axes, "settings": {"clients": 4, **stages}, "report": report})
    sentence = (
        f"^grid mine: report.figures.0: weight-norms shows round {rounds[0]}, but runs have {most} rounds; name one"
    )
    with pytest.raises(ConfigError, match=sentence) if most else nullcontext():
        assert expand(grid, "full")
    assert expand(grid, "smoke")


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"settings": {"ronds": 3}}, "settings"),
        ({"conditions": [{"when": {"algorithm": "fedavg"}, "set": {"ronds": 3}}]}, "conditions.1.set"),
        ({"budgets": {"two": {"settings": {"ronds": 3}}}}, "budgets.two.settings"),
        ({"tuning": [{"when": {"algorithm": "fedavg"}, "options": {"ronds": [3]}}]}, "tuning.0.options"),
    ],
)
def test_a_misspelt_key_is_told_once_with_its_grid_and_place(part, place):
    """Each of three methods has another list of what there is."""
    axes = {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg", "fedprox", "fedconcat"]}
    with pytest.raises(ConfigError) as caught:
        expand(make_grid("mine", {"title": "t", "axes": axes} | part), "full")
    (said,) = caught.value.mistakes
    assert said.startswith(f"grid mine: {place}: Unknown setting 'ronds'. Did you mean 'rounds'?")


def test_mistakes_of_a_file_name_its_grid_and_a_misspelt_method_of_a_condition_is_one():
    axes = {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["fedavg"]}
    conditions = [{"when": {"algorithm": ["fedporx"]}, "set": {"lr": 1.0}}]
    content = {"title": "t", "axes": axes, "settings": {"rounds": -3}, "conditions": conditions}
    with pytest.raises(ConfigError) as caught:
        expand(make_grid("mine", content, source="mine.yaml"), "full")
    first, second = caught.value.mistakes
    assert first.startswith("grid mine: Unknown algorithm 'fedporx'. Did you mean 'fedprox'?")
    assert second == "grid mine: rounds must be greater than 0, but got -3."
    with pytest.raises(ConfigError, match="^grid mine: Unknown setting 'algorthm'. Did you mean 'algorithm'"):
        expand(make_grid("mine", {"title": "t", "axes": axes, "save_when": {"algorthm": "fedavg"}}), "full")
    with pytest.raises(
        ConfigError, match="^grid mine: report.metric: Unknown metric 'acuracy'. Did you mean 'accuracy'"
    ):
        make_grid("mine", {"title": "t", "axes": axes, "report": {"metric": "acuracy"}})


def test_a_grid_takes_from_the_one_that_it_extends_what_it_does_not_say():
    own = {"reproduces": {"table": 2}, "settings": {"participation": 0.5}, "axes": SMALL["axes"]}
    grid = make_grid("mine", {"extends": "paper_table1", **own})
    assert grid.reproduces.paper == "fedconcat" and grid.reproduces.table == 2
    assert (grid.settings["lr"], grid.settings["participation"]) == (0.01, 0.5)
    assert grid.axes == SMALL["axes"] and grid.tuning == load_grid("paper_table1").tuning
    without = make_grid("mine", {"extends": "paper_table1", **own, "budgets": {"medium": None}})
    assert grid.budgets.keys() - without.budgets.keys() == {"medium"}
    with pytest.raises(ConfigError, match="extends: Unknown grid 'paper_tabel1'. Did you mean 'paper_table1'"):
        make_grid("mine", {"extends": "paper_tabel1"})


def test_a_tuning_set_cannot_replace_an_axis():
    """The three cells of SCAFFOLD would be one, as `fedcat_table1` sets its momentum_mode in a tuning set."""
    axes = {"algorithm": ["fedavg", "scaffold"], "momentum_mode": ["outside", "effective-lr", "none"], "seed": [0]}
    own = {"extends": "fedcat_table1", "axes": axes, "settings": {"dataset": "cifar10", "partition": "dir-1"}}
    report = {"rows": ["momentum_mode"]}
    with pytest.raises(
        ConfigError, match="options has momentum_mode, of which the grid has an axis; leave it out of one"
    ):
        make_grid("mine", {**own, "reproduces": None, "report": report})
    tuning = [{"when": {"algorithm": "scaffold"}, "options": {"weighting": ["uniform"]}}]
    grid = make_grid("mine", {**own, "reproduces": None, "report": report, "tuning": tuning})
    assert len(expand(grid, "paper")) == 4
    assert make_grid(
        "mine", {**own, "reproduces": None, "report": report, "axes": axes | {"algorithm": ["fedavg", "fedcat"]}}
    )


def test_a_tuning_set_that_the_settings_rule_out_may_have_the_option_of_an_axis(grid_of):
    axes = {"algorithm": ["fedprox"], "partition": ["iid"], "mu": [0.1, 1], "seed": [0]}
    others = [{"when": {"dataset": "mnist"}, "options": {"mu": [0.01]}}]
    assert len(expand(grid_of(axes=axes, settings={"dataset": "digits"}, tuning=others, report={}), "paper")) == 2
    with pytest.raises(ConfigError, match="options has mu, of which the grid has an axis"):
        grid_of(axes=axes, settings={"dataset": "mnist"}, tuning=others, report={})


@pytest.mark.parametrize(
    "part",
    [{"tuning": [{"options": {"mu": [0.1, 1]}}]}, {"conditions": [{"set": {"mu": 0.1}}]}],
    ids=["tuning", "condition"],
)
def test_options_of_one_method_are_not_set_for_another(grid_of, part):
    def of(algorithm):
        return {key: [one | {"when": {"algorithm": algorithm}} for one in given] for key, given in part.items()}

    assert expand(grid_of(**{"tuning": [], **of("fedprox")}), "paper")
    for named in ("fedavg", ["fedavg"]):
        with pytest.raises(ConfigError, match="Unknown setting 'mu': options of fedavg: none; mu is of"):
            expand(grid_of(**{"tuning": [], **of(named)}), "paper")


@pytest.mark.parametrize("axes", [{}, {"partition": ["dir-1"]}])
def test_a_grid_inherits_names_of_the_axes_that_it_shows(axes):
    own = {
        "axes": {"dataset": ["cifar10"], "algorithm": ["fedavg", "fedcat"], "seed": [0], **axes},
        "settings": {"partition": "dir-1"},
        "reproduces": None,
    }
    assert not make_grid("mine", {"extends": "fedcat_table1", **own, "report": {"rows": ["dataset"]}}).report.names
    if axes:
        assert make_grid("mine", {"extends": "fedcat_table1", **own}).report.names == {
            "partition": {"dir-1": "α = 1.0"}
        }


def test_any_setting_can_be_an_axis(grid_of):
    cells = expand(grid_of(axes=SMALL["axes"] | {"lr": [0.1, 0.2], "clients": [10, 20]}), "paper")
    assert {(cell.config.lr, cell.config.clients) for cell in cells} == {(0.1, 10), (0.1, 20), (0.2, 10), (0.2, 20)}


def test_conditions_hold_where_their_settings_do(grid_of):
    condition = {"when": {"partition": ["label-2"], "algorithm": "fedavg"}, "set": {"batch_size": 8}}
    cells = expand(grid_of(conditions=[condition]), "paper")
    small = {(cell.config.partition, cell.setting("algorithm")) for cell in cells if cell.config.batch_size == 8}
    assert small == {("label-2", "fedavg")}


@pytest.mark.parametrize(
    "when", [{"model": "lenet-cifar"}, {"partition": "dir-0.50"}, {"partition": ["iid", "dir-.5"]}]
)
def test_conditions_hold_for_every_name_of_a_model_and_a_partition(grid_of, when):
    axes = SMALL["axes"] | {"dataset": ["fmnist"], "model": ["simple-cnn"], "partition": ["label-2", "dir-0.5"]}
    cells = expand(grid_of(axes=axes, conditions=[{"when": when, "set": {"batch_size": 8}}]), "paper")
    wanted = {"label-2", "dir-0.5"} if "model" in when else {"dir-0.5"}
    assert {cell.config.partition for cell in cells if cell.config.batch_size == 8} == wanted


def test_names_of_an_axis_may_be_others_than_those_of_a_condition_or_a_tuning_set(grid_of):
    axes = SMALL["axes"] | {"dataset": ["fmnist"], "model": ["lenet-cifar"], "partition": ["dir-0.500"]}
    when = {"model": "simple-cnn", "partition": "dir-0.5"}
    cells = expand(grid_of(axes=axes, conditions=[{"when": when, "set": {"batch_size": 8}}]), "paper")
    assert {cell.config.batch_size for cell in cells} == {8}
    tuning = [{"when": {"algorithm": "fedprox", **when}, "options": {"mu": [0.1, 1.0]}}]
    with pytest.raises(ConfigError, match="tuning.0.options has mu, of which the grid has an axis"):
        grid_of(axes=axes | {"mu": [0.1]}, tuning=tuning)


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


def test_two_datasets_that_the_same_one_replaces_keep_their_cells(grid_of):
    axes = {**SMALL["axes"], "dataset": ["svhn", "cifar10"], "partition": ["iid"], "algorithm": ["fedavg"], "seed": [0]}
    missing = ["svhn", "cifar10"]
    grid = grid_of(axes=axes, settings=SMALL["settings"] | {"model": "mlp"})
    cells = expand(grid, "paper", missing=missing, substitutes=dict.fromkeys(missing, "digits"))
    assert [(cell.dataset, cell.substitute) for cell in cells] == [("svhn", "digits"), ("cifar10", "digits")]
    assert cells[0].id == cells[1].id


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


def test_a_number_as_the_name_of_an_axis_or_a_setting_is_one_mistake(grid_of):
    for part in ("axes", "settings"):
        given = {"axes": {"algorithm": ["fedavg"], "dataset": ["digits"], "seed": [0]}, "settings": {}}
        given[part][1] = ["x"]
        with pytest.raises(ConfigError, match=rf"{part}\.1.* must be a valid string, but got 1\.") as caught:
            grid_of(**given)
        assert len(caught.value.mistakes) == 1


def test_mistakes_of_keys_and_of_axes_are_told_together(grid_of):
    axes = {
        "dataset": ["digit"],
        "algorithm": ["fedavg", "fedprox"],
        "wrapper": ["none", "ccrv"],
        "mu": [-1, 0.1],
        "first_clients": [3],
        "seed": [0, 1.5],
    }
    with pytest.raises(ConfigError) as caught:
        grid_of(axes=axes, settngs={}, settings={"lr": 0, "rounds": 3}, report={"rows": ["dataset"]}, tuning=[])
    assert {line.removeprefix("grid mine: ").partition(" Known:")[0] for line in caught.value.mistakes} == {
        "Unknown key 'settngs'. Did you mean 'settings'?",
        "lr must be greater than 0, but got 0.",
        "Unknown dataset 'digit'. Did you mean 'digits'?",
        "Unknown wrapper 'ccrv'. Did you mean 'ccvr'?",
        "fedprox: mu must be at least 0, but got -1.0.",
        "seed must be a valid integer, but got 1.5.",
    }
    with pytest.raises(ConfigError, match="Did you mean 'settings'.*\n.*Unknown setting 'datset'"):
        grid_of(axes={"datset": ["digits"], "algorithm": ["fedavg"]}, settngs={})
    with pytest.raises(ConfigError, match="^grid mine: Unknown key 'settngs'"):
        grid_of(axes=SMALL["axes"] | {"partition": ["none"], "model_width": [0.5], "mu": [1]}, settngs={})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {"batchsize": 3}}, "Did you mean 'batch_size'?"),
        ({"settings": {"batch_size": "3"}}, "batch_size must be a valid integer, but got '3'."),
        ({"axes": SMALL["axes"] | {"dataset": [["digits"]]}}, "dataset must be a valid string"),
        ({"axes": SMALL["axes"] | {"algorithm": [["fedavg"]]}}, "Unknown algorithm"),
        ({"axes": SMALL["axes"] | {"clients": ["x"]}}, "clients must be a valid integer, but got 'x'."),
        ({"conditions": [{"when": {"datset": "digits"}, "set": {}}]}, "Did you mean 'dataset'?"),
        (
            {"conditions": [{"when": {"dataset": ["digit"]}, "set": {}}]},
            "Unknown dataset 'digit'. Did you mean 'digits'?",
        ),
        (
            {"conditions": [{"when": {"partition": "labl-2"}, "set": {}}]},
            "Unknown partition 'labl-2'. Did you mean 'label-2'?",
        ),
        (
            {"conditions": [{"when": {"partition": "label-x"}, "set": {}}]},
            "label-k needs a whole number k of at least 1",
        ),
        ({"conditions": [{"when": {"model": ["simple-cn"]}, "set": {}}]}, "Unknown model 'simple-cn'. Did you mean"),
        ({"axes": {"dataset": ["digit"], "partition": ["iid"], "algorithm": ["fedavg"]}}, "Did you mean 'digits'?"),
        ({"axes": {"partition": ["iid"], "algorithm": ["fedavg"]}}, "dataset is missing."),
        ({"axes": {"dataset": ["digits"], "partition": ["iid"]}}, "algorithm is missing."),
    ],
)
def test_mistakes_in_the_cells_are_found_before_anything_runs(grid_of, changes, said):
    grid = grid_of(**changes)
    for budget in ("paper", "small", "smoke"):
        with pytest.raises(ConfigError) as caught:
            expand(grid, budget)
        assert said in str(caught.value)


def test_conditions_may_be_of_names_that_only_the_folder_of_a_lab_has(grid_of):
    names = dict.fromkeys(("dataset", "partition", "model", "algorithm"), "qqq")
    conditions = [{"when": {key: name}, "set": {"lr": 1.0}} for key, name in names.items()]
    assert len(expand(grid_of(conditions=conditions), "paper")) == len(expand(grid_of(), "paper"))


@pytest.mark.parametrize(
    "when",
    [{"dataset": "npz:/data/digits.npz"}, {"dataset": "imagefolder:digits"}, {"partition": "file:/data/label-2.json"}],
)
def test_conditions_may_be_of_data_of_users_that_is_not_here(grid_of, when):
    assert expand(grid_of(conditions=[{"when": when, "set": {"lr": 1.0}}]), "paper")


@pytest.mark.parametrize(
    "report",
    [{"rows": ["mean"], "columns": "algorithm"}, {"rows": ["algorithm"], "columns": "mean"}],
)
def test_an_option_with_the_name_of_a_column_of_tables_is_no_axis_of_them(report):
    axes = {"dataset": ["digits"], "partition": ["iid"], "algorithm": ["feddyn"], "mean": ["uniform", "examples"]}
    with pytest.raises(ConfigError) as caught:
        make_grid("mine", {"title": "t", "axes": axes, "report": report})
    (said,) = caught.value.mistakes
    assert (
        "mean cannot be an axis of tables and figures, which have a column of that name: rename the option if it is"
        in said
    )
    axes["algorithm"] = [{"name": "feddyn", "mean": mean} for mean in axes.pop("mean")]
    assert len(expand(make_grid("mine", {"title": "t", "axes": axes}), "full")) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budgets": ["small"]}, "budgets must be a valid dictionary, but got ['small']."),
        ({"budgets": {"small": "x"}}, "budgets.small must be a valid dictionary"),
        ({"conditions": {"when": {}}}, "conditions must be a list"),
        ({"conditions": 3}, "conditions must be a list"),
        ({"axes": SMALL["axes"] | {"lr": []}}, "axes.lr is too short: give at least 1, but got []."),
        ({"axes": SMALL["axes"] | {"lr": 0.1}}, "axes.lr must be a list, but got 0.1; write [0.1]."),
        (
            {"tuning": [{"when": {}, "options": {"mu": []}}]},
            "tuning.0.options.mu is too short: give at least 1, but got [].",
        ),
        ({"tuning": [{"when": {}, "options": {"mu": [1, 2]}, "named": {"mu": 3}}]}, "named must be one point"),
        ({"tuning": [{"when": {}, "options": {"mu": [1, 2]}, "named": {"nu": 1}}]}, "named must be one point"),
        ({"reproduces": {"paper": "fedconcta", "table": 1}}, "Unknown paper 'fedconcta'. Did you mean 'fedconcat'?"),
        ({1: "x"}, "1 keys should be strings"),
        ({"mirrors": {"paper": "fedconcat", "table": 1}}, "mirrors is called reproduces now; rename the key."),
        ({"report": {"value": "best"}}, "report: value is called rounds_shown now; rename the key."),
    ],
)
def test_a_file_of_the_wrong_shape_is_explained(grid_of, changes, said):
    with pytest.raises(ConfigError) as caught:
        grid_of(**{"budgets": {}} | changes) if 1 not in changes else make_grid("mine", SMALL | changes)
    assert said in str(caught.value)


def test_a_report_is_checked_before_anything_runs(grid_of):
    report = {"rows": ["dataset", "partitoin"], "columns": "algoritm", "metric": "acuracy", "verdict": "fedconcta"}
    with pytest.raises(ConfigError) as caught:
        grid_of(report=report | {"rounds_shown": "lats"}, settngs={})
    text = str(caught.value)
    assert "6 mistakes" in text
    for nearest in ("partition", "algorithm", "accuracy", "fedconcat", "last", "settings"):
        assert f"Did you mean '{nearest}'?" in text
    axes = SMALL["axes"] | {"mu": [1]}
    assert grid_of(axes=axes, tuning=[], report={"rows": ["mu"]}).report.rows == ["mu"]


def test_a_tuning_set_without_a_named_point_is_refused_only_where_one_is_needed(grid_of):
    grid = grid_of(tuning=[{"when": {"algorithm": "fedprox"}, "options": {"mu": [0.1, 1]}}])
    assert len(expand(grid, "paper")) == 12
    with pytest.raises(ConfigError, match="has several points: set `named` to the one to run"):
        expand(grid, "small")


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"algorithm": "fedavgg"}, "gains_over names algorithm=fedavgg, but the axis has fedavg"),
        ({"algorithm": 3}, "gains_over names algorithm=3, but the axis has fedavg"),
        ({"clients": 10}, "Unknown row or column of gains_over 'clients'."),
    ],
)
def test_a_gain_is_over_a_cell_of_the_table(grid_of, over, said):
    for part in ("gains_over", "against"):
        with pytest.raises(ConfigError, match=said.replace("gains_over", part)):
            grid_of(report={part: over})


def test_cells_are_tested_against_a_method_by_its_name_alone(grid_of):
    assert grid_of(report={"against": "fedavg"}).report.against == {"algorithm": "fedavg"}


@pytest.mark.parametrize(
    ("reproduces", "said"),
    [
        ({"own": ["fedporx"]}, "Unknown column in own or baselines of reproduces 'fedporx'. Did you mean 'fedprox'?"),
        ({"own": ["fedprox"], "baselines": ["fedavg", "fedprox"]}, "own and baselines of reproduces both name fedprox"),
    ],
)
def test_the_methods_of_a_paper_are_columns_of_its_table(grid_of, reproduces, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        grid_of(reproduces={"paper": "fedconcat", "table": 1} | reproduces)


def test_an_extending_grid_keeps_the_papers_methods_that_it_has():
    def own(**changes):
        axes = {"dataset": ["cifar10"], "partition": ["iid"], "algorithm": ["fedavg", "fedconcat"]}
        return make_grid("mine", {"extends": "paper_table1", "axes": axes} | changes).reproduces

    assert own().own == ["fedconcat"]
    assert own(reproduces={"own": ["fedavg"]}).own == ["fedavg"]
    assert own(reproduces=None) is None
    with pytest.raises(ConfigError, match="Unknown column in own or baselines of reproduces 'fedconcat-id'"):
        own(reproduces={"own": ["fedconcat-id"]})


def test_further_rounds_of_a_report_are_others_than_the_first(grid_of):
    assert grid_of(report={"rounds_shown": "best", "also": ["last", "last10"]}).report.also == ["last", "last10"]
    for also in (["last"], ["best", "best"]):
        with pytest.raises(
            ConfigError, match=f"rounds_shown and also of the report name {also[0]} twice; name it in one of them, once"
        ):
            grid_of(report={"also": also})
    with pytest.raises(ConfigError, match="Did you mean 'best'"):
        grid_of(report={"also": ["bets"]})
    with pytest.raises(ConfigError, match="also \\(best\\) is for tables of accuracies"):
        make_grid("mine", {"extends": "paper_table8", "report": {"also": ["best"]}})


def test_a_model_stands_for_one_of_the_published_table():
    models = load_grid("fedcat_table1").reproduces.models
    assert models == {"simple-cnn": "mcmahan2017-cifar-cnn"}, "by the name of the registry"
    for wrong, said in (
        (
            {"lenet-cifar": "mcmahan2017-cifar-cn"},
            "Unknown model in Table 1 of fedcat 'mcmahan2017-cifar-cn'. Did you mean",
        ),
        ({"lenet-cifra": "mcmahan2017-cifar-cnn"}, "Unknown model 'lenet-cifra'. Did you mean 'lenet-cifar'"),
    ):
        with pytest.raises(ConfigError, match=said):
            make_grid("mine", {"extends": "fedcat_table1", "reproduces": {"models": wrong}})


def test_a_partition_stands_for_one_of_the_published_table():
    """FedCat's grids have both readings of its Dir(alpha), and say so."""
    for name in ("fedcat_table1", "fedcat_table3", "fedcat_figure5"):
        grid = load_grid(name)
        assert grid.reproduces.partitions == {f"dirichlet-equal-{b}": f"dir-{b}" for b in ("0.1", "0.5", "1")}
        assert any("two readings" in note and "dirichlet-equal" in note for note in grid.report.notes)
    with pytest.raises(ConfigError, match="Unknown partition 'dri-0.1'"):
        make_grid("mine", {"extends": "fedcat_table1", "reproduces": {"partitions": {"dri-0.1": "dir-0.1"}}})


def test_the_rounds_of_a_report_are_written_into_the_expanded_grid(grid_of):
    grid = grid_of(report={"rounds_shown": "last10"})
    assert to_json(grid, "paper", {}, expand(grid, "paper"))["report"]["rounds_shown"] == "last10"
    assert grid_of().report.rounds_shown == "last"


def test_numbers_in_scientific_notation_are_numbers(tmp_path):
    (tmp_path / "mine.yaml").write_text("axes: {dataset: [digits], partition: [iid], algorithm: [fedavg], lr: [1e-3]}")
    assert expand(load_grid(str(tmp_path / "mine.yaml")), "paper")[0].config.lr == 0.001


def test_clients_given_by_hand_decide_how_many_examples_smoke_trains_on():
    cell = single({"algorithm": "fedavg", "dataset": "cifar10", "partition": "label-2"}, [0])
    (given,) = expand(cell, "smoke", overrides={"clients": 30})
    assert (given.config.clients, given.config.train_examples) == (30, 3000)
    (fixed,) = expand(cell, "smoke", overrides={"clients": 30, "train_examples": 500, "rounds": 7})
    assert (fixed.config.train_examples, fixed.config.rounds) == (500, 7)


def test_an_axis_wins_over_the_settings_of_a_budget(grid_of):
    grid = grid_of(axes=SMALL["axes"] | {"clients": [12, 40], "rounds": [4]})
    assert {(c.config.clients, c.config.rounds) for c in expand(grid, "small")} == {(12, 4), (40, 4)}
    smoke = {(c.config.clients, c.config.train_examples) for c in expand(grid, "smoke")}
    assert smoke == {(20, 1437), (40, 1437)}, "at least 20 clients; 2,000 examples are more than digits has"


def test_budgets_and_checks_go_by_what_is_known_about_a_dataset():
    cell = single({"algorithm": "fedavg", "dataset": "tinyimagenet", "partition": "label-2"}, [0])
    part = dataclasses.replace(datasets.INFO["tinyimagenet"], num_classes=20, train_size=1000, test_size=200)
    facts = {"tinyimagenet": part}
    (smoke,) = expand(cell, "smoke", facts=facts)
    assert (smoke.config.clients, smoke.config.train_examples, smoke.config.test_examples) == (20, 1000, 200)
    assert expand(cell, "paper", facts=facts)[0].config.clients == 40
    with pytest.raises(ConfigError, match="hold all 200 classes"):
        expand(cell, "paper")


def test_budgets_leave_the_clients_of_natural_to_the_data(grid_of):
    known = dataclasses.replace(datasets.INFO["femnist"], train_size=5000, test_size=800, num_writers=30)
    facts = {**datasets.INFO, "femnist": known}
    cell = single({"algorithm": "fedavg", "dataset": "femnist", "partition": "natural"}, [0])
    for budget, examples in (("paper", None), ("small", None), ("smoke", 3000)):
        (found,) = expand(cell, budget, facts=facts)
        assert (found.config.clients, found.config.train_examples) == (30, examples), budget
        assert expand(cell, budget)[0].config.clients == 180
    conditions = [{"when": {"dataset": "femnist"}, "set": {"partition": "natural", "clients": None}}]
    grid = grid_of(axes=SMALL["axes"] | {"dataset": ["digits", "femnist"]}, conditions=conditions, tuning=[])
    for budget in ("paper", "small", "smoke"):
        cells = expand(grid, budget, facts=facts)
        assert {cell.config.clients for cell in cells if cell.dataset == "femnist"} == {30}
        assert 30 not in {cell.config.clients for cell in cells if cell.dataset == "digits"}


def test_a_budget_may_take_the_first_of_the_clients_that_the_data_name(grid_of):
    conditions = [{"when": {"dataset": "femnist"}, "set": {"partition": "natural", "clients": None}}]
    axes = SMALL["axes"] | {"dataset": ["digits", "femnist"], "algorithm": ["fedavg"], "seed": [0]}
    grid = grid_of(axes=axes, conditions=conditions, tuning=[], budgets={"few": {"first_clients": 6}})
    for writers, first in ((5, None), (6, None), (7, 6)):
        known = dataclasses.replace(datasets.INFO["femnist"], train_size=900, test_size=90, num_writers=writers)
        for given, wanted in (({}, first), ({"first_clients": 3}, 3)):
            cells = expand(grid, "few", facts={**datasets.INFO, "femnist": known}, overrides=given)
            found = {cell.dataset: (cell.config.clients, cell.config.first_clients) for cell in cells}
            assert found == {"digits": (20, given.get("first_clients")), "femnist": (writers, wanted)}


def test_a_budget_may_round_up_to_whole_cycles(grid_of):
    settings = {"clients": 30, "participation": 0.1, "rounds": 10, "evaluate_every": 2}
    grid = grid_of(settings=settings, budgets={"whole": {"whole_cycles": True}, "cut": {}}, tuning=[])

    def found(budget="whole", **given):
        cells = expand(grid, budget, overrides=given)
        (same,) = {(cell.config.cohort_size, cell.config.rounds, cell.config.evaluate_every) for cell in cells}
        return same

    assert found() == (3, 12, 3)
    assert found("cut") == (3, 10, 2)
    assert found(participation=0.2) == (6, 12, 6)
    assert found(clients=50) == (5, 10, 5)
    for changed, expected in (
        ({"participation": 0.2}, (6, 12, 6)),
        ({"clients": 50}, (5, 10, 5)),
        ({"rounds": 13}, (3, 15, 3)),
    ):
        whole = {"whole": {"whole_cycles": True}}
        other = grid_of(settings=settings, budgets=whole, tuning=[], conditions=[{"when": {}, "set": changed}])
        (cell, *_) = expand(other, "whole")
        assert (cell.config.cohort_size, cell.config.rounds, cell.config.evaluate_every) == expected
    (cell, *_) = expand(grid_of(settings=without(settings, ["rounds"]), budgets=whole, tuning=[]), "whole")
    assert cell.config.rounds == 51, "of the default, 50"
    assert found(rounds=4) == (3, 4, 3) and found(evaluate_every=1) == (3, 12, 1), "what is set by hand stays"
    with pytest.raises(ConfigError, match="participation must be a valid number, but got 'x'"):
        found(participation="x")


@pytest.mark.slow_but_first
@pytest.mark.parametrize("writers, size, rounds", [(180, 18, 990), (165, 17, 1003), (184, 18, 990), (4, 1, 990)])
def test_rounds_of_fedcat_on_femnist_are_whole_cycles_whoever_the_writers_are(writers, size, rounds):
    known = dataclasses.replace(datasets.INFO["femnist"], num_writers=writers)
    for budget in ("paper", "short", "small", "smoke"):
        cells = expand(load_grid("fedcat_table1"), budget, facts={**datasets.INFO, "femnist": known})
        configs = [cell.config for cell in cells if cell.dataset == "femnist"]
        (found,) = {(config.clients, config.cohort_size, config.rounds, config.evaluate_every) for config in configs}
        assert found[2] % found[1] == 0
        if budget == "paper":
            assert found == (writers, size, rounds, -(-10 // size) * size)
        else:
            assert configs[0].population == (writers if budget == "short" else min(writers, 20))


FEDCAT = {"fedcat_table1": 60, "fedcat_table2": 60, "fedcat_table3": 24, "fedcat_figure3": 24, "fedcat_figure4": 4} | {
    "fedcat_figure5": 60,
    "fedcat_figure6": 24,
}


def test_the_grids_of_fedcat_have_72_runs_for_each_seed():
    """Section 6 of the digest."""
    ids = {name: {cell.id for cell in expand(load_grid(name), "paper")} for name in FEDCAT}
    assert {name: len(runs) for name, runs in ids.items()} == {name: 3 * count for name, count in FEDCAT.items()}
    assert len(set.union(*ids.values())) == 3 * 72
    assert ids["fedcat_table2"] == ids["fedcat_table1"] == ids["fedcat_figure5"] > ids["fedcat_figure3"]
    assert ids["fedcat_figure6"] == ids["fedcat_table3"] > ids["fedcat_figure4"]
    assert len(ids["fedcat_table3"] & ids["fedcat_table1"]) == 3 * 12


@pytest.mark.slow_but_first
@pytest.mark.parametrize("budget", ["paper", "short", "small", "smoke"])
def test_all_methods_of_the_fedcat_grids_train_and_are_evaluated_at_the_end_of_cycles(budget):
    for name in FEDCAT:
        for cell in expand(load_grid(name), budget):
            config = cell.config
            assert config.rounds % config.cohort_size == config.evaluate_every % config.cohort_size == 0, cell
            if budget == "small":
                assert config.rounds >= 300 and config.rounds // config.cohort_size >= 30
                own = {"mnist": ("mlp", 2000), "femnist": ("fedmr-femnist-cnn", None)}
                assert (config.model, config.train_examples) == own.get(cell.dataset, ("simple-cnn", 10_000))


def test_table_1_of_fedcat_is_at_the_settings_of_the_paper():
    cells = select(expand(load_grid("fedcat_table1"), "paper"), {"seed": [0]})
    expected = {
        "rounds": 1000,
        "evaluate_every": 10,
        "clients": 100,
        "participation": 0.1,
        "local_epochs": 5,
        "batch_size": 50,
    }
    expected |= {"lr": 0.01, "momentum": 0.9, "weight_decay": 0, "transform": "fedcat"}
    for cell in cells:
        own = {"rounds": 990, "evaluate_every": 18, "clients": 180} if cell.dataset == "femnist" else {}
        assert {key: getattr(cell.config, key) for key in expected} == expected | own
    mu = {cell.dataset: cell.setting("mu") for cell in cells if cell.setting("algorithm") == "fedprox"}
    assert mu == {"mnist": 0.1, "cifar10": 0.01, "cifar100-coarse": 0.001, "femnist": 0.1}
    models = {cell.dataset: cell.config.model for cell in cells}
    assert models == dict.fromkeys(("mnist", "femnist"), "mcmahan2017-mnist-cnn") | dict.fromkeys(
        ("cifar10", "cifar100-coarse"), "simple-cnn"
    )
    literal = expand(
        load_grid("fedcat_table1"), "paper", overrides={"model": "mcmahan2017-cifar-cnn", "dataset": "cifar10"}
    )
    assert {cell.config.model for cell in literal} == {"mcmahan2017-cifar-cnn"}


def test_budgets_leave_clients_and_images_of_a_shift_as_they_are_but_for_conditions(grid_of):
    cell = single({"algorithm": "fedavg", "dataset": "fmnist", "partition": "label-shift"}, [0])
    for budget in ("paper", "small", "smoke"):
        (found,) = expand(cell, budget)
        assert (found.config.clients, found.config.train_examples, found.config.test_examples) == (20, None, None)
    condition = {"when": {"partition": "feature-shift"}, "set": {"clients": 8, "train_examples": 1000}}
    axes = SMALL["axes"] | {"partition": ["feature-shift"]}
    cells = expand(grid_of(axes=axes, budgets={"smoke": {"conditions": [condition]}}, tuning=[]), "smoke")
    found = {(cell.config.clients, cell.config.train_examples, cell.config.test_examples) for cell in cells}
    assert found == {(8, 1000, None)}


def test_the_work_of_a_shift_is_that_of_its_rich_and_poor_clients():
    settings = {"algorithm": "fedavg", "rounds": 3, "local_epochs": 2}
    for dataset, partition, examples in (
        ("fmnist", "label-shift", 21_140),
        ("cifar10", "feature-shift", 28_400),
        ("cifar100-coarse", "concept-shift", 26_200),
    ):
        config = resolve({**settings, "dataset": dataset, "partition": partition})
        assert examples_to_train(config) == 6 * examples
        assert bytes_per_client(config.model_copy(update={"model": "mlp"})) > 0


@pytest.mark.parametrize(
    ("clients", "cohort"),
    [
        ({"clients": 10, "participation": 0.25}, 2),
        ({"clients": 10, "participation": 0.01}, 1),
        ({"clients": 100, "first_clients": 10, "participation": 0.25}, 2),
        ({"clients": 10, "participation": 0.25, "partition": "natural"}, 3),
    ],
)
def test_costs_are_those_of_whole_clients(clients, cohort):
    settings = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "model": "mlp", "rounds": 3}
    settings |= {"train_examples": 1000, "local_epochs": 2} | clients
    config = resolve(settings, None)
    alone = resolve(settings | {"participation": 1.0, "rounds": 1}, None)
    assert examples_to_train(config) == 3 * cohort * 2 * 1000 / clients["clients"]
    assert bytes_per_client(config) == round(3 * cohort / config.population * bytes_per_client(alone))


def test_the_budget_medium_is_of_grids_with_the_settings_of_table_1_and_methods_communicate_alike_at_it():
    with_medium = {name for name in grid_files.names() if "medium" in load_grid(name).budgets}
    tables = ("table1", "table4", "table5", "table10", "table14", "aaai_table4")
    assert with_medium == {f"paper_{name}" for name in (*tables, "figure8")}
    for name in with_medium:
        found = {}
        for cell in expand(load_grid(name), "medium"):
            method = cell.setting("algorithm")
            # The last two send the models of all clusters.
            if cell.config.seed == 0 and method not in ("centralized", "fedconcat-ifca", "fedconcat-fedsoft"):
                found.setdefault(cell.setting("dataset"), set()).add(bytes_per_client(cell.config))
        assert all(min(of) > 0.95 * max(of) for of in found.values()), f"{name}: bytes of a client {found}"


def test_conditions_may_name_options_of_a_method(grid_of):
    condition = {"when": {"mu": 0.01}, "set": {"batch_size": 8}}
    cells = expand(grid_of(conditions=[condition], tuning=[]), "paper")
    assert {cell.setting("algorithm") for cell in cells if cell.config.batch_size == 8} == {"fedprox"}, "its default"
    with pytest.raises(ConfigError, match="Did you mean 'mu'?"):
        expand(grid_of(conditions=[condition | {"when": {"mue": 0.01}}]), "paper")


def test_long_names_are_cut_so_that_they_remain_names_of_files():
    overrides = {f"setting_{number}": 0.123456789 for number in range(20)}
    label, other = budget_label("small", overrides), budget_label("small", overrides | {"setting_19": 1})
    assert label.startswith("small+setting_0=0.123456789+") and len(label) <= 100
    assert label != other
    grid = single({"algorithm": "fedavg", "dataset": f"imagefolder:/{'x' * 300}", "partition": "iid"}, [0])
    assert len(grid.name) <= 100 and "/" not in grid.name


def test_wrong_grids_budgets_and_selections_are_explained(grid_of, tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'quickstart'?"):
        load_grid("quickstrat")
    with pytest.raises(ConfigError, match="There is no grid file"):
        load_grid(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("axes: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_grid(str(tmp_path / "bad.yaml"))
    (tmp_path / "bad.yaml").write_text("axes:\n\tdataset: [digits]\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml, line 2, is not valid YAML: it has a tab; indent with spaces"):
        load_grid(str(tmp_path / "bad.yaml"))
    (tmp_path / "bad.yaml").write_text("axes: " + "[" * 3000 + "]" * 3000)
    with pytest.raises(ConfigError, match=r"bad\.yaml is not valid YAML: it is nested too deeply"):
        load_grid(str(tmp_path / "bad.yaml"))
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"pipe\.yaml is not a regular file; name a YAML file"):
        load_grid(str(tmp_path / "pipe.yaml"))
    with pytest.raises(ConfigError, match="Did you mean 'small'?"):
        expand(grid_of(), "smal")
    with pytest.raises(ConfigError, match="Did you mean 'rounds'?"):
        expand(grid_of(), "paper", overrides={"round": 3})
    cells = expand(grid_of(), "paper")
    with pytest.raises(ConfigError, match="Did you mean 'fedprox'?"):
        select(cells, {"algorithm": ["fedporx"]})
    with pytest.raises(ConfigError, match="Did you mean 'algorithm'?"):
        select(cells, {"algoritm": ["fedavg"]})


def test_a_method_inside_another_is_selected_by_its_name_and_a_list_never(grid_of):
    axes = SMALL["axes"] | {"algorithm": ["ccvr"]}
    cells = expand(
        grid_of(axes=axes, settings={"base": "moon", "callbacks": ["per-class-accuracy"]}, tuning=[]), "paper"
    )
    assert select(cells, {"base": ["moon"]}) == cells
    with pytest.raises(ConfigError, match=r"No cell has base=fedavg\. The cells have: moon"):
        select(cells, {"base": ["fedavg"]})
    for key in ("callbacks", "versions"):
        with pytest.raises(ConfigError, match=f"No cell has a {key}|Unknown setting '{key}'"):
            select(cells, {key: ["per-class-accuracy"]})


def test_select_matches_settings_and_method_options(grid_of):
    cells = expand(grid_of(), "paper")
    assert {cell.setting("algorithm") for cell in select(cells, {"mu": [1]})} == {"fedprox"}
    assert len(select(cells, {"partition": ["iid"], "seed": [0, 1], "algorithm": ["fedavg"]})) == 2


def test_a_cell_has_the_run_id_of_its_settings(grid_of):
    flat = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 20, "rounds": 3, "seed": 1}
    assert run_id(resolve(flat)) in {cell.id for cell in expand(grid_of(), "paper")}


def test_a_base_may_be_an_axis_and_is_called_by_its_name_and_options(grid_of):
    grid = grid_of(
        axes={"dataset": ["digits"], "partition": ["label-2"], "algorithm": ["fedconcat"], "seed": [0]}
        | {"base": ["fedavg", {"name": "fedprox", "mu": 0.1}]},
        report={"columns": "base"},
        tuning=[],
    )
    described = to_json(grid, "paper", {}, expand(grid, "paper"))
    assert described["column_order"] == ["fedavg", "fedprox mu=0.1"]


WRAPPED = {
    "axes": {
        "dataset": ["digits"],
        "partition": ["iid"],
        "algorithm": ["fedavg", "fedprox"],
        "wrapper": ["none", "ccvr"],
        "seed": [0],
    },
    "settings": {"clients": 20, "rounds": 3, "virtual_per_class": 7},
    "tuning": [],
    "report": {"columns": "wrapper"},
}


def test_the_axis_wrapper_puts_methods_around_those_of_the_axis_algorithm(grid_of):
    grid = grid_of(**WRAPPED)
    cells = {(cell.setting("algorithm"), cell.wrapper): cell for cell in expand(grid, "paper")}
    alone, around = cells["fedprox", "none"], cells["fedprox", "ccvr"]
    assert run_id(base_of(around.config)) == alone.id
    assert around.config.algorithm["name"] == "ccvr" and around.config.algorithm["virtual_per_class"] == 7
    assert "virtual_per_class" not in alone.config.algorithm, "an option goes to what has it"
    described = to_json(grid, "paper", {}, list(cells.values()))
    assert described["column_order"] == ["none", "ccvr"]
    assert [cell["algorithm"] for cell in described["cells"]] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    for wrapper, said in (("ccrv", "Unknown wrapper 'ccrv'. Did you mean 'ccvr'?"), ("fedprox", "Unknown wrapper")):
        with pytest.raises(ConfigError, match=re.escape(said)):
            expand(grid_of(**WRAPPED | {"axes": WRAPPED["axes"] | {"wrapper": [wrapper]}, "settings": {}}), "paper")


def test_options_of_a_wrapper_that_a_condition_takes_away_go_with_it(grid_of):
    conditions = [{"when": {"algorithm": "fedprox"}, "set": {"wrapper": "none"}}]
    cells = expand(grid_of(**WRAPPED | {"conditions": conditions}), "paper")
    assert {cell.wrapper for cell in cells if cell.setting("algorithm") == "fedprox"} == {"none"}
    assert {cell.config.algorithm.get("virtual_per_class") for cell in cells if cell.wrapper == "ccvr"} == {7}


def test_options_of_a_wrapper_and_of_what_is_in_it_can_be_tuned_named_and_overridden(grid_of):
    tuning = [
        {"when": {"wrapper": "ccvr"}, "options": {"virtual_per_class": [5, 9]}},
        {"when": {"algorithm": "fedprox"}, "options": {"mu": [0.5]}},
    ]
    grid = grid_of(
        **WRAPPED
        | {"tuning": tuning, "settings": {"clients": 20, "mu": 0.1}, "report": {"rows": ["mu"], "columns": "wrapper"}}
    )
    cells = [cell for cell in expand(grid, "paper") if cell.setting("algorithm") == "fedprox"]
    assert [cell.choice for cell in cells] == [
        {"mu": 0.5},
        {"virtual_per_class": 5, "mu": 0.5},
        {"virtual_per_class": 9, "mu": 0.5},
    ]
    described = to_json(grid, "paper", {}, cells)
    assert described["row_order"] == [[0.5]]
    assert {label(cell, "mu") for cell in described["cells"]} == {"0.5"}
    (cell,) = (cell for cell in expand(grid, "paper", overrides={"wrapper": "oracle", "mu": 2}) if cell.choice)
    assert (cell.wrapper, cell.config.algorithm["base"]["mu"]) == ("oracle", 2)


def test_calibrated_runs_of_ccvrs_tables_share_60_trainings_and_27_more():
    tables = [expand(load_grid(f"ccvr_table{table}"), "paper") for table in (2, 1)]
    assert [len(cells) for cells in tables] == [180, 45]
    second, first = ({(training_of(cell) or cell).id for cell in cells} for cells in tables)
    assert (len(second), len(first - second)) == (60, 27)
    points = {
        cell.id for cell in expand(load_grid("ccvr_figure7"), "paper") if cell.setting("virtual_per_class") == 100
    }
    assert points <= {cell.id for cell in tables[0]}, "Figure 7 goes through cells of Table 2"


def test_an_option_of_a_base_that_is_named_by_an_option_is_refused_with_the_way_that_works():
    setting = {"dataset": "digits", "partition": "label-2"}
    wrapped = single({"algorithm": "fedcollab", **setting}, [0])
    way = "--algorithm ditto --set wrapper=fedcollab,proximal_weight=3."
    with pytest.raises(ConfigError) as refusal:
        expand(wrapped, "smoke", overrides={"base": "ditto", "proximal_weight": 3})
    assert refusal.value.mistakes == [
        "proximal_weight is an option of ditto, the base of fedcollab; make ditto the algorithm and fedcollab its wrapper: "
        + way
    ]
    given = {"wrapper": "fedcollab", "proximal_weight": 3}
    (cell,) = expand(single({"algorithm": "ditto", **setting}, [0]), "smoke", overrides=given)
    assert cell.config.algorithm["base"]["proximal_weight"] == 3
    with pytest.raises(ConfigError, match="Unknown setting 'proximal_wait'"):
        expand(wrapped, "smoke", overrides={"base": "ditto", "proximal_wait": 3})


def test_the_table_of_a_single_setting_names_its_wrapper_or_its_base():
    setting = {"algorithm": "fedprox", "dataset": "digits", "partition": "label-2"}

    def rows(algorithm, overrides):
        grid = single(setting | {"algorithm": algorithm}, [0], overrides)
        return to_json(grid, "smoke", overrides, expand(grid, "smoke", overrides=overrides))["row_order"]

    assert rows("fedprox", {"wrapper": "fedcollab", "mu": 0.1}) == [["digits", "label-2", "fedcollab"]]
    assert rows("fedcollab", {"base": "fedprox"}) == [["digits", "label-2", "fedprox mu=0.01"]]
    assert single(setting, [0], {"lr": 0.1}) == single(setting, [0]), "a table of a method alone stays as it is"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"axes": SMALL["axes"] | {"rounds": [*range(1, 1001)], "batch_size": [*range(1, 1001)]}},
            "The grid has 8,000,000 combinations of algorithm, batch_size, dataset, partition, rounds, seed, but there may be "
            "100,000.",
        ),
        (
            {"tuning": [{"when": {"algorithm": "fedprox"}, "options": {"mu": [*range(1000)], "lr": [*range(1000)]}}]},
            "A tuning set has 1,000,000 combinations of lr, mu, but there may be 100,000.",
        ),
    ],
    ids=["axes", "tuning"],
)
def test_a_grid_of_more_cells_than_can_be_stored_is_refused_before_it_is_expanded(grid_of, changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        grid_of(**changes)


def test_cells_are_counted_with_the_seeds_of_the_command_and_all_tuning_sets(grid_of):
    with pytest.raises(ConfigError, match=re.escape("mine@paper has 160,000 combinations")):
        expand(grid_of(), "paper", seeds=range(40_000))


def test_many_tuning_sets_are_as_many_cells_as_their_combinations(grid_of, monkeypatch):
    monkeypatch.setattr("bench.experiments.expansion.MOST_CELLS", 8)
    sets = [{"when": {}, "options": {key: [1, 2]}, "named": {key: 1}} for key in ("local_epochs", "batch_size")]
    with pytest.raises(ConfigError, match="mine@paper has more than 8 cells with the points of its tuning sets"):
        expand(grid_of(tuning=sets), "paper")
