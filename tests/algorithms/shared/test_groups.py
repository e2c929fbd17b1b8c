"""Groups of clients, each with a model of its own: trained at once, they become what they become one after another."""

from dataclasses import replace

import pytest
import torch

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.shared.accounting import no_costs
from algorithms.shared.groups import _is_plain, step_groups
from algorithms.shared.rounds import RoundBased
from bench import models
from bench.simulation import engines
from bench.simulation.task import Task
from tests.support.kinds import others_slow
from tests.support.toy import assert_equal, settings_for, toy, toy_method, toy_task

MEMBERS = ([0, 2], [1, 3], [4])
KINDS = ("fedavg", "scaffold", "moon", "fedgen")  # params alone, states of server and clients, of clients, nested ones
OWN_ROUNDS = {"fedasam", "feddbe", "fedsam", "lg-fedavg", "mofedsam"}  # they override `run_round`
OWN_ROUNDS |= {"oneshot", "fedov", "fusefl"}  # they override `step`
NAMES = [
    name
    for name in algorithms.REGISTRY
    if issubclass(kind := algorithms.load(name), RoundBased) and not (kind.cohorts_of_one_size or toy(name).alone)
]


@pytest.fixture
def calls(monkeypatch):
    """The number of clients of each call of the vectorised engine."""
    sizes, inner = [], engines.run_vectorised

    def counted(task, fn, clients, shared, per_client):
        sizes.append(len(clients))
        return inner(task, fn, clients, shared, per_client)

    monkeypatch.setitem(engines.ENGINES, "vectorised", counted)
    return sizes


def trained(method, tasks: dict[str, Task], rounds: int = 3) -> dict:
    """The state of groups after some rounds."""
    state = {"round": 0, "costs": no_costs(), "models": {name: method.init(task) for name, task in tasks.items()}}
    for _ in range(rounds):
        state = step_groups(method, tasks, state)
    return state


def both(monkeypatch, method, tasks: dict[str, Task]) -> tuple[dict, dict]:
    """The states of groups that have trained one after another, and at once."""
    apart = trained(method, tasks)
    monkeypatch.setattr(Task, "trains_models_at_once", True)
    return apart, trained(method, tasks)


def groups_of(task: Task) -> dict[str, Task]:
    return {str(group): task.restrict(torch.tensor(ids)) for group, ids in enumerate(MEMBERS)}


@pytest.mark.parametrize("name", others_slow(NAMES, KINDS))
def test_groups_that_train_at_once_have_the_numbers_of_groups_one_after_another(name, monkeypatch, calls):
    """A cohort has three of five clients; there are rounds in which none of them is of one of the groups."""
    task = toy_task(engine="vectorised", **settings_for(name) | {"rounds": 3, "participation": 0.6})
    apart, at_once = both(monkeypatch, toy_method(name), groups_of(task))
    assert_equal(at_once, apart, 1e-8)
    cohorts = [{*task.sample_cohort(round).ids.tolist()} for round in range(3)]
    assert any(not cohort & {*ids} for cohort in cohorts for ids in MEMBERS)
    if name in KINDS:
        assert calls[-3:] == [3, 3, 3]


def test_groups_train_at_once_unless_a_method_has_rounds_of_its_own():
    assert {name for name in NAMES if not _is_plain(toy_method(name))} == OWN_ROUNDS


def test_groups_of_one_model_train_at_once_and_others_by_themselves(monkeypatch, calls):
    """Groups of 2, 2 and 1 clients, of which the first and the last have the same model."""
    task = toy_task(engine="vectorised")
    tasks = groups_of(task)
    tasks["1"] = replace(tasks["1"], model=models.load("fedcollab-mlp")((1, 6, 6), task.model.num_classes))
    apart, at_once = both(monkeypatch, FedAvg(), tasks)
    assert_equal(at_once, apart, 1e-8)
    assert sorted(calls[:9]) == sorted([2, 2, 1] * 3) and sorted(calls[9:]) == sorted([3, 2] * 3)


def test_on_a_cpu_and_on_the_loop_groups_train_one_after_another(calls):
    for task in (toy_task(), toy_task(engine="vectorised")):
        assert not task.trains_models_at_once
        trained(FedAvg(), groups_of(task), 1)
    assert calls == [2, 2, 1]
