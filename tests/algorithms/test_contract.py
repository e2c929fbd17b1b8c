"""What every method must do, on every engine (`bench/contract`). A new method is tested by being in the registry."""

import dataclasses

import pytest
import torch

import algorithms
from algorithms.ditto import Ditto
from algorithms.fedov import FedOV
from algorithms.fusefl import FuseFL
from algorithms.local_training import LocalTraining
from algorithms.per_fedavg import PerFedAvg
from algorithms.shared import calibration
from algorithms.shared.rounds import RoundBased
from bench.contract.cases import Case
from bench.contract.checks import (
    CHECKS,
    batch_norm_is_trained_and_its_statistics_move,
    both_engines_agree,
    captured_blocks_give_the_same,
    divergence_ends_in_numbers_and_no_error,
    every_option_has_an_effect,
    is_trained,
    local_training_follows_its_settings,
    what_a_run_costs_is_known_before,
)
from bench.contract.toy import toy_task, train
from tests.support import kinds
from tests.support.toy import TESTED_ELSEWHERE, toy, toy_method

OPTIONS = {name: (name, {}) for name in algorithms.REGISTRY} | {
    "fedcollab-ditto": ("fedcollab", {"base": Ditto()}),
    "fedcollab-local": ("fedcollab", {"base": LocalTraining()}),
    "fedconcat-two-models": ("fedconcat", {"models": "mlp+fedcollab-mlp"}),
    "fedconcat-id-two-models": ("fedconcat-id", {"models": "mlp+fedcollab-mlp", "inference_round": "before"}),
}
OWN_STEPS = ("fedov", "pfedme")  # without momentum, as their docstrings say
FAST = (is_trained, both_engines_agree)


@pytest.fixture(scope="module", autouse=True)
def short_calibrations():
    """Classifiers are trained again for 20 steps instead of 1,000, where epochs do not ask for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_LEAST_STEPS", 20)
        yield


def case_of(name: str, **options) -> Case:
    method = toy_method(name, **options)
    fields = [field.name for field in dataclasses.fields(method)]
    elsewhere = [key for key in fields if key in TESTED_ELSEWHERE or (name, key) in TESTED_ELSEWHERE]
    return Case(name, method, special=toy(name), no_effect=elsewhere)


def cases() -> list:
    """Every method in every check, all checks of a method one after another, since they share what is trained.

    The fast tests try all of them for one method of each kind; for the others, those of `FAST` in the first of their
    circumstances, such as shares of clients.
    """
    found = []
    for key in OPTIONS:
        tried = set()
        for check in CHECKS:
            slow = key not in kinds.METHODS and (check.function in tried or check.function not in FAST)
            tried.add(check.function)
            said = "-".join([key, check.function.__name__, *map(str, check.given.values())])
            found.append(pytest.param(key, check, marks=[pytest.mark.slow] if slow else [], id=said))
    return found


@pytest.mark.parametrize(("key", "check"), cases())
def test_every_method_keeps_the_contract(key, check):
    name, options = OPTIONS[key]
    if check.function is every_option_has_an_effect and options:
        pytest.skip("not every option has an effect on every base: local trains the same in any coalition")
    case = case_of(name, **options)
    if check.function is batch_norm_is_trained_and_its_statistics_move and case.method.named_models:
        pytest.skip("it trains models that it names, here without batch norm; with it: test_fedconcat.py")
    told = check(case)
    if check.function is captured_blocks_give_the_same:
        assert told is None or told.startswith("not tried, ") or told.endswith(" reads the round"), "it waits"
    if check.function is local_training_follows_its_settings:
        assert told is None or (name in OWN_STEPS and told.startswith("it leaves out momentum, which "))
    if check.function is divergence_ends_in_numbers_and_no_error:
        assert told is None


STEP = {"local_epochs": None, "local_steps": 1, "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0}


@pytest.mark.slow_but_first
def test_one_step_of_a_client_is_no_longer_than_the_largest_norm_of_a_gradient_allows():
    """Of every method whose clients start from one model and send what they have trained; some take a few steps per batch."""
    measured = {}
    for name in algorithms.REGISTRY:
        case, most = case_of(name), 1e-6
        task = toy_task(**case.settings(max_gradient_norm=most, **STEP))
        if not isinstance(case.method, RoundBased):
            continue
        task = case.method.training(task)
        state = case.method.init(task)
        outputs = case.method.map_clients(task, case.method.local_update, case.method.sample(task, state), state)
        trained, start = case.method.local_models(state, outputs)["params"], state["params"]
        if any(trained[key].shape[1:] != start[key].shape for key in start if key in trained):
            continue  # a model per cluster
        moved = [(trained[key] - start[key]).flatten(1).square().sum(1) for key in start if key in trained]
        measured[name] = float(sum(moved).sqrt().max()) / (task.settings.lr * most)
    assert len(measured) > 40 and {"pfedme", "per-fedavg", "scaffold", "fedcm", "fedrep"} <= measured.keys()
    assert {name for name, ratio in measured.items() if ratio > 1.001} == {"fedas", "feddbe", "fedpac", "fedrep"}
    assert max(measured.values()) < 3, "a body and a head, and a client's mean representation"


DEPLOYING = [
    ("finetune", {"finetune_length": 5, "finetune_unit": "epochs"}, 500),
    ("finetune-head", {"finetune_length": 0}, 0),
    *((name, {"scored": "after"}, 200) for name in ("feddbe", "gpfl", "fedcp", "fedbn")),
    ("fedamp", {"scored": "before"}, 0),
    ("fedala", {"scored": "before"}, 80),
    ("fedala", {"scored": "after"}, 280),
    ("fedpac", {"scored": "after"}, 300),
    ("fedas", {"scored": "before", "fit_private": "all"}, 100 + 100 + 200),
    ("fedas", {"scored": "after", "fit_private": "all"}, 200),
    ("fedpac", {"fit_private": "all"}, 100),
    ("fedrep", {"fit_private": "all"}, 400),
    ("fedper", {"fit_private": "all"}, 200),
    ("fedper", {"fit_private": "all", "head_layers": 0}, 0),
    ("gpfl", {"fit_private": "all"}, 200),
    ("fedcp", {"fit_private": "all", "gate": "global"}, 0),
    ("fedper", {}, 0),
    ("per-fedavg", {}, 30),
    ("fedcollab", {"base": PerFedAvg()}, 30),
    ("fedlpa", {}, 100),
    ("ccvr", {}, 10 * 300),
]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("participation", [0.4, 1.0])
@pytest.mark.parametrize(("name", "options", "examples"), DEPLOYING)
def test_gradients_that_are_computed_in_order_to_deploy_count(name, options, examples, participation):
    """Those of 5 clients with 20 examples each, in batches of 6, with 2 local epochs."""
    case = case_of(name, **options)
    what_a_run_costs_is_known_before(case, participation)
    if participation == 1:
        method, task = case.method, toy_task(sizes=(20,) * 5)
        assert method.deploy(task, train(method, task), torch.arange(5)).examples == examples


@pytest.mark.parametrize(
    ("name", "base"),
    [("finetune", FedOV()), ("finetune", FuseFL()), ("ccvr", FuseFL())],
)
def test_a_wrapper_counts_what_deploying_its_base_costs(name, base):
    case = case_of(name, base=base)
    special = dataclasses.replace(case.special, gradients_of_its_own=True, exchanges_less=case.method.traffic_is_bound)
    what_a_run_costs_is_known_before(dataclasses.replace(case, special=special), 1.0)
    task = toy_task(**case.settings())
    own, of_base = (
        sum(method.deploy_traffic(task, method.deployed_model(task)).values()) for method in (case.method, base)
    )
    assert 0 < of_base <= own


def test_what_methods_share_lies_in_no_method_of_another_file():
    """But for one-shot methods, which take local training and combine its models, and for FedProx in ClsProx."""
    files = {entry.module for entry in algorithms.REGISTRY.values()}
    extended = {
        (name, kind.__module__)
        for name in algorithms.REGISTRY
        for kind in algorithms.load(name).__mro__
        if kind.__module__ in files - {algorithms.REGISTRY[name].module}
    }
    found = {name for name, file in extended if file not in ("algorithms.oneshot", "algorithms.local_training")}
    assert found == {"clsprox"}
