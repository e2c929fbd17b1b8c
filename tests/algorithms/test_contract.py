"""What every method must do, on every engine. A new method is tested by being in the registry."""

import dataclasses
import typing

import pytest
import torch

import algorithms
from algorithms import tree
from bench.evaluate import evaluate
from bench.run import save
from tests.toy import play, toy_task

METHODS = list(algorithms.REGISTRY)


def sizes_for(name: str) -> dict:
    """Centralized is defined for one client that holds everything."""
    return {"sizes": (56,)} if name == "centralized" else {}


def assert_equal(a, b, tolerance: float = 0.0):
    """Trees of one structure with equal leaves; plain numbers are compared too."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key], tolerance)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    else:
        assert a == b


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.fixture
def method(name):
    return algorithms.load(name)()


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_engines_agree(name, method, participation):
    tasks = [
        toy_task(engine=engine, participation=participation, **sizes_for(name)) for engine in ("loop", "vectorised")
    ]
    looped, vectorised = (play(method, task) for task in tasks)
    assert_equal(looped, vectorised, tolerance=1e-8)
    assert evaluate(tasks[0], method.deploy(tasks[0], looped, everyone(tasks[0]))) == pytest.approx(
        evaluate(tasks[1], method.deploy(tasks[1], vectorised, everyone(tasks[1]))), abs=1e-8
    )


@pytest.mark.parametrize(
    "model, shape, dataset", [("simple-cnn", (3, 16, 16), "cifar10"), ("moon-cnn", (1, 16, 16), "mnist")]
)
def test_engines_agree_on_augmented_images_and_convolutions(name, method, model, shape, dataset):
    how = {"model": model, "shape": shape, "dataset": dataset, "transform": "fedconcat", "rounds": 2, **sizes_for(name)}
    looped, vectorised = (play(method, toy_task(engine=engine, **how)) for engine in ("loop", "vectorised"))
    assert_equal(looped, vectorised, tolerance=1e-8)


def test_saved_and_resumed_equals_uninterrupted(name, method, tmp_path):
    task = toy_task(participation=0.6, rounds=4, **sizes_for(name))
    save(tmp_path / "state.pt", play(method, task, rounds=2))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for _ in range(2):
        state = method.step(task, state)
    assert_equal(state, play(method, task))


def test_inputs_are_left_as_they_are(name, method):
    task = toy_task(**sizes_for(name))
    before = play(method, task, rounds=1)
    copy = clone(before)
    method.deploy(task, method.step(task, before), everyone(task))
    assert_equal(before, copy)


def test_training_changes_what_is_deployed(name, method):
    task = toy_task(**sizes_for(name))
    start, end = (method.deploy(task, play(method, task, rounds), everyone(task)).params for rounds in (0, 2))
    assert all(not torch.equal(a, b) for a, b in zip(tree.leaves(start), tree.leaves(end), strict=True))


def test_clients_deploy_one_model_each_exactly_if_the_method_is_personal(name, method):
    task = toy_task(**sizes_for(name))
    deployed = method.deploy(task, play(method, task, rounds=1), everyone(task))
    assert deployed.per_client == method.personal
    expected = {(task.population,)} if method.personal else {()}
    initial = task.initial_params()
    assert {leaf.shape[: leaf.dim() - initial[key].dim()] for key, leaf in deployed.params.items()} == expected


def test_another_seed_gives_another_model(name, method):
    first, second = (play(method, toy_task(seed=seed, **sizes_for(name)), rounds=1) for seed in (0, 1))
    task = toy_task(**sizes_for(name))
    a, b = (method.deploy(task, state, everyone(task)).params for state in (first, second))
    assert not torch.equal(a["classifier.weight"], b["classifier.weight"])


def test_every_option_has_an_effect(name):
    """Each field, changed alone, changes what is deployed after three rounds."""
    cls = algorithms.load(name)
    task = toy_task(**sizes_for(name))
    default = cls().deploy(task, play(cls(), task), everyone(task)).params["classifier.weight"]
    for field in dataclasses.fields(cls):
        changed = cls(**{field.name: other_value(cls, field)})
        deployed = changed.deploy(task, play(changed, task), everyone(task)).params["classifier.weight"]
        assert not torch.equal(deployed, default), field.name


def other_value(cls, field):
    """A valid value of a field beside its default: another choice of a Literal, or a number nearby."""
    choices = typing.get_args(typing.get_type_hints(cls)[field.name])
    if choices:
        return next(choice for choice in choices if choice != field.default)
    return field.default + 1 if isinstance(field.default, int) else 0.5 * field.default + 0.1


def test_a_client_with_one_example_is_trained_without_breaking_anything(name, method):
    if name == "centralized":
        task = toy_task(sizes=(56,))
    else:
        task = toy_task(sizes=(1, 4, 20, 8, 11))
    assert tree.all_finite(method.deploy(task, play(method, task), everyone(task)).params)


def test_description_is_one_sentence(name):
    assert algorithms.describe(name).endswith(".") and len(algorithms.describe(name)) < 120


def everyone(task) -> torch.Tensor:
    return torch.arange(task.population)


def clone(state):
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state
