"""What tables and sentences call the settings of cells."""

from bench.experiments.labels import names_of_configs, pairs, value_of
from reports.tables.aggregate import short


def test_numbers_are_printed_in_one_way():
    assert pairs({"capacity": 10.0, "samples": 100000.0, "mu": 0.0123456, "lr": 1e-05, "tau": 5, "unit": "steps"}) == [
        "capacity=10",
        "samples=100000",
        "mu=0.01235",
        "lr=1e-05",
        "tau=5",
        "unit=steps",
    ]
    choice = 'capacity=10.0, features="resnet18-f37072fd.pth", lr=1.5e-05, mu=-2.123456, tau=100000.0'
    assert short(choice) == 'capacity=10, features="resnet18-f37072fd.pth", lr=1.5e-05, mu=-2.123, tau=100000'


def test_runs_of_one_name_are_told_apart_by_the_settings_in_which_they_differ():
    one = {
        "dataset": "digits",
        "partition": "iid",
        "algorithm": {"name": "fedavg"},
        "seed": 0,
        "versions": {"algorithm": 1},
    }
    configs = {
        "a": one,
        "b": one | {"seed": 1},
        "c": one | {"lr_decay": 0.9, "versions": {}},
        "d": one | {"local_steps": 5},
    }
    assert names_of_configs(configs) == {
        "a": "digits iid fedavg seed 0 lr_decay=1",
        "c": "digits iid fedavg seed 0 lr_decay=0.9",
        "d": "digits iid fedavg seed 0 lr_decay=1 local_steps=5",
        "b": "digits iid fedavg seed 1",
    }


def test_what_a_config_leaves_out_is_shown_of_the_methods_that_have_it():
    moon = {"name": "moon", "mu": 1.0}
    cells = [
        {"config": {"algorithm": moon}},
        {"config": {"algorithm": {"name": "ccvr", "base": moon}}, "wrapper": "ccvr"},
        {"config": {"algorithm": moon | {"global_model_mode": "eval"}, "weights": "resnet18.pth"}},
        {"config": {"algorithm": {"name": "fedavg"}}},
    ]
    assert [value_of(cell, "global_model_mode") for cell in cells] == ["train", "train", "eval", None]
    assert [value_of(cell, "weights") for cell in cells] == ["none", "none", "resnet18.pth", "none"]
