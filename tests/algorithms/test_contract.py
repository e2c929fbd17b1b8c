"""What every method must do, on every engine. A new method is tested by being in the registry.

Every method costs every run of these tests some CPU-seconds: tests share what is trained (see `toy.history`), and train no
longer than what they assert needs.
"""

import dataclasses
import itertools
import typing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import algorithms
from algorithms import calibration, tree
from algorithms.fedprox import FedProx
from algorithms.rows import without_clients
from bench.participation import cohort_size
from bench.results.artifacts import Folder, on_host
from bench.simulation.evaluation import evaluate
from tests.support.toy import CYCLES, SIZES, SMALL, assert_equal, history, toy_method, toy_task, train

METHODS = list(algorithms.REGISTRY)


def settings_for(name: str, participation: float | None = None) -> dict:
    """Centralized is defined for one client that holds everything; a run of FedCat has cycles, here two of them."""
    share = {} if participation is None else {"participation": participation}
    if name in CYCLES:
        share = share or {"participation": 0.4}
        return share | {"rounds": 2 * cohort_size(len(SIZES), **share)}
    return share | ({"sizes": (56,)} if name == "centralized" else {})


@pytest.fixture(scope="module", params=METHODS)  # so that all tests of a method come one after another, and share
def name(request):
    return request.param


@pytest.fixture(scope="module", autouse=True)
def short_calibrations():
    """Classifiers are trained again for 20 steps instead of 1,000, where epochs do not ask for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_LEAST_STEPS", 20)
        yield


@pytest.fixture
def method(name):
    return toy_method(name)


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_engines_agree(name, method, participation):
    task, (*_, looped) = history(method, **settings_for(name, participation))
    other = replace(task, engine="vectorised")
    vectorised = train(method, other)
    assert_equal(looped, vectorised, tolerance=1e-8)
    assert evaluate(task, method.deploy(task, looped, everyone(task))) == pytest.approx(
        evaluate(other, method.deploy(other, vectorised, everyone(other))), abs=1e-8
    )


def test_a_cohort_that_is_too_large_to_stack_gives_the_same_up_to_rounding(name, method):
    task = toy_task(**settings_for(name, 0.6))
    assert_equal(train(method, task), train(method, replace(task, largest_stack=0)), tolerance=1e-8)


@pytest.mark.parametrize(
    "model, shape, dataset", [("simple-cnn", (3, 16, 16), "cifar10"), ("moon-cnn", (1, 16, 16), "mnist")]
)
def test_engines_agree_on_augmented_images_and_convolutions(name, method, model, shape, dataset):
    short = {"rounds": 2, "local_epochs": 1, **settings_for(name)}
    task = toy_task(model=model, shape=shape, dataset=dataset, transform="fedconcat", **short)
    looped, vectorised = (train(method, replace(task, engine=engine)) for engine in ("loop", "vectorised"))
    assert_equal(looped, vectorised, tolerance=1e-8)


def test_what_is_deployed_is_the_same_without_the_client_states_that_it_does_not_read(name, method):
    task, states = history(method, **settings_for(name, 0.6))
    for state in (states[1], states[-1]):  # after one round some methods have not yet anything to deploy
        left = state if method.deploy_reads_clients else without_clients(state)
        assert_equal(method.watched(state), method.watched(left))
        assert method.diagnostics(state) == method.diagnostics(left)
        whole, less = (method.deploy(task, one, everyone(task)) for one in (state, left))
        if whole is not None:
            assert_equal({**whole.params, **whole.buffers}, {**less.params, **less.buffers})


def test_outlines_are_as_large_as_the_states_of_each_stage(name, method):
    short = {"local_epochs": 1, **settings_for(name)}
    task, states = history(method, model="moon-cnn", shape=(1, 16, 16), dataset="mnist", **short)
    for outline in method.outlines(task):
        state = states[outline["round"]]
        shared, whole = without_clients(state), without_clients(outline)
        assert numbers(whole) == pytest.approx(numbers(shared), rel=0.05)
        assert outline["round"] == state["round"]
    assert outline["round"] == method.num_rounds(task.settings)


def numbers(state) -> int:
    """How many a state has."""
    if isinstance(state, dict):
        return sum(map(numbers, state.values()))
    return state.numel() if isinstance(state, torch.Tensor) else 0


def test_saved_and_resumed_equals_uninterrupted(name, method, tmp_path):
    """After every round: the next one leads from the stored state to where it led from the one in memory."""
    task, states = history(method, **settings_for(name, 0.6))
    for before, after in itertools.pairwise(states[1:]):
        Folder(tmp_path).save("state.pt", on_host(before))
        assert_equal(method.step(task, torch.load(tmp_path / "state.pt", weights_only=True)), after)


def test_inputs_are_left_as_they_are(name, method):
    task = toy_task(**settings_for(name))
    state = method.init(task)  # no `history`: whoever changes what it was given has changed that before
    for _ in range(method.num_rounds(task.settings)):
        before, copy = state, clone(state)
        state = method.step(task, before)
        method.deploy(task, state, everyone(task))
        assert_equal(before, copy)


def test_every_round_changes_what_is_deployed(name, method):
    task, states = history(method, **settings_for(name))
    deployed = [method.deploy(task, state, everyone(task)) for state in states[1:]]
    seen = [one.params["classifier.weight"] for one in deployed if one]
    assert len(seen) >= 2
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))


def test_when_a_run_has_a_model_is_known_before_it_is_trained(name, method):
    task, states = history(method, **settings_for(name))
    config = SimpleNamespace(cohort_size=len(task.sample_cohort(0).ids))
    known = [method.has_model(config, state["round"]) for state in states[1:]]
    assert known == [method.deploy(task, state, everyone(task)) is not None for state in states[1:]] and known[-1]


def test_clients_deploy_one_model_each_exactly_if_the_method_is_personal(name, method):
    task, states = history(method, **settings_for(name))
    deployed = method.deploy(task, states[-1], everyone(task))
    assert deployed.per_client == method.personal
    expected = {(task.population,)} if method.personal else {()}
    shapes = {key: leaf.shape for key, leaf in deployed.model.init(torch.Generator()).items()}
    assert {leaf.shape[: leaf.dim() - len(shapes[key])] for key, leaf in deployed.params.items()} == expected
    assert all(leaf.shape[leaf.dim() - len(shapes[key]) :] == shapes[key] for key, leaf in deployed.params.items())


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_what_a_run_costs_is_known_before_it_is_trained(name, method, participation):
    # Equal clients, so that every cohort costs the same.
    task = toy_task(**({"sizes": (20,) * 5} | settings_for(name, participation)))
    state = train(method, task)
    spent = state["spent"]
    deploying = method.deployment(task, method.deploy(task, state, everyone(task)).model)
    exchanged = sum(of[key] for of in (spent, deploying) for key in ("bytes_down", "bytes_up"))
    assert method.traffic(task) == pytest.approx(exchanged / task.population, abs=1)
    share = len(task.sample_cohort(0).ids) / task.population
    whole = task.population * method.workload(task.settings, len(task.federation.clients[0]))
    extra = 0 if participation == 1 else examples_beyond_cohorts(name, task)
    assert spent["examples"] == round(share * whole) + extra


def examples_beyond_cohorts(name: str, task) -> int:
    """Of the first round of methods in which it is everybody's."""
    absent = task.population - len(task.sample_cohort(0).ids)
    return absent * 40 if name in ("fedconcat-id", "fedconcat-ib") else 0


def test_another_seed_gives_another_model(name, method):
    a, b = (deployed_weight(method, local_epochs=1, seed=seed, **settings_for(name)) for seed in (0, 1))
    assert not torch.equal(a, b)


# Options whose effect needs a special task, or is none on the numbers: what tests them instead, for every method.
TESTED_ELSEWHERE = {
    "cache_features": "test_fedconcat.py: fewer passes, equal numbers",
    "stage3_encoder_mode": "test_fedconcat.py: batch norm",
    "balanced": "test_fedconcat.py: one large cluster",
    "epsilon": "test_fedconcat.py: scale of the noise",
    "inference_images": "test_fedconcat.py: images counted",
    "inference_mode": "test_fedconcat.py: mode of the passes",
    "estimate": "test_fedconcat.py: formula",
    "proximal_weight": "test_clustered.py: read only with the intended proximal term",
    "smallest_importance": "test_clustered.py: three clusters",
    "vote": "test_clustered.py: three clusters",
    "interval": "test_clustered.py: three rounds",
    "tukey": "test_ccvr.py: where features are transformed",
    "relu": "test_ccvr.py: where features are transformed",
    "calibration_batch_size": "test_ccvr.py: fewer features than a batch",
    "calibration_epochs": "test_ccvr.py: fewer than make 1,000 steps",
    "regroup_every": "test_fedcat.py: groups of later cycles",
    "greedy_share": "test_fedcat.py: frequencies of selected clients",
    "count_rule": "test_fedcat.py: weights",
}


def test_every_option_has_an_effect(name):
    """Each field, changed alone, changes what is deployed at the end."""
    cls, short = algorithms.load(name), {"local_epochs": 1, **settings_for(name)}
    default = deployed_weight(toy_method(name), **short)
    for field in dataclasses.fields(cls):
        if field.name not in TESTED_ELSEWHERE:
            changed = toy_method(name, **{field.name: other_value(cls, field, getattr(toy_method(name), field.name))})
            assert not torch.equal(deployed_weight(changed, **short), default), field.name


def deployed_weight(method, **settings) -> torch.Tensor:
    task, states = history(method, **settings)
    return method.deploy(task, states[-1], everyone(task)).params["classifier.weight"]


def other_value(cls, field, default):
    """A valid value of a field beside that of a toy method: another choice of a Literal, another method, or a number nearby."""
    choices = typing.get_args(typing.get_type_hints(cls)[field.name])
    if field.name in SMALL:
        return SMALL[field.name] + 1
    if choices and isinstance(field.default, str):
        return next(choice for choice in choices if choice != field.default)
    if isinstance(field.default, bool):
        return not default
    if dataclasses.is_dataclass(field.default):
        return FedProx(mu=1.0)
    if field.default is None:
        return 0.1  # instead of the value of a setting
    return field.default + 1 if isinstance(field.default, int) else 0.5 * field.default + 0.1


def test_a_client_with_one_example_is_trained_without_breaking_anything(name, method):
    task = toy_task(**({"sizes": (1, 4, 20, 8, 11)} | settings_for(name)))
    assert tree.all_finite(method.deploy(task, train(method, task), everyone(task)).params)


def test_description_is_one_sentence(name):
    assert algorithms.describe(name).endswith(".") and len(algorithms.describe(name)) < 120


def everyone(task) -> torch.Tensor:
    return torch.arange(task.population)


def clone(state):
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state
