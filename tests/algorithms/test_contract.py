"""What every method must do, on every engine (`bench/contract`). A new method is tested by being in the registry."""

import dataclasses

import pytest

import algorithms
from algorithms import calibration
from algorithms.ditto import Ditto
from algorithms.local_training import LocalTraining
from bench.contract.cases import Case
from bench.contract.checks import CHECKS, batch_norm_is_trained_and_its_statistics_move, every_option_has_an_effect
from tests.support.toy import TESTED_ELSEWHERE, toy, toy_method

METHODS = {name: (name, {}) for name in algorithms.REGISTRY} | {
    "fedcollab-ditto": ("fedcollab", {"base": Ditto()}),
    "fedcollab-local": ("fedcollab", {"base": LocalTraining()}),
    "fedconcat-two-models": ("fedconcat", {"models": "mlp+fedcollab-mlp"}),
    "fedconcat-id-two-models": ("fedconcat-id", {"models": "mlp+fedcollab-mlp", "inference_round": "before"}),
}


@pytest.fixture(scope="module", params=METHODS)  # so that all tests of a method come one after another, and share
def named(request):
    """A method's name in the registry, and options that it is tested with."""
    return METHODS[request.param]


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


@pytest.mark.parametrize(
    "check", CHECKS, ids=[f"{check.function.__name__}-{'-'.join(map(str, check.given.values()))}" for check in CHECKS]
)
def test_every_method_keeps_the_contract(named, check):
    name, options = named
    if check.function is every_option_has_an_effect and options:
        pytest.skip("not every option has an effect on every base: local trains the same in any coalition")
    case = case_of(name, **options)
    if check.function is batch_norm_is_trained_and_its_statistics_move and case.method.named_models:
        pytest.skip("it trains models that it names, here without batch norm; with it: test_fedconcat.py")
    check(case)
