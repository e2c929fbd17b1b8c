"""A hook that changes what it was given fails the run: its numbers would depend on the engine."""

from dataclasses import dataclass

import pytest

from algorithms.fedavg import FedAvg
from algorithms.shared import tree
from bench.config.resolve import resolve
from bench.errors import HookError
from bench.simulation.run import Run
from bench.simulation.untouched import first_change, parts_of


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
    state = {**state, "own": [state["params"]["classifier.bias"], 2.0]}
    known = parts_of(state)
    assert first_change(known, parts_of({**state})) is None
    state["own"][0].zero_()
    assert first_change(known, parts_of(state)) == "params['classifier.bias']"  # the same tensor
    assert first_change(parts_of([1, 2]), parts_of([1])) == ""
