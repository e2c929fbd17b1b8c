"""Local models are those of the cohort that a method samples."""

from dataclasses import dataclass

import torch

from algorithms.local_training import LocalTraining
from bench.simulation.local_models import local_models
from tests.support.toy import toy_task


@dataclass(frozen=True)
class InTurn(LocalTraining):
    """One client after another."""

    def sample(self, task, state):
        return task.cohort(torch.tensor([state["round"] % task.population]))


def test_a_method_that_samples_in_its_own_way_trains_those_clients_and_has_their_local_models():
    task, method = toy_task(participation=0.4), InTurn()
    state = method.init(task)
    for client in range(3):
        assert local_models(task, method, state)["ids"].tolist() == [client]
        state = method.step(task, state)
    assert list(state["clients"]["rows"]) == [0, 1, 2]


@dataclass(frozen=True)
class Twice(LocalTraining):
    """The same client twice, and another one."""

    def sample(self, task, state):
        return task.cohort(torch.tensor([2, 2, 3]))


def test_a_client_that_is_drawn_twice_has_one_local_model():
    task, method = toy_task(), Twice()
    found = local_models(task, method, method.init(task))
    assert found["ids"].tolist() == [2, 3]
    assert {len(leaf) for leaf in found["params"].values()} == {2}
