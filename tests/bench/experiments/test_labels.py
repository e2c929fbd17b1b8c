"""What tables and sentences call the settings of cells."""

from bench.experiments.labels import pairs
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
