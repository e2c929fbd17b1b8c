"""What surrounds a CUDA graph, with a traced function in its place: it replays tensor operations, and no Python."""

import warnings
from dataclasses import dataclass, field, replace
from unittest import mock

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.shared import tree
from bench.contract.toy import assert_equal, toy_task, train
from bench.contract.traced import traced
from bench.models.mlp import Mlp
from bench.simulation import graphs as graphs_module
from bench.simulation.engines import run_block
from bench.simulation.graphs import Captured, Graphs, cuda_graphs
from bench.simulation.task import Task
from tests.support.toy import settings_for, toy_method

ONE_BLOCK = {"sizes": (12,) * 3, "local_epochs": None, "local_steps": 2, "engine": "vectorised", "rounds": 4}


def of_traced(capture=traced, **options) -> Graphs:
    """Traced blocks, in however few rounds."""
    return Graphs(capture, **{"least_left": 0, **options})


def train_both(method, graphs: Graphs, **changes) -> None:
    """A run with graphs and one without; asserts that their states are equal."""
    task = toy_task(**{**ONE_BLOCK, **changes})
    assert_equal(train(method, replace(task, graphs=graphs)), train(method, task))


@pytest.fixture(autouse=True)
def none_has_failed(monkeypatch):
    monkeypatch.setattr(Graphs, "broken", "")


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
def test_a_block_of_all_clients_is_captured_at_once_and_replayed_bit_by_bit(name):
    graphs = of_traced()
    train_both(toy_method(name), graphs)
    assert (graphs.num_captured, graphs.not_captured) == (1, {})


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ["moon", "fedsam"])
def test_hooks_that_read_the_round_are_not_captured(name):
    graphs = of_traced()
    train_both(toy_method(name), graphs)
    assert graphs.num_captured == 0
    assert [*graphs.not_captured.values()] == ["it reads the round"]


def test_a_rate_that_falls_from_round_to_round_is_not_captured():
    graphs = of_traced()
    train_both(toy_method("fedavg"), graphs, lr_decay=0.9)
    assert graphs.num_captured == 0
    assert [*graphs.not_captured.values()] == ["its learning rate falls from round to round"]


def test_where_some_clients_train_in_a_round_a_block_is_captured_when_it_comes_again():
    graphs, changes = of_traced(), {"sizes": (12,) * 6, "participation": 0.5}
    method, task = toy_method("fedavg"), replace(toy_task(**{**ONE_BLOCK, **changes}), graphs=graphs)
    state = method.step(task, method.init(task))
    assert graphs.num_captured == 0
    method.step(task, state)
    assert graphs.num_captured == 1
    train_both(method, of_traced(), **changes)


def test_a_block_of_all_clients_runs_both_ways_in_the_second_round_and_is_replayed_from_the_third_on():
    replayed = []

    def counting(fn, example):
        found = traced(fn, example)
        return found._replace(replay=lambda: (replayed.append(len(ran)), found.replay()))

    method, ran = toy_method("fedavg"), []
    task = toy_task(**ONE_BLOCK)
    with mock.patch.object(graphs_module, "run_block", lambda *args: (ran.append(1), run_block(*args))[1]):
        state = train(method, replace(task, graphs=of_traced(counting)))
    assert_equal(state, train(method, task))
    assert (len(ran), replayed) == (3, [3, 3, 3]), "in round 1, for the capture, in round 2"


def test_nothing_is_captured_in_the_last_rounds():
    graphs = of_traced(least_left=4)
    train_both(toy_method("fedavg"), graphs)
    assert graphs.num_captured == 0


def test_a_graph_that_gives_other_numbers_is_not_used():
    def wrong(fn, example):
        found = traced(fn, example)
        return Captured(found.inputs, tree.map(lambda leaf: leaf + 1, found.outputs), lambda: None)

    graphs = of_traced(wrong)
    train_both(toy_method("fedavg"), graphs)
    assert [*graphs.not_captured.values()] == ["its graph gives other numbers"] and not graphs.kept
    assert graphs.notes == ["FedAvg.local_update runs without CUDA graphs, since one gave other numbers"]


@pytest.mark.parametrize(("error", "breaks"), [(RuntimeError, True), (torch.OutOfMemoryError, False)])
def test_after_a_capture_that_failed_nothing_is_captured_and_no_graph_holds_memory(error, breaks):
    tried = []

    def second_fails(fn, example):
        tried.append(fn)
        if len(tried) == 2:
            raise error("operation not permitted when stream is capturing.\nMore lines.")
        return traced(fn, example)

    changes = {"sizes": (40, 40, 6, 6), "local_epochs": 1, "local_steps": None}
    graphs = of_traced(second_fails)
    train_both(toy_method("fedavg"), graphs, **changes)
    assert len(tried) == 2 and not graphs.kept
    assert graphs.notes == ["continues without CUDA graphs: operation not permitted when stream is capturing"]
    later = of_traced()
    train_both(toy_method("fedavg"), later, **changes)
    assert bool(later.kept) != breaks, "where memory was short, other runs may have enough"
    assert bool(later.notes) == breaks


@dataclass(frozen=True)
class Stateful(FedAvg):
    """What no method may do: in each round its clients do something that is not in what they are given."""

    memo: dict = field(default_factory=dict)

    def run_round(self, task, state):
        self.memo["factor"] = 1.0 + state["round"]
        return super().run_round(task, state)

    def local_loss(self, params, batch, view):
        return self.memo["factor"] * super().local_loss(params, batch, view)


def test_hooks_that_depend_on_more_than_their_arguments_are_found_out():
    graphs = of_traced()
    train_both(Stateful(), graphs)
    assert [*graphs.not_captured.values()] == ["its graph gives other numbers"]


class Adding:
    """A hook that adds what it is sent by one name and takes away what it is sent by another."""

    def hook(self, data, plan, view):
        return (
            view.params["w"] + view.server["plus"] if "plus" in view.server else view.params["w"] - view.server["minus"]
        )


def test_blocks_that_are_given_the_same_shapes_by_other_names_are_others():
    graphs, task, adding = of_traced(), toy_task(**{**ONE_BLOCK, "rounds": 8}), Adding()
    given = {"params": {"w": torch.ones(2)}, "buffers": {}}
    for round in range(8):
        name, expected = ("plus", 1.5) if round % 2 else ("minus", 0.5)
        sent = {"round": round, "server": {name: torch.full((2,), 0.5)}}
        found = replace(task, graphs=graphs).map_clients(adding.hook, task.sample_cohort(0), **given, **sent)
        assert found.result.flatten().tolist() == [expected] * 6
    assert graphs.num_captured and graphs.not_captured == {}


def test_a_hook_that_was_interrupted_is_watched_when_it_runs_again():
    graphs, method = of_traced(), toy_method("fedsam")
    task = replace(toy_task(**ONE_BLOCK), graphs=graphs)
    with (
        mock.patch.object(graphs_module, "run_block", mock.Mock(side_effect=KeyboardInterrupt)),
        pytest.raises(KeyboardInterrupt),
    ):
        method.step(task, method.init(task))
    assert_equal(train(method, task), train(method, replace(task, graphs=None)))
    assert [*graphs.not_captured.values()] == ["it reads the round"]


class Scaled(Mlp):
    """A model whose attribute no field tells."""

    scale = 1.0

    def features(self, *args, **options):
        return self.scale * super().features(*args, **options)


def test_models_with_other_attributes_are_others():
    first, second, third = (Scaled((1, 6, 6), 3) for _ in range(3))
    object.__setattr__(second, "scale", 2.0)
    assert first == second, "fields alone are compared"
    as_key = graphs_module._AsModel
    assert as_key(first) == as_key(third) and not as_key(first) == as_key(second)
    assert not as_key(first) == as_key(Mlp((1, 6, 6), 3))


def test_where_each_round_has_other_objects_only_its_first_block_is_captured_in_vain(monkeypatch):
    graphs = of_traced()
    monkeypatch.setattr("algorithms.shared.calibration._LEAST_STEPS", 20)
    train_both(toy_method("fedov"), graphs, **settings_for("fedov"), rounds=8)
    assert (graphs.num_captured, graphs.num_proven) == (1, 0) and len(graphs._blocks) <= 2


@pytest.mark.slow
def test_every_shape_of_a_block_has_its_own_graph():
    graphs = of_traced()
    train_both(toy_method("fedavg"), graphs, sizes=(40, 40, 6, 6), local_epochs=1, local_steps=None)
    assert graphs.num_captured == 2


@pytest.mark.slow
def test_the_block_that_came_longest_ago_is_forgotten():
    graphs = of_traced(most=1)
    train_both(toy_method("fedavg"), graphs, sizes=(40, 40, 6, 6), local_epochs=1, local_steps=None)
    assert graphs.num_captured == 2, "not again in each round"


def test_blocks_that_come_twice_in_a_round_but_in_no_other_are_captured_once_in_vain():
    for share in (1.0, 0.5):
        graphs = of_traced()
        task = replace(toy_task(**{**ONE_BLOCK, "rounds": 8, "participation": share}), graphs=graphs)
        given = {"params": {"w": torch.ones(2)}, "buffers": {}, "server": {"plus": torch.ones(2)}}
        for round in range(8):
            adding = Adding()
            for _ in range(2):
                task.map_clients(adding.hook, task.sample_cohort(0), round=round, **given)
        assert graphs.num_captured == (share == 1) and not graphs.kept


def test_what_lies_on_the_host_or_is_no_tensor_is_no_constant_of_a_graph():
    form = graphs_module._form
    assert (
        form({"a": torch.ones(2), "b": (torch.ones(1),)}, "cpu")
        and form({"a": torch.ones(2, device="meta")}, "cpu") is None
    )
    assert form({"a": 3}, "cpu") is None and form({"a": torch.ones(2)}, "cpu") != form({"b": torch.ones(2)}, "cpu")
    assert form({"a": torch.ones(2)}, "cpu") != form({"a": torch.ones(2).double()}, "cpu")


def test_trees_are_equal_if_all_bits_are():
    equal, odd = graphs_module._equal, [torch.tensor(True), torch.empty(0), torch.tensor(2.0), torch.ones(3, 2).t()]
    assert equal(odd, [leaf.clone() for leaf in odd]) and equal(
        [torch.tensor(float("nan"))], [torch.tensor(float("nan"))]
    )
    assert not equal([torch.zeros(1)], [-torch.zeros(1)]) and not equal({"a": torch.ones(1)}, {"b": torch.ones(1)})
    assert not equal([torch.ones(2)], [torch.ones(1, 2)]) and not equal([torch.ones(1)], [torch.ones(1)] * 2)


def test_of_the_warnings_of_a_watched_block_waits_are_kept_and_others_told_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)
        warnings.warn("of a method", stacklevel=1)
    told = {}
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("default")
        assert len(graphs_module._waits_in(caught, told)) == 1 and graphs_module._waits_in(caught[1:], told) == []
    assert [str(one.message) for one in again] == ["of a method"]


def test_noise_of_clients_does_not_come_from_the_host_in_a_block(monkeypatch):
    graphs, images = of_traced(), {"dataset": "cifar10", "shape": (3, 16, 16), "model": "simple-cnn"}
    train_both(toy_method("fedavg"), graphs, noise=0.1, transform="fedconcat", **images)
    assert graphs.num_proven == 1
    task = toy_task(**{**ONE_BLOCK, "noise": 0.1})
    asked, data_of = [], Task.data_of
    monkeypatch.setattr(Task, "data_of", lambda self, client: asked.append(client) or data_of(self, client))
    method = toy_method("fedavg")
    method.step(task, method.init(task))
    assert asked == [0, 1, 2], "once for each client, before the block"


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
    graphs = of_traced(cuda_graphs())
    train_both(toy_method("scaffold"), graphs, device="cuda")
    assert graphs.num_captured == 1
