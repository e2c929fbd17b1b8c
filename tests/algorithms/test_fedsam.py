"""The FedSAM family against rivals_oracle.json, and what its two passes leave as it is."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.fedconcat import FedConcat
from algorithms.fedconcat_id import FedConcatID
from algorithms.fedsam import FedASAM, FedSAM, MoFedSAM
from algorithms.shared import tree
from bench import models
from bench.config.resolve import resolve
from bench.errors import ConfigError
from bench.models.base import Model
from bench.models.concat import encoder_part
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, normalised_task, toy_task, train

ORACLE = oracle("rivals")
FAMILY = [FedSAM, FedASAM, MoFedSAM]
ENGINES = ["loop", "vectorised"]


def assert_same(a, b):
    for name, leaf in a.items():
        assert torch.equal(leaf, b[name]), name


# The oracle


KNOWN = ORACLE["fedsam"]
INPUTS, EXPECTED, TOL = KNOWN["inputs"], KNOWN["expected"], KNOWN["tol"]


@dataclass(frozen=True)
class Plane(Model):
    """A weight and a bias, which start at 1 and -0.5."""

    def init(self, generator):
        weight, bias = INPUTS["w"]
        return {"weight": torch.tensor([weight]), "bias": torch.tensor([bias])}


def bowl(params, batch, view):
    return (0.5 * params["weight"].square() + 5 * params["bias"].square()).sum()


def plane(engine="loop", **settings):
    given = {"lr": INPUTS["lr"], "weight_decay": INPUTS["weight_decay"], "momentum": 0.0, "rounds": 1, **settings}
    task = toy_task(sizes=(6,), engine=engine, local_epochs=None, **{"local_steps": 1, **given})
    return replace(task, model=Plane(task.model.input_shape, NUM_CLASSES))


def on_the_bowl(method, monkeypatch):
    """The method with that loss, and the params at which it computes the loss."""
    visited = []

    def local_loss(self, params, batch, view):
        visited.append([float(params[name].detach()) for name in ("weight", "bias")])
        return bowl(params, batch, view)

    monkeypatch.setattr(type(method), "local_loss", local_loss)
    return method, visited


def numbers(params):
    return [params["weight"].item(), params["bias"].item()]


@pytest.mark.parametrize(
    "method, name",
    [
        (FedSAM(rho=INPUTS["rho"]), "sam"),
        (FedASAM(rho=INPUTS["asam"]["rho"], eta=INPUTS["asam"]["eta"]), "asam"),
        (FedSAM(rho=0.0), "rho_zero"),
    ],
)
def test_a_step_follows_the_oracle(method, name, monkeypatch):
    method, visited = on_the_bowl(method, monkeypatch)
    new = numbers(train(method, plane())["params"])
    assert new == pytest.approx(EXPECTED[f"{name}_w_new"], abs=TOL)
    (here, there) = visited
    assert here == INPUTS["w"]
    if name == "rho_zero":
        assert there == here
        return
    assert [b - a for a, b in zip(here, there, strict=True)] == pytest.approx(EXPECTED[f"{name}_eps"], abs=TOL)
    lr, decay = INPUTS["lr"], INPUTS["weight_decay"]
    taken = [(w - now) / lr - decay * w for w, now in zip(here, new, strict=True)]
    assert taken == pytest.approx(EXPECTED[f"{name}_grad"], abs=10 * TOL)  # divided by lr 0.1


@pytest.mark.parametrize("eta, weight", [(0.0, 1.0), (1.0, 2.0)])
def test_eta_is_added_to_sizes_of_weights_and_not_of_biases(eta, weight, monkeypatch):
    """Gradient (1, -5), T = (1 + eta, 1): e = rho (T^2, -5) / |(T, -5)|."""
    method, visited = on_the_bowl(FedASAM(rho=1.0, eta=eta), monkeypatch)
    train(method, plane())
    ascent = [b - a for a, b in zip(*visited, strict=True)]
    assert ascent == pytest.approx([weight**2 / math.hypot(weight, 5), -5 / math.hypot(weight, 5)], abs=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_mofedsam_follows_the_oracle(engine, monkeypatch):
    """The first step of a round of five."""
    monkeypatch.setattr(MoFedSAM, "local_loss", lambda self, params, batch, view: bowl(params, batch, view))
    given = INPUTS["mofedsam"]
    method = MoFedSAM(rho=INPUTS["rho"], alpha=given["alpha"], clip=None)
    task = plane(engine, local_steps=given["local_steps"])
    last = {
        name: torch.tensor([u], dtype=torch.float64)
        for name, u in zip(("weight", "bias"), given["last_mean_update"], strict=True)
    }
    state = {**method.init(task), "server": {"update": last}}
    first = lambda data, plan, view: method.local_update(data, plan[:1], view)  # noqa: E731
    delta = tree.row(method.map_clients(task, first, task.cohort(torch.tensor([0])), state).result.update["delta"], 0)
    new = numbers(tree.add(state["params"], delta))
    assert new == pytest.approx(EXPECTED["mofedsam_w_new"], abs=TOL)
    lr, decay, alpha = INPUTS["lr"], INPUTS["weight_decay"], given["alpha"]
    pull = [
        ((w - now) / lr - decay * w - alpha * g) / (1 - alpha)
        for w, now, g in zip(INPUTS["w"], new, EXPECTED["sam_grad"], strict=True)
    ]
    assert pull == pytest.approx(EXPECTED["mofedsam_momentum"], abs=20 * TOL)  # divided by lr and 1 - alpha


def test_mofedsam_sends_the_last_update_down_and_the_others_nothing_more():
    known = ORACLE["bytes_simple_cnn"]["expected"]
    task = toy_task(shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(6,), rounds=2)
    task = replace(task, model=models.load("simple-cnn")((3, 32, 32), 10))
    for method in FAMILY:
        start = method().init(task)
        assert tree.num_bytes(method().downloads(start)) == known["fedavg_one_way"], (
            "there is no update before the first round"
        )
        down = tree.num_bytes(method().downloads({**start, "round": 1}))
        assert down == known["mofedsam_down" if method is MoFedSAM else "fedavg_one_way"]
        up = known["mofedsam_up"]
        assert method().traffic(task) == known["fedavg_one_way"] + down + 2 * up and up == known["fedavg_one_way"]


# Identities


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedSAM(rho=0), FedASAM(rho=0), MoFedSAM(rho=0, alpha=1)], ids=repr)
def test_without_an_ascent_it_is_fedavg(method, engine):
    """Bit for bit, but for rounding on `vectorised`: in the first step of FedAvg all clients multiply by the same weights,
    while those after an ascent are one copy per client, and some processors add up batched products in another order."""
    task = toy_task(engine=engine)
    found, expected = train(method, task)["params"], train(FedAvg(), task)["params"]
    if engine == "loop":
        assert_same(found, expected)
    for name, leaf in found.items():
        torch.testing.assert_close(leaf, expected[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_mofedsam_with_alpha_1_is_fedsam(engine):
    task = toy_task(engine=engine)
    assert_same(train(MoFedSAM(alpha=1, rho=0.5), task)["params"], train(FedSAM(rho=0.5), task)["params"])


def test_first_round_of_mofedsam_follows_no_update_and_the_second_the_mean_of_the_first():
    task = toy_task(momentum=0.0, weight_decay=0.0)
    method = MoFedSAM(alpha=0.5, clip=None)
    start, first = method.init(task), train(method, task, rounds=1)
    half = replace(task, settings=replace(task.settings, lr=0.5 * task.settings.lr))
    plain = train(FedSAM(), half, rounds=1)["params"]
    for name, leaf in first["params"].items():
        torch.testing.assert_close(leaf, plain[name], rtol=0, atol=1e-12)
        mean = first["server"]["update"][name]
        torch.testing.assert_close(mean, leaf - start["params"][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_gradients_mofedsam_moves_every_client_by_the_same_share_of_the_last_update(engine, monkeypatch):
    """Clients have 2 to 8 steps, and momentum 0.9: inside it, the update would be taken several times."""
    zero = lambda self, params, batch, view: sum(0 * leaf.sum() for leaf in params.values())  # noqa: E731
    monkeypatch.setattr(MoFedSAM, "local_loss", zero)
    task, method = toy_task(engine=engine, weight_decay=0.0), MoFedSAM(alpha=0.25)
    state = method.init(task)
    state = {**state, "server": {"update": tree.map(torch.ones_like, state["params"])}}
    cohort = task.cohort(torch.arange(5))
    delta = method.map_clients(task, method.local_update, cohort, state).result.update["delta"]
    assert all(torch.allclose(leaf, torch.full_like(leaf, 0.75), atol=1e-12) for leaf in tree.leaves(delta))


# Two passes


@pytest.mark.parametrize("method", FAMILY)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_of_zero_leaves_params_as_they_are(method, engine, monkeypatch):
    zero = lambda self, params, batch, view: sum(0 * leaf.sum() for leaf in params.values())  # noqa: E731
    monkeypatch.setattr(method, "local_loss", zero)
    task = toy_task(engine=engine, weight_decay=0.0, rounds=1)
    assert_same(train(method(), task)["params"], task.initial_params())


@pytest.mark.parametrize("method", FAMILY)
def test_running_statistics_are_those_of_the_first_pass_alone(method):
    """After one step they are those of FedAvg, whose pass is at the same params."""
    task = normalised_task(rounds=1, local_epochs=None, local_steps=1)
    assert_same(train(method(rho=5.0), task)["buffers"], train(FedAvg(), task)["buffers"])


@dataclass(frozen=True)
class Dropped(Model):
    """A linear model of pixels of which half are dropped."""

    loop_only = "draws dropout masks from one generator per client"

    def layers(self):
        return {"classifier": (self.num_classes, math.prod(self.input_shape))}

    def features(self, params, x, bound):
        return bound.dropout(x.flatten(1), 0.5)


@pytest.mark.parametrize("method", [FedSAM, FedASAM])
def test_both_passes_drop_the_same_features(method):
    """Then, and if the next step goes on from the masks of the first pass, no ascent is FedAvg."""
    task = toy_task()
    task = replace(task, model=Dropped(task.model.input_shape, NUM_CLASSES))
    assert_same(train(method(rho=0), task)["params"], train(FedAvg(), task)["params"])


def test_the_second_gradient_is_clipped_before_it_is_weighted(monkeypatch):
    """lr 1, no decay: gradient (1 + e, -5 - 10 e') has norm 6.0669, of which 0.5 is left, and 0.1 of that in MoFedSAM."""
    lengths = []
    for method in (FedSAM(clip=0.5), MoFedSAM(clip=0.5, alpha=0.1), FedSAM(clip=7.0)):
        with monkeypatch.context() as patch:
            method, _ = on_the_bowl(method, patch)
            task = plane(lr=1.0, weight_decay=0.0)
            moved = tree.subtract(train(method, task)["params"], task.initial_params())
            lengths.append(tree.norm(moved).item())
    assert lengths == pytest.approx([0.5, 0.05, math.hypot(*EXPECTED["sam_grad"])], abs=1e-9)


# Averages of server models


@dataclass(frozen=True)
class Scripted(FedSAM):
    """Its server model after round r is `script[r - 1]`."""

    script: tuple[tuple[float, float], ...] = ()

    def run_round(self, task, state):
        weight, bias = torch.tensor(self.script[state["round"]], dtype=torch.float64).split(1)
        delta = {"weight": weight, "bias": bias}
        params, server = self.server_step(task, tree.zeros_like(delta), state["server"], {"delta": delta}, None)
        return {**state, "params": params, "server": server}


def test_the_average_of_server_models_follows_the_oracle():
    """From round 4 of 8, every second one; between, the average stays, and training goes on from the last model."""
    known = ORACLE["fedsam_swa"]
    a, b, c = (tuple(model) for model in known["inputs"]["server_models_at_cycle_ends"])
    other = (9.0, 9.0)
    method = Scripted(script=(other, other, other, a, other, b, other, c), swa=True, swa_start=0.5, swa_every=2)
    task = plane(rounds=8)
    state, deployed = method.init(task), []
    for played in method.script:
        state = method.step(task, state)
        assert numbers(state["params"]) == list(played)
        deployed.append(numbers(method.deploy(task, state, torch.tensor([0])).params))
    middle = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    expected = [[9, 9]] * 3 + [list(a)] * 2 + [middle] * 2 + [known["expected"]["swa"]]
    for found, wanted in zip(deployed, expected, strict=True):
        assert found == pytest.approx(wanted, abs=known["tol"])


@pytest.mark.parametrize(
    "rounds, options, taken",
    [
        (100, {}, [75, 85, 95]),
        (10, {"swa_start": 0.7, "swa_every": 1}, [7, 8, 9, 10]),
        (5, {"swa_start": 0, "swa_every": 2}, [1, 3, 5]),
        (3, {"swa_start": 1}, [3]),
    ],
)
def test_rounds_whose_models_are_averaged(rounds, options, taken):
    method = Scripted(script=tuple((float(r), 0.0) for r in range(1, rounds + 1)), swa=True, **options)
    task = plane(rounds=rounds)
    found = method.deploy(task, train(method, task), torch.tensor([0]))
    assert found.params["weight"].item() == pytest.approx(sum(taken) / len(taken))


def test_rounds_without_clients_count():
    """The one client of a cluster is sampled in few of 20 rounds; models are taken in rounds 15 to 20 all the same."""
    task = toy_task(rounds=20, participation=0.2).restrict(torch.tensor([0]))
    method = FedSAM(swa=True, swa_every=1)
    state, models_seen, sampled = method.init(task), [], []
    for _ in range(20):
        sampled.append(len(method.sample(task, state).ids))
        state = method.step(task, state)
        models_seen.append(state["params"])
    assert 0 in sampled[14:] and 1 in sampled
    mean = tree.map(lambda *leaves: torch.stack(leaves).mean(0), *models_seen[14:])
    deployed = method.deploy(task, state, torch.tensor([0])).params
    for name, leaf in mean.items():
        torch.testing.assert_close(deployed[name], leaf, rtol=0, atol=1e-12)


@pytest.mark.parametrize("around", [FedConcat, FedConcatID])
def test_within_fedconcat_the_average_is_that_of_its_encoder_rounds(around):
    """Of the last round alone it is the last model; of both rounds, the mean of two."""
    task, encoders = toy_task(rounds=20, local_epochs=1), []
    for options in ({}, {"swa": True, "swa_start": 1}, {"swa": True, "swa_start": 0, "swa_every": 1}):
        method = around(base=FedSAM(**options), num_clusters=1, encoder_rounds=2, classifier_rounds=1)
        encoders.append(encoder_part(train(method, task, rounds=2)["params"]))
    plain, last, mean = encoders
    assert_same(last, plain)
    norms = [tree.norm(encoder).item() for encoder in (mean, plain)]
    assert mean.keys() == plain.keys() and norms[0] != norms[1] and norms[0] > 0.8 * norms[1]


@pytest.mark.parametrize("method", FAMILY)
def test_averaging_changes_what_is_deployed_and_not_the_training(method):
    task, everyone = toy_task(rounds=4), torch.arange(5)
    averaging = method(swa=True, swa_start=0.5, swa_every=1)
    plain, state = train(method(), task), averaging.init(task)
    models_seen = []
    for _ in range(4):
        state = averaging.step(task, state)
        models_seen.append(state["params"])
    assert_same(state["params"], plain["params"])
    mean = tree.map(lambda *leaves: torch.stack(leaves).mean(0), *models_seen[1:])
    deployed = averaging.deploy(task, state, everyone).params
    for name, leaf in mean.items():
        torch.testing.assert_close(deployed[name], leaf, rtol=0, atol=1e-12)
    assert not torch.equal(deployed["classifier.weight"], state["params"]["classifier.weight"])
    assert averaging.downloads(state).keys() == method().downloads(plain).keys()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", FAMILY)
def test_the_learning_rate_falls_in_each_cycle_to_the_round_whose_model_is_taken(method, engine):
    """Models of rounds 4 and 7 of 8 are taken: rates of rounds 5 to 7 are 2/3 0.3 + 1/3 0.03, and so on. A round is
    that of the method without swa at this rate."""
    task = toy_task(engine=engine, rounds=8, lr=0.3, local_epochs=None, local_steps=1)
    cycling = method(swa=True, swa_start=0.5, swa_every=3, swa_last_lr=0.03)
    rates = [cycling._lr(task.settings, round) for round in range(8)]
    assert rates == pytest.approx([0.3, 0.3, 0.3, 0.3, 0.21, 0.12, 0.03, 0.21])
    cohort, state = task.cohort(torch.arange(5)), cycling.init(task)
    for round, rate in enumerate(rates):
        slower = replace(task, settings=replace(task.settings, lr=rate))
        found, expected = (
            one.map_clients(task_, one.local_update, cohort, {**state, "round": round}).result.update["delta"]
            for one, task_ in ((cycling, task), (method(), slower))
        )
        assert_same(found, expected)


@pytest.mark.parametrize(
    "options", [{}, {"swa": True, "swa_every": 1, "swa_last_lr": 0.03}, {"swa_last_lr": 0.03}], ids=repr
)
def test_the_learning_rate_stays_without_cycles(options):
    task = toy_task(rounds=4)
    assert {FedSAM(**options)._lr(task.settings, round) for round in range(4)} == {task.settings.lr}


def test_an_average_of_one_model_has_a_caveat():
    assert FedASAM(swa=True).caveats(plane(rounds=20)) == [
        "fedasam: the mean of server models is that of one, of round 15 of 20: the next would be taken 10 rounds later."
    ]
    assert FedSAM(swa=True).caveats(plane(rounds=40)) == FedSAM().caveats(plane(rounds=20)) == []


def test_averages_of_models_with_running_statistics_are_refused():
    with pytest.raises(ValueError) as error:
        FedSAM(swa=True).init(normalised_task())
    assert str(error.value) == (
        "swa averages weights of server models, for which Normalised would need new running statistics: choose a model "
        "without batch normalisation, or set swa=false."
    )


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedSAM(rho=-1), "rho must be at least 0, but got -1."),
    (lambda: FedASAM(rho=math.nan), "rho must be at least 0, but got nan."),
    (lambda: FedASAM(eta=-0.1), "eta must be at least 0, but got -0.1."),
    (lambda: MoFedSAM(alpha=1.1), "alpha must be between 0 and 1, but got 1.1."),
    (lambda: MoFedSAM(clip=0), "clip must be greater than 0, but got 0."),
    (lambda: FedSAM(swa_start=2), "swa_start must be between 0 and 1, but got 2."),
    (lambda: FedSAM(swa_every=0), "swa_every must be at least 1, but got 0."),
    (lambda: FedSAM(swa_last_lr=0), "swa_last_lr must be greater than 0, but got 0."),
)


@pytest.mark.parametrize("given", [{}, {"swa": True, "swa_every": 1}, {"swa": True, "lr": 0.02}])
def test_a_last_rate_that_nothing_reads_or_that_is_above_the_first_is_refused(given):
    named = {"algorithm": "fedsam", "dataset": "digits", "partition": "iid", "lr": 0.05, "swa_last_lr": 0.03}
    assert resolve(named | {"swa": True}).algorithm["swa_last_lr"] == 0.03
    with pytest.raises(
        ConfigError, match="swa_last_lr and lr_decay both .*: leave out one of them, but got .* 0.03 and lr_decay 0.9"
    ):
        resolve(named | {"swa": True, "lr_decay": 0.9})
    with pytest.raises(ConfigError, match="swa_last_lr is the rate to which lr .* falls"):
        resolve(named | given)
