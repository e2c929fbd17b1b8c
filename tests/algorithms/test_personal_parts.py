"""FedBN, FedAS, FedPAC, GPFL and FedCP against personal_oracle.json, and what they are at special values."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import algorithms.fedcp
import bench.models.conditional
from algorithms.fedas import FedAS, alignment_loss
from algorithms.fedavg import FedAvg
from algorithms.fedbn import FedBN, batch_norm_leaves
from algorithms.fedcp import FedCP, mmd
from algorithms.fedpac import FedPAC, head_problem, head_weights
from algorithms.fedper import FedPer
from algorithms.fedrep import FedRep
from algorithms.gpfl import GPFL
from algorithms.shared import tree
from algorithms.shared.client_states import read_rows
from algorithms.shared.local_sgd import LocalResult, gradient
from algorithms.shared.passes import first_pass
from algorithms.shared.simplex import minimum_on_simplex
from algorithms.shared.types import Batch, ClientOutputs
from bench import models
from bench.models.base import BoundModel, Model
from bench.models.conditional import context, gate
from bench.models.modules import model_of
from tests.support.by_hand import PLAIN, FromFeatures, Given, double, features_of, slope_of
from tests.support.toy import NUM_CLASSES, assert_equal, kinds_of_tasks, normalised_task, toy_task, train

ORACLE = json.loads((Path(__file__).parent / "personal_oracle.json").read_text())
ENGINES = pytest.mark.parametrize("engine", ["loop", "vectorised"])
EVERYONE = torch.arange(5)
PARTS = [FedBN(), FedAS(), FedPAC(), GPFL(), FedCP()]


def close(found, expected, tolerance):
    found = torch.as_tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, double(expected).reshape(found.shape), rtol=0, atol=tolerance)


def stacked(trees):
    return tree.stack(trees)


def bodies_and_heads(state):
    body = {
        name: leaf for name, leaf in state["params"].items() if not name.startswith(("classifier.", "gpfl.", "gate."))
    }
    rows = {client: row.get("params", row) for client, row in state["clients"]["rows"].items()}
    heads = {
        client: {name: row[name] for name in row if name.startswith("classifier.")} for client, row in rows.items()
    }
    return {"body": body, "heads": heads}


def assert_same_deployed(task, method, state, other, expected):
    """Whoever fits its head before: at least one client has been absent from all rounds."""
    assert len(state["clients"]["rows"]) < 5
    for who in ("absent", "none", "all"):
        pairs = ((method, state), (other, expected))
        assert_equal(*(replace(one, fit_private=who).deploy(task, after, EVERYONE).params for one, after in pairs))


# FedBN


BN = ORACLE["fedbn"]


def leaves_of(client):
    """Params and buffers of one of the oracle's clients; its shortcut has statistics, by which it is found."""
    leaves = {name: double(value) for name, value in client.items()}
    buffers = {name: leaf for name, leaf in leaves.items() if "running" in name}
    params = {name: leaf for name, leaf in leaves.items() if name not in buffers}
    return {"params": params, "buffers": {**buffers, "downsample.1.running_mean": double([0.0])}}


def test_fedbn_averages_all_but_batch_normalisations():
    known = BN["expected"]
    found = [leaves_of(client) for client in BN["inputs"]["clients"]]
    method, start = FedBN(), tree.zeros_like(found[0])
    task = toy_task(sizes=(1, 3))
    cohort = replace(task.cohort(torch.tensor([0, 1])), weights=double(BN["inputs"]["p"]))
    data = Given(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))
    views = [data.view(FromFeatures((1, 1, 1), 2), start["params"], start["buffers"]) for _ in found]
    updates = [
        LocalResult({"delta": method.sent(one, view)}, method.kept(one)) for one, view in zip(found, views, strict=True)
    ]
    state = {**start, "round": 0, "server": {}, "clients": {"fresh": method.kept(start), "rows": {}}}
    state["costs"] = {"bytes_down": 0, "bytes_up": 0, "examples": 0}
    outputs = ClientOutputs(stacked(updates), stacked([view.model.buffers for view in views]))
    after = method.finish_round(task, state, cohort, outputs)
    for client, expected in enumerate(known["client_states_by_module_type"]):
        own = data.view(views[0].model.spec, after["params"], after["buffers"], client=after["clients"]["rows"][client])
        model = method.personal_model(data, [], own)
        for name, value in expected.items():
            close({**model["params"], **model["buffers"]}[name], value, BN["tol"])
        by_name = known["client_states_by_name_bn"][client]["downsample.1.weight"]
        assert (model["params"]["downsample.1.weight"] - double(by_name)).abs() > 0.1
    assert not tree.num_bytes(method.downloads(state)) % 3  # conv and fc alone: three numbers
    assert method.downloads(state)["params"].keys() == {"conv.weight", "fc.weight"}


def test_batch_normalisation_follows_the_oracle():
    given, known, tolerance = BN["inputs"], BN["expected"], BN["tol"]
    one = leaves_of(given["clients"][0])
    buffers = {**one["buffers"], "bn1.num_batches_tracked": torch.tensor(3)}
    bound = BoundModel(
        FromFeatures((1, 1, 1), 2), {name: leaf.clone() for name, leaf in buffers.items()}, training=True
    )
    x = double(given["batch_into_bn1_client0"])[:, None]
    close(bound.batch_norm(one["params"], x, "bn1"), known["client0_train_output"], tolerance)
    close([bound.buffers[f"bn1.running_{name}"] for name in ("mean", "var")], known["client0_running_after"], tolerance)
    assert bound.buffers["bn1.num_batches_tracked"] == 4
    still = BoundModel(bound.spec, bound.buffers)
    close(still.batch_norm(one["params"], x, "bn1"), known["client0_eval_output_own_stats"], tolerance)


class TwoNorms(nn.Module):
    """A convolution with a batch normalisation that no name tells of, and a layer normalisation."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 2, 3)
        self.shortcut = nn.BatchNorm2d(2)
        self.bn = nn.LayerNorm(2)
        self.fc = nn.Linear(2, classes)

    def forward(self, x):
        return self.fc(self.bn(self.shortcut(self.conv(x)).mean((2, 3)).relu()))


def test_batch_normalisations_are_found_by_their_type():
    model = model_of("two-norms", TwoNorms)((1, 6, 6), NUM_CLASSES)
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    found = batch_norm_leaves(model.init_buffers())
    assert found == {f"conv.norm.shortcut_{part}" for part in parts}
    task = replace(toy_task(dtype=torch.float32, rounds=2), model=model)
    method = FedBN()
    state = train(method, task)
    deployed = method.deploy(task, state, EVERYONE).params
    for name, leaf in deployed.items():
        alike = all(torch.equal(one, leaf[0]) for one in leaf)
        assert alike == (name not in found), name
    assert_equal(
        {name: state["params"][name] for name in found & state["params"].keys()},
        {name: task.initial_params()[name] for name in found & state["params"].keys()},
    )
    counter = "conv.norm.shortcut_num_batches_tracked"
    steps = [2 * task.settings.num_steps(size) for size in task.sizes(EVERYONE)]
    assert method.deploy(task, state, EVERYONE).buffers[counter].tolist() == steps


@ENGINES
def test_without_batch_normalisation_fedbn_is_fedavg_and_says_so(engine):
    task = toy_task(engine=engine, participation=0.6)
    state, expected = train(FedBN(), task), train(FedAvg(), task)
    assert_equal(state["params"], expected["params"])
    deployed = FedBN().deploy(task, state, EVERYONE).params
    assert_equal(deployed, tree.map(lambda leaf: leaf.expand(5, *leaf.shape), expected["params"]))
    assert FedBN().caveats(task)[1:] == ["fedbn: Mlp has no batch normalisation: it is FedAvg."]
    assert len(FedBN().caveats(normalised_task())) == 1


def test_fedbn_scored_after_training_deploys_own_statistics_too():
    task = normalised_task(rounds=2, local_epochs=1)
    before, after = (FedBN(scored=when) for when in ("before", "after"))
    state = train(before, task)
    counts = [one.deploy(task, state, EVERYONE).buffers["stem.norm.num_batches_tracked"] for one in (before, after)]
    assert (counts[1] > counts[0]).all()


# FedAS


AS = ORACLE["fedas_align"]


@dataclass(frozen=True)
class Linear(Model):
    """Features x B, and logits without a bias."""

    def layers(self):
        return {"body": (2, 2), "classifier": (2, 2)}

    def features(self, params, x, bound):
        return x @ params["body.weight"]

    def head(self, params, z):
        return z @ params["classifier.weight"]


LINEAR = Linear((1, 1, 2), 2)
HEAD = double(ORACLE["fedas_fisher"]["inputs"]["head_both"])


def of_base(base):
    return {"body.weight": double(base), "classifier.weight": HEAD}


def aligning():
    given = AS["inputs"]
    data = Given(double(given["x"]), torch.tensor(given["y"]))
    old = {"params": of_base(given["previous_local_base"]), "buffers": {}}
    return data, data.view(LINEAR, of_base(given["global_base"]), client=old)


def test_alignment_follows_the_oracle():
    data, view = aligning()
    known, tolerance = AS["expected"], AS["tol"]
    means = double([known["prototypes"][label] for label in "01"])
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in view.params.items()}
    loss = alignment_loss(leaves, data.batch(), replace(view, server={"means": means}))
    close(loss.detach(), known["loss"], tolerance)
    loss.backward()
    close(leaves["body.weight"].grad, known["grad"], tolerance)
    assert abs(loss.item() - known["loss_batch_means_fl_bench"]) > 0.01
    same = alignment_loss(view.client["params"], data.batch(), replace(view, server={"means": means}))
    close(same, known["loss_when_global_equals_local"], tolerance)
    # Momentum, decay and learning rate of the settings are not those of the alignment.
    view = replace(view, settings=replace(PLAIN, lr=9.0, momentum=0.9, weight_decay=0.5))
    found = FedAS(alignment_lr=AS["inputs"]["lr"]).aligned(data, data.plan(), view)["params"]
    close(found["body.weight"], known["aligned_base"], tolerance)
    close(view.params["body.weight"], known["server_base_after"], 0)
    assert torch.equal(found["classifier.weight"], HEAD)


def test_alignment_counts_real_rows_alone():
    data, view = aligning()
    means = double([AS["expected"]["prototypes"][label] for label in "01"])
    padded = Batch(torch.cat([data.x, data.x[:2]]), torch.cat([data.y, data.y[:2]]), torch.arange(5) < 3)
    close(
        alignment_loss(view.params, padded, replace(view, server={"means": means})), AS["expected"]["loss"], AS["tol"]
    )


def test_weights_by_fisher_information_follow_the_oracle():
    known = ORACLE["fedas_fisher"]
    expected, tolerance, method = known["expected"], known["tol"], FedAS()
    clients = [known["inputs"][f"client{number}"] for number in (0, 1)]
    found = {3: [], 1: []}
    for given in clients:
        data = Given(double(given["x"]), torch.tensor(given["y"]))
        for size, traces in found.items():
            view = data.view(LINEAR, of_base(given["base"]), settings=replace(PLAIN, batch_size=size))
            model = {"params": view.params, "buffers": {}}
            traces.append(method.fisher(model, data, data.plan(size), view))
    close(torch.stack(found[3]), expected["trace_batch_3"], tolerance)
    close(torch.stack(found[1]), expected["trace_batch_1"], tolerance)

    task, zero = (
        toy_task(sizes=(3, 2)),
        {"body.weight": torch.zeros(2, 2, dtype=torch.float64), "classifier.weight": HEAD},
    )
    cohort = task.cohort(torch.tensor([0, 1]))
    bases = {"body.weight": double([given["base"] for given in clients])}
    update = {"delta": bases, "fisher": torch.stack(found[3])}
    weights = method.weighted_means(update, cohort)["delta"].weights
    close(weights / weights.sum(), expected["weights"], tolerance)
    close(method.aggregate(task, zero, {}, update, cohort)[0]["body.weight"], expected["base_new"], tolerance)
    entropy = -sum(w * torch.log(double(w)) for w in expected["weights"])
    close(method.round_metrics(task, {}, {}, update, cohort)["effective_clients"], entropy.exp().item(), 1e-9)
    for dtype in (torch.float32, torch.float64):
        none = method.weighted_means({**update, "fisher": torch.zeros(2, dtype=dtype)}, cohort)["delta"].weights.to(
            dtype
        )
        close(none / none.sum(), expected["size_weights"], 1e-6)
        measured = method.round_metrics(task, {}, {}, {**update, "fisher": torch.zeros(2, dtype=dtype)}, cohort)
        sized = -sum(w * torch.log(double(w)) for w in expected["size_weights"])
        close(measured["effective_clients"], sized.exp().item(), 1e-9)
    by_size = FedAS(weighting="examples").weighted_means(update, cohort)["delta"].weights
    close(by_size / by_size.sum(), expected["size_weights"], tolerance)


@kinds_of_tasks
def test_without_alignment_and_by_examples_fedas_is_fedper(task_of):
    task, method = task_of(participation=0.4), FedAS(alignment_lr=0.0, weighting="examples", scored="before")
    found, expected = train(method, task), train(FedPer(), task)
    assert_equal(bodies_and_heads(found), bodies_and_heads(expected))
    assert_same_deployed(task, method, found, FedPer(), expected)
    assert found["costs"]["examples"] == expected["costs"]["examples"]


def test_fedas_counts_its_passes_and_deploys_what_training_left():
    task = toy_task(participation=0.6)
    plain, found = (train(method, task) for method in (FedPer(), FedAS()))
    assert found["costs"]["examples"] == 2 * plain["costs"]["examples"]  # two epochs, and two passes
    deployed = FedAS().deploy(task, found, EVERYONE).params
    for client, row in found["clients"]["rows"].items():
        assert_equal(tree.row(deployed, client), row["params"])
    assert found["metrics"].keys() == {"effective_clients"}
    before = FedAS(scored="before").deploy(task, found, EVERYONE).params
    assert not torch.equal(before["linear1.weight"], deployed["linear1.weight"])
    assert torch.equal(before["classifier.weight"], deployed["classifier.weight"])


def test_fisher_information_is_that_of_the_trained_model_in_evaluation_mode():
    task, method = normalised_task(batch_size=20), FedAS()
    state = train(method, task, rounds=1)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state)
    for client in range(5):
        params, buffers = (tree.row(outputs.result.client[key], client) for key in ("params", "buffers"))
        slope = slope_of(task, client, params, buffers)
        squares = sum(leaf.square().sum() for leaf in slope.values())
        torch.testing.assert_close(outputs.result.update["fisher"][client], squares, rtol=1e-4, atol=1e-8)


def test_a_footnote_tells_of_clients_of_one_class():
    task = toy_task()  # of which the second client holds one
    said = FedAS().caveats(task)
    assert said == [
        "fedas: clients' models are scored after local training.",
        "fedas: 1 of 5 clients hold one class, which they fit at once: their weights are near 0.",
    ]
    assert len(FedAS(weighting="examples").caveats(task)) == 1


@ENGINES
@pytest.mark.parametrize(
    "settings",
    [
        {"local_epochs": 2},
        {"local_epochs": None, "local_steps": 5},
        {"local_epochs": None, "local_steps": 2},
        {"last_batch": "drop-if-full"},
    ],
    ids=str,
)
def test_a_first_pass_has_every_example_that_a_pass_has_once(engine, settings):
    task = toy_task(engine=engine, **settings)

    def visited(data, plan, view):
        rows = torch.zeros(sum(task.sizes(EVERYONE)))
        for index in first_pass(plan, view):
            real = torch.ones_like(index.rows, dtype=torch.bool) if index.mask is None else index.mask
            rows = rows + ((index.rows[:, None] == torch.arange(len(rows))) & real[:, None]).sum(0)
        return {"rows": rows}

    rows = task.map_clients(visited, task.cohort(EVERYONE), round=0, params={}, buffers={}).result["rows"]
    expected = [sum(task.settings.passes(size)[0]) for size in task.sizes(EVERYONE)]
    assert rows.max() == 1 and rows.sum(1).tolist() == expected


# FedPAC


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
    updates = stacked([moments_of(client) for client in given["clients"]])
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
    pair = stacked([one, first])
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
    updates = stacked([moments_of(client) for client in given["clients"]])
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
        mixed = tree.weighted_mean(stacked(heads), weights[position])
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


# GPFL


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


def test_gpfl_has_a_decay_of_embeddings_and_valve_alone():
    """One step of lr 1: by the gradient and 0.1 of E and V, or 0.01 of all others."""
    method, data, view = gp_view()
    view = replace(view, settings=replace(PLAIN, lr=1.0, weight_decay=0.01))
    found = replace(method, embedding_decay=0.1).local_update(data, data.plan(), view)
    slope = gradient(method.local_loss, view.params, data.batch(), view)
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


# FedCP


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


# What all have in common


@ENGINES
@pytest.mark.parametrize("method", [FedAS(), FedPAC(), GPFL(), FedCP()], ids=lambda one: type(one).__name__)
def test_clients_that_were_absent_from_all_rounds_fit_their_head_to_the_received_body(method, engine):
    task = toy_task(engine=engine, participation=0.4, rounds=1)
    state, cohort = train(method, task), set(task.sample_cohort(0).ids.tolist())
    absent, none, every = (
        replace(method, fit_private=who).deploy(task, state, EVERYONE).params for who in ("absent", "none", "all")
    )
    for client in range(5):
        found, plain, fitted = (tree.row(params, client) for params in (absent, none, every))
        assert_equal(found, plain if client in cohort else fitted, 1e-12)
        assert not torch.equal(plain["classifier.weight"], fitted["classifier.weight"])
        assert_equal(fitted["linear1.weight"], state["params"]["linear1.weight"])
    assert_equal(method.deploy(task, state, EVERYONE).params, absent)


def test_heads_that_are_fitted_move_no_shared_statistics_and_own_ones():
    task = normalised_task(participation=0.4, rounds=1)
    for method in (FedPAC(), GPFL(), FedCP(), FedAS()):
        state = train(method, task)
        deployed = replace(method, fit_private="all").deploy(task, state, EVERYONE)
        for client, found in enumerate(tree.row(deployed.buffers, client) for client in range(5)):
            if isinstance(method, FedAS):
                before = read_rows(state["clients"], EVERYONE[client : client + 1])["buffers"]
                counter = "stem.norm.num_batches_tracked"
                assert found[counter] == before[counter] + task.cohort(EVERYONE).num_steps[client]
            else:
                assert_equal(found, state["buffers"])


@ENGINES
@pytest.mark.parametrize("make", [FedPAC, GPFL, FedCP])
def test_clients_scored_after_training_deploy_what_the_next_round_trains(make, engine):
    task, method = toy_task(engine=engine, rounds=2), make(scored="after")
    state = train(method, task)
    deployed = method.deploy(task, state, EVERYONE)
    assert deployed.model == method.deployed_model(task)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state)
    own = outputs.result.client
    head = own.get("params", own)["classifier.weight"]
    assert torch.equal(deployed.params["classifier.weight"], head)
    moved = state["params"]["linear1.weight"] + outputs.result.update["delta"]["linear1.weight"]
    assert torch.equal(deployed.params["linear1.weight"], moved)


@pytest.mark.parametrize("method", PARTS, ids=lambda one: type(one).__name__)
def test_a_footnote_says_when_models_are_scored(method):
    said = f"{type(method).__name__.lower()}: clients' models are scored {method.scored} local training."
    assert method.caveats(normalised_task())[0] == said


def test_bytes_of_parts():
    known = ORACLE["bytes_personal"]["expected"]
    task = toy_task(shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(6,), rounds=1)
    held = replace(task.federation, label_counts=torch.ones(1, 10, dtype=torch.float64))
    task = replace(task, federation=held, model=models.load("simple-cnn")((3, 32, 32), 10))
    for method, up, down in (
        (FedBN(), "fedbn_one_way", "fedbn_one_way"),
        (FedAS(), "fedas_up", "fedas_down"),
        (GPFL(), "gpfl_one_way", "gpfl_one_way"),
        (FedCP(), "fedcp_one_way", "fedcp_one_way"),
    ):
        received = tree.num_bytes(method.downloads(method.init(task)))
        assert (method.traffic(task) - received, received) == (known[up], known[down])
    start = FedPAC().init(task)
    after = {**start, "server": {**start["server"], "known": torch.ones(10, dtype=torch.bool)}}
    assert tree.num_bytes(FedPAC().downloads(after)) == known["fedpac_down"]
    first = tree.num_bytes(FedPAC().downloads(start))
    assert FedPAC().traffic(task) - first == known["fedpac_up"]
    assert (
        sum(leaf.numel() for name, leaf in FedCP().init(task)["params"].items() if name.startswith("gate."))
        == CP["expected"]["gate_numbers_d84"]
    )


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: FedBN(weighting="none"), "weighting must be one of examples, uniform, but got 'none'."),
        (lambda: FedAS(alignment_lr=-1.0), "alignment_lr must be at least 0, but got -1.0."),
        (lambda: FedAS(weighting="none"), "weighting must be one of fisher, examples, but got 'none'."),
        (lambda: FedPAC(alignment_weight=-1.0), "alignment_weight must be at least 0, but got -1.0."),
        (lambda: FedPAC(head_lr=0.0), "head_lr must be greater than 0, but got 0.0."),
        (lambda: GPFL(distance_weight=-1.0), "distance_weight must be at least 0, but got -1.0."),
        (lambda: GPFL(embedding_decay=-1.0), "embedding_decay must be at least 0, but got -1.0."),
        (lambda: FedCP(mmd_weight=-1.0), "mmd_weight must be at least 0, but got -1.0."),
        (lambda: FedCP(gate="open"), "gate must be one of learned, personal, global, but got 'open'."),
        (lambda: FedCP(scored="never"), "scored must be one of before, after, but got 'never'."),
    ],
)
def test_wrong_options(make, said):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == said


@dataclass(frozen=True)
class Headless(Model):
    """One number, and no classifier."""

    def init(self, generator):
        return {"point.weight": torch.zeros(1)}

    def layers(self):
        return {"point": (1,)}


@pytest.mark.parametrize("method", [FedAS(), FedPAC(), GPFL(), FedCP()], ids=lambda one: type(one).__name__)
def test_methods_that_need_a_classifier(method):
    task = replace(toy_task(), model=Headless((1, 6, 6), NUM_CLASSES))
    with pytest.raises(ValueError, match="but Headless has n"):
        method.init(task)
