"""FedSpeed, FedGAMMA, FedLESAM, FedSMOO, FedSOL, FedSWA, FedGloSS and their variants against sam_family_oracle.json, and the
methods that they become at special options."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.feddyn import FedDyn
from algorithms.fedgamma import FedGAMMA
from algorithms.fedgloss import FedGloSS
from algorithms.fedlesam import FedLESAM, FedLESAMD, FedLESAMS
from algorithms.fedsam import FedSAM
from algorithms.fedsmoo import FedSMOO
from algorithms.fedsol import FedSOL
from algorithms.fedspeed import FedSpeed
from algorithms.fedswa import FedMoSWA, FedSWA
from algorithms.scaffold import Scaffold
from algorithms.shared import tree
from algorithms.shared.client_states import no_rows, write_rows
from algorithms.shared.control_variates import MomentumMode
from algorithms.shared.local_sgd import clipped, gradient, task_loss
from algorithms.shared.sharpness import ascent
from algorithms.shared.types import Batch, BatchIndex, ClientView
from bench import models
from bench.models.base import BoundModel, Model
from bench.simulation.client import bind
from tests.support.by_hand import Pixels, double
from tests.support.oracles import close, oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, normalised_task, toy_task, train

ORACLE = oracle("sam_family")
ENGINES = ["loop", "vectorised"]
A, C, W = ([[1.0, 4.0], [3.0, 1.0]], [[1.0, 0.0], [-1.0, 2.0]], [0.5, -0.5])  # of all bowls of the oracle
PARTLY, FULLY = ((0, 1), (1,), (0,)), ((0, 1),) * 3


def assert_same(a, b, tolerance=0.0):
    for name, leaf in a.items():
        torch.testing.assert_close(leaf, b[name], rtol=0, atol=tolerance)


# Two clients with one and three examples, and a quadratic loss each


@dataclass(frozen=True)
class Plane(Model):
    """Two parameters."""

    def init(self, generator):
        return {"w": double(W)}


@pytest.fixture
def on_bowls(monkeypatch):
    """Gives a class of methods the losses of the oracle, and the cohorts of its rounds; returns where the loss is computed."""

    def patch(kind, cohorts):
        visited = []

        def local_loss(self, params, batch, view):
            first = view.num_examples == 1
            a, c = (torch.where(first, double(of[0]), double(of[1])) for of in (A, C))
            if not torch._C._functorch.is_batchedtensor(params["w"]):
                visited.append(params["w"].detach().clone())
            return (0.5 * a * (params["w"] - c) ** 2).sum()

        monkeypatch.setattr(kind, "local_loss", local_loss)
        monkeypatch.setattr(
            kind, "sample", lambda self, task, state: task.cohort(torch.tensor(cohorts[state["round"]]))
        )
        return visited

    return patch


def bowls(engine="loop", sizes=(1, 3), **settings):
    given = {"local_epochs": None, "local_steps": 2, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, **settings}
    task = toy_task(sizes=sizes, engine=engine, **given)
    return replace(task, model=Plane(task.model.input_shape, NUM_CLASSES))


def iterates(method, task, state):
    """The models of each client of the next cohort after each of its steps: client -> [steps, 2]."""
    cohort, found = method.sample(task, state), []
    for steps in range(1, task.settings.local_steps + 1):
        first = lambda data, plan, view, steps=steps: method.local_update(data, plan[:steps], view)  # noqa: E731
        found.append(method.local_models(state, method.map_clients(task, first, cohort, state))["params"]["w"])
    return {client: torch.stack(found, 1)[row] for row, client in enumerate(cohort.ids.tolist())}


def follows(method, task, log, tol, of_client=(), of_server=(), start=None):
    """Plays rounds and compares them with a log of the oracle.

    Args:
        of_client, of_server: key of the log -> what is compared with it, of a client's state, and of the server's and the rows.
    """
    state = start or method.init(task)
    rounds = sorted({entry["round"] for entry in log})
    for number in rounds:
        moves, before = iterates(method, task, state), state
        state = method.step(task, state)
        for entry in (entry for entry in log if entry["round"] == number):
            if "client" in entry:
                found, row = moves[entry["client"]], state["clients"]["rows"][entry["client"]]
                if "x" in entry:
                    close(found, entry["x"], tol)
                if "x_last" in entry:
                    close(found[-1], entry["x_last"], tol)
                if "start" in entry:
                    close(method.received(before)["params"]["w"], entry["start"], tol)
                for key, read in dict(of_client).items():
                    close(read(row), entry[key], tol)
            if "server_w" in entry:
                close(state["params"]["w"], entry["server_w"], tol)
                if "e" in entry:
                    close(method.received(before)["params"]["w"] - before["params"]["w"], entry["e"], tol)
                for key, read in dict(of_server).items():
                    close(read(state), entry[key], tol)
    return state


def final(method, task):
    return train(method, task, rounds=len(PARTLY))["params"]["w"]


def memories(state):
    rows = state["clients"]["rows"]
    return torch.stack(
        [rows[client]["memory"]["w"] if client in rows else torch.zeros(2).double() for client in (0, 1)]
    )


# FedSpeed


SPEED = {"alpha": 0.5, "rho": 0.1, "clip": None}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options, key",
    [({}, "code_server_a_1"), ({"sharp_weight": 0.75, "server": "corrected_upload"}, "corrected_upload_a_0.75")],
)
def test_fedspeed_follows_the_oracle(options, key, engine, on_bowls):
    on_bowls(FedSpeed, PARTLY)
    known = ORACLE["fedspeed"]
    follows(FedSpeed(**SPEED, **options), bowls(engine), known["expected"][key], 1e-9, of_server={"h": memories})


@pytest.mark.parametrize(
    "options, key",
    [
        ({"server": "corrected_upload"}, "corrected_upload_a_1_final_w"),
        ({"sharp_weight": 0.0}, "code_server_a_0_final_w_is_feddyn"),
        ({"rho": 0.0}, "code_server_a_0_final_w_is_feddyn"),
    ],
)
def test_fedspeed_ends_where_the_oracle_says(options, key, on_bowls):
    on_bowls(FedSpeed, PARTLY)
    close(final(FedSpeed(**{**SPEED, **options}), bowls()), ORACLE["fedspeed"]["expected"][key], 1e-9)


def test_both_servers_of_fedspeed_agree_if_everyone_takes_part(on_bowls):
    on_bowls(FedSpeed, FULLY)
    for server in ("mean_memory", "corrected_upload"):
        known = ORACLE["fedspeed"]["expected"]["all_active_a_1_final_w_both_servers"]
        close(final(FedSpeed(**SPEED, server=server), bowls()), known, 1e-9)


def test_with_a_vanishing_alpha_the_server_of_fedspeed_still_adds_the_memory(on_bowls):
    on_bowls(FedSpeed, FULLY)
    known = ORACLE["fedspeed"]["expected"]
    found = train(FedSpeed(alpha=1e-9, rho=0.0), bowls(), rounds=1)["params"]["w"]
    close(found, known["lamb_0_rho_0_all_active_round_1_w"], 1e-8)
    close(found, known["w_plus_2_mean_D"], 1e-8)


def test_what_is_clipped_follows_the_oracle():
    known = ORACLE["fedspeed_clip"]
    given = {key: {"w": double(known["inputs"][key])} for key in ("g", "w", "x", "h_i")}
    client = {"alpha": double(known["inputs"]["lamb"]), "memory": given["h_i"]}
    view = SimpleNamespace(client=client, params=given["w"])
    for order, key in (("centred", "default_centred_x_new"), ("reference", "reference_order_x_new")):
        for kind in (FedSpeed, FedSMOO, FedLESAMD):
            step = kind(clip=known["inputs"]["clip"], clip_order=order).step_gradient(given["g"], given["x"], view)
            close(given["x"]["w"] - known["inputs"]["lr"] * step["w"], known["expected"][key], known["tol"])


# FedGAMMA


GAMMA = {"rho": 0.1, "clip": None}
CONTROL = {"c_i_new": lambda row: row["control"]["w"]}


@pytest.mark.parametrize("engine", ENGINES)
def test_fedgamma_follows_the_oracle(engine, on_bowls):
    on_bowls(FedGAMMA, PARTLY)
    known = ORACLE["fedgamma"]
    server = {"c": lambda state: state["server"]["control"]["w"]}
    follows(FedGAMMA(**GAMMA), bowls(engine), known["expected"]["log"], known["tol"], CONTROL, server)


def test_fedgamma_without_ascent_or_without_control_ends_where_the_oracle_says(on_bowls):
    on_bowls(FedGAMMA, PARTLY)
    known, task = ORACLE["fedgamma"], bowls()
    close(final(FedGAMMA(rho=0.0, clip=None), task), known["expected"]["rho_zero_final_w_is_scaffold"], known["tol"])
    method = FedGAMMA(**GAMMA)
    start = state = method.init(task)
    for _ in PARTLY:
        state = {**method.step(task, state), "server": start["server"], "clients": start["clients"]}
    close(state["params"]["w"], known["expected"]["no_control_final_w_is_fedsam"], known["tol"])


def test_a_largest_norm_leaves_the_correction_of_fedgamma_to_its_clip():
    """One step, of gradients that are next to nothing: each client follows c - c_i alone, shortened to clip."""
    one_step = {"momentum": 0.0, "weight_decay": 0.0, "local_epochs": None, "local_steps": 1}
    method, task = FedGAMMA(rho=0.0, clip=0.5), toy_task(**one_step)
    state = train(FedGAMMA(rho=0.0, clip=None), task)
    after = method.step(toy_task(**one_step, max_gradient_norm=1e-12), state)
    common = state["server"]["control"]
    own = [state["clients"]["rows"][client]["control"] for client in range(task.population)]
    followed = [clipped(tree.subtract(common, one), 0.5) for one in own]
    expected = tree.scale(tree.map(lambda *leaves: torch.stack(leaves).mean(0), *followed), -task.settings.lr)
    assert_same(tree.subtract(after["params"], state["params"]), expected, 1e-9)
    assert tree.norm(expected) > 1e-3


# FedLESAM


LESAM = ORACLE["fedlesam_step"]


@dataclass(frozen=True)
class Layer(Model):
    """A weight and a bias, at `w_now`."""

    def init(self, generator):
        return layer(LESAM["inputs"]["w_now"])


def layer(numbers):
    return {"weight": double(numbers[:4]).reshape(2, 2), "bias": double(numbers[4:])}


def flat(params):
    return torch.cat([params["weight"].flatten(), params["bias"]])


@pytest.mark.parametrize(
    "options, older, key",
    [
        ({}, "w_last_active_round", "paper_last_active"),
        ({"estimate": "last_round"}, "w_previous_round", "last_round"),
        ({"estimate": "last_round", "norm": "sum"}, "w_previous_round", "last_round_sum_of_tensor_norms"),
        ({}, None, "never_active_before"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_of_fedlesam_follows_the_oracle(options, older, key, engine, monkeypatch):
    given, tol = LESAM["inputs"], LESAM["tol"]
    a, c, visited = double(given["a"]), double(given["c"]), []

    def local_loss(self, params, batch, view):
        visited.append(flat(params).detach())
        return (0.5 * a * (flat(params) - c) ** 2).sum()

    monkeypatch.setattr(FedLESAM, "local_loss", local_loss)
    task = bowls(engine, sizes=(6,), local_steps=1, lr=given["lr"])
    task = replace(task, model=Layer(task.model.input_shape, NUM_CLASSES))
    method, only = FedLESAM(rho=given["rho"], **options), torch.tensor([0])
    state = {**method.init(task), "round": 1}
    if older and "estimate" in options:
        state = {**state, "server": {"previous": layer(given[older])}}
    elif older:
        kept = tree.map(lambda leaf: leaf[None], {"received": layer(given[older])})
        state = {**state, "clients": write_rows(state["clients"], only, kept)}
    after = method.step(task, state)
    known = LESAM["expected"][key]
    close(flat(after["params"]), known["w_new"], tol)
    assert not torch.allclose(
        flat(after["params"]), double(LESAM["expected"]["as_stored_flat_indexing_MUST_NOT_MATCH"]["w_new"]), atol=1e-4
    )
    if engine == "loop":
        close(visited[0] - double(given["w_now"]), known["e"], tol)
    remembered = after["clients"]["rows"][0] if "estimate" not in options else after["server"]
    assert_same(remembered.get("received") or remembered["previous"], state["params"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("correction, key", [(1.0, "S_iterates"), (0.1, "S_iterates_as_stored_correction_times_0.1")])
def test_fedlesam_s_follows_the_oracle(correction, key, engine, on_bowls):
    on_bowls(FedLESAMS, ((0,),))
    known = ORACLE["fedlesam_s_d"]
    given, expected, tol = known["inputs"], known["expected"], known["tol"]
    task = bowls(engine, sizes=(1, 3, 3, 3))
    method = FedLESAMS(rho=given["rho"], correction=correction, clip=None)
    kept = {"control": {"w": double([given["c_i"]])}, "received": {"w": double([given["w_last_active"]])}}
    state = method.init(task)
    state = {**state, "clients": write_rows(state["clients"], torch.tensor([0]), kept)}
    state = {**state, "server": {"control": {"w": double(given["c"])}}}
    close(iterates(method, task, state)[0], expected[key], tol)
    if correction == 1:
        after = method.step(task, state)
        close(after["clients"]["rows"][0]["control"]["w"], expected["S_c_i_new"], tol)
        close(after["server"]["control"]["w"], expected["S_c_new_if_only_this_client_active"], tol)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedlesam_d_follows_the_oracle(engine, on_bowls):
    visited = on_bowls(FedLESAMD, ((0,),))
    known = ORACLE["fedlesam_s_d"]
    given, expected, tol = known["inputs"], known["expected"], known["tol"]
    task = bowls(engine, sizes=(1, 3, 3, 3))
    method = FedLESAMD(rho=given["rho"], alpha=given["lamb"], clip=None)
    kept = {"memory": {"w": double([given["h_i"]])}, "received": {"w": double([given["w_last_active"]])}}
    state = method.init(task)
    state = {**state, "clients": write_rows(state["clients"], torch.tensor([0]), kept)}
    state = {**state, "server": {"memory": {"w": double(given["h_i"]) / given["clients_in_all"]}}}
    close(iterates(method, task, state)[0], expected["D_iterates"], tol)
    if engine == "loop":
        close(visited[0] - double(W), expected["e"], tol)
    after = method.step(task, state)
    close(after["clients"]["rows"][0]["memory"]["w"], expected["D_h_i_new"], tol)
    close(after["params"]["w"], expected["D_server_if_only_this_client_active_other_h_zero"], tol)


@pytest.mark.parametrize("kind", [FedLESAM, FedLESAMS, FedLESAMD])
def test_a_client_that_comes_later_has_no_ascent_the_first_time(kind, on_bowls):
    """The second client comes in round 2, when the model has moved, and again in round 3."""
    on_bowls(kind, ((0,), (1,), (1,)))
    task, ascending, plain = bowls(), kind(rho=0.5), kind(rho=0.0)
    state = ascending.step(task, ascending.init(task))
    close(iterates(ascending, task, state)[1], iterates(plain, task, state)[1].tolist(), 0)
    state = ascending.step(task, state)
    assert not torch.allclose(iterates(ascending, task, state)[1], iterates(plain, task, state)[1])


def test_the_plain_mean_of_models_is_uniform(on_bowls):
    on_bowls(FedLESAM, FULLY)
    on_bowls(FedSWA, FULLY)
    known = ORACLE["fedspeed"]["expected"]["fedavg_uniform_round_1_w"]
    for method in (FedLESAM(), FedSWA(rho=1.0, alpha=1.0)):
        close(train(method, bowls(), rounds=1)["params"]["w"], known, 1e-12)


# FedSMOO


SMOO = {"rho": 0.1, "alpha": 0.5, "clip": None}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("s_from", ["mu", "mu_minus_e"])
def test_fedsmoo_follows_the_oracle(s_from, engine, on_bowls):
    visited = on_bowls(FedSMOO, PARTLY)
    log = ORACLE["fedsmoo"]["expected"][f"s_from_{s_from}"]
    read = {"s": lambda state: state["server"]["ascent"]["w"], "h": memories}
    method, task = FedSMOO(**SMOO, s_from=s_from), bowls(engine)
    start = method.init(task)
    follows(method, task, log, 1e-9, {"mu": lambda row: row["mu"]["w"]}, read, start)
    if engine == "loop":  # a round of two clients computes the loss at 2 * 2 * 2 places
        visited.clear()
        method.step(task, start)
        moves = [there - here for here, there in zip(visited[::2], visited[1::2], strict=True)]
        assert len(moves) == 4
        close(
            torch.stack(moves), [e for entry in log if "e" in entry and entry["round"] == 1 for e in entry["e"]], 1e-9
        )


def test_fedsmoo_reports_how_long_its_memory_of_ascents_is_beside_the_gradient(on_bowls):
    """Before the first step mu_i is 0; before the second it is e, of length rho. The mean is by 1 and 3 examples."""
    on_bowls(FedSMOO, FULLY)
    shares = []
    for client in (0, 1):
        first = ORACLE["fedsmoo"]["expected"]["s_from_mu"][client]
        slope = [a * (x - c) for a, x, c in zip(A[client], first["x"][0], C[client], strict=True)]
        shares.append(0.5 * 0.1 / math.hypot(*slope))
    for engine in ENGINES:
        state = train(FedSMOO(**SMOO), bowls(engine), rounds=1)
        assert float(state["metrics"]["mu_share"]) == pytest.approx((shares[0] + 3 * shares[1]) / 4, abs=1e-9)


def test_fedsmoo_without_ascent_ends_where_the_oracle_says(on_bowls):
    on_bowls(FedSMOO, PARTLY)
    on_bowls(FedSpeed, PARTLY)
    expected = ORACLE["fedsmoo"]["expected"]
    close(final(FedSMOO(**{**SMOO, "rho": 0.0}), bowls()), expected["rho_zero_final_w_is_feddyn"], 1e-9)
    close(final(FedSpeed(**SPEED), bowls()), expected["without_mu_and_s_final_w_is_fedspeed_code"], 1e-9)


@dataclass(frozen=True)
class Three(Model):
    """Tensors of the shapes of the oracle."""

    def init(self, generator):
        shapes = ORACLE["fedsmoo_unflatten"]["inputs"]["tensor_shapes"]
        return {f"t{at}": torch.zeros(shape) for at, shape in enumerate(shapes)}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_tensor_has_its_own_part_of_mu(engine, monkeypatch):
    """With a linear loss and rho = |g|, mu is g after one step, and so is s."""
    known = ORACLE["fedsmoo_unflatten"]
    wanted = {f"t{at}": double(numbers) for at, numbers in enumerate(known["expected"]["tensors"])}
    assert torch.cat([leaf.flatten() for leaf in wanted.values()]).tolist() == known["inputs"]["flat_mu"]
    loss = lambda self, params, batch, view: sum((wanted[name] * leaf).sum() for name, leaf in params.items())  # noqa: E731
    monkeypatch.setattr(FedSMOO, "local_loss", loss)
    task = bowls(engine, sizes=(6,), local_steps=1)
    task = replace(task, model=Three(task.model.input_shape, NUM_CLASSES))
    state = train(FedSMOO(rho=float(tree.norm(wanted))), task, rounds=1)
    assert_same(state["clients"]["rows"][0]["mu"], wanted, 1e-11)
    assert_same(state["server"]["ascent"], wanted, 1e-11)


# FedSOL


SOL = ORACLE["fedsol_step"]


def classifier(rows):
    rows = double(rows)
    return {"classifier.weight": rows[:, :2], "classifier.bias": rows[:, 2]}


def in_rows(params):
    return torch.cat([params["classifier.weight"], params["classifier.bias"][:, None]], 1)


def solving(padded, momentum=0.0):
    """The client of the oracle: its data, a step of its plan, and its view. If padded, a row of its batch does not count."""
    given = SOL["inputs"]
    x, y, mask = double(given["X"]), torch.tensor(given["y"]), None
    if padded:
        x, y = torch.cat([x, torch.full((1, 2), 9.0).double()]), torch.cat([y, torch.tensor([1])])
        mask = torch.arange(5) < 4
    batch = Batch(x, y, mask)
    settings = toy_task(lr=given["lr"], weight_decay=given["weight_decay"], momentum=momentum).settings
    model = bind(Pixels((1, 1, 2), 3), {})
    received, number = classifier(given["received_model"]), torch.tensor(4.0).double()
    view = ClientView(model, settings, 0, received, {}, {}, {}, number, number, torch.tensor([2, 1, 1]))
    return SimpleNamespace(take=lambda index: batch), BatchIndex(torch.arange(4), mask, {}, 4), view


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "options, key",
    [
        ({"form": "fixed"}, "fixed"),
        ({}, "adaptive"),
        ({"norms": "tensor"}, "adaptive_one_norm_per_tensor"),
        ({"rho": 0.0}, "rho_zero_w_new"),
    ],
)
def test_a_step_of_fedsol_follows_the_oracle(options, key, padded):
    data, index, view = solving(padded)
    local, (expected, tol) = classifier(SOL["inputs"]["local_model"]), (SOL["expected"], SOL["tol"])
    method, visited = FedSOL(**options), []

    def loss(params, batch, view):
        visited.append({name: leaf.detach() for name, leaf in params.items()})
        return method.local_loss(params, batch, view)

    known = expected[key]
    slope = method._slope(loss, local, data.take(index), view)
    new = {name: x - 0.1 * (slope[name] + 0.01 * x) for name, x in local.items()}
    if key == "rho_zero_w_new":
        close(in_rows(new), known, tol)
        return
    close(in_rows(new), known["w_new"], tol)
    if "grad" in known:
        close(in_rows(slope), known["grad"], tol)
    if not padded:
        close(in_rows(visited[0]) - in_rows(local), known["e"], tol)
    close(method._divergence(local, data.take(index), view), expected["kl"], tol)
    close(task_loss(local, data.take(index), view), expected["ce"], tol)
    uphill, plain = (gradient(of, local, data.take(index), view) for of in (method._divergence, task_loss))
    close(in_rows(uphill), expected["grad_kl"], tol)
    close(tree.norm(uphill), expected["grad_kl_norm"], tol)
    close(in_rows(plain), expected["grad_ce"], tol)
    if key == "adaptive":
        moved = tree.subtract(local, view.params)
        close(in_rows(tree.map(method._factor, moved)), known["factor"], tol)


@pytest.mark.parametrize("padded", [False, True])
def test_a_round_of_fedsol_follows_the_oracle(padded):
    data, index, view = solving(padded)
    known, method = ORACLE["fedsol_round"], FedSOL()
    for steps, key in ((1, "w_after_1"), (2, "w_after_2")):
        delta = method.local_update(data, [index] * steps, view).update["delta"]
        close(in_rows(tree.add(view.params, delta)), known["expected"][key], known["tol"])
    assert tree.norm(gradient(method._divergence, view.params, data.take(index), view)) < 1e-14


@pytest.mark.parametrize("form", ["adaptive", "fixed"])
def test_fedsol_does_not_ascend_along_rounding_at_the_received_model(form):
    data, index, view = solving(padded=False)
    for dtype in (torch.float32, torch.float64):
        own = replace(view, params=tree.map(lambda leaf: leaf.to(dtype), view.params))  # noqa: B023
        batch = data.take(index)._replace(x=data.take(index).x.to(dtype))
        slope = FedSOL(form=form)._slope(task_loss, own.params, batch, own)
        assert_same(slope, gradient(task_loss, own.params, batch, own))


def test_fedsol_that_ascends_along_the_cross_entropy_is_fedsam(monkeypatch):
    data, index, view = solving(padded=False)
    monkeypatch.setattr(FedSOL, "_divergence", lambda self, *arguments: task_loss(*arguments))
    local = classifier(SOL["inputs"]["local_model"])
    found = FedSOL(rho=0.1, form="fixed")._slope(task_loss, local, data.take(index), view)
    assert_same(found, FedSAM(rho=0.1)._sharp_gradient(task_loss, local, data.take(index), view))


# FedSWA and FedMoSWA


SWA = {"rho": 0.1, "alpha": 1.5, "clip": None}


@pytest.mark.parametrize("engine", ENGINES)
def test_fedswa_follows_the_oracle(engine, on_bowls):
    on_bowls(FedSWA, PARTLY)
    known = ORACLE["fedswa"]
    follows(FedSWA(**SWA), bowls(engine, local_steps=4), known["expected"]["log"], known["tol"])


@pytest.mark.parametrize(
    "options, lr, key",
    [
        ({"rho": 1.0, "alpha": 1.0}, 0.1, "rho_1_alpha_1_final_w_is_fedavg"),
        ({"rho": 0.0, "alpha": 1.0}, 0.2, "code_2026_02_final_w"),
    ],
)
def test_fedswa_ends_where_the_oracle_says(options, lr, key, on_bowls):
    on_bowls(FedSWA, PARTLY)
    known, task = ORACLE["fedswa"], bowls(local_steps=4, lr=lr)
    close(train(FedSWA(**options), task, rounds=2)["params"]["w"], known["expected"][key], known["tol"])


@pytest.mark.parametrize("rho, lr, key", [(0.1, 0.1, "eta_per_step"), (0.0, 0.2, "code_2026_02_eta_per_step")])
def test_rates_fall_as_the_oracle_says(rho, lr, key, monkeypatch):
    """With a gradient of -1, each step is its rate; momentum acts as without the schedule: 1, 1.5, 1.75, 1.875 gradients."""
    known = ORACLE["fedswa"]
    monkeypatch.setattr(FedSWA, "local_loss", lambda self, params, batch, view: -params["w"].sum())
    monkeypatch.setattr(FedSWA, "sample", lambda self, task, state: task.cohort(torch.tensor([0])))
    for momentum, worth in ((0.0, [1, 1, 1, 1]), (0.5, [1, 1.5, 1.75, 1.875])):
        task, method = bowls(local_steps=4, lr=lr, momentum=momentum), FedSWA(rho=rho, alpha=1.0)
        found = iterates(method, task, method.init(task))[0][:, 0] - W[0]
        steps = torch.diff(found, prepend=double([0.0]))
        rates = known["expected"][key]
        close(steps, [rate * times for rate, times in zip(rates, worth, strict=True)], 1e-12)
    assert key != "eta_per_step" or 0.1 * float(FedMoSWA(rho=rho)._steps(torch.tensor(4.0).double())) == pytest.approx(
        known["expected"]["sum_eta"], abs=known["tol"]
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("divisor, key", [("sum", "log"), ("reference", "code_2025_05_gamma_0.2")])
def test_fedmoswa_follows_the_oracle(divisor, key, engine, on_bowls):
    on_bowls(FedMoSWA, PARTLY)
    known = ORACLE["fedmoswa"]
    read = {"m": lambda state: state["server"]["control"]["w"]}
    method = FedMoSWA(**SWA, gamma=0.2, divisor=divisor)
    follows(method, bowls(engine, local_steps=4), known["expected"][key], known["tol"], CONTROL, read)
    first = train(method, bowls(engine, local_steps=4), rounds=1)["params"]["w"]
    close(first, known["expected"]["round_1_is_fedswa_final_w"], known["tol"])


def test_fedmoswa_ends_as_scaffold_where_the_oracle_says(on_bowls):
    on_bowls(FedMoSWA, FULLY)
    known = ORACLE["fedmoswa"]
    found = final(FedMoSWA(rho=1.0, alpha=1.0, gamma=1.0), bowls(local_steps=4))
    close(found, known["expected"]["gamma_1_rho_1_alpha_1_full_3_rounds_is_scaffold"], known["tol"])


def test_the_code_of_2026_is_a_fedmoswa_at_one_rate_that_divides_by_another_number_of_steps(on_bowls, monkeypatch):
    """It has 5 as the number of steps, of which there are 4, and gamma is 1 in the first round and 0.4 later."""
    on_bowls(FedMoSWA, PARTLY)
    monkeypatch.setattr(FedMoSWA, "_steps", lambda self, num_steps: torch.full_like(num_steps, 5))
    method, task, known = FedMoSWA(rho=1.0, alpha=1.0, clip=None), bowls(local_steps=4), ORACLE["fedmoswa"]
    state = method.init(task)
    for gamma, entry in zip((1.0, 0.4, 0.4), known["expected"]["code_2026_02"], strict=True):
        state = replace(method, gamma=gamma).step(task, state)
        close(state["params"]["w"], entry["server_w"], known["tol"])
        close(state["server"]["control"]["w"], entry["c"], known["tol"])


# FedGloSS


GLOSS = {"rho": 0.1, "rho_l": 0.05, "alpha": 0.5, "warm_up": 0.0}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("divides, key", [(False, "paper_sigma"), (True, "code_sigma_divided_by_active_count_too")])
def test_fedgloss_follows_the_oracle(divides, key, engine, on_bowls):
    on_bowls(FedGloSS, PARTLY)
    known, method = ORACLE["fedgloss"], FedGloSS(**GLOSS, sigma_div_active=divides)
    follows(
        method,
        bowls(engine),
        known["expected"][key],
        known["tol"],
        {"sigma_k": lambda row: -row["memory"]["w"] / 2},
        {
            "sigma": lambda state: -state["server"]["memory"]["w"] / 2,
            "pseudo_gradient": lambda state: -state["server"]["update"]["w"],
        },
    )


@pytest.mark.parametrize(
    "options, key",
    [
        ({"rho_l": 0.0}, "sgd_clients_rho_l_zero_final_w"),
        ({"rho_l": 0.0, "rho": 0.0, "mean": "uniform"}, "rho_rho_l_zero_uniform_final_w_is_feddyn"),
    ],
)
def test_fedgloss_ends_where_the_oracle_says(options, key, on_bowls):
    on_bowls(FedGloSS, PARTLY)
    known = ORACLE["fedgloss"]
    close(final(FedGloSS(**{**GLOSS, **options}), bowls()), known["expected"][key], known["tol"])


@pytest.mark.parametrize("divides, key", [(False, "paper_sigma"), (True, "code_sigma")])
def test_fedgloss_with_exact_solutions_follows_the_oracle(divides, key, on_bowls):
    on_bowls(FedGloSS, ((0, 1),) * 200)
    known = ORACLE["fedgloss"]["expected"]
    method = FedGloSS(rho=0.0, rho_l=0.0, alpha=0.5, mean="uniform", sigma_div_active=divides)
    after = train(method, bowls(local_steps=60, lr=0.25), rounds=3)["params"]["w"]
    close(after, known["after_3_rounds_exact_solves_uniform_full"][key], 1e-9)
    limit = train(method, bowls(local_steps=8, lr=0.25), rounds=100)["params"]["w"]
    close(limit, known["limit_exact_solves_uniform_full"][key], 1e-9)
    close(limit, known["limit_exact_solves_uniform_full"]["global_minimiser"], 1e-9)


def test_the_warm_up_of_fedgloss_follows_the_oracle():
    known = ORACLE["fedgloss_schedule"]
    given, expected, tol = known["inputs"], known["expected"], known["tol"]
    task = bowls(rounds=given["T"])
    for schedule, key in (("ramp", "server_rho_intended"), ("reference", "server_rho_as_stored_MUST_NOT_MATCH")):
        method = FedGloSS(rho=given["rho"], rho_l=given["rho_l"], warm_up=given["T_s"] / given["T"], schedule=schedule)
        last = method.init(task)["server"]["warm_up_rounds"]
        rounds = range(given["T"])
        close([method._client_rho(r, task.settings) for r in rounds], expected["clients_rho_per_round"], tol)
        # Nothing reads the entry of the first round.
        close([float(method._server_rho(r, last)) for r in rounds][1:], expected[key][1:], tol)


def test_the_server_step_of_fedgloss_scales_the_mean_delta_alone(on_bowls):
    on_bowls(FedGloSS, PARTLY)
    known = ORACLE["fedgloss"]["expected"]["paper_sigma"]
    first = next(entry for entry in known if "server_w" in entry)
    found = train(FedGloSS(**GLOSS, server_lr=0.5), bowls(), rounds=1)
    wanted = [w - 0.5 * d - 2 * s for w, d, s in zip(W, first["pseudo_gradient"], first["sigma"], strict=True)]
    close(found["params"]["w"], wanted, 1e-9)
    close(-found["server"]["update"]["w"], first["pseudo_gradient"], 1e-9)


# What they become at special options, on the toy task


SAME = [
    (FedSpeed(rho=0.0), FedDyn(alpha=0.1, weighting="uniform")),
    (FedSpeed(sharp_weight=0.0, mean="examples"), FedDyn(alpha=0.1, weighting="uniform", mean="examples")),
    (FedSMOO(rho=0.0), FedDyn(alpha=0.1, weighting="uniform")),
    (FedLESAMD(rho=0.0, weighting="examples"), FedDyn(alpha=0.1)),
    (FedGloSS(rho=0.0, rho_l=0.0, mean="uniform"), FedDyn(alpha=0.1, weighting="uniform", clip=None)),
    (FedGAMMA(rho=0.0, clip=None), Scaffold()),
    (
        FedGAMMA(rho=0.0, clip=None, momentum_mode="effective-lr", server_lr=0.5),
        Scaffold(momentum_mode="effective-lr", server_lr=0.5),
    ),
    (FedLESAMS(rho=0.0, weighting="examples", clip=None), Scaffold(weighting="examples")),
    (FedLESAMS(correction=0.0), FedLESAM()),
    (FedLESAM(rho=0.0, weighting="examples", clip=None), FedAvg()),
    (FedSOL(rho=0.0), FedAvg()),
    (FedSWA(rho=1.0, alpha=1.0, weighting="examples", clip=None), FedAvg()),
    (FedLESAM(estimate="last_round"), FedLESAM()),
]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method, known", SAME, ids=repr)
def test_at_special_options_it_is_a_known_method(method, known, engine):
    """Bit for bit on the engine loop; to rounding, which depends on the processor, on the other one."""
    task = toy_task(engine=engine, local_epochs=1)
    assert_same(train(method, task)["params"], train(known, task)["params"], 0.0 if engine == "loop" else 1e-12)


FIRST = [
    (FedLESAM(rho=5.0, weighting="examples", clip=None), FedAvg()),
    (FedLESAMS(rho=5.0, clip=None), Scaffold()),
    (FedLESAMD(rho=5.0), FedDyn(alpha=0.1, weighting="uniform")),
    (FedGAMMA(rho=0.5, weighting="examples", clip=None), FedSAM(rho=0.5)),
    (FedMoSWA(), FedSWA()),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method, known", FIRST, ids=repr)
def test_in_the_first_round_it_is_a_known_method(method, known, engine):
    """Bit for bit, but for rounding on vectorised, where params + e are one copy per client."""
    task = toy_task(engine=engine, local_epochs=1)
    one, two = ([train(of, task, rounds) for rounds in (1, 2)] for of in (method, known))
    assert_same(one[0]["params"], two[0]["params"], 0 if engine == "loop" else 1e-14)
    assert not torch.equal(one[1]["params"]["classifier.weight"], two[1]["params"]["classifier.weight"])


@pytest.mark.parametrize("form", ["adaptive", "fixed"])
def test_the_first_step_of_each_round_of_fedsol_is_that_of_fedavg(form):
    task = toy_task(local_epochs=None, local_steps=1)
    assert_same(train(FedSOL(form=form, rho=5.0), task)["params"], train(FedAvg(), task)["params"])


@pytest.mark.parametrize("engine", ENGINES)
def test_fedmoswa_at_special_options_is_scaffold_up_to_rounding(engine):
    task = toy_task(engine=engine, local_epochs=1)
    found = train(FedMoSWA(rho=1.0, alpha=1.0, gamma=1.0, clip=None), task)
    assert_same(found["params"], train(Scaffold(), task)["params"], 1e-12)
    still = train(FedMoSWA(gamma=0.0), task)["params"]
    assert not torch.allclose(still["classifier.weight"], train(FedSWA(), task)["params"]["classifier.weight"])


def test_fedspeed_takes_the_gradient_of_fedsam():
    data, index, view = solving(padded=False)
    local = classifier(SOL["inputs"]["local_model"])
    found = FedSpeed(rho=0.3)._mixed(task_loss, local, data.take(index), view)
    assert_same(found, FedSAM(rho=0.3)._sharp_gradient(task_loss, local, data.take(index), view))


@pytest.mark.parametrize("engine", ENGINES)
def test_with_both_estimates_absent_clients_differ(engine):
    """A client that comes for the first time in round 2 has no e, but for "last_round"."""
    task = toy_task(engine=engine, local_epochs=1, participation=0.4)
    one, two = (train(FedLESAM(rho=0.5, estimate=of), task)["params"] for of in ("last_active", "last_round"))
    assert not torch.equal(one["classifier.weight"], two["classifier.weight"])


# Passes, costs, refusals


FAMILY = [FedSpeed, FedGAMMA, FedLESAM, FedLESAMS, FedLESAMD, FedSMOO, FedSOL, FedSWA, FedMoSWA, FedGloSS]
TWO_PASSES = [FedSpeed, FedGAMMA, FedSMOO, FedSOL, FedGloSS]


@pytest.mark.parametrize("kind", TWO_PASSES)
def test_running_statistics_are_those_of_the_first_pass_alone(kind):
    """After one step they are those of a method whose pass is at the same params."""
    task = normalised_task(rounds=1, local_epochs=None, local_steps=1)
    known = Scaffold() if kind is FedGAMMA else FedAvg()
    assert_same(train(kind(rho=5.0), task)["buffers"], train(known, task)["buffers"])


@pytest.mark.parametrize("kind", [FedLESAM, FedSWA])
def test_running_statistics_are_averaged_as_models(kind):
    """By default uniformly, as those of SCAFFOLD; alpha moves params alone."""
    task = normalised_task(rounds=1, local_epochs=None, local_steps=1)
    for weighting, known in (("uniform", Scaffold()), ("examples", FedAvg())):
        assert_same(train(kind(weighting=weighting), task)["buffers"], train(known, task)["buffers"])


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_of_zero_leaves_params_as_they_are(kind, engine, monkeypatch):
    zero = lambda self, params, batch, view: sum(0 * leaf.sum() for leaf in params.values())  # noqa: E731
    monkeypatch.setattr(kind, "local_loss", zero)
    task = toy_task(engine=engine, weight_decay=0.0, rounds=1, local_epochs=1)
    assert_same(train(kind(), task)["params"], task.initial_params())


def test_what_is_too_short_has_no_direction():
    short = {"w": double([3e-13, 4e-13]), "b": double([0.0])}
    assert tree.norm(ascent(short, 5.0)) == 0
    close(ascent(tree.scale(short, 1e13), 5.0)["w"], [3.0, 4.0], 1e-11)


@pytest.mark.parametrize("options, most", [({"clip": 0.5}, 0.5), ({"clip": 100.0}, None), ({"clip": None}, None)])
@pytest.mark.parametrize(
    "kind", [FedSpeed, FedGAMMA, FedLESAM, FedLESAMS, FedLESAMD, FedSMOO, FedSWA, FedMoSWA, FedGloSS]
)
def test_long_gradients_are_clipped(kind, options, most, on_bowls):
    """One step of lr 1 from a model whose gradient is (-0.5, -2), alone or after an ascent."""
    on_bowls(kind, ((0,),))
    task = bowls(lr=1.0, local_steps=1)
    method = kind(**options)
    length = tree.norm(
        tree.subtract({"w": iterates(method, task, method.init(task))[0][0]}, task.initial_params())
    ).item()
    if most:
        assert length == pytest.approx(most, abs=1e-12)
    else:
        assert length > 2


@pytest.mark.parametrize("kind", [FedGAMMA, FedLESAMS])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mode", get_args(MomentumMode))
def test_a_gradient_is_clipped_together_with_its_correction(kind, mode, momentum, on_bowls):
    """The gradient (-0.5, -2) + c - c_i = (3, 4) - (0.5, -2) is (2, 4): scaled to length 1. With momentum on the gradient
    alone, that is clipped alone."""
    on_bowls(kind, ((0,),))
    method, task = kind(rho=0.0, clip=1.0, momentum_mode=mode), bowls(lr=1.0, local_steps=1, momentum=momentum)
    state = method.init(task)
    state = {**state, "server": {"control": {"w": double([3.0, 4.0])}}}
    kept = {**tree.map(lambda leaf: leaf[None], state["clients"]["fresh"]), "control": {"w": double([[0.5, -2.0]])}}
    state = {**state, "clients": write_rows(state["clients"], torch.tensor([0]), kept)}
    moved = iterates(method, task, state)[0][0] - double(W)
    together, alone = (
        [-2 / math.sqrt(20), -4 / math.sqrt(20)],
        [0.5 / math.hypot(0.5, 2) - 2.5, 2 / math.hypot(0.5, 2) - 6],
    )
    close(moved, alone if momentum and mode == "outside" else together, 1e-12)


@pytest.mark.parametrize("kind", FAMILY)
def test_costs_are_those_of_the_oracle(kind, monkeypatch):
    calls, known = [], ORACLE["cost_sam_family"]
    size = known["inputs"]["params"] * known["inputs"]["bytes_per_number"]
    task = toy_task(shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(6,), rounds=1, local_epochs=1)
    task = replace(task, model=models.load("simple-cnn")((3, 32, 32), 10))
    called = BoundModel.__call__
    monkeypatch.setattr(BoundModel, "__call__", lambda self, *given: [calls.append(1), called(self, *given)][1])
    name = {FedGloSS: "fedgloss_sam"}.get(kind, algorithms.name_of(kind()).replace("-", "_"))
    expected, start = known["expected"][name], kind().init(task)
    assert tree.num_bytes(start["params"]) == size
    state = kind().step(task, start)
    assert len(calls) == expected["forwards"] and kind().passes_per_example == expected["backwards"]
    assert state["costs"]["bytes_up"] == size + expected["extra_up"]
    assert state["costs"]["bytes_down"] == size + expected["extra_down"]
    kept = state["clients"]["rows"][0]
    assert tree.num_bytes(kept) == expected["client_vectors_kept"] * size
    if kind is FedGloSS:
        assert FedGloSS(rho_l=0.0).passes_per_example == known["expected"]["fedgloss_sgd"]["backwards"]


def test_the_model_before_the_last_round_is_sent_beside_the_last_one():
    """In the first round, too, as the zeros of SCAFFOLD."""
    task = toy_task(rounds=3, local_epochs=1)
    method = FedLESAM(estimate="last_round")
    size, states = tree.num_bytes(task.initial_params()), [method.init(task)]
    for _ in range(3):
        states.append(method.step(task, states[-1]))
    down = [after["costs"]["bytes_down"] - before["costs"]["bytes_down"] for before, after in zip(states, states[1:])]  # noqa: B905
    assert down == [10 * size] * 3
    assert (
        method.traffic(task) == Scaffold().traffic(task) - 3 * size == 9 * size and FedLESAM().traffic(task) == 6 * size
    )
    assert states[-1]["clients"] == no_rows({}) | {"rows": {client: {} for client in range(5)}}


def test_clients_of_one_class_have_a_caveat():
    """The second client of the toy task has no other label than 1."""
    task = toy_task()
    for kind in (FedSpeed, FedGAMMA, FedLESAMS, FedLESAMD, FedSMOO, FedGloSS):
        (said,) = kind().caveats(task)
        assert said.startswith(f"{algorithms.name_of(kind())}: 1 of 5 clients have examples of one class only: ")
    assert (
        FedSpeed(rho=0.0).caveats(task) == FedLESAM().caveats(task) == FedSMOO().caveats(toy_task(sizes=(30, 0))) == []
    )


def test_fedlesam_says_that_clients_that_do_not_return_ascend_nowhere():
    said = (
        "fedlesam: a client takes part 1.2 times on average, and the first time e is 0, so that many gradients are those of "
        "the method without ascents."
    )
    task = toy_task(participation=0.4, rounds=3)
    assert FedLESAM().caveats(task) == [said]
    assert len(FedLESAMS().caveats(task)) == 2  # also of the client with one class
    others = [FedLESAM(estimate="last_round"), FedLESAM(rho=0.0)]
    assert [method.caveats(task) for method in others] == [[], []] and FedLESAM().caveats(toy_task(rounds=2)) == []


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedSpeed(rho=-1), "rho must be at least 0, but got -1."),
    (lambda: FedSpeed(sharp_weight=2), "sharp_weight must be between 0 and 1, but got 2."),
    (lambda: FedSpeed(server="code"), "server must be one of mean_memory, corrected_upload, but got 'code'."),
    (lambda: FedSMOO(clip_order="last"), "clip_order must be one of centred, reference, but got 'last'."),
    (lambda: FedSMOO(s_from="e"), "s_from must be one of mu, mu_minus_e, but got 'e'."),
    (lambda: FedGAMMA(rho=math.nan), "rho must be at least 0, but got nan."),
    (lambda: FedGAMMA(clip=0), "clip must be greater than 0, but got 0."),
    (lambda: FedLESAM(clip=-1), "clip must be greater than 0, but got -1."),
    (lambda: FedLESAM(weighting="size"), "weighting must be one of examples, uniform, but got 'size'."),
    (lambda: FedLESAMD(estimate="now"), "estimate must be one of last_active, last_round, but got 'now'."),
    (lambda: FedLESAMS(norm="two"), "norm must be one of all, sum, but got 'two'."),
    (lambda: FedLESAMS(correction=-1), "correction must be at least 0, but got -1."),
    (lambda: FedSOL(rho=-1), "rho must be at least 0, but got -1."),
    (lambda: FedSOL(form="both"), "form must be one of adaptive, fixed, but got 'both'."),
    (lambda: FedSOL(norms="rows"), "norms must be one of columns, tensor, but got 'rows'."),
    (lambda: FedSOL(temperature=0), "temperature must be greater than 0, but got 0."),
    (lambda: FedSWA(rho=1.5), "rho must be between 0 and 1, but got 1.5."),
    (lambda: FedSWA(alpha=0), "alpha must be greater than 0, but got 0."),
    (lambda: FedSWA(clip=0), "clip must be greater than 0, but got 0."),
    (lambda: FedMoSWA(gamma=2), "gamma must be between 0 and 1, but got 2."),
    (lambda: FedMoSWA(divisor="K"), "divisor must be one of sum, reference, but got 'K'."),
    (lambda: FedGloSS(rho_l=-1), "rho_l must be at least 0, but got -1."),
    (lambda: FedGloSS(server_lr=0), "server_lr must be greater than 0, but got 0."),
    (lambda: FedGloSS(warm_up=2), "warm_up must be between 0 and 1, but got 2."),
    (lambda: FedGloSS(schedule="code"), "schedule must be one of ramp, reference, but got 'code'."),
)
