"""GPFL against personal_oracle.json, and what it is at special values."""

from dataclasses import replace

import pytest
import torch

from algorithms.fedper import FedPer
from algorithms.gpfl import GPFL
from algorithms.shared.local_sgd import clipped, gradient
from bench.models.base import BoundModel
from tests.support.by_hand import PLAIN, FromFeatures, Given, double
from tests.support.oracles import close, oracle
from tests.support.parts import assert_same_deployed, bodies_and_heads
from tests.support.toy import assert_equal, kinds_of_tasks, toy_task, train

ORACLE = oracle("personal")
GP = ORACLE["gpfl"]


def gp_params(embedding):
    given = GP["inputs"]
    params = {"gpfl.embedding": double(embedding), "classifier.weight": double(given["W_head_C_by_d"])}
    for route in ("gamma", "beta"):
        params |= {
            f"gpfl.{route}.weight": double(given[f"W_{route}"]),
            f"gpfl.{route}.bias": double(given[f"b_{route}"]),
            f"gpfl.{route}.norm.weight": torch.ones(3, dtype=torch.float64),
            f"gpfl.{route}.norm.bias": torch.zeros(3, dtype=torch.float64),
        }
    return params


def gp_view(**options):
    given, method = GP["inputs"], GPFL(distance_weight=GP["inputs"]["lambda"], **options)
    data = Given(double(given["features"]), torch.tensor(given["y"]))
    params = gp_params(given["E_received"]) | {"body.moved": torch.zeros_like(data.x)}
    client = {"params": {}, "buffers": {}, "embedding": double(given["E_own_before_receipt"])}
    view = data.view(FromFeatures((1, 2, 3), 3), params, client=client)
    view = replace(view, label_counts=10 * double(given["class_prior"]), num_examples=double(10.0))
    return method, data, replace(view, server=method.conditions(view))


def test_gpfl_follows_the_oracle():
    known, tolerance = GP["expected"], GP["tol"]
    method, data, view = gp_view(stale_conditions=True)
    close(view.server["g"], known["g"], tolerance)
    close(view.server["p"], known["p"], tolerance)
    for key, condition in (("feat_P", "p"), ("feat_G", "g")):
        close(method._through(view.params, data.x, view.server[condition]), known[key], tolerance)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in view.params.items()}
    loss = method.local_loss(leaves, data.batch(), view)
    close(loss.detach(), known["loss"], tolerance)
    # E is the frozen copy and the trained one: the gradient of features has both.
    loss.backward()
    close(leaves["body.moved"].grad, known["grad_features"], tolerance)
    personal = replace(method, embedding_losses=False).local_loss(view.params, data.batch(), view)
    both = replace(method, distance_weight=0.0).local_loss(view.params, data.batch(), view)
    close(personal, known["ce_personal"], tolerance)
    close(both - personal, known["ce_cosine"], tolerance)
    close((loss.detach() - both) / method.distance_weight, known["frobenius"], 100 * tolerance)  # divided by 0.01


def test_conditions_of_gpfl_are_of_the_received_embeddings_by_default_and_0_at_first_if_stale():
    known, tolerance = GP["expected"], GP["tol"]
    method, data, view = gp_view()
    close(view.server["g"], known["g_from_received"], tolerance)
    close(view.server["p"], known["p_from_received"], tolerance)
    close(method.local_loss(view.params, data.batch(), view), known["loss_conditions_from_received"], tolerance)
    first, data, view = gp_view(stale_conditions=True)
    fresh = first.init_client(replace(toy_task(), model=view.model.spec), view.params)
    view = replace(view, client=fresh, server=first.conditions(replace(view, client=fresh)))
    close(first.local_loss(view.params, data.batch(), view), known["loss_round1_zero_conditions"], tolerance)
    both = [first._through(view.params, data.x, view.server[name]) for name in ("p", "g")]
    close(both[0] - both[1], known["round1_feat_P_minus_feat_G"], 0)


def test_the_deployed_model_of_gpfl_reads_personal_features():
    method, data, view = gp_view(stale_conditions=True)
    deployed = method.personal_model(data, [], view)["params"]
    bound = BoundModel(method.deployed_model(type("Task", (), {"model": view.model.spec})), {})
    close(bound.features(deployed, data.x), GP["expected"]["feat_P"], GP["tol"])
    expected = double(GP["expected"]["feat_P"]) @ double(GP["inputs"]["W_head_C_by_d"]).T
    close(bound(deployed, data.x), expected.tolist(), GP["tol"])


@pytest.mark.parametrize("most", [None, 0.1])
def test_gpfl_has_a_decay_of_embeddings_and_valve_alone(most):
    """One step of lr 1: by the gradient, perhaps shortened, and 0.1 of E and V, or 0.01 of all others."""
    method, data, view = gp_view()
    view = replace(view, settings=replace(PLAIN, lr=1.0, weight_decay=0.01, max_gradient_norm=most))
    found = replace(method, embedding_decay=0.1).local_update(data, data.plan(), view)
    slope = clipped(gradient(method.local_loss, view.params, data.batch(), view), most)
    moved = {name: view.params[name] + leaf for name, leaf in found.update["delta"].items()} | found.client["params"]
    assert moved.keys() == view.params.keys()
    for name, leaf in view.params.items():
        decay = 0.1 if name.startswith("gpfl.") else 0.01
        torch.testing.assert_close(moved[name], leaf - slope[name] - decay * leaf, rtol=0, atol=1e-12)


@kinds_of_tasks
def test_without_valve_and_embedding_losses_gpfl_is_fedper(task_of):
    task, method = task_of(participation=0.4), GPFL(valve=False, embedding_losses=False)
    found, expected = train(method, task), train(FedPer(), task)
    assert_equal(bodies_and_heads(found), bodies_and_heads(expected))
    assert_same_deployed(task, method, found, FedPer(), expected)


def test_embeddings_are_drawn_once_for_all_and_other_seeds_draw_others():
    first, again, other = (GPFL().init(toy_task(seed=seed))["params"]["gpfl.embedding"] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
