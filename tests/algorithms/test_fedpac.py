"""FedPAC against personal_oracle.json, and what it is at special values."""

from dataclasses import replace

import pytest
import torch

from algorithms.fedpac import FedPAC, head_problem, head_weights
from algorithms.fedrep import FedRep
from algorithms.shared import tree
from algorithms.shared.simplex import minimum_on_simplex
from tests.support.by_hand import PLAIN, FromFeatures, Given, double, features_of
from tests.support.oracles import close, oracle
from tests.support.parts import assert_same_deployed, bodies_and_heads
from tests.support.toy import assert_equal, kinds_of_tasks, normalised_task, toy_task, train

ORACLE = oracle("personal")
EVERYONE = torch.arange(5)
PAC = ORACLE["fedpac_head"]


def pac_client(given):
    return Given(double(given["f"]), torch.tensor(given["y"]))


def moments_of(given):
    data = pac_client(given)
    params = {"classifier.weight": torch.zeros(2, 2, dtype=torch.float64), "classifier.bias": double([0.0, 0.0])}
    blank = torch.zeros(2, 2, dtype=torch.float64)
    server = {"prototypes": blank, "known": torch.zeros(2, dtype=torch.bool)}
    client = {"params": params, "buffers": {}}
    settings = replace(PLAIN, batch_size=2)
    view = data.view(FromFeatures((1, 1, 2), 2), params, server=server, client=client, settings=settings)
    return FedPAC().local_update(data, data.plan(2), view).update


def test_mixtures_of_heads_follow_the_oracle():
    given, known, tolerance = PAC["inputs"], PAC["expected"], PAC["tol"]
    updates = tree.stack([moments_of(client) for client in given["clients"]])
    means, variances = updates["means"], updates["variance"]
    close(variances, known["V"], tolerance)
    close(means, known["H"], tolerance)
    weights, heads = head_weights(means, variances), double(given["heads_flat"])
    for client, expected in known["per_client"].items():
        problem, a = head_problem(means, variances, int(client)), weights[int(client)]
        close(problem, expected["P"], tolerance)
        close(torch.linalg.eigvalsh(problem), expected["eigenvalues"], tolerance)
        close(a, expected["a"], tolerance)
        close(a @ problem @ a, expected["objective"], tolerance)
        close(a @ heads, expected["new_head"], tolerance)


def test_a_client_with_one_example_keeps_its_head_and_equal_ones_share_by_variance():
    known, tolerance = PAC["expected"], PAC["tol"]
    one = moments_of({"f": [[-0.2, 0.7]], "y": [1]})
    assert one["variance"] == known["one_example_client"]["V"] == 0
    first = moments_of(PAC["inputs"]["clients"][0])
    pair = tree.stack([one, first])
    problem = head_problem(pair["means"], pair["variance"], 0)
    assert problem[0].tolist() == [0, 0] and problem[1, 1] > 0
    close(head_weights(pair["means"], pair["variance"])[0], known["one_example_client"]["a"], tolerance)
    close(minimum_on_simplex(double(known["one_example_client"]["P_vs_client0"])), [1, 0], tolerance)
    same = torch.ones(2, 2, 2, dtype=torch.float64)
    close(head_weights(same, double([0.3, 0.1])), [known["equal_H_V_0.3_0.1"]] * 2, tolerance)
    close(head_weights(same, double([0.2, 0.2])), [[0.5, 0.5]] * 2, tolerance)
    assert torch.equal(head_weights(same * torch.nan, double([0.2, 0.2])), torch.eye(2, dtype=torch.double))


def test_minima_on_the_simplex_fulfil_their_conditions():
    """P a >= a' P a in every place, with equality where a > 0."""
    generator = torch.Generator().manual_seed(3)
    for size in (1, 2, 5, 20, 50):
        for rank in (1, size, 2 * size):
            factor = torch.randn(size, rank, generator=generator, dtype=torch.float64)
            matrix = factor @ factor.T
            a = minimum_on_simplex(matrix)
            slope, least = matrix @ a, a @ matrix @ a
            scale = matrix.diagonal().mean()
            assert (a >= 0).all() and a.sum().item() == pytest.approx(1)
            assert (slope >= least - 1e-7 * scale).all() and ((slope - least).abs()[a > 1e-3] < 1e-6 * scale).all()


def test_alignment_of_fedpac_follows_the_oracle():
    known = ORACLE["fedpac_align"]
    given, expected, tolerance = known["inputs"], known["expected"], known["tol"]
    task, method = toy_task(), FedPAC(alignment_weight=given["lambda"])
    updates = tree.stack([moments_of(client) for client in given["clients"]])
    server = {"prototypes": torch.zeros(2, 2, dtype=torch.float64), "known": torch.zeros(2, dtype=torch.bool)}
    update = {**updates, "delta": {}}
    _, server = method.server_step(task, {}, server, update, task.cohort(torch.arange(3)))
    close(server["prototypes"], [expected["prototypes_count_weighted"][label] for label in "01"], tolerance)
    assert (
        server["prototypes"] - double([expected["prototypes_uniform_pfllib"][label] for label in "01"])
    ).abs().max() > 0.01

    data = pac_client(given["clients"][1])
    zero = {"classifier.weight": torch.zeros(2, 2, dtype=torch.float64), "classifier.bias": double([0.0, 0.0])}
    params = {**zero, "body.moved": torch.zeros_like(data.x).requires_grad_()}
    targets = {"targets": server["prototypes"], "known": server["known"]}
    view = data.view(FromFeatures((1, 3, 2), 2), params, server=targets)
    loss = method.local_loss(params, data.batch(), view) - torch.log(double(2.0))  # CE of no head
    close(loss.detach(), expected["loss_count_weighted"], tolerance)
    assert abs(loss.item() - expected["loss_uniform"]) > 1e-5
    loss.backward()
    close(params["body.moved"].grad, expected["grad_features"], tolerance)
    # Of no prototypes there is no term; of a class without one, the client's own mean is the target.
    unknown = replace(view, server={**targets, "known": server["known"] & False})
    close(method.local_loss(params, data.batch(), unknown).detach() - torch.log(double(2.0)), 0.0, 1e-12)


@kinds_of_tasks
def test_without_mixtures_and_alignment_fedpac_is_fedrep_with_one_pass_of_the_head(task_of):
    task, other = task_of(participation=0.4, local_epochs=1), FedRep(head_passes=1)
    method = FedPAC(alignment_weight=0.0, combine_heads=False, head_lr=task.settings.lr)
    found, expected = train(method, task), train(other, task)
    assert_equal(bodies_and_heads(found), bodies_and_heads(expected))
    assert_same_deployed(task, method, found, other, expected)
    assert found["costs"]["examples"] == expected["costs"]["examples"]


def test_heads_of_fedpac_are_mixed_by_client_and_only_within_a_cohort():
    task, method = toy_task(participation=0.6), FedPAC()
    alone = replace(method, combine_heads=False)
    state = train(method, task, rounds=1)
    cohort = task.sample_cohort(1)
    outputs = method.map_clients(task, method.local_update, cohort, state)
    after, own = method.step(task, state), alone.step(task, state)
    assert_equal(bodies_and_heads(after)["body"], bodies_and_heads(own)["body"])
    weights = head_weights(outputs.result.update["means"], outputs.result.update["variance"])
    heads = [own["clients"]["rows"][client]["params"] for client in cohort.ids.tolist()]
    for position, client in enumerate(cohort.ids.tolist()):
        mixed = tree.weighted_mean(tree.stack(heads), weights[position])
        assert_equal(after["clients"]["rows"][client]["params"], mixed, tolerance=1e-12)
    for client in {*state["clients"]["rows"]} - {*cohort.ids.tolist()}:
        assert after["clients"]["rows"][client] is state["clients"]["rows"][client]
    assert after["metrics"]["own_weight"].item() == pytest.approx(weights.diagonal().mean().item())


@pytest.mark.parametrize("task_of", [toy_task, normalised_task], ids=["plain", "batch norm"])
def test_fedpac_describes_features_before_training_and_prototypes_are_of_the_trained_body(task_of):
    """Of one batch per client, in training mode, as a forward pass by hand has them."""
    task, method = task_of(batch_size=20, local_epochs=1), FedPAC()
    state = train(method, task, rounds=1)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state)
    sent = outputs.result.update
    for client, rows in enumerate(task.federation.clients):
        labels = task.federation.labels[rows]
        moved = {name: state["params"][name] + leaf[client] for name, leaf in sent["delta"].items()}
        for params, found, shares in ((moved, sent["prototypes"], 1), (state["params"], sent["means"], len(rows))):
            features = features_of(task, client, params, state["buffers"], training=True)
            for label in labels.unique().tolist():
                chosen = features[labels == label]
                expected = chosen.mean(0) * (len(chosen) / shares if shares > 1 else 1)
                torch.testing.assert_close(found[client, label], expected, rtol=1e-4, atol=1e-6)


def test_features_are_aligned_from_the_second_round_on():
    task = toy_task()
    plain, aligned = (FedPAC(alignment_weight=weight) for weight in (0.0, 1.0))
    assert_equal(train(aligned, task, rounds=1)["params"], train(plain, task, rounds=1)["params"])
    one, other = (train(method, task, rounds=2)["params"]["linear1.weight"] for method in (aligned, plain))
    assert not torch.equal(one, other)
