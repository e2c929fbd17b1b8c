"""FedALA, APFL, FedDBE and FedAMP against personal_oracle.json, and what they are at special values."""

from dataclasses import dataclass, replace

import pytest
import torch

import algorithms.apfl
from algorithms.apfl import APFL
from algorithms.fedala import FedALA
from algorithms.fedamp import FedAMP
from algorithms.fedavg import FedAvg
from algorithms.feddbe import FedDBE
from algorithms.fedper import FedPer
from algorithms.fedprox import FedProx
from algorithms.local_training import LocalTraining
from algorithms.shared import tree
from algorithms.shared.client_states import read_rows
from bench import models
from bench.models.base import BoundModel, Model
from tests.support.by_hand import PLAIN, Alone, FromFeatures, Given, double, slope_of
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, assert_equal, kinds_of_tasks, normalised_task, toy_task, train

ORACLE = oracle("personal")
ENGINES = pytest.mark.parametrize("engine", ["loop", "vectorised"])
EVERYONE = torch.arange(5)


def close(found, expected, tolerance):
    found = torch.as_tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, double(expected).reshape(found.shape), rtol=0, atol=tolerance)


def assert_same_deployed(found, expected):
    assert_equal({**found.params, **found.buffers}, {**expected.params, **expected.buffers})


def rows_of(state, name):
    return [row[name] for row in state["clients"]["rows"].values()]


# FedALA


ALA = ORACLE["fedala"]


@dataclass(frozen=True)
class Line(Model):
    """yhat = h b x + c."""


def squared_line(self, params, batch, view):
    predicted = params["h"] * params["b"] * batch.x + params["c"]
    return batch.mean((0.5 * (predicted - batch.y).square()).flatten())


def scalars(values):
    return {name: double([value]) for name, value in values.items()}


def ala(monkeypatch, **options):
    """The method on the oracle's line, and a task of one client with its two examples."""
    monkeypatch.setattr(FedALA, "local_loss", squared_line)
    method = FedALA(eta=ALA["inputs"]["eta"], share=1.0, part="block", **options)
    examples = double(ALA["inputs"]["batches_x_y"])
    task = Alone(Line((1, 1, 1), 3), [Given(examples[:, :1], examples[:, 1:])], replace(PLAIN, batch_size=1))
    return method, task


def ala_state(body, head, own, weights, started):
    row = {"own": scalars(own), "weights": scalars(weights), "epochs": double(3.0 if started else 0.0)}
    params = scalars({"b": body, **head})
    return {"round": 1, "params": params, "buffers": {}, "server": {}, "clients": {"fresh": row, "rows": {0: row}}}


def test_fedala_learns_weights_as_in_the_oracle(monkeypatch):
    method, task = ala(monkeypatch)
    given, expected, tolerance = ALA["inputs"], ALA["expected"], ALA["tol"]
    b, head = given["global"]["b"], {name: given["global"][name] for name in "hc"}
    own, ones = {name: given["local"][name] for name in "hc"}, {"h": 1.0, "c": 1.0}
    state = ala_state(b, head, own, ones, started=False)
    seen, learn = [], FedALA._learn
    monkeypatch.setattr(FedALA, "_learn", lambda *given: seen.append(learn(*given)) or seen[-1])
    found = method.cohort_states(task, task.cohort(torch.tensor([0])), state)
    close([found["weights"][name] for name in "hc"], expected["start_phase_W"], tolerance)
    close([found["start"][name] for name in "hc"], expected["start_phase_theta"], tolerance)
    close([one["loss"] for one in seen], expected["last_batch_losses"], tolerance)
    assert found["epochs"].tolist() == [expected["start_phase_epochs"]]
    view = task.clients[0].view(task.model, state["params"], client=tree.row(found, 0))
    assert method.personal_model(None, [], view)["params"]["b"].item() == expected["init_b"]

    # One epoch, batch by batch: a plan of the first one or two batches.
    for batches, step in enumerate(expected["one_epoch"], 1):
        client = Given(task.clients[0].x[:batches], task.clients[0].y[:batches])
        short = replace(task, clients=[client])
        epoch = method._learn(
            short,
            state,
            short.cohort(torch.tensor([0])),
            {"own": tree.map(lambda t: t[None], scalars(own)), "weights": tree.map(lambda t: t[None], scalars(ones))},
        )
        close([epoch["weights"][name] for name in "hc"], step["W"], tolerance)
        close(epoch["loss"], step["loss"], tolerance)


@pytest.mark.parametrize("resets", [False, True])
def test_later_epochs_of_fedala_go_on_from_the_last_weights(resets, monkeypatch):
    method, task = ala(monkeypatch)
    given, expected, tolerance = ALA["inputs"]["round2"], ALA["expected"], ALA["tol"]
    own, head = (dict(zip("hc", given[f"{key}_h_c"], strict=True)) for key in ("local", "global"))
    weights = [1.0, 1.0] if resets else expected["start_phase_W"]
    state = ala_state(given["global_b"], head, own, dict(zip("hc", weights, strict=True)), started=True)
    found = method.cohort_states(task, task.cohort(torch.tensor([0])), state)
    key = "round2_%s_if_reset_to_one"
    last = expected["round2_one_epoch_W_carried"][-1]
    close([found["weights"][n] for n in "hc"], expected[key % "W"] if resets else last["W"], tolerance)
    close([found["start"][n] for n in "hc"], expected[key % "theta"] if resets else last["theta_hat"], tolerance)
    assert found["epochs"].tolist() == [1]


def test_limits_of_fedala(monkeypatch):
    known = ORACLE["fedala_limits"]
    given, expected, tolerance = known["inputs"], known["expected"], known["tol"]
    own, head = (dict(zip("hc", given[key], strict=True)) for key in ("local", "global"))
    method, task = ala(monkeypatch)
    still = replace(method, eta=0.0)
    for one, key in ((0.0, "W_zero_gives_local_exactly"), (1.0, "W_one")):
        state = ala_state(0.0, head, own, {"h": one, "c": one}, started=True)
        start = still.cohort_states(task, task.cohort(torch.tensor([0])), state)["start"]
        close([start[name] for name in "hc"], expected[key], tolerance)
    close([start[name] - head[name] for name in "hc"], expected["W_one_minus_global"], tolerance)
    none = replace(method, adaptive_tensors=0)
    state["clients"]["rows"][0] = {"own": {}, "weights": {}, "epochs": double(0.0)}
    state["clients"]["fresh"] = state["clients"]["rows"][0]
    found = none.cohort_states(task, task.cohort(torch.tensor([0])), state)
    view = task.clients[0].view(task.model, state["params"], client=tree.row(found, 0))
    deployed = none.personal_model(None, [], view)["params"]
    assert [deployed[name].item() for name in "hc"] == expected["no_adaptive_tensor"]


@kinds_of_tasks
@pytest.mark.parametrize("options", [{"adaptive_tensors": 0}, {"eta": 0.0}], ids=str)
def test_without_adaptive_tensors_or_steps_fedala_is_fedavg(task_of, options):
    task = task_of(participation=0.6)
    found, expected = train(FedALA(**options), task), train(FedAvg(), task)
    # On some processors the vectorised engine rounds otherwise.
    assert_equal(found["params"], expected["params"], 1e-12)


@ENGINES
def test_with_weights_of_0_fedala_is_fedper(engine):
    task, method = toy_task(engine=engine), FedALA(eta=0.0)
    state = method.init(task)
    fresh = state["clients"]["fresh"]
    blank = {**fresh, "weights": tree.zeros_like(fresh["weights"])}
    state = {**state, "clients": {**state["clients"], "fresh": blank}}
    for _ in range(3):
        state = method.step(task, state)
    other = train(FedPer(), task)
    body = [name for name in state["params"] if not name.startswith("classifier.")]
    for name in body:
        assert torch.equal(state["params"][name], other["params"][name]), name
    assert_equal(rows_of(state, "own")[3], rows_of(other, "params")[3])


@pytest.mark.parametrize("part", ["random", "block"])
@ENGINES
def test_fedala_learns_from_a_part_of_the_examples_without_repetition(part, engine):
    task = toy_task(sizes=(13, 5, 1, 8, 11), engine=engine, local_steps=9, local_epochs=None)
    method, counts = FedALA(share=0.6, part=part), torch.tensor([8, 3, 1, 5, 7])

    def taken(data, plan, view):
        batches = method._batches(plan, view)
        rows = torch.zeros(sum(map(len, task.federation.clients)))
        for index in batches:
            real = torch.ones_like(index.rows, dtype=torch.bool) if index.mask is None else index.mask
            rows = rows + (index.rows[:, None] == torch.arange(len(rows)))[:, :].mul(real[:, None]).sum(0)
        return {"rows": rows}

    rounds = [
        task.map_clients(taken, task.cohort(EVERYONE), round=r, params={}, buffers={}).result["rows"] for r in (0, 1)
    ]
    for rows in rounds:
        assert torch.equal(rows.sum(1), counts.to(rows.dtype)) and rows.max() == 1
        for client, own in enumerate(task.federation.clients):
            where = rows[client].nonzero().flatten()
            assert torch.isin(where, own).all()
            if part == "block":
                assert where[-1] - where[0] == len(where) - 1
    assert not torch.equal(*rounds)
    other = task.map_clients(taken, task.cohort(EVERYONE), round=0, params={}, buffers={}).result["rows"]
    assert torch.equal(other, rounds[0])


def test_fedala_learns_in_evaluation_mode():
    """An epoch of one batch from W = 1: W = clip(1 - eta g (w - t)), with the gradient g at w, of received statistics."""
    task, method = normalised_task(batch_size=20, local_epochs=1), FedALA(share=1.0, eta=50.0)
    state = train(method, task, rounds=1)
    kept = read_rows(state["clients"], EVERYONE)
    found = method._learn(task, state, task.cohort(EVERYONE), kept)["weights"]
    for client in range(5):
        slope = slope_of(task, client, state["params"], state["buffers"])
        for name, weights in found.items():
            away = state["params"][name] - kept["own"][name][client]
            expected = (1 - 50.0 * slope[name] * away).clamp(0, 1)
            torch.testing.assert_close(weights[client], expected, rtol=0, atol=1e-4)
            assert (expected < 0.999).any()


def test_absent_clients_of_fedala_keep_their_weights_and_metrics_are_noted():
    task = toy_task(participation=0.6, rounds=4)
    method, (state, *_) = FedALA(), [FedALA().init(toy_task())]
    for round in range(4):
        after, ids = method.step(task, state), task.sample_cohort(round).ids.tolist()
        for client, row in state["clients"]["rows"].items():
            if client not in ids:
                assert after["clients"]["rows"][client] is row
        assert after["metrics"].keys() == {"ala_weight", "ala_epochs"}
        state = after
    assert state["metrics"]["ala_epochs"] > 0 and state["metrics"]["ala_weight"] < 1


@pytest.mark.slow_but_first
@ENGINES
def test_epochs_of_fedala_count_among_the_examples_and_a_run_is_known_to_have_no_more(engine):
    """Parts of 0.6 of 13 and 5 examples are 8 and 3. A first use that never ends has 100 epochs, a later one has one."""
    task = toy_task(sizes=(13, 5), engine=engine, rounds=4)
    fedavg, endless, plain = (FedAvg(), FedALA(share=0.6, threshold=1e-12, eta=3.0), FedALA(share=0.6))
    spent = [train(method, task)["costs"]["examples"] for method in (fedavg, endless, plain)]
    assert spent[1] - spent[0] == (100 + 2) * (8 + 3) and spent[0] < spent[2] < spent[1]
    assert sum(endless.workload(task.settings, size) for size in (13, 5)) == spent[1]
    for idle in (replace(plain, eta=0.0), replace(plain, adaptive_tensors=0)):
        assert train(idle, task)["costs"] == train(fedavg, task)["costs"]
        assert idle.workload(task.settings, 13) == fedavg.workload(task.settings, 13)


@pytest.mark.slow
def test_where_few_take_part_fedala_visits_and_deploys_no_more_than_it_says():
    task = toy_task(sizes=(10,) * 10, participation=0.3, rounds=10)
    endless = FedALA(threshold=1e-12, eta=3.0)
    state = train(endless, task)
    deployed = endless.deploy(task, state, torch.arange(10))
    within = 3 * endless.workload(task.settings, 10)
    assert 3 * (100 + 8) * 10 < state["costs"]["examples"] <= within
    assert 10 * 10 < deployed.examples <= 10 * endless.deploy_workload(task.settings, 10)


def test_first_uses_of_fedala_end_after_100_epochs_or_where_losses_are_no_numbers():
    method = FedALA(threshold=1e-9)
    assert not method._is_steady([1.0] * 10) and method._is_steady([1.0] * 11)
    assert method._is_steady([float("nan")] * 11)
    task = toy_task(sizes=(6, 6), rounds=2)
    assert train(FedALA(threshold=1e-12, eta=3.0), task)["metrics"]["ala_epochs"] == 100


# APFL


KNOWN = ORACLE["apfl"]


@dataclass(frozen=True)
class Point(Model):
    """One number as the only logit."""

    def layers(self):
        return {"classifier": (1, 1)}

    def init(self, generator):
        return {"classifier.weight": torch.tensor([[KNOWN["inputs"]["w0"]]]), "classifier.bias": torch.zeros(1)}

    def features(self, params, x, bound):
        return torch.ones_like(x.flatten(1)[:, :1])


def bowl(point):
    return KNOWN["inputs"]["a"] / 2 * (point - KNOWN["inputs"]["c"]).square().mean()


def on_the_bowl(monkeypatch, method, steps):
    monkeypatch.setattr(APFL, "local_loss", lambda self, params, batch, view: bowl(view.model(params, batch.x)))
    monkeypatch.setattr(algorithms.apfl, "cross_entropy", lambda logits, batch: bowl(logits))
    settings = {"lr": KNOWN["inputs"]["eta"], "momentum": 0.0, "weight_decay": 0.0, "rounds": 1}
    task = toy_task(sizes=(6,), local_epochs=None, local_steps=steps, batch_size=2, **settings)
    task = replace(task, model=Point((1, 6, 6), 1))
    state = method.init(task)
    state["clients"]["fresh"]["own"] = {**state["params"], "classifier.weight": double([[KNOWN["inputs"]["v0"]]])}
    return task, method.step(task, state)


def numbers_of(state):
    row = state["clients"]["rows"][0]
    return [state["params"]["classifier.weight"].item(), row["own"]["classifier.weight"].item(), row["alpha"].item()]


@pytest.mark.parametrize(
    "key, options",
    [
        ("paper_fixed", {}),
        ("paper_adaptive", {"adaptive": True}),
        ("fedtorch_fixed", {"mix": "logits"}),
        ("fedtorch_adaptive", {"mix": "logits", "adaptive": True}),
    ],
)
def test_apfl_follows_the_oracle(key, options, monkeypatch):
    known, tolerance = KNOWN["expected"][key], KNOWN["tol"]
    method = APFL(alpha=KNOWN["inputs"]["alpha0"], scored="after", **options)
    # The bias is 1/4 of what is learnt on a point: it is frozen.
    monkeypatch.setattr(
        Point, "head", lambda self, params, z: z * params["classifier.weight"] + 0 * params["classifier.bias"]
    )
    for steps, expected in enumerate(known["steps"], 1):
        task, state = on_the_bowl(monkeypatch, method, steps)
        close(numbers_of(state), [expected[name] for name in ("w", "v", "alpha")], tolerance)
        for other in ("pfllib", "paper_no_alpha_factor_fixed"):
            assert abs(numbers_of(state)[1] - KNOWN["expected"][other]["steps"][steps - 1]["v"]) > 1e-3
    deployed = method.deploy(task, state, torch.tensor([0]))
    weight = deployed.params["classifier.weight"]
    close(weight.sum(), known["mixture_with_local_w"], tolerance)
    if key == "paper_fixed":
        moved = {**state["params"], "classifier.weight": double([[KNOWN["inputs"]["global_w_after_aggregation"]]])}
        found = replace(method, scored="before").deploy(task, {**state, "params": moved}, torch.tensor([0]))
        close(found.params["classifier.weight"].item(), KNOWN["expected"]["deployed_paper_fixed"], tolerance)


@pytest.mark.parametrize("alpha, path", [(0.0, "alpha_zero_v_path"), (1.0, "alpha_one_v_path_is_local")])
def test_paths_of_apfl_at_the_ends(alpha, path, monkeypatch):
    monkeypatch.setattr(
        Point, "head", lambda self, params, z: z * params["classifier.weight"] + 0 * params["classifier.bias"]
    )
    for steps in (1, 2, 3):
        w, v, _ = numbers_of(on_the_bowl(monkeypatch, APFL(alpha=alpha), steps)[1])
        close([w, v], [KNOWN["expected"][key][steps - 1] for key in ("alpha_zero_w_path", path)], KNOWN["tol"])


@dataclass(frozen=True)
class Product(Model):
    """yhat = h b x, as the only logit."""

    def layers(self):
        return {"body": (1,), "classifier": (1, 1)}

    def features(self, params, x, bound):
        return params["body.weight"] * x


@pytest.mark.parametrize("mix, name", [("weights", "weights"), ("logits", "outputs")])
def test_mixed_weights_and_mixed_logits_are_two_methods(mix, name, monkeypatch):
    known = ORACLE["apfl_mix_weights_or_outputs"]
    given, expected, tolerance = known["inputs"], known["expected"], known["tol"]
    monkeypatch.setattr(algorithms.apfl, "cross_entropy", lambda z, batch: 0.5 * (z - batch.y).square().sum())
    squared = lambda self, params, batch, view: 0.5 * (view.model(params, batch.x) - batch.y).square().sum()  # noqa: E731
    monkeypatch.setattr(APFL, "local_loss", squared)
    model, zero = Product((1, 1, 1), 1), double([0.0])
    v, w = (
        {"body.weight": double([[b]]), "classifier.weight": double([[h]]), "classifier.bias": zero}
        for b, h in (given["v"], given["w"])
    )
    data = Given(double([[given["x"]]]), double([[given["y"]]]))
    method, alpha = APFL(mix=mix, alpha=given["alpha"]), double(given["alpha"])
    view = data.view(model, w, client={"own": v, "buffers": {}, "alpha": alpha, "seen": torch.tensor(True)})
    slope = method._slope(w, alpha, view, False, [], method.local_loss, v, data.batch(), view)
    close([slope["body.weight"], slope["classifier.weight"]], expected[f"grad_v_b_h_mixed_{name}"], tolerance)
    deployed = method.personal_model(data, [], view)
    task = Alone(model, [data])
    bound = BoundModel(method.deployed_model(task), deployed["buffers"])
    close(bound(deployed["params"], data.x), expected[f"yhat_mixed_{name}"], tolerance)


@pytest.mark.slow_but_first
@kinds_of_tasks
@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.7}, {"adaptive": True}, {"mix": "logits"}], ids=str)
def test_the_shared_model_of_apfl_is_that_of_fedavg(task_of, options):
    task = task_of(participation=0.6, weight_decay=0.0)  # by which v would shrink
    method = APFL(**options)
    state, expected = train(method, task), train(FedAvg(), task)
    for part in ("params", "buffers"):
        assert_equal(state[part], expected[part])
    if options == {"alpha": 0.0}:
        assert_same_deployed(
            method.deploy(task, state, EVERYONE), FedAvg().deploy(task, expected, EVERYONE).for_each(5)
        )
        assert_equal(rows_of(state, "own")[0], task.initial_params())


@kinds_of_tasks
def test_apfl_with_alpha_1_is_local_training(task_of):
    task, method = task_of(), APFL(alpha=1.0)
    assert_same_deployed(*(one.deploy(task, train(one, task), EVERYONE) for one in (method, LocalTraining())))


def test_a_client_that_has_not_taken_part_deploys_the_shared_model_of_apfl():
    task = toy_task(participation=0.4, rounds=1)
    absent = min({*range(5)} - {*task.sample_cohort(0).ids.tolist()})
    for options in ({}, {"scored": "after"}):
        method = APFL(**options)
        state = train(method, task)
        assert_equal(tree.row(method.deploy(task, state, EVERYONE).params, absent), state["params"])


def test_both_mixtures_of_apfl_are_deployed_with_running_statistics():
    task = normalised_task(rounds=2, local_epochs=1)
    for mix in ("weights", "logits"):
        method = APFL(mix=mix)
        found = method.deploy(task, train(method, task), EVERYONE)
        assert found.buffers.keys() == found.model.init_buffers().keys()
        assert tree.all_finite([found.params, found.buffers])


# FedDBE


DBE = ORACLE["feddbe"]


def dbe_params(moved):
    given = DBE["inputs"]
    weight, bias = double(given["W_d_by_C"]).T.contiguous(), double(given["bias"])
    return {"body.moved": moved, "classifier.weight": weight, "classifier.bias": bias}


@pytest.mark.parametrize("mu", [1.0, 0.1])
def test_the_loss_of_feddbe_follows_the_oracle(mu):
    given, expected = DBE["inputs"], DBE["expected"]["mu1" if mu == 1 else "mu0.1"]
    tolerance, method = DBE["tol"], FedDBE(mu=mu, kappa=given["kappa"])
    data = Given(double(given["features"]), torch.tensor(given["y"]))
    model, z = FromFeatures((1, 2, 3), 2), double(given["z"])
    past = (1 - mu) * double(given["running_before"])
    server = {"past": past, "scale": double(1.0), "mean": double(given["global_mean"])}
    params = dbe_params(torch.zeros_like(data.x)) | {"shift": z}
    view = data.view(model, params, server=server, client={"shift": z})
    leaves = {name: leaf.requires_grad_() for name, leaf in params.items()}
    loss = method.local_loss(leaves, data.batch(), view)
    close(loss.detach(), expected["loss"], tolerance)
    loss.backward()
    close(params["body.moved"].grad, expected["grad_features"], tolerance)
    close(params["shift"].grad, expected["grad_z"], tolerance)
    close((past + mu * data.x.mean(0)), expected["running"], tolerance)
    if mu == 1:
        start = dbe_params(torch.zeros_like(data.x))
        still = data.view(model, start, server={"mean": double(given["global_mean"])}, client={"shift": z.detach()})
        still = replace(still, settings=replace(PLAIN, lr=given["lr_z"], momentum=0.9, weight_decay=0.5))
        kept = method.local_update(data, data.plan(), still).client
        close(kept["shift"], expected["z_new"], tolerance)
        close(
            FedDBE(kappa=0.0).local_loss(start, data.batch(), replace(still, client={"shift": 0 * z.detach()})),
            DBE["expected"]["kappa0_z0_loss_is_ce"][0],
            tolerance,
        )
        deployed = method.personal_model(data, [], still)["params"]
        close(BoundModel(model, {})(deployed, data.x), DBE["expected"]["test_logits"], tolerance)


def test_the_mean_of_features_before_the_first_round_follows_the_oracle(monkeypatch):
    given, expected = DBE["inputs"], DBE["expected"]
    task, method = toy_task(), FedDBE()
    state = method.init(task)
    cohort = replace(task.cohort(torch.tensor([0, 1])), weights=double(given["n"]))
    means = {"mean": double(given["init_running_means"])}
    outputs = type("Outputs", (), {"result": means})
    monkeypatch.setattr(FedDBE, "map_clients", lambda *given: outputs)
    found = method._with_mean(task, state, cohort)
    close(found["server"]["mean"], expected["global_mean_from_init"], DBE["tol"])
    assert found["server"]["known"]


def test_the_running_mean_starts_at_0_and_may_be_debiased():
    ones = Given(torch.ones(3, 1, 3, dtype=torch.float64).flatten(1), torch.zeros(3, dtype=torch.long))
    params = {"classifier.weight": torch.zeros(2, 3, dtype=torch.float64), "classifier.bias": double([0.0, 0.0])}
    view = ones.view(
        FromFeatures((1, 1, 3), 2), params, server={"mean": double([0.0] * 3)}, client={"shift": double(0.0)}
    )
    for debias in (False, True):
        _, running = FedDBE(mu=0.1, debias=debias)._walk(params, ones, ones.plan(1), view, regularised=False)
        expected = DBE["expected"]["running_after_3_batches_of_ones_mu0.1_from_zero"]
        close(running, [1.0] * 3 if debias else expected, DBE["tol"])


def test_debiased_means_in_training_are_of_the_batches_alone():
    """All features are 1: so is their debiased mean after every step."""
    ones = Given(torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    params = {
        "body.moved": torch.zeros(1, 3, dtype=torch.float64),
        "classifier.weight": torch.zeros(2, 3, dtype=torch.float64),
        "classifier.bias": double([0.0, 0.0]),
    }
    client, server = {"shift": torch.zeros(3, dtype=torch.float64)}, {"mean": torch.zeros(3, dtype=torch.float64)}
    view = ones.view(FromFeatures((1, 1, 3), 2), params, server=server, client=client, settings=replace(PLAIN, lr=1e-9))
    moved = {}
    for debias in (False, True):
        found = FedDBE(mu=0.5, kappa=6.0, debias=debias).local_update(ones, ones.plan(1), view)
        moved[debias] = found.update["delta"]["body.moved"][0, 0].item() / -1e-9
    # Steps 1 and 2: r 0.5 and 0.75, or 1 and 1; dr/df 0.5 each, or 0.5 / 0.5 and 0.5 / 0.75; kappa / d = 2.
    assert moved[False] == pytest.approx(2 * (0.5 * 0.5 + 0.75 * 0.5), rel=1e-6)
    assert moved[True] == pytest.approx(2 * (1 + 0.5 / 0.75), rel=1e-6)


@kinds_of_tasks
def test_without_shift_and_regulariser_feddbe_is_fedavg(task_of):
    task = task_of(participation=0.6)
    method = FedDBE(kappa=0.0, train_shift=False)
    state, expected = train(method, task), train(FedAvg(), task)
    assert_equal(state["params"], expected["params"])
    assert_same_deployed(method.deploy(task, state, EVERYONE), FedAvg().deploy(task, expected, EVERYONE).for_each(5))


def test_feddbe_trains_for_one_more_round_before_the_first_one():
    task = toy_task(participation=0.6)
    plain, found, without = (train(method, task)["costs"] for method in (FedAvg(), FedDBE(), FedDBE(kappa=0.0)))
    cohort = task.sample_cohort(0)
    assert without == plain
    assert found["examples"] - plain["examples"] == task.num_trained(cohort)
    size = tree.num_bytes(torch.zeros(task.model.feature_dim, dtype=torch.float64))
    assert found["bytes_up"] - plain["bytes_up"] == found["bytes_down"] - plain["bytes_down"] == 3 * size


# FedAMP


AMP = ORACLE["fedamp"]


@dataclass(frozen=True)
class Pair(Model):
    """Two numbers."""

    def init(self, generator):
        return {"point.weight": torch.zeros(2)}


def amp_state(points):
    leaves = [{"params": {"point.weight": double(point)}, "buffers": {}} for point in points]
    fresh = {"params": {"point.weight": torch.zeros(2, dtype=torch.float64)}, "buffers": {}}
    return {
        "round": 1,
        "params": fresh["params"],
        "buffers": {},
        "server": {},
        "clients": {"fresh": fresh, "rows": dict(enumerate(leaves))},
    }


def full_coefficients(method, points):
    stacked = {"point.weight": double(points)}
    apart = ~torch.eye(len(points), dtype=torch.bool)
    found = method.coefficients(stacked, stacked, apart)
    return found + torch.diag(1 - found.sum(1))


@pytest.mark.parametrize(
    "key, options",
    [
        ("coefficients", {"sigma": AMP["inputs"]["sigma"], "others": AMP["inputs"]["alpha_k"]}),
        ("coefficients_alpha10_sigma1", {"sigma": 1.0, "others": 10.0}),
        ("coefficients_tiny_sigma_is_local", {"sigma": 1e-3, "others": 0.5}),
    ],
)
def test_coefficients_of_fedamp_follow_the_oracle(key, options):
    method = FedAMP(similarity="fixed", **options)
    close(full_coefficients(method, AMP["inputs"]["w"]), AMP["expected"][key], AMP["tol"])


def test_coefficients_by_cosine_follow_the_oracle():
    given = AMP["inputs"]["heur"]
    method = FedAMP(similarity="cosine", sigma=given["sigma"], others=1 - given["self_weight"])
    close(full_coefficients(method, given["w"]), AMP["expected"]["heur_coefficients"], AMP["tol"])


def test_relative_coefficients_are_in_units_of_the_median_distance():
    """Points 0, 1 and 3 on a line: squared distances 1, 4 and 9, the median is 4; c / (m - 1) is 0.4."""
    found = full_coefficients(FedAMP(sigma=0.5, others=0.8), [[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    a, b, c = (0.4 * torch.exp(double(-d / 2.0)).item() for d in (1, 4, 9))
    close(found, [[1 - a - c, a, c], [a, 1 - a - b, b], [c, b, 1 - b - c]], 1e-12)
    assert (found.diagonal() >= 1 - 0.8).all()
    even = full_coefficients(
        FedAMP(sigma=0.5, others=0.9), [[x, 0.0] for x in (0.0, 1.0, 3.0, 7.0)]
    )  # between 9 and 16
    close(even[0, 1:], [0.3 * torch.exp(double(-d / 6.25)).item() for d in (1, 9, 49)], 1e-12)
    same = full_coefficients(FedAMP(others=0.8), [[1.0, 1.0]] * 3)
    close(same, [[0.2 if i == j else 0.4 for j in range(3)] for i in range(3)], 1e-12)


@pytest.mark.parametrize("start, key", [("own", "client1_two_steps"), ("cloud", "client1_two_steps_if_started_at_u")])
def test_two_steps_of_fedamp_follow_the_oracle(start, key, monkeypatch):
    given, expected, tolerance = AMP["inputs"], AMP["expected"], AMP["tol"]

    def bowl(self, params, batch, view):
        return 0.5 * (double(given["a"]) * (params["point.weight"] - double(given["c"])).square()).sum()

    monkeypatch.setattr(FedAMP, "local_loss", bowl)
    prox = given["lambda"] / given["alpha_k"]
    method = FedAMP(
        similarity="fixed", sigma=given["sigma"], others=given["alpha_k"], proximal_weight=prox, start=start
    )
    state, one = amp_state(given["w"]), torch.tensor([1])
    data = Given(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))
    for steps, wanted in enumerate(expected[key], 1):
        task = Alone(Pair((1, 1, 1), 2), [data] * 3, replace(PLAIN, batch_size=1 if steps == 2 else 2, lr=given["lr"]))
        cohort = task.cohort(one)
        clouds = method.cohort_states(task, task.cohort(torch.arange(3)), state)["cloud"]
        close(clouds["point.weight"], expected["u"], tolerance)
        found = method.map_clients(task, method.local_update, cohort, state).result.client["params"]["point.weight"]
        close(found, wanted, tolerance)
        assert (found[0] - double(expected["client1_two_steps_pfllib_unsquared"][steps - 1])).abs().max() > 1e-3


@kinds_of_tasks
def test_fedamp_without_others_and_pull_is_local_training(task_of):
    task, method = task_of(participation=0.6), FedAMP(others=0.0, proximal_weight=0.0)
    assert_same_deployed(*(one.deploy(task, train(one, task), EVERYONE) for one in (method, LocalTraining())))


@ENGINES
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_fedamp_that_weighs_all_models_alike_is_uniform_fedavg_or_fedprox(engine, weight):
    task = toy_task(engine=engine, sizes=(8,) * 5)  # equal clients: uniform means
    method = FedAMP(sigma=1e12, others=0.8, proximal_weight=weight, start="cloud", scored="before")
    deployed = method.deploy(task, train(method, task), EVERYONE).params
    expected = train(FedProx(mu=weight), task)["params"]
    assert_equal(deployed, tree.map(lambda leaf: leaf.expand(5, *leaf.shape), expected), tolerance=1e-10)


def test_fedamp_mixes_the_last_models_of_all_that_have_taken_part():
    task = toy_task(participation=0.4, rounds=2)
    first, second = (task.sample_cohort(round).ids.tolist() for round in (0, 1))
    method = FedAMP()
    state = train(method, task)
    assert [*state["clients"]["rows"]] == sorted({*first, *second})
    absent = min({*range(5)} - {*first, *second})
    clouds, own = method._clouds(state, EVERYONE)
    assert own[absent] < 1 and not torch.equal(
        tree.row(clouds, absent)["classifier.bias"], task.initial_params()["classifier.bias"]
    )
    assert_equal(tree.row(method.deploy(task, state, EVERYONE).params, absent), task.initial_params())
    assert 0 < state["metrics"]["self_weight"] < 1 and train(method, task, rounds=1)["metrics"]["self_weight"] == 1
    assert_equal(state["params"], task.initial_params())


@pytest.mark.parametrize("scored, expected", [("after", 2), ("before", 3)])
def test_clouds_of_fedamp_are_computed_once_a_round_and_for_a_score_that_reads_them(scored, expected, monkeypatch):
    seen, clouds = [], FedAMP._clouds
    monkeypatch.setattr(FedAMP, "_clouds", lambda *given: seen.append(given) or clouds(*given))
    task, method = toy_task(rounds=2), FedAMP(scored=scored)
    method.deploy(task, train(method, task), EVERYONE)
    assert len(seen) == expected


def test_running_statistics_of_fedamp_stay_with_clients():
    task = normalised_task(rounds=2, local_epochs=1)
    state = train(FedAMP(), task)
    assert_equal(state["buffers"], task.initial_buffers())
    means = [row["stem.norm.running_mean"] for row in rows_of(state, "buffers")]
    assert not torch.equal(means[0], means[1])


# Moments of scoring


@pytest.mark.parametrize("make", [FedALA, FedDBE])
def test_clients_scored_after_training_deploy_what_the_next_round_trains(make):
    task, method = toy_task(), make(scored="after")
    state = train(method, task, rounds=2)
    deployed = method.deploy(task, state, EVERYONE)
    outputs = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state)
    own = method.local_models(state, outputs)["params"]
    assert_equal(deployed.params, own)
    assert_equal(state["params"], train(make(), task, rounds=2)["params"])
    before = make().deploy(task, state, EVERYONE).params
    assert not torch.equal(before["classifier.weight"], own["classifier.weight"])


@pytest.mark.parametrize("method", [APFL(), FedAMP(), FedALA(), FedDBE()], ids=lambda one: type(one).__name__)
def test_a_footnote_says_when_models_are_scored(method):
    (said,) = method.caveats(toy_task())
    assert said == f"{type(method).__name__.lower()}: clients' models are scored {method.scored} local training."
    other = replace(method, scored="after" if method.scored == "before" else "before")
    assert other.caveats(toy_task()) != [said]


# Costs and refusals


def test_bytes_of_whole_models():
    known = ORACLE["bytes_personal"]["expected"]
    task = toy_task(shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(6,), rounds=1)
    task = replace(task, model=models.load("simple-cnn")((3, 32, 32), 10))
    for method in (FedALA(), APFL(), FedDBE(), FedAMP()):
        one_way = known["fedala_apfl_feddbe_fedamp_one_way"]
        once = known["feddbe_once_each_way"] if isinstance(method, FedDBE) else 0
        assert tree.num_bytes(method.downloads(method.init(task))) == one_way
        assert method.traffic(task) == 2 * (one_way + once)


test_wrong_options = refused(
    (lambda: FedALA(eta=-1.0), "eta must be at least 0, but got -1.0."),
    (lambda: FedALA(share=0.0), "share must be greater than 0, but got 0.0."),
    (lambda: FedALA(share=1.5), "share must be between 0 and 1, but got 1.5."),
    (lambda: FedALA(adaptive_tensors=-1), "adaptive_tensors must be at least 0, but got -1."),
    (lambda: FedALA(part="half"), "part must be one of random, block, but got 'half'."),
    (lambda: FedALA(threshold=0.0), "threshold must be greater than 0, but got 0.0."),
    (lambda: FedALA(scored="never"), "scored must be one of before, after, but got 'never'."),
    (lambda: APFL(alpha=2.0), "alpha must be between 0 and 1, but got 2.0."),
    (lambda: APFL(mix="both"), "mix must be one of weights, logits, but got 'both'."),
    (lambda: FedDBE(kappa=-1.0), "kappa must be at least 0, but got -1.0."),
    (lambda: FedDBE(mu=0.0), "mu must be greater than 0, but got 0.0."),
    (lambda: FedDBE(mu=2.0), "mu must be between 0 and 1, but got 2.0."),
    (lambda: FedAMP(sigma=0.0), "sigma must be greater than 0, but got 0.0."),
    (lambda: FedAMP(others=2.0), "others must be between 0 and 1, but got 2.0."),
    (lambda: FedAMP(similarity="fixed", others=-1.0), "others must be at least 0, but got -1.0."),
    (lambda: FedAMP(proximal_weight=-1.0), "proximal_weight must be at least 0, but got -1.0."),
)


@pytest.mark.parametrize("method", [APFL(mix="logits"), FedDBE()], ids=["apfl", "feddbe"])
def test_methods_that_need_a_linear_classifier(method):
    task = replace(toy_task(), model=Pair((1, 6, 6), NUM_CLASSES))
    with pytest.raises(ValueError, match="a linear classifier with a bias, but Pair has none; use another model."):
        method.init(task)
