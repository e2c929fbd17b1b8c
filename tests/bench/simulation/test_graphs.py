"""What surrounds a CUDA graph, with a traced function in its place: it replays tensor operations, and no Python."""

from dataclasses import replace

import pytest
import torch

import algorithms
from algorithms.shared import tree
from bench.contract.toy import assert_equal, toy_task, train
from bench.contract.traced import traced
from bench.simulation.graphs import Captured, Graphs, cuda_graphs
from bench.simulation.task import Task
from tests.support.toy import settings_for, toy_method

ONE_BLOCK = {"sizes": (12,) * 3, "local_epochs": None, "local_steps": 2, "engine": "vectorised", "rounds": 4}


def captured_run(name: str, graphs: Graphs, **changes):
    """The states after a run without graphs, and with them."""
    method, task = toy_method(name), toy_task(**{**ONE_BLOCK, **changes})
    return train(method, task), train(method, replace(task, graphs=graphs))


def of_traced(**options) -> Graphs:
    """Traced blocks."""
    return Graphs(traced, **{"least_left": 0, **options})


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
def test_a_block_of_all_clients_is_captured_at_once_and_replayed_bit_by_bit(name):
    graphs = of_traced()
    assert_equal(*captured_run(name, graphs))
    assert (graphs.num_captured, graphs.not_captured) == (1, {})


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ["moon", "fedsam"])
def test_hooks_that_read_the_round_are_not_captured(name):
    graphs = of_traced()
    assert_equal(*captured_run(name, graphs))
    assert graphs.num_captured == 0
    assert [*graphs.not_captured.values()] == ["it reads the round"]


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_blocks_of_every_method_are_tensor_operations_alone_which_give_its_numbers(name, monkeypatch):
    """The precondition of graphs: nothing in a block waits, or depends on a value. Clusters train at once, as on a GPU."""
    monkeypatch.setattr("algorithms.shared.calibration._LEAST_STEPS", 20)
    monkeypatch.setattr(Task, "trains_models_at_once", property(lambda task: task.engine == "vectorised"))
    graphs, method = of_traced(), toy_method(name)
    task = toy_task(**{**ONE_BLOCK, "dtype": torch.float32, **settings_for(name)})
    assert_equal(train(method, replace(task, graphs=graphs)), train(method, task))
    assert {*graphs.not_captured.values()} <= {"it reads the round"}
    assert graphs.kept or graphs.not_captured, "it trains without the engine"


def test_where_some_clients_train_in_a_round_a_block_is_captured_when_it_comes_again():
    graphs, changes = of_traced(), {"sizes": (12,) * 6, "participation": 0.5}
    method, task = toy_method("fedavg"), replace(toy_task(**{**ONE_BLOCK, **changes}), graphs=graphs)
    state = method.step(task, method.init(task))
    assert graphs.num_captured == 0
    method.step(task, state)
    assert graphs.num_captured == 1
    assert_equal(*captured_run("fedavg", of_traced(), **changes))


def test_nothing_is_captured_in_the_last_rounds():
    graphs = of_traced(least_left=4)
    assert_equal(*captured_run("fedavg", graphs))
    assert graphs.num_captured == 0


def test_a_graph_that_gives_other_numbers_is_not_used():
    def wrong(fn, example):
        found = traced(fn, example)
        return Captured(found.inputs, tree.map(lambda leaf: leaf + 1, found.outputs), lambda: None)

    graphs = Graphs(wrong, least_left=0)
    assert_equal(*captured_run("fedavg", graphs))
    assert [*graphs.not_captured.values()] == ["its graph gives other numbers"]


def test_what_cannot_be_captured_runs_as_always_and_is_tried_once():
    tried = []

    def refused(fn, example):
        tried.append(fn)
        raise RuntimeError("operation not permitted when stream is capturing\nMore lines.")

    graphs = Graphs(refused, least_left=0)
    assert_equal(*captured_run("fedavg", graphs))
    assert [*graphs.not_captured.values()] == ["operation not permitted when stream is capturing"]
    assert len(tried) == 1


@pytest.mark.slow
def test_every_shape_of_a_block_has_its_own_graph():
    graphs = of_traced()
    assert_equal(*captured_run("fedavg", graphs, sizes=(40, 40, 6, 6), local_epochs=1, local_steps=None))
    assert graphs.num_captured == 2


@pytest.mark.slow
def test_the_block_that_came_longest_ago_is_forgotten():
    graphs = of_traced(most=1)
    assert_equal(*captured_run("fedavg", graphs, sizes=(40, 40, 6, 6), local_epochs=1, local_steps=None))
    assert graphs.num_captured == 8, "two in each round"


def test_functions_that_may_hold_tensors_of_one_round_are_not_captured():
    graphs = of_traced()
    task = replace(toy_task(**ONE_BLOCK), graphs=graphs)
    given = {"round": 0, "params": task.initial_params(), "buffers": {}}
    for held in (torch.ones(1), torch.zeros(1), torch.ones(1)):
        found = task.map_clients(lambda data, plan, view, held=held: held + 0, task.sample_cohort(0), **given)
        assert found.result.flatten().tolist() == held.tolist() * 3
    assert graphs.num_captured == 0


def test_results_are_not_overwritten_by_the_next_replay_and_inputs_not_by_any():
    doubled = traced(lambda given: {"twice": 2 * given["x"]}, {"x": torch.ones(2)})
    x = torch.full((2,), 3.0)
    first, second = doubled({"x": x}), doubled({"x": x + 1})
    assert (first["twice"].tolist(), second["twice"].tolist(), x.tolist()) == ([6, 6], [8, 8], [3, 3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_cuda_graph_gives_the_numbers_of_the_engine():
    graphs = Graphs(cuda_graphs(), least_left=0)
    assert_equal(*captured_run("scaffold", graphs, device="cuda"))
    assert graphs.num_captured == 1
