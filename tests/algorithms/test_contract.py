"""What every method must do, on every engine. A new method is tested by being in the registry.

Every method costs every run of these tests some CPU-seconds: tests share what is trained (see `toy.history`), and train no
longer than what they assert needs.
"""

import dataclasses
import itertools
import json
import math
import typing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import algorithms
from algorithms import calibration, tree
from algorithms.ditto import Ditto
from algorithms.local_training import LocalTraining
from algorithms.rows import without_clients
from bench.results.artifacts import Folder, on_host
from bench.simulation.evaluation import evaluate
from tests.support.toy import (
    TESTED_ELSEWHERE,
    assert_equal,
    history,
    normalised_task,
    other_value,
    settings_for,
    toy,
    toy_method,
    toy_task,
    train,
)

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


@pytest.fixture(scope="module")
def name(named):
    return named[0]


@pytest.fixture(scope="module", autouse=True)
def short_calibrations():
    """Classifiers are trained again for 20 steps instead of 1,000, where epochs do not ask for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_LEAST_STEPS", 20)
        yield


@pytest.fixture
def method(named):
    name, options = named
    return toy_method(name, **options)


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
        if toy(name).outlines_are_bounds:
            assert numbers(whole) >= numbers(shared)
        else:
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
    seen = [numbers_of(one) for one in deployed if one]
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


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_what_a_run_costs_is_known_before_it_is_trained(name, method, participation):
    # Equal clients, so that every cohort costs the same; 0.7 of 5 are 3.
    task = toy_task(**({"sizes": (20,) * 5} | settings_for(name, participation)))
    state = train(method, task)
    spent = state["spent"]
    deploying = method.deployment(task, method.deploy(task, state, everyone(task)).model)
    exchanged = sum(of[key] for of in (spent, deploying) for key in ("bytes_down", "bytes_up"))
    if toy(name).exchanges_less or method.named_models:  # not all clients train the largest of the models
        assert method.traffic_is_bound and method.traffic(task) > exchanged / task.population
    else:
        assert method.traffic(task) == pytest.approx(exchanged / task.population, abs=1)
    share = len(task.sample_cohort(0).ids) / task.population
    whole = task.population * method.workload(task.settings, len(task.federation.clients[0]))
    absent = task.population - len(task.sample_cohort(0).ids) if toy(name).everyone_begins else 0
    assert spent["examples"] == round(share * whole) + 2 * 20 * absent, "two epochs of 20 examples"


def test_another_seed_gives_another_model(name, method):
    a, b = (trained_numbers(method, local_epochs=1, seed=seed, **settings_for(name)) for seed in (0, 1))
    assert not torch.equal(a, b)


def test_every_option_has_an_effect(name, method):
    """Each field, changed alone, changes what is deployed at the end."""
    if method != toy_method(name):
        pytest.skip("not every option has an effect on every base: local trains the same in any coalition")
    kinds, short = typing.get_type_hints(type(method)), {"local_epochs": 1, **settings_for(name)}
    default = trained_numbers(method, **short)
    for option in dataclasses.fields(method):
        if option.name not in TESTED_ELSEWHERE and (name, option.name) not in TESTED_ELSEWHERE:
            other = other_value(kinds[option.name], getattr(method, option.name))
            changed = trained_numbers(toy_method(name, **{option.name: other}), **short)
            assert not torch.equal(changed, default), option.name


def trained_numbers(method, **settings) -> torch.Tensor:
    task, states = history(method, **settings)
    return numbers_of(method.deploy(task, states[-1], everyone(task)))


def numbers_of(deployed) -> torch.Tensor:
    """All params of what is deployed, [n]; in some methods the classifier alone changes, in others everything else."""
    return torch.cat([leaf.flatten() for leaf in deployed.params.values()])


def test_a_client_with_one_example_is_trained_without_breaking_anything(name, method):
    task = toy_task(**({"sizes": (toy(name).smallest_client, 4, 20, 8, 11)} | settings_for(name)))
    assert tree.all_finite(method.deploy(task, train(method, task), everyone(task)).params)


def test_a_model_with_batch_norm_is_trained_and_its_statistics_move(name, method):
    """On the engine loop, the one that takes it. Its buffers change in place, which not every way to a gradient allows."""
    if method.named_models:
        pytest.skip("it trains models that it names, here without batch norm; with it: test_fedconcat.py")
    task = normalised_task(**{"rounds": 2, "local_epochs": 1} | settings_for(name))
    state = train(method, task)
    deployed, start = method.deploy(task, state, everyone(task)), method.deployed_model(task).init_buffers()
    assert tree.all_finite([method.watched(state), deployed.params, deployed.buffers])
    assert deployed.buffers.keys() >= start.keys() and any("running_mean" in key for key in deployed.buffers)
    assert all(bool((leaf != start.get(key, 0)).any()) for key, leaf in deployed.buffers.items())
    assert all(map(math.isfinite, evaluate(task, deployed).values()))


def test_training_that_diverges_ends_in_numbers_that_are_not_finite_and_not_in_an_error(name, method):
    task = toy_task(lr=1e30, **settings_for(name))
    state, left = method.init(task), method.num_rounds(task.settings)
    while tree.all_finite(method.watched(state)) and left:
        state, left = method.step(task, state), left - 1
    assert not tree.all_finite(method.watched(state))
    json.dumps(method.diagnostics(state), allow_nan=False)  # of its record


def test_description_is_one_sentence(name):
    assert algorithms.describe(name).endswith(".") and len(algorithms.describe(name)) < 120


def everyone(task) -> torch.Tensor:
    return torch.arange(task.population)


def clone(state):
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state
