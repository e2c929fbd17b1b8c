"""Rounds whose clients are added up as they finish: where that happens, that it changes rounding alone, and what it holds."""

import weakref
from dataclasses import dataclass, replace

import pytest
import torch

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.scaffold import Scaffold
from algorithms.shared import rounds, tree
from algorithms.shared.rounds import RoundBased
from algorithms.shared.streaming import RunningMean
from bench.simulation.task import Task
from tests.support.kinds import others_slow
from tests.support.toy import assert_equal, settings_for, toy_method, toy_task, train

ALONE = ["local", "oneshot", "fedov", "fusefl", "centralized"]  # no mean, or of one client
WRAPPERS = ["fedconcat", "fedconcat-id", "fedconcat-ib", "dp-fedconcat", "random-clusters", "clsnorm", "ccvr", "oracle"]
WRAPPERS += ["finetune", "finetune-head", "finetune-body", "fedcollab", "feddisco"]
WRAPPERS += ["ensemble", "ensemble-vote", "ensemble-weighted", "fens", "fens-linear", "fedlpa"]
WRAPPERS += ["dense", "f-dafl", "co-boosting"]
OWN = ["fedcat", "fedcat-gc", "fedcat-dc", "fedawa", "fedpac"]  # conclude rounds in their own way
CLUSTERED = ["ifca", "fedsoft", "fesem", "fedconcat-ifca", "fedconcat-fedsoft", "fedconcat-fesem"]
CLUSTERED += ["fedcluster", "kmeans"]
MEANS = [name for name in algorithms.REGISTRY if name not in ALONE + WRAPPERS + OWN + CLUSTERED]


@pytest.fixture
def streamed(monkeypatch) -> list[int]:
    """Sizes of the cohorts of streamed rounds, as they come."""
    sizes, stream_round = [], RoundBased._stream_round

    def noted(self, task, state, cohort):
        sizes.append(len(cohort.ids))
        return stream_round(self, task, state, cohort)

    monkeypatch.setattr(RoundBased, "_stream_round", noted)
    return sizes


def never_stacked(task: Task) -> Task:
    return replace(task, largest_stack=0)


def test_a_running_mean_is_the_weighted_mean():
    """Values 1, 2 and 5 with weights 1, 2 and 1: (1 + 4 + 5) / 4."""
    mean = RunningMean()
    mean.add({"w": torch.tensor([1.0, 2.0])}, torch.tensor([1.0, 2.0]))
    mean.add({"w": torch.tensor([5.0])}, torch.tensor([1.0]))
    assert mean.mean()["w"].item() == 2.5


def test_a_running_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one tree, but none has been added"):
        RunningMean().mean()


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", ALONE + WRAPPERS + OWN + CLUSTERED)
def test_wrappers_stream_the_rounds_of_their_base_and_methods_that_conclude_rounds_themselves_do_not(name, streamed):
    task = toy_task(**settings_for(name))
    train(toy_method(name), task)
    assert not streamed, "the toy task is far below the limit"
    train(toy_method(name), never_stacked(task))
    assert bool(streamed) == (name not in CLUSTERED + OWN)


def test_the_vectorised_engine_does_not_stream(streamed):
    train(FedAvg(), never_stacked(toy_task(engine="vectorised")))
    assert not streamed


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", MEANS)
def test_a_round_is_streamed_if_its_results_pass_the_limit(name, streamed):
    method, task = toy_method(name), toy_task()
    start = method.init(task)
    cohort = task.sample_cohort(0)
    outputs = method.map_clients(task, method.local_update, cohort, start)
    num_bytes = tree.num_bytes([outputs.result._replace(metrics={}), outputs.buffers])
    if name == "fednova":
        num_bytes -= 8 * len(cohort.ids)  # the amount of work, one number of each client
    method.step(replace(task, largest_stack=num_bytes), start)
    assert not streamed
    method.step(replace(task, largest_stack=num_bytes - 1), start)
    assert streamed == [5]


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "named",
    [
        *others_slow(MEANS),
        ("scaffold", {"weighting": "examples", "server_lr": 0.5}),
        ("fednova", {"momentum_mode": "steps"}),
    ],
    ids=str,
)
def test_streaming_changes_rounding_alone_with_running_statistics_too(named):
    name, options = (named, {}) if isinstance(named, str) else named
    method = toy_method(name, **options)
    small = {"model": "resnet50", "shape": (3, 8, 8), "local_epochs": 1, "batch_size": 4, "lr": 0.01}
    task = toy_task(sizes=(4, 8, 6), dtype=torch.float32, **small)
    task = replace(task, model=replace(task.model, width=1 / 16))
    stacked, streamed = train(method, task, rounds=1), train(method, never_stacked(task), rounds=1)
    for key in ("buffers", "clients", "costs"):
        assert_equal(stacked[key], streamed[key])
    for key in ("params", "server"):
        for one, other in zip(tree.leaves(stacked[key]), tree.leaves(streamed[key]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_a_client_returned_exists_once_while_the_next_one_trains():
    """In the stack of the cohort, or in the means so far."""
    alive: list[int] = []

    @dataclass(frozen=True)
    class Watched(FedAvg):
        def local_update(self, data, plan, view):
            alive.append(sum(update() is not None for update in updates))
            result = super().local_update(data, plan, view)
            updates.extend(map(weakref.ref, tree.leaves(result.update)))
            return result

        def weighted_means(self, updates_, cohort):
            updates.extend(map(weakref.ref, tree.leaves(updates_)))
            return super().weighted_means(updates_, cohort)

    for task in (toy_task(), never_stacked(toy_task())):
        alive.clear()
        updates: list[weakref.ref] = []
        train(Watched(), task, rounds=1)
        assert len(updates) >= 5 and alive == [0] * 5


def test_a_client_of_a_streamed_round_reads_its_own_state_alone(monkeypatch):
    sizes, read = [], RoundBased.cohort_states

    def noted(self, task, cohort, state):
        sizes.append(len(cohort.ids))
        return read(self, task, cohort, state)

    monkeypatch.setattr(RoundBased, "cohort_states", noted)
    train(toy_method("moon"), never_stacked(toy_task()), rounds=2)
    assert sizes == [1] * 10


def test_a_method_that_aggregates_by_itself_gets_all_updates(streamed):
    @dataclass(frozen=True)
    class Median(FedAvg):
        def aggregate(self, task, params, server, updates, cohort):
            return tree.add(params, tree.map(lambda leaf: leaf.median(0).values, updates["delta"])), server

    @dataclass(frozen=True)
    class Listener(FedAvg):
        def finish_round(self, task, state, cohort, outputs):
            assert len(tree.leaves(outputs.buffers | outputs.result.update)[0]) == len(cohort.ids)
            return super().finish_round(task, state, cohort, outputs)

    for method in (Median(), Listener()):
        assert_equal(train(method, toy_task()), train(method, never_stacked(toy_task())))
    assert not streamed


def test_client_states_of_a_streamed_round_are_merged_once(monkeypatch):
    """Sorting all clients' states for every client would make a round quadratic."""
    merged = []
    monkeypatch.setattr(rounds, "replace_rows", lambda clients, rows: merged.append([*rows]) or clients)
    task = never_stacked(toy_task())
    train(Scaffold(), task, rounds=1)
    assert merged == [sorted(task.sample_cohort(0).ids.tolist())]


def test_what_is_averaged_cannot_be_read_where_buffers_are_aggregated():
    """In a stacked round it would be the updates, in a streamed one their mean."""

    class Wrong(FedAvg):
        def aggregate_buffers(self, buffers, trained, updates, cohort):
            return tree.map(lambda leaf: leaf[0], updates["delta"])

    with pytest.raises(KeyError, match="delta"):
        train(Wrong(), never_stacked(toy_task()), rounds=1)
