"""What surrounds a captured graph, with a traced one in its place: it replays tensor operations, and no Python."""

import pytest
import torch

import algorithms
from bench.contract.toy import assert_equal, toy_task, train
from bench.simulation.engines import ENGINES
from bench.simulation.task import Task
from bench.speed.candidates.graphs import Graphs, cuda_graph, traced
from tests.support.toy import settings_for, toy_method

ONE_BLOCK = {"sizes": (12,) * 3, "local_epochs": None, "local_steps": 2, "engine": "vectorised", "rounds": 4}


def captured_run(name: str, graphs: Graphs, **changes):
    """The states after a run as it always is, and with captured blocks."""
    method, task = algorithms.make(name), toy_task(**{**ONE_BLOCK, **changes})
    expected = train(method, task)
    with graphs.used():
        return expected, train(method, task)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
def test_a_block_is_captured_once_and_replayed_in_all_rounds_bit_by_bit(name):
    graphs = Graphs(traced)
    assert_equal(*captured_run(name, graphs))
    assert (graphs.num_captured, graphs.num_uncaptured) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moon", "fedsam"])
def test_where_clients_read_the_round_each_round_is_captured(name):
    graphs = Graphs(traced)
    assert_equal(*captured_run(name, graphs))
    assert graphs.num_captured == ONE_BLOCK["rounds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.REGISTRY)
def test_blocks_of_every_method_are_tensor_operations_alone_which_give_its_numbers(name, monkeypatch):
    """The precondition of graphs: nothing in a block waits, or depends on a value. Clusters train at once, as on a GPU."""
    monkeypatch.setattr("algorithms.shared.calibration._LEAST_STEPS", 20)
    monkeypatch.setattr(Task, "trains_models_at_once", property(lambda task: task.engine == "vectorised"))
    graphs, method = Graphs(traced), toy_method(name)
    task = toy_task(**{**ONE_BLOCK, "dtype": torch.float32, "rounds": 2, **settings_for(name)})
    expected = train(method, task)
    with graphs.used():
        found = train(method, task)
    assert_equal(found, expected)
    assert graphs.num_captured, "it trains without the engine"


def test_a_round_that_was_captured_is_replayed_also_where_clients_read_it():
    graphs, method, task = Graphs(traced), algorithms.make("moon"), toy_task(**ONE_BLOCK)
    state = method.step(task, method.init(task))
    expected = method.step(task, state)
    with graphs.used():
        for _ in range(3):
            assert_equal(method.step(task, state), expected)
    assert graphs.num_captured == 1


@pytest.mark.slow
def test_every_shape_of_a_block_has_its_own_graph():
    graphs = Graphs(traced)
    assert_equal(*captured_run("fedavg", graphs, sizes=(40, 40, 6, 6), local_epochs=1, local_steps=None))
    assert graphs.num_captured == 2


@pytest.mark.slow
def test_the_graph_used_longest_ago_is_forgotten():
    graphs = Graphs(traced, most=1)
    assert_equal(*captured_run("fedavg", graphs, sizes=(40, 40, 6, 6), local_epochs=1, local_steps=None, rounds=2))
    assert graphs.num_captured == 4


def test_functions_that_may_hold_tensors_of_one_round_are_not_captured():
    graphs, task = Graphs(traced), toy_task(**ONE_BLOCK)
    given = {"round": 0, "params": task.initial_params(), "buffers": {}}
    with graphs.used():
        for held in (torch.ones(1), torch.zeros(1)):
            found = task.map_clients(lambda data, plan, view, held=held: held + 0, task.sample_cohort(0), **given)
            assert found.result.flatten().tolist() == held.tolist() * 3
    assert (graphs.num_captured, graphs.num_uncaptured) == (0, 2)


def test_results_are_not_overwritten_by_the_next_replay_and_inputs_not_by_any():
    doubled = traced(lambda given: {"twice": 2 * given["x"]}, {"x": torch.ones(2)})
    x = torch.full((2,), 3.0)
    first, second = doubled({"x": x}), doubled({"x": x + 1})
    assert (first["twice"].tolist(), second["twice"].tolist(), x.tolist()) == ([6, 6], [8, 8], [3, 3])


def test_the_engine_is_the_usual_one_afterwards():
    usual = ENGINES["vectorised"]
    with Graphs(traced).used():
        assert ENGINES["vectorised"] is not usual
    assert ENGINES["vectorised"] is usual


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_cuda_graph_gives_the_numbers_of_the_engine():
    graphs = Graphs(cuda_graph)
    expected, found = captured_run("scaffold", graphs, device="cuda")
    assert_equal(found, expected)
    assert graphs.num_captured == 1
