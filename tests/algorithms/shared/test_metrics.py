"""Metrics of methods: what clients and the server measure in a round, beside the state."""

from dataclasses import dataclass, replace

import pytest
import torch

import algorithms
from algorithms import LocalResult, RoundBased, descend, gradient, tree
from algorithms.fedcollab import FedCollab
from algorithms.shared.metrics import mean_over_groups
from algorithms.shared.wrapper import Wrapper
from tests.support.toy import SIZES, assert_equal, history, toy_task, train


@dataclass(frozen=True)
class Noted(RoundBased):
    """FedAvg that notes the norms of gradients, its clients' numbers of examples, and the length of the server's step."""

    def local_update(self, data, plan, view):
        norms = []

        def noted(loss, params, batch, view):
            slope = gradient(loss, params, batch, view)
            norms.append(tree.norm(slope))
            return slope

        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=noted).params
        metrics = {"grad_norm": sum(norms) / view.num_steps, "examples": view.num_examples}
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client, metrics)

    def round_metrics(self, task, before, after, update, cohort):
        moved = tree.norm(tree.subtract(after["params"], before["params"]))
        return {"moved": moved, "step": tree.norm(update["delta"]), "clients": len(cohort.ids)}


def of_rounds(method, task):
    state, found = method.init(task), []
    for _ in range(3):
        state = method.step(task, state)
        found.append({name: float(value) for name, value in method.metrics(state).items()})
    return found


def test_metrics_of_clients_are_means_by_the_weights_of_the_cohort():
    """Weights are numbers of examples n: sum n^2 / sum n."""
    (found, *_) = of_rounds(Noted(), toy_task())
    assert found["examples"] == pytest.approx(sum(size**2 for size in SIZES) / sum(SIZES))
    assert found["clients"] == 5 and found["grad_norm"] > 0


def test_both_engines_and_streamed_rounds_give_the_same_metrics():
    task = toy_task(participation=0.6)
    looped = of_rounds(Noted(), task)
    for other in (replace(task, engine="vectorised"), replace(task, largest_stack=0)):
        for one, another in zip(looped, of_rounds(Noted(), other), strict=True):
            assert one == pytest.approx(another, rel=1e-8)


def test_the_server_sees_the_mean_that_it_steps_by():
    for found in of_rounds(Noted(), toy_task()):
        assert found["moved"] == pytest.approx(found["step"])


def test_the_server_gets_the_state_before_a_round_and_then_that_after_it():
    class Counted(RoundBased):
        def round_metrics(self, task, before, after, update, cohort):
            return {"trained": after["costs"]["examples"] - before["costs"]["examples"]}

    for task in (toy_task(), replace(toy_task(), largest_stack=0)):
        spent = train(Counted(), task, rounds=1)["costs"]["examples"]
        assert [found["trained"] for found in of_rounds(Counted(), task)] == [spent] * 3 and spent > 0


def test_measuring_changes_neither_params_nor_traffic():
    task = toy_task()
    measured, plain = train(Noted(), task), history(algorithms.make("fedavg"))[1][-1]
    assert_equal(measured["params"], plain["params"])
    assert measured["costs"] == plain["costs"]
    assert Noted().traffic(task) == algorithms.make("fedavg").traffic(task)


def test_methods_that_measure_nothing_have_no_such_entry_in_their_state():
    task, states = history(algorithms.make("fedavg"))
    assert all("metrics" not in state for state in states)
    assert algorithms.make("fedavg").metrics(states[-1]) == {}


def test_metrics_are_of_the_last_round_alone():
    task = toy_task(participation=0.2)
    alone = replace(task, members=torch.tensor([0]))
    method = Noted()
    states = [method.init(alone)]
    for _ in range(6):
        states.append(method.step(alone, states[-1]))
    took_part = [len(alone.sample_cohort(round).ids) > 0 for round in range(6)]
    assert [bool(method.metrics(state)) for state in states[1:]] == took_part and len({*took_part}) == 2


def test_wrappers_pass_on_what_their_base_measures():
    @dataclass(frozen=True)
    class Around(Wrapper):
        does = "wraps"

    task = toy_task()
    assert of_rounds(Around(Noted()), task) == of_rounds(Noted(), task)


def test_a_wrapper_with_a_hook_that_nothing_calls_is_refused():
    with pytest.raises(
        TypeError, match="Around is a wrapper, whose trains_whole_models and local_loss nothing calls: "
    ):

        class Around(Wrapper):
            trains_whole_models = True

            def local_loss(self, params, batch, view):
                return 2 * self.base.local_loss(params, batch, view)


def test_metrics_of_coalitions_are_means_over_their_clients():
    task = toy_task()
    method = FedCollab(base=Noted(), discriminator_rounds=5)
    state = method.step(task, method.init(task))
    found = method.metrics(state)
    sizes = torch.bincount(state["coalitions"]).tolist()
    by_hand = sum(size * model["metrics"]["moved"] for size, model in zip(sizes, state["models"].values(), strict=True))
    assert float(found["moved"]) == pytest.approx(float(by_hand) / 5)


def test_a_group_that_has_measured_nothing_does_not_count():
    groups = torch.tensor([0, 0, 0, 1, 2])
    found = {"0": {"a": 1.0}, "1": {"a": 5.0, "b": 2.0}, "2": {}}
    assert mean_over_groups(found, groups) == {"a": (3 * 1.0 + 5.0) / 4, "b": 2.0}
