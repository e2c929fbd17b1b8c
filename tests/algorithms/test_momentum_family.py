"""FedACG, FedCM and FedDC on quadratics, through the task and both engines, against momentum_family_oracle.json."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.fedacg import FedACG
from algorithms.fedavg import FedAvg
from algorithms.fedavgm import FedAvgM
from algorithms.fedcm import FedCM
from algorithms.feddc import FedDC
from algorithms.feddyn import FedDyn
from algorithms.fedprox import FedProx
from algorithms.fedsam import MoFedSAM
from algorithms.fedspeed import FedSpeed
from algorithms.scaffold import Scaffold
from algorithms.shared import tree
from algorithms.shared.client_states import write_rows
from algorithms.shared.rounds import RoundBased
from bench.models.base import Model
from tests.support.by_hand import Point
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import normalised_task, toy_task, train

ORACLE = oracle("momentum_family")
TOL = 1e-9  # that of these keys
ENGINES = ["loop", "vectorised"]
both_engines = pytest.mark.parametrize("engine", ENGINES)
EVERYONE = torch.arange(5)


def assert_same(a, b, tolerance=0.0):
    assert a.keys() == b.keys()
    for name, leaf in a.items():
        torch.testing.assert_close(leaf, b[name], rtol=0, atol=tolerance, msg=name)


def bowl(params, batch, view):
    """0.5 w^2 at a client with one example, 1.5 (w - 4)^2 at others: a = [1, 3], c = [0, 4]."""
    first = view.num_examples == 1
    return (torch.where(first, 0.5, 1.5) * (params["w"] - torch.where(first, 0.0, 4.0)) ** 2).sum()


def slope(params, batch, view):
    """A linear loss, whose gradient is -1 at all clients."""
    return -params["w"].sum()


@pytest.fixture
def losses(monkeypatch):
    """Sets the loss of all methods, and the clients of the first rounds; in later ones, everyone takes part."""

    def set_(loss, cohorts=()):
        for module in ("algorithms.fedacg", "algorithms.fedprox", "algorithms.shared.base"):
            monkeypatch.setattr(f"{module}.task_loss", loss)

        def sample(self, task, state):
            known = state["round"] < len(cohorts)
            return task.cohort(torch.tensor(cohorts[state["round"]]) if known else torch.arange(task.population))

        monkeypatch.setattr(RoundBased, "sample", sample)

    return set_


def points(engine="loop", sizes=(1, 3), equal=True, **settings):
    """Two clients, which weigh alike, or by their examples."""
    given = {"local_epochs": None, "local_steps": 3, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, **settings}
    if given["local_epochs"]:
        given["local_steps"] = None
    task = toy_task(sizes=sizes, engine=engine, **given)
    weigh = (lambda cohort: torch.ones_like(cohort.num_examples)) if equal else task.weigh
    return replace(task, model=Point(task.model.input_shape, task.model.num_classes), weigh=weigh)


def servers(method, task, rounds):
    state, found = method.init(task), []
    for round in range(rounds):
        state = method.step(task.in_round(round), state)
        found.append(state["params"]["w"].item())
    return found


def follows(method, task, expected, check):
    """Plays rounds; compares local and server models with those expected, and calls check after each with what is left."""
    state = method.init(task)
    for played in expected:
        cohort = method.sample(task, state)
        outputs = method.map_clients(task, method.local_update, cohort, state)
        trained = method.local_models(state, outputs)["params"]["w"].flatten().tolist()
        local = played["local"]
        assert trained == pytest.approx(list(local.values()) if isinstance(local, dict) else local, abs=TOL)
        before, state = state, method.step(task, state)
        assert state["params"]["w"].item() == pytest.approx(played["server"], abs=TOL)
        check(played, before, state)


# FedACG

ACG = ORACLE["fedacg"]["expected"]
BETA, LAMBDA = (ORACLE["fedacg"]["inputs"][key] for key in ("beta", "lambda"))


def acg(**options):
    return FedACG(**{"server_momentum": LAMBDA, "beta": BETA, "clip": None, **options})


@both_engines
@pytest.mark.parametrize("which", ["full", "partial"])
def test_rounds_of_fedacg_follow_the_oracle(which, engine, losses):
    """Two clients that weigh alike by `weighting`, and by examples of which they have as many."""
    losses(bowl, [played["active"] for played in ACG[which]])

    def check(played, before, after):
        assert method.received(before)["params"]["w"].item() == pytest.approx(played["broadcast"], abs=TOL)
        assert after["server"]["momentum"]["w"].item() == pytest.approx(played["momentum"], abs=TOL)
        deployed = method.deploy(task, after, torch.tensor([0, 1])).params["w"].item()
        assert deployed == after["params"]["w"].item(), "w is deployed, not b"

    for method, equal in ((acg(weighting="uniform"), False), (acg(), True)):
        task = points(engine, equal=equal)
        follows(method, task, ACG[which], check)


def test_other_settings_of_fedacg_follow_the_oracle(losses):
    losses(bowl)
    expected = {
        "full_size_weighted_server": (acg(), False),
        "lambda0_is_fedprox_server": (acg(server_momentum=0), True),
        "lambda0_beta0_is_fedavg_server": (acg(server_momentum=0, beta=0), True),
        "fedavgm_plain_same_lambda_server": (FedAvgM(server_momentum=LAMBDA), True),
        "beta0_server": (acg(beta=0), True),
    }
    for key, (method, equal) in expected.items():
        assert servers(method, points(equal=equal), 4) == pytest.approx(ACG[key], abs=TOL), key
    own = servers(acg(), points(), 4)
    for wrong in ("WRONG_prox_centre_is_w", "WRONG_delta_from_w"):
        assert abs(own[3] - ACG[wrong][3]) > 0.01


def test_on_linear_losses_fedacg_is_fedavgm(losses):
    losses(slope)
    for key, method in (("fedacg_beta0", acg(beta=0)), ("fedavgm", FedAvgM(server_momentum=LAMBDA))):
        assert servers(method, points(), 4) == pytest.approx(ACG[f"linear_losses_{key}"], abs=TOL)


@both_engines
@pytest.mark.parametrize(
    "method, other, rounds",
    [
        (acg(server_momentum=0), FedProx(mu=BETA), 3),
        (acg(server_momentum=0, beta=0), FedAvg(), 3),
        (acg(), FedProx(mu=BETA), 1),
    ],
    ids=["fedprox", "fedavg", "the first round"],
)
def test_fedacg_without_momentum_is_bit_for_bit(method, other, rounds, engine):
    task = toy_task(engine=engine)
    assert_same(train(method, task, rounds)["params"], train(other, task, rounds)["params"])


def test_buffers_of_fedacg_are_averaged_with_the_weights_of_the_models():
    task = normalised_task(rounds=1)
    equal = replace(task, weigh=lambda cohort: torch.ones_like(cohort.num_examples))
    uniform, alike, by_size = (
        train(FedACG(weighting=weighting), one)["buffers"]["stem.norm.running_mean"]
        for weighting, one in (("uniform", task), ("examples", equal), ("examples", task))
    )
    assert torch.equal(uniform, alike) and not torch.equal(uniform, by_size)


def test_rounds_without_clients_keep_the_momentum():
    task = toy_task(rounds=20, participation=0.2).restrict(torch.tensor([0]))
    state, idle = FedACG().init(task), 0
    for _ in range(20):
        before, state = state, FedACG().step(task, state)
        if state["server"] is before["server"]:
            idle += 1
            assert_same(state["params"], before["params"])
    assert 0 < idle < 20


@pytest.mark.parametrize("method", [FedACG, FedCM])
def test_clipping_cuts_the_gradient_before_weight_decay(method, losses):
    """One step of lr 1 from w = 1 of the client with gradient -9; decay 0.1 w is added afterwards."""
    losses(bowl, [[1]])
    options = {"alpha": 1.0} if method is FedCM else {}
    task = points(local_steps=1, lr=1.0, weight_decay=0.1)
    for clip, moved in ((None, 8.9), (20.0, 8.9), (2.0, 1.9)):
        assert servers(method(clip=clip, **options), task, 1)[0] - 1 == pytest.approx(moved, abs=1e-12)


# FedCM

CM = ORACLE["fedcm"]["expected"]
ONE = ORACLE["fedcm"]["inputs"]["one_step"]
ALPHA = ORACLE["fedcm"]["inputs"]["alpha"]


def cm(**options):
    return FedCM(**{"alpha": ALPHA, "clip": None, **options})


@both_engines
@pytest.mark.parametrize("which", ["equal_steps", "steps_3_and_6_own_K"])
def test_rounds_of_fedcm_follow_the_oracle(which, engine, losses):
    losses(bowl)
    own = {"sizes": (1, 2), "batch_size": 1, "local_epochs": 3} if which != "equal_steps" else {}

    def check(played, before, after):
        assert after["server"]["update"]["w"].item() == pytest.approx(played["mean_update"], abs=TOL)

    follows(cm(), points(engine, **own), CM[which], check)


def test_other_settings_of_fedcm_follow_the_oracle(losses):
    losses(bowl)
    assert servers(cm(), points(weight_decay=0.01), 4) == pytest.approx(CM["with_weight_decay_0.01_server"], abs=TOL)
    assert servers(cm(alpha=1), points(), 4) == pytest.approx(CM["alpha1_is_fedavg_server"], abs=TOL)
    assert servers(FedAvg(), points(), 4) == pytest.approx(CM["alpha1_is_fedavg_server"], abs=TOL)
    reference = CM["steps_3_and_6_reference_K_of_client_0"]
    own = servers(cm(), points(sizes=(1, 2), batch_size=1, local_epochs=3), 2)
    assert abs(own[1] - reference[1]["server"]) > 0.01, "the K of FL-Simulator is that of one client"


def test_with_a_falling_rate_fedcm_divides_by_the_current_one(losses):
    losses(bowl)
    found = servers(cm(), points(lr=0.1, lr_decay=0.5), 3)
    assert found == pytest.approx(CM["lr_decay_0.5_own_current_lr_server"], abs=TOL)
    assert abs(found[1] - CM["lr_decay_0.5_reference_last_lr_server"][1]) > 0.01


def test_on_linear_losses_fedcm_is_damped_fedavgm(losses):
    losses(slope)
    damped = FedAvgM(server_momentum=1 - ALPHA, form="damped")
    for key, method in (("fedcm", cm()), ("fedavgm_damped_beta_0.9", damped)):
        assert servers(method, points(), 4) == pytest.approx(CM[f"linear_losses_{key}_server"], abs=TOL)


def test_weight_decay_acts_as_if_divided_by_alpha_unless_scaled(losses):
    """One client with the loss 0.5 (w - 4)^2: its fixed point is 4 / (1 + decay)."""
    losses(lambda params, batch, view: (0.5 * (params["w"] - 4) ** 2).sum())
    task = points(sizes=(1,), weight_decay=0.01)
    limits = [servers(cm(scale_decay=scale), task, 400)[-1] for scale in (False, True)]
    assert limits[0] == pytest.approx(CM["weight_decay_fixed_point"], abs=TOL)
    assert limits[0] == pytest.approx(CM["weight_decay_fixed_point_closed_form_a_c_over_a_plus_wd_over_alpha"], abs=TOL)
    assert limits[1] == pytest.approx(4 / 1.01, abs=TOL)


@dataclass(frozen=True)
class Pair(Model):
    def init(self, generator):
        return {"w": torch.tensor(ONE["w"])}


@both_engines
def test_a_step_of_fedcm_follows_the_oracle(engine, losses):
    """The first of five. The clip of FL-Simulator acts on the whole step, ours on the gradient, as in MoFedSAM."""
    losses(lambda params, batch, view: (params["w"].square() * torch.tensor([0.5, 5.0])).sum())
    task = points(engine, sizes=(6,), local_steps=ONE["local_steps"], lr=ONE["lr"], weight_decay=ONE["weight_decay"])
    task = replace(task, model=Pair(task.model.input_shape, task.model.num_classes))
    last = {"w": torch.tensor(ONE["last_mean_update"], dtype=torch.float64)}
    for method, key in (
        (cm(), "one_step_w_new"),
        (cm(clip=2.0), "one_step_clip_gradient_at_2"),
        (MoFedSAM(rho=0, alpha=ALPHA, clip=2.0), "one_step_clip_gradient_at_2"),
    ):
        state = {**method.init(task), "server": {"update": last}}
        first = lambda data, plan, view: method.local_update(data, plan[:1], view)  # noqa: B023, E731
        delta = method.map_clients(task, first, task.cohort(torch.tensor([0])), state).result.update["delta"]
        new = (state["params"]["w"] + delta["w"][0]).tolist()
        assert new == pytest.approx(CM[key], abs=TOL)
        if key == "one_step_w_new":
            step = [(w - now) / ONE["lr"] - ONE["weight_decay"] * w for w, now in zip(ONE["w"], new, strict=True)]
            assert step == pytest.approx(CM["one_step_direction"], abs=10 * TOL)
            pull = [(own - ALPHA * slope) / (1 - ALPHA) for own, slope in zip(step, (1.0, -5.0), strict=True)]
            assert pull == pytest.approx(CM["one_step_Delta"], abs=20 * TOL)
        assert new != pytest.approx(CM["one_step_clip_whole_direction_at_0.3"], abs=1e-4)


@both_engines
@pytest.mark.parametrize("options", [{}, {"alpha": 0.5, "clip": 0.5}, {"alpha": 1}], ids=repr)
def test_fedcm_is_mofedsam_without_an_ascent(options, engine):
    """Bit for bit, but for rounding on `vectorised`: see test_fedsam.py of FedSAM and FedAvg."""
    task = toy_task(engine=engine, rounds=3)
    own, other = (train(method, task) for method in (FedCM(**options), MoFedSAM(rho=0, **options)))
    for part in ("params", "server"):
        found, expected = ({"": own[part]}, {"": other[part]}) if part == "params" else (own[part], other[part])
        for key in found:
            assert_same(found[key], expected[key], 0.0 if engine == "loop" else 1e-14)
    assert own["costs"] == {**other["costs"], "examples": other["costs"]["examples"] // 2}


@both_engines
def test_fedcm_with_alpha_1_is_fedavg(engine):
    task = toy_task(engine=engine)
    assert_same(train(FedCM(alpha=1, clip=None), task)["params"], train(FedAvg(), task)["params"])


@both_engines
def test_without_gradients_fedcm_moves_every_client_by_the_same_share_of_the_last_update(engine, losses):
    """Clients have 2 to 8 steps, and momentum 0.9: inside it, the update would be taken several times."""
    losses(lambda params, batch, view: sum(0 * leaf.sum() for leaf in params.values()))
    task, method = toy_task(engine=engine, weight_decay=0.0), FedCM(alpha=0.25)
    state = method.init(task)
    state = {**state, "server": {"update": tree.map(torch.ones_like, state["params"])}}
    delta = method.map_clients(task, method.local_update, task.cohort(EVERYONE), state).result.update["delta"]
    assert all(torch.allclose(leaf, torch.full_like(leaf, 0.75), atol=1e-12) for leaf in tree.leaves(delta))


def test_fedcm_sends_the_last_update_down_but_for_the_first_round():
    task = toy_task(rounds=3)
    size = tree.num_bytes(task.initial_params())
    assert FedCM().traffic(task) == FedAvg().traffic(task) + 2 * size == (3 * 2 + 2) * size
    assert train(FedCM(), task)["costs"]["bytes_down"] == 5 * (3 + 2) * size


# FedDC

DC = ORACLE["feddc"]["expected"]


def dc(cls=FedDC, **options):
    return cls(**{"alpha": ORACLE["feddc"]["inputs"]["alpha"], "clip": None, "weighting": "uniform", **options})


@dataclass(frozen=True)
class Uncorrected(FedDC):
    """Without G and g_i."""

    def control_offset(self, view):
        return tree.zeros_like(view.params)


@dataclass(frozen=True)
class Undrifted(FedDC):
    """The server adds no h_i."""

    def server_step(self, task, params, server, update, cohort):
        _, server = super().server_step(task, params, server, update, cohort)
        return tree.add(params, update["delta"]), server


@both_engines
@pytest.mark.parametrize("which", ["full", "partial_server_code", "sizes_100_300"])
def test_rounds_of_feddc_follow_the_oracle(which, engine, losses):
    losses(bowl, [played["active"] for played in DC[which]])
    method = dc(weighting="examples" if which == "sizes_100_300" else "uniform")
    task = points(engine, equal=False)

    def check(played, before, after):
        rows = after["clients"]["rows"]
        for key, of in (("memory", "h"), ("control", "g")):
            kept = [rows[client][key]["w"].item() if client in rows else 0 for client in (0, 1)]
            assert kept == pytest.approx(played[of], abs=TOL)
        assert after["server"]["control"]["w"].item() == pytest.approx(played["G"], abs=TOL)

    follows(method, task, DC[which], check)


def test_variants_of_feddc_follow_the_oracle(losses):
    cohorts = [played["active"] for played in DC["partial_server_code"]]
    losses(bowl, cohorts)
    task, tiny = points(equal=False), 1e-300
    for key, method in {
        "partial_server_mean_over_active_h": dc(drifts="cohort"),
        "correction_off_partial_server": dc(Uncorrected),
        "feddyn_partial_server": FedDyn(alpha=0.5, clip=None, weighting="uniform"),
        "alpha0_correction_off_server": dc(Uncorrected, alpha=tiny),
        "scaffold_uniform_server_lr1_partial": dc(Undrifted, alpha=tiny),
    }.items():
        full = key == "alpha0_correction_off_server"
        losses(bowl, [[0, 1]] * 4 if full else cohorts)
        assert servers(method, task, 4) == pytest.approx(DC[key], abs=TOL), key
    losses(bowl, cohorts)
    assert servers(Scaffold(), task, 4) == pytest.approx(DC["scaffold_uniform_server_lr1_partial"], abs=TOL)


def test_feddc_leads_to_the_minimum_of_the_mean_loss(losses):
    losses(bowl)
    for weighting, limit, minimum in (
        ("uniform", "limit_full_2000_rounds", "global_minimiser"),
        ("examples", "limit_sizes_100_300_2000_rounds", "size_weighted_minimiser"),
    ):
        found = servers(dc(weighting=weighting), points(equal=False), 150)[-1]
        assert found == pytest.approx(DC[limit], abs=TOL) and found == pytest.approx(DC[minimum], abs=TOL)


@both_engines
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_feddc_without_correction_is_feddyn(weighting, engine):
    """Bit for bit, with momentum and clipping."""
    task = toy_task(engine=engine, participation=0.6)
    own, other = (train(cls(weighting=weighting, clip=0.5), task) for cls in (Uncorrected, FedDyn))
    assert_same(own["params"], other["params"])
    assert_same(own["server"]["memory"], other["server"]["memory"])


@both_engines
def test_feddc_without_drifts_is_scaffold(engine):
    """With momentum, which acts on the gradient alone."""
    task = toy_task(engine=engine, participation=0.6)
    own, other = train(dc(Undrifted, alpha=1e-300), task), train(Scaffold(), task)
    assert_same(own["params"], other["params"], 1e-12)
    assert_same(own["server"]["control"], other["server"]["control"], 1e-12)


def test_the_control_of_the_server_is_the_mean_of_the_clients_by_their_shares():
    """Of all clients: those that are absent count with what they kept."""
    task, method = toy_task(participation=0.6, rounds=4), FedDC()
    state = train(method, task)
    rows, sizes = state["clients"]["rows"], task.sizes(EVERYONE)
    shares = torch.tensor([sizes[client] * 5 / sum(sizes) for client in rows], dtype=torch.float64)
    stacked = tree.stack([row["control"] for row in rows.values()])
    for name, leaf in stacked.items():
        mean = torch.tensordot(shares, leaf, dims=1) / 5
        torch.testing.assert_close(state["server"]["control"][name], mean, rtol=0, atol=1e-12)


@both_engines
def test_without_momentum_the_whole_gradient_of_feddc_is_clipped_and_with_it_the_part_within(engine, losses):
    """One step of lr 1 from w = 1 at the second client, whose gradient is -9, with h = 16, alpha 0.5 and G - g = 3."""
    losses(bowl)
    lengths = []
    for momentum, mode, clip in (
        (0.0, "outside", None),
        (0.0, "outside", 1.5),
        (0.9, "none", 1.5),
        (0.9, "outside", 0.25),
    ):
        method = dc(clip=clip, momentum_mode=mode)
        task = points(engine, local_steps=1, lr=1.0, momentum=momentum)
        state, cohort = method.init(task), task.cohort(torch.tensor([1]))
        kept = {"memory": {"w": torch.full((1, 1), 16.0)}, "control": {"w": torch.full((1, 1), -3.0)}}
        kept = tree.map(lambda leaf: leaf.double(), kept)
        state = {**state, "clients": write_rows(state["clients"], cohort.ids, kept)}
        delta = method.map_clients(task, method.local_update, cohort, state).result.update["delta"]
        lengths.append(delta["w"].item())
    assert lengths == pytest.approx(
        [-2.0, -1.5, -1.5, 0.25 - 3.0], abs=1e-12
    )  # -9 + 8 + 3; -9 + 8 alone is cut to -0.25


def test_the_cohorts_drifts_are_sent_with_the_deltas():
    task = toy_task(rounds=2)
    sizes = {drifts: FedDC(drifts=drifts).traffic(task) for drifts in ("all", "cohort")}
    assert set(sizes.values()) == {2 * 4 * tree.num_bytes(task.initial_params())}  # model and control, both ways


@pytest.mark.parametrize("mean", ["uniform", "examples"])
def test_what_clients_send_with_their_drifts_has_one_mean(mean):
    """In the first round, in which there is no correction yet, so that it is FedSpeed without ascents."""
    options = {"alpha": 0.1, "weighting": "uniform", "mean": mean, "clip": None}
    task, methods = (
        toy_task(rounds=1),
        (FedDC(drifts="cohort", **options), FedSpeed(server="corrected_upload", rho=0, **options)),
    )
    assert_same(*(train(method, task)["params"] for method in methods), 1e-12)


def test_an_unstable_drift_of_a_small_client_has_a_caveat():
    task = toy_task(sizes=(1, 99), lr=0.1)
    assert FedDC(alpha=0.5).caveats(task) == [
        "feddc: alpha_i of the smallest client, of 1 examples, is 25; steps of its term are unstable, because lr alpha_i is "
        "above 2."
    ]
    assert FedDC(alpha=0.3).caveats(task) == FedDC(alpha=0.5, weighting="uniform").caveats(task) == []


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedACG(server_momentum=1), "server_momentum must be at least 0 and below 1, but got 1."),
    (lambda: FedACG(server_momentum=-1), "server_momentum must be at least 0 and below 1, but got -1."),
    (lambda: FedACG(beta=-1), "beta must be at least 0, but got -1."),
    (lambda: FedACG(clip=0), "clip must be greater than 0, but got 0."),
    (lambda: FedACG(weighting="size"), "weighting must be one of examples, uniform, but got 'size'."),
    (lambda: FedCM(alpha=math.nan), "alpha must be between 0 and 1, but got nan."),
    (lambda: FedDC(alpha=0), "alpha must be greater than 0, but got 0."),
    (lambda: FedDC(drifts="some"), "drifts must be one of all, cohort, but got 'some'."),
    (lambda: FedDC(momentum_mode="inside"), "momentum_mode must be one of outside, none, but got 'inside'."),
)
