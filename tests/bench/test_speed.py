"""The benchmark measures what it says; how fast things are is not tested."""

import os
from dataclasses import replace

import pytest

import datasets
from bench import speed
from bench.speed import W1, Row, markdown, take_turns, task_on, write_random_cifar10


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A CIFAR-10 of 300 random images."""
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    write_random_cifar10(tmp_path / "cifar-10-batches-py", batch_size=50)
    return tmp_path


def test_random_images_have_the_layout_of_cifar10(small):
    found = datasets.load("cifar10", small)
    assert found.train.images.shape == (250, 3, 32, 32) and found.test.images.shape == (50, 3, 32, 32)
    assert len(set(found.train.labels.tolist())) == 10


def test_yardstick_and_methods_train_on_the_same_clients_and_examples(small):
    task = task_on(small, replace(W1, participation=0.5))
    examples = {speed._yardstick_round(task, augment) for augment in (False, True)}
    examples |= {speed._method_round(task, name)() for name in speed.METHODS}
    assert examples == {task.num_trained(task.sample_cohort(speed.ROUND))}


def test_the_yardstick_is_fedavg(small):
    """With one full batch per client the order of examples does not matter, so one round must give FedAvg's model."""
    import torch

    from algorithms.fedavg import FedAvg
    from bench import yardstick

    task = task_on(small, replace(W1, batch_size=64), transform="none")
    module = yardstick.SimpleCnn()
    module.load_state_dict(task.initial_params())
    yardstick.play_round(module, task.federation, list(range(40)), task.settings, augment=False)
    params = FedAvg().step(task, FedAvg().init(task))["params"]
    for name, leaf in module.state_dict().items():
        torch.testing.assert_close(params[name], leaf, rtol=1e-4, atol=1e-6)


def test_cases_take_turns_and_the_median_counts(monkeypatch):
    clock = iter([0.0, 1.0, 1.0, 3.0, 3.0, 7.0, 7.0, 8.0, 8.0, 9.0, 9.0, 10.0])  # seconds 1, 2 | 4, 1 | 1, 1
    monkeypatch.setattr("bench.speed.time.perf_counter", lambda: next(clock))
    order = []
    cases = {name: lambda name=name: order.append(name) or 8 for name in "ab"}
    assert take_turns(cases, 3) == {"a": 8.0, "b": 8.0}
    assert order == ["a", "b"] * 3


def test_missing_data_is_replaced_by_random_images_that_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(speed, "write_random_cifar10", lambda folder: write_random_cifar10(folder, batch_size=50))
    (tmp_path / "scratch").mkdir()
    with speed._images(tmp_path, tmp_path / "scratch") as (folder, source):
        assert source == "random, in the shape of CIFAR-10" and datasets.load("cifar10", folder).num_classes == 10
    assert os.environ["SKEWBENCH_CACHE"] == str(tmp_path / "own") and not (tmp_path / "own").exists()


def test_the_table_names_cases_values_and_ratios():
    table = markdown([Row("loop, fedavg", "8,000 examples per core-second", "0.95 of the yardstick")])
    assert "| loop, fedavg | 8,000 examples per core-second | 0.95 of the yardstick |" in table
    assert "one thread per process" in table
