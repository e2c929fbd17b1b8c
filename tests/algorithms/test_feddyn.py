"""FedDyn on quadratics of one parameter, through the task and both engines, against rivals_oracle.json."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.feddisco import FedDisco
from algorithms.feddyn import FedDyn
from algorithms.shared import tree
from algorithms.shared.client_states import write_rows
from algorithms.shared.local_sgd import clipped
from tests.support.by_hand import Point
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import normalised_task, toy_task, train

ORACLE = oracle("rivals")
SIZES = (1, 3)  # in the proportion of the oracle's 100 and 300


@dataclass(frozen=True)
class Bowls(FedDyn):
    """The loss of the client with one example is 0.5 w^2, that of the other one 1.5 (w - 4)^2: a = [1, 3], c = [0, 4].

    Attributes:
        cohorts: clients of the first rounds; in later ones, both take part.
    """

    cohorts: tuple[tuple[int, ...], ...] = ()

    def local_loss(self, params, batch, view):
        first = view.num_examples == SIZES[0]
        return (torch.where(first, 0.5, 1.5) * (params["w"] - torch.where(first, 0.0, 4.0)) ** 2).sum()

    def sample(self, task, state):
        named = self.cohorts[state["round"]] if state["round"] < len(self.cohorts) else (0, 1)
        return task.cohort(torch.tensor(named))


def bowls(engine="loop", **settings):
    given = {"local_epochs": None, "local_steps": 40, "lr": 0.4, "momentum": 0.0, "weight_decay": 0.0, **settings}
    task = toy_task(sizes=SIZES, engine=engine, **given)
    return replace(task, model=Point(task.model.input_shape, task.model.num_classes))


def memories(state):
    return {client: row["memory"]["w"].item() for client, row in state["clients"]["rows"].items()}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("which", ["full_participation", "partial_participation"])
def test_rounds_of_exact_solutions_follow_the_oracle(which, engine):
    """40 steps, each of which leaves 0.4 of the distance; memories times -alpha are g and h of the paper."""
    known = ORACLE["feddyn_exact_solves"]
    alpha = known["inputs"]["alpha"]
    expected = known["expected"][which]
    method = Bowls(alpha=alpha, weighting="uniform", clip=None, cohorts=tuple(tuple(r["active"]) for r in expected))
    task = bowls(engine)
    state = method.init(task)
    for played in expected:
        outputs = method.map_clients(task, method.local_update, method.sample(task, state), state)
        trained = method.local_models(state, outputs)["params"]["w"].flatten().tolist()
        assert trained == pytest.approx(list(played["local"].values()), abs=known["tol"])
        state = method.step(task, state)
        assert state["params"]["w"].item() == pytest.approx(played["server"], abs=known["tol"])
        assert -alpha * state["server"]["memory"]["w"].item() == pytest.approx(played["h"], abs=known["tol"])
        kept = [-alpha * memories(state).get(client, 0) for client in (0, 1)]
        assert kept == pytest.approx(played["g"], abs=known["tol"])


def test_the_limit_is_the_minimum_of_the_mean_loss():
    known = ORACLE["feddyn_exact_solves"]
    task = bowls(rounds=100, local_steps=10)
    method = Bowls(alpha=known["inputs"]["alpha"], weighting="uniform", clip=None)
    limit = train(method, task)["params"]["w"].item()
    assert limit == pytest.approx(known["expected"]["limit_400_rounds"], abs=known["tol"])
    assert limit == pytest.approx(known["expected"]["global_minimiser"], abs=known["tol"])
    assert abs(limit - known["expected"]["fedavg_exact_limit"]) > 0.5


def test_with_weights_by_examples_the_limit_is_the_minimum_of_the_mean_loss_over_examples():
    known = ORACLE["feddyn_weighted_fixed_point"]
    task = bowls(rounds=150, local_steps=10)
    limit = train(Bowls(alpha=known["inputs"]["alpha"], clip=None), task)["params"]["w"].item()
    assert limit == pytest.approx(known["expected"]["size_weighted_minimiser"], abs=known["tol"])
    assert limit == pytest.approx(known["expected"]["server"], abs=known["tol"])


@pytest.mark.parametrize("around", [lambda base: base, lambda base: FedDisco(base=base, a=0.2, b=0.0)])
def test_other_weights_in_the_mean_of_the_models_lead_to_the_same_limit(around):
    known = ORACLE["feddyn_weighted_fixed_point"]
    task, base = bowls(rounds=150, local_steps=10), Bowls(alpha=known["inputs"]["alpha"], clip=None)
    method = around(replace(base, mean="examples"))
    first, uniform = (train(one, task, rounds=1)["params"]["w"].item() for one in (method, base))
    assert abs(first - uniform) > 0.1
    assert train(method, task)["params"]["w"].item() == pytest.approx(known["expected"]["server"], abs=known["tol"])


def test_alpha_per_client_follows_the_oracle():
    known = ORACLE["feddyn_alpha_per_client"]
    task = toy_task(sizes=tuple(map(int, known["inputs"]["sizes"])))
    alpha = known["inputs"]["alpha"]
    found = {}
    for weighting in ("examples", "uniform"):
        method = FedDyn(alpha=alpha, weighting=weighting)
        for one in range(2):  # also in a cohort of one: the mean size is that of all clients
            received = method.cohort_states(task, task.cohort(torch.tensor([one])), method.init(task))
            found.setdefault(weighting, []).append(received["alpha"].item())
    assert found["examples"] == pytest.approx(known["expected"]["alpha_i"], abs=known["tol"])
    assert found["uniform"] == [alpha, alpha]


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_steps_follow_the_oracle(engine):
    known = ORACLE["feddyn_sgd"]
    inputs, expected, tol = known["inputs"], known["expected"], known["tol"]
    alpha, method = inputs["alpha"], Bowls(alpha=inputs["alpha"], weighting="uniform", clip=None)
    for steps in (1, 2, 3):
        task = bowls(engine, local_steps=steps, lr=inputs["lr"])
        state, cohort = method.init(task), task.cohort(torch.arange(2))
        kept = {"memory": {"w": torch.tensor(inputs["g"], dtype=torch.float64)[:, None] / -alpha}}
        state = {**state, "clients": write_rows(state["clients"], cohort.ids, kept)}
        outputs = method.map_clients(task, method.local_update, cohort, state)
        trained = method.local_models(state, outputs)["params"]["w"].flatten().tolist()
        wanted = [expected[f"client{client}_iterates"][steps - 1] for client in (0, 1)]
        assert trained == pytest.approx(wanted, abs=tol)
    memory = (-alpha * outputs.result.client["memory"]["w"]).flatten().tolist()
    assert memory == pytest.approx([expected["client0_new_g"], expected["client1_new_g"]], abs=tol)
    assert trained[0] == pytest.approx(expected["client0_reference_parametrisation"], abs=tol)
    assert abs(trained[0] - expected["client0_without_quadratic_term"]) > 0.1  # a linear term alone


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_with_a_vanishing_alpha_clients_train_as_in_fedavg_but_the_server_still_adds_the_memory(engine):
    """In the first round the server adds twice the uniform mean D1 of their deltas, in the second D1 + 2 D2: h / alpha does not
    vanish."""
    task = toy_task(engine=engine)
    method, cohort = FedDyn(alpha=1e-14, clip=None), task.cohort(torch.arange(5))
    state, memory = method.init(task), tree.zeros_like(task.initial_params())
    for _ in range(2):
        received = {**FedAvg().init(task), **{key: state[key] for key in ("round", "params")}}
        trained, plain = (
            one.map_clients(task, one.local_update, cohort, start).result.update["delta"]
            for one, start in ((method, state), (FedAvg(), received))
        )
        new = method.step(task, state)
        for name, delta in plain.items():
            torch.testing.assert_close(trained[name], delta, rtol=0, atol=1e-10)
            memory[name] = memory[name] + delta.mean(0)
            expected = state["params"][name] + delta.mean(0) + memory[name]
            torch.testing.assert_close(new["params"][name], expected, rtol=0, atol=1e-10)
        state = new


def test_the_server_has_the_mean_memory_of_all_clients_and_absent_ones_keep_theirs():
    task = toy_task(participation=0.4, rounds=6)
    method = FedDyn()
    state, seen = method.init(task), set()
    for _ in range(6):
        cohort, before = method.sample(task, state), state["clients"]["rows"]
        state = method.step(task, state)
        seen |= set(cohort.ids.tolist())
        for client in before.keys() - set(cohort.ids.tolist()):
            assert state["clients"]["rows"][client] is before[client]
        stored = tree.stack([row["memory"] for row in state["clients"]["rows"].values()])
        for own, rows in zip(tree.leaves(state["server"]["memory"]), tree.leaves(stored), strict=True):
            torch.testing.assert_close(own, rows.sum(0) / 5, rtol=0, atol=1e-12)
    assert len(seen) > 2, "some clients came and went"


def test_deployed_is_the_server_model_and_not_the_mean_of_local_ones():
    task = toy_task()
    state = train(FedDyn(), task, rounds=1)
    deployed = FedDyn().deploy(task, state, torch.arange(5)).params
    assert all(torch.equal(deployed[name], leaf) for name, leaf in state["params"].items())
    delta = tree.scale(state["server"]["memory"], 2)  # everyone has taken part once
    assert torch.allclose(
        deployed["classifier.bias"], (task.initial_params()["classifier.bias"] + delta["classifier.bias"])
    )


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_the_gradient_of_a_step_is_clipped_as_a_whole(engine):
    """One step of lr 1 from w = 1 of the client with loss 1.5 (w - 4)^2: gradient -9, and -g = alpha u = 0.5 * 16 = 8."""
    lengths = []
    for clip in (None, 2.0, 0.25):
        method = Bowls(alpha=0.5, weighting="uniform", clip=clip)
        task = bowls(engine, local_steps=1, lr=1.0)
        state, cohort = method.init(task), task.cohort(torch.tensor([1]))
        kept = {"memory": {"w": torch.full((1, 1), 16.0, dtype=torch.float64)}}
        state = {**state, "clients": write_rows(state["clients"], cohort.ids, kept)}
        update = method.map_clients(task, method.local_update, cohort, state).result.update
        lengths.append(update["delta"]["w"].item())
    assert lengths == pytest.approx([1.0, 1.0, 0.25], abs=1e-12)  # 9 - 8; the 9 alone would have been cut to 2


def test_clipping_is_by_one_norm_over_all_parameters_and_leaves_short_gradients_as_they_are():
    slope = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(-4.0)}
    cut = clipped(slope, 1.0)
    assert cut["a"].tolist() == pytest.approx([0.6, 0.0]) and cut["b"].item() == pytest.approx(-0.8)
    for same in (clipped(slope, 5.0), clipped(slope, 7.0), clipped(slope, None)):
        assert torch.equal(same["a"], slope["a"]) and torch.equal(same["b"], slope["b"])
    zero = clipped(tree.zeros_like(slope), 1.0)
    assert not any(leaf.any() for leaf in tree.leaves(zero))


def test_a_client_with_one_example_of_many_is_not_pulled_to_zero():
    """Its alpha_i is large: alpha_i w alone, were only the rest clipped, would take its weights away."""
    task = toy_task(sizes=(1, 199), momentum=0.0, lr=0.1, local_epochs=5, rounds=1)
    method = FedDyn(alpha=0.1, clip=0.1)
    cohort = task.cohort(torch.tensor([0]))
    delta = method.map_clients(task, method.local_update, cohort, method.init(task)).result.update["delta"]
    assert tree.norm(delta) <= 5 * 0.1 * (0.1 + 0.05)  # five clipped steps and weight decay


def test_running_statistics_are_averaged_by_examples():
    task = normalised_task(rounds=1, local_epochs=1)
    moved, plain = (train(method, task)["buffers"] for method in (FedDyn(alpha=1e-6, clip=None), FedAvg()))
    for name in ("stem.norm.num_batches_tracked", "stem.norm.running_mean"):
        torch.testing.assert_close(moved[name], plain[name], rtol=0, atol=1e-4)


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedDyn(alpha=0), "alpha must be greater than 0, but got 0."),
    (lambda: FedDyn(alpha=math.inf), "alpha must be greater than 0, but got inf."),
    (lambda: FedDyn(clip=0), "clip must be greater than 0, but got 0."),
    (lambda: FedDyn(mean="size"), "mean must be one of uniform, examples, but got 'size'."),
    (lambda: FedDyn(weighting="size"), "weighting must be one of examples, uniform, but got 'size'."),
)
