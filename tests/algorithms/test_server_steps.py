"""Methods that change the server's step alone: FedAdagrad, FedAdam, FedYogi and FedExP, against numbers of an oracle."""

from dataclasses import fields, replace

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.fedavgm import FedAvgM
from algorithms.fedexp import FedExP
from algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from algorithms.shared import tree
from bench import models
from tests.support.by_hand import double
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import assert_equal, normalised_task, toy_task, train
from tests.support.views import cohort

ORACLE = oracle("rivals")
RULES = {"adagrad": FedAdagrad, "adam": FedAdam, "yogi": FedYogi}
METHODS = [FedAdagrad(), FedAdam(), FedYogi(), FedExP()]
DISAGREEING = (8,) * 12  # sizes of clients whose updates differ so much that FedExP's step is longer than 1


def close(tensor, values, tolerance):
    torch.testing.assert_close(tensor, double(values), rtol=0, atol=tolerance)


def played(method, deltas, start):
    """States after rounds in which two clients, of 1 and 3 examples, have these mean deltas: params and server state."""
    params = {"w": double(start)}
    server = method.init_server(toy_task(), params)
    for delta in map(double, deltas):
        updates = {"delta": {"w": torch.stack([delta - 0.3, delta + 0.1])}}
        params, server = method.aggregate(None, params, server, updates, cohort(1, 3))
        yield params, server


def options(known, rule):
    start = {"tau^2": "squared-adaptivity", "0": "zero"}[known["v_init"]]
    given = {
        "server_lr": known["eta"],
        "beta1": known["beta1"],
        "beta2": known["beta2"],
        "adaptivity": known["tau"],
        "initial_second_moment": start,
    }
    return {field.name: given[field.name] for field in fields(rule) if field.name in given}


@pytest.mark.parametrize(
    "case, name",
    [
        *[(case, name) for case in ("fedopt_v0_tau2", "fedopt_v0_zero") for name in RULES],
        ("fedopt_adagrad_beta1_zero", "adagrad"),
    ],
)
def test_adaptive_steps_follow_the_oracle(case, name):
    known, rule = ORACLE[case], RULES[name]
    inputs = known["inputs"]
    rounds = played(rule(**options(inputs, rule)), inputs["deltas_per_round"], inputs["x0"])
    for (params, server), expected in zip(rounds, known["expected"][name], strict=True):
        close(server["first"]["w"], expected["m"], known["tol"])
        close(server["second"]["w"], expected["v"], known["tol"])
        close(params["w"], expected["x"], known["tol"])


def test_defaults_are_those_of_the_paper():
    known = ORACLE["fedopt_v0_tau2"]["inputs"]
    assert FedAdam() == FedAdam(**options(known, FedAdam)) and FedYogi() == FedYogi(**options(known, FedYogi))
    known = ORACLE["fedopt_adagrad_beta1_zero"]["inputs"]
    assert FedAdagrad() == FedAdagrad(**options(known, FedAdagrad))


def test_bias_correction_is_that_of_flower():
    known = ORACLE["fedopt_flower_fedadam"]
    inputs = known["inputs"]
    method = FedAdam(bias_correction=True, **options(inputs, FedAdam))
    rounds = played(method, inputs["deltas_per_round"], inputs["x0"])
    for (params, server), expected in zip(rounds, known["expected"]["adam"], strict=True):
        assert method.step_size(server["steps"]).item() == pytest.approx(expected["eta_norm"], abs=known["tol"])
        close(params["w"], expected["x"], known["tol"])


@pytest.mark.parametrize("name", RULES)
def test_with_large_equal_step_size_and_adaptivity_it_is_fedavg(name):
    known, rule = ORACLE["fedopt_is_fedavg_limit"], RULES[name]
    inputs, expected = known["inputs"], known["expected"]
    *_, (params, _) = played(rule(**options(inputs, rule)), inputs["deltas_per_round"], inputs["x0"])
    close(params["w"], expected["sum_of_deltas"], known["tol"])
    if name == "adam":
        close(params["w"], expected["x"], 1e-12)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("rule", RULES.values())
def test_in_training_that_limit_is_fedavg_too(rule, engine):
    task = toy_task(engine=engine)
    limit = rule(server_lr=1e9, adaptivity=1e9, beta1=0.0, initial_second_moment="zero")
    assert_equal(train(limit, task)["params"], train(FedAvg(), task)["params"], tolerance=1e-6)


def test_the_first_step_of_adagrad_moves_every_param_by_the_learning_rate():
    task = toy_task()
    state = train(FedAdagrad(server_lr=0.02, adaptivity=1e-12), task, rounds=1)
    for moved in tree.leaves(tree.subtract(state["params"], task.initial_params())):
        torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.02), rtol=1e-3, atol=0)


def test_a_param_that_never_moves_stays_where_nothing_is_below_its_moments():
    method = FedAdam(initial_second_moment="zero")
    *_, (params, _) = played(method, [[0.0, 1.0]], [5.0, 5.0])
    assert params["w"][0].item() == pytest.approx(5, abs=1e-12) and params["w"][1] > 5


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_running_statistics_are_averaged_and_take_no_step(method):
    task = normalised_task(sizes=DISAGREEING, rounds=1, batch_size=2, lr=1.0, momentum=0.0)
    state, plain = train(method, task), train(FedAvg(), task)
    assert_equal(state["buffers"], plain["buffers"])
    assert not torch.equal(state["params"]["classifier.weight"], plain["params"]["classifier.weight"])
    for part in state["server"].values():
        assert isinstance(part, torch.Tensor) or part.keys() == state["params"].keys()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_round_exchanges_what_one_of_fedavg_does(method):
    known = ORACLE["bytes_simple_cnn"]["expected"]
    task = toy_task(shape=(3, 32, 32), dtype=torch.float32, local_epochs=None, local_steps=1, sizes=(4, 4))
    task = replace(task, model=models.load("simple-cnn")((3, 32, 32), 10))
    spent = method.step(task, method.init(task))["costs"]
    assert spent["bytes_up"] == spent["bytes_down"] == 2 * known["fedavg_one_way"]
    assert method.traffic(task) == 3 * 2 * known["fedavg_one_way"]


# FedExP


def extrapolated(method, deltas, examples):
    """Step size and new params of a first round that starts at 0."""
    params = {"w": torch.zeros(len(deltas[0]), dtype=torch.float64)}
    updates = {"delta": {"w": double(deltas)}}
    new, _ = method.aggregate(None, params, method.init_server(toy_task(), params), updates, cohort(*examples))
    mean = tree.weighted_mean(updates["delta"], double(examples))["w"]
    return (new["w"].norm() / mean.norm()).item(), new["w"]


def test_fedexp_follows_the_oracle():
    known = ORACLE["fedexp"]
    inputs, expected = known["inputs"], known["expected"]
    near = lambda key: pytest.approx(expected[key], abs=known["tol"])  # noqa: E731
    step_size, new = extrapolated(FedExP(eps=inputs["eps"]), inputs["deltas"], inputs["p"])
    assert step_size == near("eta")
    close(new, expected["w_new"], known["tol"])
    per_client, _ = extrapolated(FedExP(eps=inputs["eps"], eps_per_client=True), inputs["deltas"], inputs["p"])
    assert per_client == near("eta_raw_reference_code_S_eps")
    uniform, _ = extrapolated(FedExP(eps=inputs["eps"]), inputs["deltas"], (7, 7, 7))
    assert uniform == near("eta_raw_uniform_weights")
    state = {"params": {"w": new}, "server": {"previous": {"w": double(inputs["w_previous_round"])}}, "buffers": {}}
    close(FedExP().deploy(toy_task(), state, None).params["w"], expected["eval_model_mean_of_last_two"], known["tol"])


def test_orthogonal_updates_of_equal_length_are_stretched_by_half_their_number():
    step_size, _ = extrapolated(FedExP(eps=0.0), torch.eye(5).mul(3).tolist(), [1] * 5)
    assert step_size == pytest.approx(ORACLE["fedexp"]["expected"]["eta_orthogonal_equal_norm_M5"], abs=1e-9)


def test_equal_updates_are_not_shrunk():
    step_size, new = extrapolated(FedExP(eps=0.0), [[1.0, -2.0]] * 4, [1] * 4)
    assert step_size == 1 and new.tolist() == [1.0, -2.0], "0.5 without the lower bound"


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_with_a_large_eps_training_is_fedavg(engine):
    task, everyone = toy_task(engine=engine, sizes=DISAGREEING), torch.arange(12)
    fedavg = train(FedAvg(), task)
    for eps_per_client in (False, True):
        method = FedExP(eps=1e30, eps_per_client=eps_per_client, deployed="last")
        state = train(method, task)
        assert_equal(state["params"], fedavg["params"])
        assert_equal(method.deploy(task, state, everyone).params, fedavg["params"])


def test_a_longer_step_is_the_same_on_both_engines_and_streamed_and_its_options_count():
    task = toy_task(sizes=DISAGREEING)
    looped = train(FedExP(), task)
    assert not torch.equal(looped["params"]["classifier.weight"], train(FedAvg(), task)["params"]["classifier.weight"])
    for other in (replace(task, engine="vectorised"), replace(task, largest_stack=0)):
        assert_equal(looped, train(FedExP(), other), tolerance=1e-8)
    for options in ({"eps": 0.01}, {"eps_per_client": True}):
        changed = train(FedExP(**options), task)["params"]["classifier.weight"]
        assert not torch.equal(changed, looped["params"]["classifier.weight"])


def test_fedexp_deploys_the_mean_of_the_last_two_rounds_and_trains_from_the_last():
    task, everyone, method = toy_task(sizes=DISAGREEING), torch.arange(12), FedExP()
    states = [method.init(task)]
    for _ in range(3):
        states.append(method.step(task, states[-1]))
    params = [state["params"] for state in states]
    assert_equal(params[-1], train(FedExP(deployed="last"), task)["params"])
    deployed = [method.deploy(task, state, everyone).params for state in states]
    assert_equal(deployed[0], params[0])
    assert_equal(deployed[1], params[1])
    for after in (2, 3):
        mean = tree.scale(tree.add(params[after], params[after - 1]), 0.5)
        assert_equal(deployed[after], mean, tolerance=1e-12)
    last = FedExP(deployed="last").deploy(task, states[3], everyone).params
    assert_equal(last, params[3])


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedAdam(server_lr=0), "server_lr must be greater than 0, but got 0."),
    (lambda: FedAdam(beta1=-0.1), "beta1 must be at least 0 and below 1, but got -0.1."),
    (lambda: FedAdagrad(beta1=1), "beta1 must be at least 0 and below 1, but got 1."),
    (lambda: FedAdam(beta2=1), "beta2 must be at least 0 and below 1, but got 1."),
    (lambda: FedYogi(beta2=-1), "beta2 must be at least 0 and below 1, but got -1."),
    (lambda: FedYogi(adaptivity=0), "adaptivity must be greater than 0, but got 0."),
    (
        lambda: FedYogi(initial_second_moment="one"),
        "initial_second_moment must be one of squared-adaptivity, zero, but got 'one'.",
    ),
    (lambda: FedExP(eps=-1), "eps must be at least 0, but got -1."),
    (lambda: FedExP(deployed="first"), "deployed must be one of mean, last, but got 'first'."),
)


def test_a_step_of_nesterov_is_the_mean_delta_and_a_share_of_the_new_velocity():
    """Deltas 1 and 2 with beta 0.5: velocities 1 and 2.5, steps 1 + 0.5 and 2 + 1.25."""
    method, params = FedAvgM(server_momentum=0.5, form="nesterov"), {"w": torch.zeros(1)}
    server = method.init_server(None, params)
    for delta, expected in ((1.0, 1.5), (2.0, 4.75)):
        params, server = method.server_step(None, params, server, {"delta": {"w": torch.tensor([delta])}}, None)
        assert params["w"].item() == expected
