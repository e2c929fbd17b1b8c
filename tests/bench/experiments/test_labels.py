"""What tables and sentences call the settings of cells."""

from bench.experiments.labels import pairs, value_of
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
