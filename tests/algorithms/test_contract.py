"""What every method must do, on every engine (`bench/contract`). A new method is tested by being in the registry."""

import dataclasses

import pytest

import algorithms
from algorithms.ditto import Ditto
from algorithms.local_training import LocalTraining
from algorithms.shared import calibration
from bench.contract.cases import Case
from bench.contract.checks import CHECKS, batch_norm_is_trained_and_its_statistics_move, every_option_has_an_effect
from tests.support import kinds
from tests.support.toy import TESTED_ELSEWHERE, toy, toy_method

OPTIONS = {name: (name, {}) for name in algorithms.REGISTRY} | {
    "fedcollab-ditto": ("fedcollab", {"base": Ditto()}),
    "fedcollab-local": ("fedcollab", {"base": LocalTraining()}),
    "fedconcat-two-models": ("fedconcat", {"models": "mlp+fedcollab-mlp"}),
    "fedconcat-id-two-models": ("fedconcat-id", {"models": "mlp+fedcollab-mlp", "inference_round": "before"}),
}


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

    Of the circumstances of a check, such as shares of clients, the fast tests try the first, and all for one method of each
    kind.
    """
    found = []
    for key in OPTIONS:
        tried = set()
        for check in CHECKS:
            slow = check.function in tried and key not in kinds.METHODS
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
    check(case)


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
