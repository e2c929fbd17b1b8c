"""What a GPU needs, without one: every method on both engines, on a device that only pretends to be one."""

from collections import Counter

import pytest
import torch

import algorithms
from algorithms import Algorithm
from algorithms.shared import tree
from algorithms.shared.client_states import are_client_rows, rows_of
from bench import models
from bench.contract import pretended_gpu
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import Checkpoints
from bench.simulation.evaluation import measure
from bench.simulation.task import Task
from tests.support import kinds
from tests.support.pretended import MOST_KERNELS, MOST_WAITS, require_pretended_gpu
from tests.support.toy import assert_equal, settings_for, toy_method, toy_task

require_pretended_gpu()

ENGINES = ("loop", "vectorised")
SOME = ["ccvr", "fedavg", "fedcat", "fedconcat-id", "fedgen", "moon", "scaffold"]
MODELS = {
    "mlp": {},
    "cnn": {"model": "simple-cnn", "shape": (3, 16, 16), "dataset": "cifar10", "transform": "fedconcat"},  # augmented
    "rotated": {"model": "simple-cnn", "shape": (3, 16, 16), "dataset": "cifar100", "transform": "fedconcat"},
    "noise": {"noise": 0.1},
    "own tests": {"own_tests": True},
}
DEVICE = pretended_gpu.NAME
every_method = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in algorithms.REGISTRY],
)
both_engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch):
    monkeypatch.setattr("algorithms.shared.calibration._LEAST_STEPS", 20)


@pytest.fixture
def groups_at_once(monkeypatch):
    """The CPU adds up as a GPU does, where clients of several models train at once; see `Task.trains_models_at_once`."""
    monkeypatch.setattr(Task, "trains_models_at_once", property(lambda task: task.engine == "vectorised"))


def trained(name: str, device: str, folder: Folder | None = None, **options) -> list:
    """The state and the scores after each round of a run, which is saved and continued from the file after the first."""
    method, task = toy_method(name), toy_task(device=device, dtype=torch.float32, **options, **settings_for(name))
    state, rounds = method.init(task), []
    for _ in range(method.num_rounds(task.settings)):
        state = method.step(task, state)
        assert {leaf.device.type for leaf in client_rows(state)} <= {"cpu"}, "rows of clients wait on the host"
        assert tree.all_finite(method.finite_check(state))
        deployed = method.deploy(task, state, torch.arange(task.population))
        scores = measure(task, deployed).scores if deployed else {}
        rounds.append((pretended_gpu.on_host(state), {key: float(value) for key, value in scores.items()}))
        if folder and len(rounds) == 1:
            where = places(state)
            Checkpoints(folder, {"run": name}, 0).save({"state": state})
            state = Checkpoints(folder, {"run": name}, 0).load(task.device)["state"]
            assert places(state) == where, "what lay on the device lies there again"
    method.diagnostics(state)
    return rounds


def places(state: dict) -> dict:
    """A state with the kind of device in place of each tensor."""
    if isinstance(state, dict):
        return {key: places(part) for key, part in state.items()}
    return state.device.type if isinstance(state, torch.Tensor) else None


def client_rows(state) -> list:
    """The tensors of all rows of clients in a state."""
    if not isinstance(state, dict):
        return []
    if are_client_rows(state):
        return [leaf for row in state["rows"].values() for leaf in tree.leaves(row)]
    return [leaf for part in state.values() for leaf in client_rows(part)]


def check_equal(name: str, folder: Folder, **options) -> None:
    host = trained(name, "cpu", **options)
    with pretended_gpu.session():
        found = trained(name, DEVICE, folder, **options)
    for (state, scores), (expected, known) in zip(found, host, strict=True):
        assert_equal(state, expected)
        assert scores == known


@pytest.mark.slow_but_first
@every_method
@both_engines
def test_a_run_on_a_device_has_the_numbers_of_the_cpu_through_save_and_resume(name, engine, tmp_path, groups_at_once):
    check_equal(name, Folder(tmp_path), engine=engine)


@pytest.mark.slow
@both_engines
@pytest.mark.parametrize("model", [model for model in MODELS if model != "mlp"])
@pytest.mark.parametrize("name", SOME)
def test_so_have_runs_with_other_inputs(name, model, engine, tmp_path, groups_at_once):
    check_equal(name, Folder(tmp_path), engine=engine, **MODELS[model])


@pytest.mark.slow
def test_augmented_images_have_the_numbers_of_the_cpu(tmp_path):
    for engine in ENGINES:
        check_equal("fedavg", Folder(tmp_path), engine=engine, **MODELS["rotated"] | {"noise": 0.1, "own_tests": True})


def waits(name: str, engine: str, steps: int, clients: int = 5, **options) -> Counter:
    """(kind, operation, line) -> how often the host waits for the device, where clients take so many steps in each round."""
    settings = {"sizes": (20,) * clients} | settings_for(name) | {"local_epochs": None, "local_steps": steps} | options
    with pretended_gpu.session() as gpu:
        method, task = toy_method(name), toy_task(device=DEVICE, dtype=torch.float32, engine=engine, **settings)
        state = method.init(task)
        gpu.events.clear()
        for _ in range(min(2, method.num_rounds(task.settings))):
            state = method.step(task, state)
    return Counter((event.kind, event.op, event.site) for event in gpu.events)


def more(few: Counter, many: Counter) -> dict:
    """What happens more often in many than in few, and how often in each."""
    return {what: (few[what], count) for what, count in many.items() if count > few[what]}


@pytest.mark.slow_but_first
@every_method
@both_engines
def test_no_local_step_waits_for_the_device(name, engine):
    assert not more(*(waits(name, engine, steps) for steps in (1, 3)))


@pytest.mark.parametrize("model", kinds.others_slow(models.REGISTRY, ["moon-cnn", "vgg9"]))
def test_steps_of_all_models_wait_for_nothing_but_masks_of_dropout(model):
    """VGG-9 draws one after each pooling but the first, and two between its linear layers, on the host, for each client."""
    image = {"shape": (3, 32, 32), "dataset": "cifar10", "transform": "fedconcat"}
    one, two = (waits("fedavg", "loop", steps, 2, model=model, rounds=1, batch_size=4, **image) for steps in (1, 2))
    found = [(kind, site.split(":")[0], count - before) for (kind, _, site), (before, count) in more(one, two).items()]
    assert found == ([("to device", "bench/models/base.py", 2 * 3)] if model == "vgg9" else [])


@both_engines
def test_a_round_of_fedavg_waits_seldom_whatever_the_number_of_clients(engine):
    for clients in (2, 6):
        found = waits("fedavg", engine, 1, clients, **MODELS["cnn"])
        assert found.total() <= 2 * MOST_WAITS[engine], "in two rounds"


def test_states_of_clients_wait_on_the_host_and_are_copied_there_once_for_all_clients():
    for clients in (2, 6):
        with pretended_gpu.session() as gpu:
            new = {"control": torch.ones(clients, 3, device=DEVICE), "steps": torch.ones(clients, device=DEVICE)}
            rows = rows_of(torch.arange(clients), new)
        assert {leaf.device.type for row in rows.values() for leaf in tree.leaves(row)} == {"cpu"}
        assert [event.kind for event in gpu.events] == ["to host"] * len(new)


def kernels_of_a_step(method: Algorithm, **options) -> int:
    """Kernels of one more local step of all clients, in the first round."""
    counts = []
    for steps in (1, 2):
        settings = {"local_epochs": None, "local_steps": steps, "batch_size": 8, "dtype": torch.float32} | options
        with pretended_gpu.session() as gpu:
            task = toy_task(device=DEVICE, **settings)
            state = method.init(task)
            gpu.launches.clear()
            method.step(task, state)
        counts.append(gpu.launches.total())
    return counts[1] - counts[0]


@both_engines
def test_a_step_has_few_kernels(engine):
    clients, cifar = 1 if engine == "loop" else 4, MODELS["cnn"] | {"shape": (3, 32, 32)}
    found = kernels_of_a_step(algorithms.make("fedavg"), engine=engine, sizes=(16,) * clients, **cifar)
    assert found <= MOST_KERNELS[engine]


@pytest.mark.parametrize("clusters", [1, 2, "none"])
def test_a_step_of_fedconcat_has_as_many_kernels_as_one_of_fedavg_whatever_the_number_of_clusters(clusters):
    task = {"engine": "vectorised", "sizes": (16,) * 6}
    concatenated = algorithms.make("fedconcat", num_clusters=clusters)
    assert kernels_of_a_step(concatenated, **task) == kernels_of_a_step(algorithms.make("fedavg"), **task)
