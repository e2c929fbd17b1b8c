"""The examples of the README are true."""

import inspect
import re
from pathlib import Path

import pytest
import torch

import algorithms
import datasets
from bench.config.resolve import resolve
from bench.simulation.run import Run
from tests.algorithms import test_contract
from tests.support.toy import play, toy_task

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The README's method, installed as the README says."""
    (tmp_path / "fedadam.py").write_text(BLOCKS[0])
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    added = {}
    exec(BLOCKS[1], {"REGISTRY": added})
    for name, place in added.items():
        monkeypatch.setitem(algorithms.REGISTRY, name, place)
    monkeypatch.setattr(algorithms, "describe", lambda name: BLOCKS[0].splitlines()[0].strip('"'))
    return algorithms.load("fedadam")


def test_the_example_method_runs_from_a_config_and_its_options_count(example):
    settings = {"algorithm": "fedadam", "dataset": "digits", "partition": "label-2", "clients": 10, "rounds": 2}
    digits = datasets.load("digits", None)
    losses = []
    for server_lr in (0.01, 0.1):
        run = Run(resolve({**settings, "local_epochs": 1, "server_lr": server_lr}), digits)
        losses.append([run.step(), run.step()][-1]["loss"])
    assert losses[0] != losses[1]


def test_the_example_method_agrees_on_both_engines(example):
    looped, vectorised = (play(example(), toy_task(engine=engine))["params"] for engine in ("loop", "vectorised"))
    for name in looped:
        torch.testing.assert_close(looped[name], vectorised[name], rtol=0, atol=1e-8)


@pytest.mark.parametrize("check", [c for c in vars(test_contract) if c.startswith("test_")])
def test_the_example_method_passes_the_contract(example, check, tmp_path):
    function = getattr(test_contract, check)
    fixtures = {"name": "fedadam", "method": example(), "tmp_path": tmp_path, "participation": 0.6}
    fixtures |= {"model": "simple-cnn", "shape": (3, 16, 16), "dataset": "cifar10"}
    function(**{key: fixtures[key] for key in inspect.signature(function).parameters})


def test_first_step_of_the_example_by_hand(example):
    """Delta 1: first moment 0.1, second 0.01, step 0.01 * 0.1 / (0.1 + 0.001)."""
    params = {"w": torch.tensor(0.0, dtype=torch.float64)}
    updates = {"delta": {"w": torch.ones(1, dtype=torch.float64)}}
    cohort = toy_task().cohort(torch.tensor([0]))
    new, _ = example().aggregate(None, params, example().init_server(None, params), updates, cohort)
    assert new["w"].item() == pytest.approx(0.01 * 0.1 / 0.101)


def test_every_method_stands_in_the_readme():
    assert [name for name in algorithms.REGISTRY if f"| `{name}` |" not in README] == []


def test_every_link_leads_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if not target.startswith("http")]
    assert targets and all((Path(__file__).parents[1] / target).exists() for target in targets)
