"""FedCP against personal_oracle.json, and what it is at special values."""

from dataclasses import replace

import pytest
import torch

import algorithms.fedcp
import bench.models.conditional
from algorithms.fedcp import FedCP, mmd
from algorithms.fedper import FedPer
from bench.models.base import BoundModel
from bench.models.conditional import context, gate
from tests.support.by_hand import PLAIN, FromFeatures, Given, double
from tests.support.oracles import close, oracle
from tests.support.parts import assert_same_deployed, bodies_and_heads
from tests.support.toy import assert_equal, kinds_of_tasks, toy_task, train

ORACLE = oracle("personal")
ENGINES = pytest.mark.parametrize("engine", ["loop", "vectorised"])
CP = ORACLE["fedcp"]


def cp_view():
    given = CP["inputs"]
    data = Given(double(given["features"]), torch.tensor(given["y"]))
    own = {
        "classifier.weight": double(given["W_personal_C_by_d"]),
        "classifier.bias": torch.zeros(3, dtype=torch.float64),
    }
    params = {
        "body.moved": double(given["features_frozen_global_body"]) - data.x,
        "classifier.weight": double(given["W_global"]),
        "classifier.bias": torch.zeros(3, dtype=torch.float64),
        "gate.weight": double(given["W_gate"]),
        "gate.bias": double(given["b_gate"]),
        "gate.norm.weight": torch.ones(4, dtype=torch.float64),
        "gate.norm.bias": torch.zeros(4, dtype=torch.float64),
    }
    return data, data.view(FromFeatures((1, 2, 2), 3), params, client=own)


def test_fedcp_follows_the_oracle(monkeypatch):
    given, known, tolerance = CP["inputs"], CP["expected"], CP["tol"]
    monkeypatch.setattr(algorithms.fedcp, "gumbel", lambda key, features: double(given["gumbel_noise"]))
    data, view = cp_view()
    method = FedCP(mmd_weight=given["lambda"])
    params = {**view.params, **view.client, "body.moved": torch.zeros_like(data.x)}
    direction = context(view.client["classifier.weight"])
    close(direction, known["context"], tolerance)
    close(gate(params, data.x, direction, double(given["gumbel_noise"])), known["mask_personal"], tolerance)
    close(gate(params, data.x, direction), known["mask_personal_no_noise"], tolerance)
    close(method._logits(params, data.x, data.batch(), view), known["logits"], tolerance)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    loss = method.local_loss(leaves, data.batch(), view)
    close(loss.detach(), known["loss"], tolerance)
    loss.backward()
    close(leaves["body.moved"].grad, known["grad_features"], tolerance)
    frozen = double(given["features_frozen_global_body"])
    close(mmd(data.x, frozen, None), known["mmd"], tolerance)
    close(mmd(data.x, data.x, None), known["mmd_equal"], 0)
    still = data.x.clone().requires_grad_()
    mmd(still, data.x, None).backward()
    assert not still.grad.any()
    padded = [torch.cat([rows, 9 * rows]) for rows in (data.x, frozen)]
    close(mmd(*padded, torch.arange(4) < 2), known["mmd"], tolerance)


@kinds_of_tasks
def test_the_first_step_of_a_round_of_fedcp_is_the_same_without_mmd(task_of):
    """The received body makes the same features, also with batch statistics and masks; from the second step on, others."""
    for steps, same in ((1, True), (2, False)):
        task = task_of(rounds=1, local_epochs=None, local_steps=steps, lr=1.0)
        found = [train(FedCP(mmd_weight=weight), task) for weight in (0.0, 1e3)]
        near = [
            torch.allclose(*(state["params"][name] for state in found), rtol=0, atol=1e-3)
            for name in found[0]["params"]
        ]
        assert all(near) == same
        assert_equal(*(state["buffers"] for state in found), tolerance=0 if same else 1)


def test_the_deployed_model_of_fedcp_has_no_noise_unless_asked_for():
    known, (data, view) = CP["expected"], cp_view()
    view = replace(view, params={**view.params, "body.moved": torch.zeros_like(data.x)})
    task = type("Task", (), {"model": view.model.spec})
    quiet, noisy = FedCP(), FedCP(test_noise=True)
    found = BoundModel(quiet.deployed_model(task), {})(quiet.personal_model(data, [], view)["params"], data.x)
    close(found, known["logits_no_noise"], CP["tol"])
    loud = replace(view, server={"noise": torch.tensor(5)})
    bound = BoundModel(noisy.deployed_model(task), {})
    one, again = (bound(noisy.personal_model(data, [], loud)["params"], data.x) for _ in range(2))
    assert torch.equal(one, again) and (one - found).abs().max() > 1e-3


def test_noise_is_gumbel_and_its_rows_do_not_depend_on_their_number():
    few, many = (
        bench.models.conditional.gumbel(torch.tensor(11), torch.zeros(rows, 3000, dtype=torch.float64))
        for rows in (2, 4)
    )
    assert torch.equal(few, many[:2]) and few.shape == (2, 2, 3000)
    assert many.mean().item() == pytest.approx(0.5772, abs=0.03) and many.var().item() == pytest.approx(1.645, abs=0.08)
    assert torch.isfinite(many).all()


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24])
def test_noise_is_finite_for_the_least_and_the_largest_number_that_can_be_drawn(draw, monkeypatch):
    drawn = lambda keys, count: torch.full((len(keys), count), draw)  # noqa: E731
    monkeypatch.setattr(bench.models.conditional, "uniform_from_keys", drawn)
    assert bench.models.conditional.gumbel(torch.tensor(11), torch.zeros(2, 3)).isfinite().all()


def test_fedcp_sends_half_of_its_head_and_keeps_it():
    data, view = cp_view()
    still = replace(view, settings=replace(PLAIN, lr=0.0))
    sent = FedCP().local_update(data, data.plan(), still)
    close(
        view.params["classifier.weight"] + sent.update["delta"]["classifier.weight"],
        CP["expected"]["uploaded_head"],
        CP["tol"],
    )
    assert_equal(sent.client, view.client)


@kinds_of_tasks
def test_fedcp_whose_own_heads_read_everything_is_fedper(task_of):
    task, method = task_of(participation=0.4), FedCP(gate="personal", mmd_weight=0.0)
    found, expected = train(method, task), train(FedPer(), task)
    assert_equal(bodies_and_heads(found), bodies_and_heads(expected))
    assert_same_deployed(task, method, found, FedPer(), expected)
    assert found["params"].keys() == task.initial_params().keys()  # no gate, which nothing would train or read


@ENGINES
def test_fedcp_whose_received_head_reads_everything_leaves_heads_as_they_are(engine):
    task = toy_task(engine=engine, participation=0.6)
    method = FedCP(gate="global")
    state, start = train(method, task), task.initial_params()
    found = bodies_and_heads(state)
    for head in found["heads"].values():
        assert_equal(head, {name: start[name] for name in head})
    assert_equal({name: state["params"][name] for name in head}, head)
    assert not torch.equal(state["params"]["linear1.weight"], start["linear1.weight"])
