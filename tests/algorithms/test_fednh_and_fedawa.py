"""FedNH and FedAWA against momentum_family_oracle.json, and what they keep, send and deploy."""

import functools
import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from algorithms.fedavg import FedAvg
from algorithms.fedawa import FedAWA
from algorithms.fednh import FedNH
from algorithms.shared import tree
from algorithms.shared.base import average_buffers
from algorithms.shared.etf import random_basis
from algorithms.shared.local_sgd import cross_entropy, gradient
from algorithms.shared.rounds import RoundBased
from algorithms.shared.types import Batch, BatchIndex, ClientView
from bench.models.base import BoundModel, Model
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, SETTINGS, normalised_task, toy_task, train

ORACLE = oracle("momentum_family")
EVERYONE = torch.arange(5)
both_engines = pytest.mark.parametrize("engine", ["loop", "vectorised"])


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(found), tensor(expected), rtol=0, atol=tolerance)


def tensor(values):
    return torch.as_tensor(values, dtype=torch.float64)


# FedNH

NH = ORACLE["fednh"]["expected"]
GIVEN = {key: tensor(value) for key, value in ORACLE["fednh"]["inputs"].items() if key[:6] != "client"}
CLIENTS = list(
    zip(*(map(tensor, ORACLE["fednh"]["inputs"][key]) for key in ("client_features", "client_y")), strict=True)
)


@dataclass(frozen=True)
class Free(Model):
    """A model whose features are its images."""

    def layers(self):
        return {"classifier": (self.num_classes, 4)}

    def features(self, params, x, bound):
        return params["f"] if "f" in params else x.flatten(1)


def seen(prototypes, params=None):
    return ClientView(
        model=BoundModel(Free((1, 1, 4), 3), {}, training=True),
        settings=replace(SETTINGS, local_epochs=1, batch_size=2),
        round=0,
        params=params or {"scale": torch.ones((), dtype=torch.float64)},
        buffers={},
        server={"prototypes": prototypes},
        client={},
        num_examples=torch.tensor(3.0),
        num_steps=torch.tensor(2.0),
        label_counts=torch.zeros(3),
    )


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_fednh_follows_the_oracle(masked):
    y = GIVEN["y"].long()
    mask, features = None, GIVEN["features"]
    if masked:  # one padding row more
        mask, y, features = torch.tensor([True] * 3 + [False]), F.pad(y, (0, 1)), F.pad(features, (0, 0, 0, 1))
    params = {"f": features, "scale": GIVEN["scale"]}
    batch, view, method = Batch(torch.zeros(len(y), 1, 1, 4), y, mask), seen(GIVEN["W"]), FedNH()
    close(method.local_loss(params, batch, view), NH["loss"])
    found = gradient(method.local_loss, params, batch, view)
    close(found["f"][:3], NH["grad_features"])
    close(found["scale"], NH["grad_scale"])
    cosines = F.normalize(features[:3], dim=1) @ GIVEN["W"].T
    close(cosines * GIVEN["scale"], NH["logits"])


@dataclass(frozen=True)
class Examples:
    """A client's data: rows of features and their labels."""

    x: torch.Tensor
    y: torch.Tensor

    def take(self, index):
        return Batch(self.x[index.rows].view(-1, 1, 1, 4), self.y[index.rows])


def sent_by(client):
    """What a client sends, which does not train, of a pass in two batches."""
    features, labels = CLIENTS[client]
    data, counts = Examples(features, labels.long()), torch.bincount(labels.long(), minlength=3).double()
    view = replace(seen(GIVEN["W"]), num_examples=torch.tensor(float(len(labels))), label_counts=counts)
    view = replace(view, settings=replace(view.settings, lr=0.0))

    plan = [BatchIndex(rows, None, {}, len(rows)) for rows in torch.arange(len(labels)).split(2)]
    return FedNH().local_update(data, plan, view).update


def moved(senders, method=None):
    method = method or FedNH(rho=float(GIVEN["rho"]))
    stacked = tree.stack(senders)
    cohort = toy_task(sizes=(3, 2)).cohort(torch.arange(len(senders)))
    totals = method.weighted_means(stacked, cohort)["totals"]
    return method.moved(GIVEN["W"], tree.weighted_mean(*totals))


def test_prototypes_follow_the_oracle():
    senders = [sent_by(client) for client in (0, 1)]
    close(torch.stack([one["means"] for one in senders]), NH["client_protos"])
    close(torch.stack([one["counts"] for one in senders]), NH["client_counts"])
    new = moved(senders)
    close(new, NH["W_new"])
    close(moved(senders[:1]), NH["W_new_client0_only"])
    close(moved(senders, FedNH(rho=1)), NH["W_new_rho_1"])
    assert torch.equal(new[2], GIVEN["W"][2]), "nobody holds the last class"
    assert torch.equal(moved(senders, FedNH(rho=0))[2], GIVEN["W"][2])
    for wrong in ("W_new_fluke_raw_feature_means", "W_new_WRONG_no_unit_norm_of_client_means"):
        assert (new - tensor(NH[wrong])).abs().max() > 1e-5


def test_a_feature_of_zero_leaves_everything_finite():
    loss = FedNH().local_loss
    params = {"f": torch.zeros(2, 4).double(), "scale": GIVEN["scale"]}
    found = gradient(loss, params, Batch(torch.zeros(2, 1, 1, 4), torch.tensor([0, 1])), seen(GIVEN["W"]))
    assert tree.all_finite(found)


@dataclass(frozen=True)
class FixedHead(RoundBased):
    """FedAvg on encoder and scale, before a fixed matrix with orthonormal rows."""

    seeded = ("basis",)

    def init(self, task):
        return {**super().init(task), "params": FedNH().init(task)["params"]}

    def init_server(self, task, params):
        return {"basis": random_basis(task.model.feature_dim, NUM_CLASSES, task.generator_for("etf"))}

    def local_loss(self, params, batch, view):
        features = F.normalize(view.model.features(params, batch.x), dim=1)
        return cross_entropy(params["scale"] * (features @ view.server["basis"]), batch)


@both_engines
def test_with_rho_1_the_head_is_fixed_and_orthonormal(engine):
    """Bit for bit on `loop`."""
    task = toy_task(engine=engine)
    state, other = train(FedNH(rho=1, clip=None), task), train(FixedHead(), task)
    for name, leaf in state["params"].items():
        torch.testing.assert_close(leaf, other["params"][name], rtol=0, atol=0.0 if engine == "loop" else 1e-14)
    W = state["server"]["prototypes"]
    close(W @ W.T, torch.eye(NUM_CLASSES), 1e-14)


@pytest.mark.parametrize(
    "make", [toy_task, functools.partial(toy_task, engine="vectorised"), normalised_task], ids=["loop", "vmap", "norms"]
)
def test_prototypes_stay_of_length_one_and_move_to_the_clients_means(make):
    """After training: of the trained encoders, which the server then averages, in evaluation mode."""
    task, method = make(rounds=1), FedNH(rho=0.3)
    start, state = method.init(task), train(method, task)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), start)
    models = tree.add(start["params"], outputs.result.update["delta"])
    totals = torch.zeros(NUM_CLASSES, task.model.feature_dim, dtype=task.dtype)
    own = task.federation
    for client, rows in enumerate(torch.arange(56).split([13, 4, 20, 8, 11])):
        encoder = tree.row(models, client)
        images = own.images[rows].to(task.dtype) / 255
        bound = BoundModel(task.model, tree.row(outputs.buffers, client))
        features = F.normalize(bound.features(encoder, images), dim=1)
        for label in range(NUM_CLASSES):
            mine = features[own.labels[rows] == label]
            if len(mine):
                totals[label] += len(mine) * F.normalize(mine.mean(0), dim=0)
    wanted = 0.3 * start["server"]["prototypes"] + 0.7 * F.normalize(totals, dim=1)
    expected, tolerance = F.normalize(wanted, dim=1).double(), 1e-10 if task.dtype == torch.float64 else 1e-5
    close(state["server"]["prototypes"].double(), expected, tolerance)


def test_what_fednh_sends_and_deploys():
    task, method = toy_task(rounds=2), FedNH()
    state, size = train(method, task), tree.num_bytes(task.initial_params())
    bias, number = 8 * NUM_CLASSES, 8
    down, up = size - bias + number, size - bias + number + 8 * NUM_CLASSES
    assert method.traffic(task) == 2 * (down + up)
    deployed = method.deploy(task, state, EVERYONE)
    x = torch.rand(7, 1, 6, 6, dtype=torch.float64)
    z = BoundModel(task.model, {})
    cosines = F.normalize(z.features(state["params"], x), dim=1) @ state["server"]["prototypes"].T
    assert torch.equal(z(deployed.params, x).argmax(1), cosines.argmax(1)) and state["params"]["scale"] > 0
    assert deployed.params.keys() == task.initial_params().keys()
    assert method.diagnostics(state) == {"scale": state["params"]["scale"].item()}


@pytest.mark.parametrize("method", [FedNH, FedAWA])
def test_running_statistics_are_averaged_as_the_models_are(method):
    task = normalised_task(rounds=1)
    buffers = {}
    for weights in ("examples", "uniform"):
        one = method(weighting=weights) if method is FedNH else method(server_steps=0, start="log_shares")
        if method is FedAWA and weights == "uniform":
            one = method(server_steps=0)
            scores = torch.zeros(5, dtype=torch.float64)
            buffers[weights] = one.step(task, {**one.init(task), "server": {"scores": scores}})["buffers"]
        else:
            buffers[weights] = train(one, task)["buffers"]
        outputs = one.map_clients(task, one.local_update, task.cohort(EVERYONE), one.init(task))
        by = task.cohort(EVERYONE).num_examples if weights == "examples" else torch.ones(5)
        mean = average_buffers(outputs.buffers, by)["stem.norm.running_mean"]
        torch.testing.assert_close(buffers[weights]["stem.norm.running_mean"], mean, rtol=0, atol=1e-6)


def test_fednh_needs_as_many_features_as_classes_and_a_linear_classifier():
    task = toy_task()
    with pytest.raises(ValueError, match="the number of features of Narrow must be at least 3, .* but got 2"):
        FedNH().init(replace(task, model=Narrow(task.model.input_shape, NUM_CLASSES)))


@dataclass(frozen=True)
class Narrow(Model):
    def layers(self):
        return {"classifier": (self.num_classes, 2)}


# FedAWA

AWA, AWA_GIVEN = (
    ORACLE["fedawa"]["expected"],
    {key: tensor(value) for key, value in ORACLE["fedawa"]["inputs"].items() if isinstance(value, list)},
)


@dataclass(frozen=True)
class Told(FedAWA):
    """Its three clients return the models of the oracle."""

    def local_update(self, data, plan, view):
        position = (view.num_examples - 3).abs().round()  # clients of 5, 3 and 2 examples: rows 2, 0 and 1
        chosen = (torch.tensor([2, 0, 1]) == position).to(torch.float64)
        delta = {"w": chosen @ AWA_GIVEN["locals"] - view.params["w"]}
        return super().local_update(data, plan, view)._replace(update={"delta": delta})

    def local_loss(self, params, batch, view):
        return 0 * params["w"].sum()


@dataclass(frozen=True)
class Vector(Model):
    def init(self, generator):
        return {"w": AWA_GIVEN["w"].clone()}


def told(**options):
    """The params and scores after a round of clients of 5, 3 and 2 examples, T as in the oracle or by their logarithms."""
    task = toy_task(sizes=(5, 3, 2), rounds=1)
    state = train(Told(**options), replace(task, model=Vector(task.model.input_shape, NUM_CLASSES)))
    return state["params"]["w"], state["server"]["scores"]


def test_weights_follow_the_oracle():
    tolerance = ORACLE["fedawa"]["tol"]
    for options, key in (
        ({}, "w_new_code_epochs1_weights_before_step"),
        ({"use": "after"}, "w_new_weights_after_step"),
        ({"server_steps": 3}, "w_new_code_epochs3_weights_before_last_step"),
        ({"server_steps": 0, "start": "log_shares"}, "w_new_log_init_no_step"),
        ({"server_steps": 0, "start": "log_shares", "use": "after"}, "fedavg_by_size"),
        ({"start": "log_shares"}, "w_new_log_init_no_step"),
    ):
        close(told(**options)[0], AWA[key], tolerance)
    close(told()[1], AWA["T_after_1_step"], tolerance)
    close(told(server_steps=3)[1], AWA["T_after_3_steps"], tolerance)
    close(told(server_steps=0)[1], AWA_GIVEN["T"], tolerance)
    close(
        told(start="log_shares", server_steps=0)[1].softmax(0), AWA["softmax_of_log_sizes_is_size_weights"], tolerance
    )
    close(told(gamma=0.5)[0], 0.5 * tensor(AWA["w_new_code_epochs1_weights_before_step"]), tolerance)


def test_the_loss_of_the_weights_follows_the_oracle():
    """A step of SGD from a momentum of 0 is lr (gradient + decay T): it shows the gradient."""
    w, T = AWA_GIVEN["w"], AWA_GIVEN["T"]
    deltas = {"w": AWA_GIVEN["locals"] - w}
    weights, after = FedAWA(optimizer="sgd", server_lr=0.01).weighed({"w": w}, deltas, T)
    close(weights, AWA["softmax_T"], 1e-8)
    close((T - after) / 0.01 - 5e-4 * T, AWA["grad_T"], 1e-8)
    apart = 1 - torch.cosine_similarity(w[None], AWA_GIVEN["locals"], dim=1)
    spread = (deltas["w"] - weights @ deltas["w"]).norm(dim=1)
    close(apart, AWA["cosine_distance"], 1e-8)
    close(spread, AWA["l2_distance"], 1e-8)
    close(weights @ apart, AWA["reg_loss"], 1e-8)
    close(weights @ spread, AWA["sim_loss"], 1e-8)
    close(weights @ (apart + spread), AWA["loss"], 1e-8)


@pytest.mark.parametrize("use", ["before", "after"])
def test_without_steps_on_log_shares_fedawa_is_fedavg(use):
    task = toy_task(participation=0.6)
    own = train(FedAWA(server_steps=0, start="log_shares", use=use), task)["params"]
    for name, leaf in train(FedAvg(), task)["params"].items():
        torch.testing.assert_close(own[name], leaf, rtol=0, atol=1e-12)


def test_without_steps_and_with_equal_sizes_fedawa_is_fedavg():
    task = toy_task(sizes=(8, 8, 8))
    own = train(FedAWA(server_steps=0), task)["params"]
    for name, leaf in train(FedAvg(), task)["params"].items():
        torch.testing.assert_close(own[name], leaf, rtol=0, atol=1e-12)


def test_scores_belong_to_clients_and_stay_while_they_are_absent():
    task, method = toy_task(participation=0.4, rounds=4), FedAWA()
    state = method.init(task)
    for _ in range(4):
        cohort = method.sample(task, state).ids
        before, state = state["server"]["scores"], method.step(task, state)
        moved = (state["server"]["scores"] != before).nonzero().flatten()
        assert moved.tolist() == cohort.tolist()


def test_a_client_alone_has_the_whole_weight_and_its_score_stays():
    deltas = {"w": (AWA_GIVEN["locals"] - AWA_GIVEN["w"])[:1]}
    weights, scores = FedAWA(server_steps=5, use="after").weighed({"w": AWA_GIVEN["w"]}, deltas, AWA_GIVEN["T"][:1])
    assert weights.tolist() == [1.0] and scores.tolist() == [0.5]


def test_weights_that_are_nearly_equal_have_a_caveat():
    assert FedAWA().caveats(toy_task()) == [
        "fedawa: at first clients of 4 and of 20 examples weigh nearly alike; compare with FedAvg with uniform weights."
    ]
    assert FedAWA(start="log_shares").caveats(toy_task()) == FedAWA().caveats(toy_task(sizes=(8, 8))) == []


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedNH(rho=1.1), "rho must be between 0 and 1, but got 1.1."),
    (lambda: FedNH(scale=0), "scale must be greater than 0, but got 0."),
    (lambda: FedNH(clip=-1), "clip must be greater than 0, but got -1."),
    (lambda: FedAWA(server_steps=-1), "server_steps must be at least 0, but got -1."),
    (lambda: FedAWA(server_lr=math.inf), "server_lr must be greater than 0, but got inf."),
    (lambda: FedAWA(gamma=0), "gamma must be greater than 0, but got 0."),
    (lambda: FedAWA(start="log"), "start must be one of shares, log_shares, but got 'log'."),
)
