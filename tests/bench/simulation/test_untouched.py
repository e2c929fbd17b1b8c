"""A hook that changes what it was given fails the run: its numbers would depend on the engine."""

import functools
from dataclasses import dataclass

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.shared import tree
from algorithms.shared.returned import tensors_from
from bench.config.resolve import resolve
from bench.errors import HookError
from bench.hooks import place_of
from bench.simulation.run import Run
from bench.simulation.untouched import first_change, marks_of


@dataclass(frozen=True)
class Remembers(FedAvg):
    """A method whose clients have a state; subclasses change something in place."""

    def init_client(self, task, params):
        return {"seen": params["classifier.bias"].new_zeros(3)}


class ChangesClient(Remembers):
    def local_update(self, data, plan, view):
        view.client["seen"].add_(1)
        return super().local_update(data, plan, view)._replace(client=view.client)


class ChangesReceived(Remembers):
    def local_update(self, data, plan, view):
        view.params["classifier.weight"] += 1
        return super().local_update(data, plan, view)


class AddsAnEntry(Remembers):
    def local_update(self, data, plan, view):
        view.client["more"] = view.client["seen"]
        return super().local_update(data, plan, view)


class ChangesOnServer(Remembers):
    def server_step(self, task, params, server, update, cohort):
        tree.map(lambda leaf, step: leaf.add_(step), params, update["delta"])
        return params, server


class ChangesWhenDeployed(Remembers):
    def deploy(self, task, state, client_ids):
        state["params"]["classifier.weight"].mul_(2)
        return super().deploy(task, state, client_ids)


class ChangesWhenChecked(Remembers):
    def finite_check(self, state):
        state["params"]["classifier.weight"].mul_(2)
        return super().finite_check(state)


class ChangesWhenMeasured(Remembers):
    def metrics(self, state):
        state["params"]["classifier.weight"].mul_(2)
        return super().metrics(state)


def run_of(digits, kind, engine):
    small = {"dataset": "digits", "partition": "label-2", "clients": 5, "rounds": 1, "local_epochs": 1}
    run = Run(resolve({"algorithm": "fedavg", **small}), digits, engine=engine)
    run.algorithm = kind()
    run.state = run.algorithm.init(run.task)
    return run


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            ChangesClient,
            r"local_update in test_untouched.py, line \d+, changed client\['seen'\] in place, but hooks return new",
        ),
        (
            ChangesReceived,
            r"local_update in test_untouched.py, line \d+, changed params\['classifier.weight'\] in place",
        ),
        (AddsAnEntry, r"local_update in test_untouched.py, line \d+, changed client in place"),
        (ChangesOnServer, r"A hook of fedavg changed params\['linear1.weight'\] in place"),
        (ChangesWhenChecked, r"A hook of fedavg changed params\['classifier.weight'\] in place"),
        (ChangesWhenMeasured, r"A hook of fedavg changed params\['classifier.weight'\] in place"),
        (ChangesWhenDeployed, r"A hook of fedavg changed params\['classifier.weight'\] in place"),
    ],
)
def test_a_hook_that_changes_what_it_was_given_fails_the_run(digits, engine, kind, said):
    with pytest.raises(HookError, match=f"^{said}"):
        run_of(digits, kind, engine).step()


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_what_changes_nothing_is_trained(digits, engine):
    assert run_of(digits, Remembers, engine).step()["round"] == 1


def test_the_first_change_is_named_as_it_is_written(digits):
    state = run_of(digits, Remembers, "loop").state
    bias, rows = state["params"]["classifier.bias"], {0: {"seen": torch.zeros(3)}}
    state |= {"own": [bias, 2.0], "clients": {**state["clients"], "rows": rows}}
    known, whole = marks_of(state), marks_of(state, with_clients=True)
    assert marks_of(state).found == known.found and first_change(state, known) == ""
    rows[0]["seen"].add_(1)
    assert marks_of(state).found == known.found, "hooks get copies of clients' states"
    assert marks_of(state, with_clients=True).found != whole.found
    state["own"][0].zero_()
    assert first_change(state, known) == "params['classifier.bias']"  # the same tensor
    state["own"][1] = 3.0
    bias_again = marks_of(state)
    state["own"].append(1)
    assert first_change(state, bias_again) == "own"


def helper(hook, *arguments):
    return hook(*arguments)


def test_the_place_of_a_hook_is_where_somebody_has_written_it():
    def mine(data, plan, view):
        return view

    line = mine.__code__.co_firstlineno
    for hook in (mine, functools.partial(tensors_from, mine), functools.wraps(mine)(lambda *given: mine(*given))):
        assert place_of(hook) == f"mine in test_untouched.py, line {line}"
    assert place_of(functools.partial(helper, mine)).startswith("helper in test_untouched.py, line ")
    assert place_of(functools.partial(mine, helper)) == f"mine in test_untouched.py, line {line}"
