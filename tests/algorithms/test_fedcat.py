"""FedCat by hand: the schedule of fedcat_schedule_example.json, through the class that runs."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import algorithms
import datasets
from algorithms import fedcat
from algorithms.ccvr import CCVR
from algorithms.fedavg import FedAvg
from algorithms.fedcat import FedCat
from algorithms.fedconcat import FedConcat
from algorithms.shared import tree
from algorithms.shared.local_sgd import LocalResult
from bench.config.resolve import resolve, with_options
from bench.errors import ConfigError
from bench.simulation.run import Run
from tests.support.toy import assert_equal, toy_task, train
from tests.support.trained import to_end

EXAMPLE = json.loads((Path(__file__).parent / "fedcat_schedule_example.json").read_text())
SAMPLES, K = EXAMPLE["device_samples"], EXAMPLE["copies_K"]
DC = EXAMPLE["fedcat_dc_contraction"]
FLAT = {"algorithm": "fedcat", "dataset": "digits", "partition": "label-2", "clients": 20, "participation": 0.2}


@dataclass(frozen=True)
class Scheduled(FedCat):
    """FedCat with the groups, clients and updates of the example: every param has the value of its one number."""

    updates: str = "constant"

    def divide(self, task, round):
        groups = torch.empty(task.population, dtype=torch.long)
        for group, members in enumerate(EXAMPLE["groups_by_cycle"][round // K]):
            groups[members] = group
        return groups

    def select(self, task, groups, counts, round):
        selected = torch.tensor(EXAMPLE["selected_by_round"][round])
        assert groups[selected].tolist() == [*range(K)], "one client of each group"
        return selected

    def init(self, task):
        state = super().init(task)
        return {**state, "params": tree.zeros_like(state["params"])}

    def local_update(self, data, plan, view):
        models = EXAMPLE["update_models"]
        own = view.num_examples == torch.tensor(SAMPLES, dtype=torch.double)  # all clients differ in size
        if self.updates == "constant":
            delta = (own * torch.tensor(models["constant"]["delta"], dtype=torch.double)).sum()
            return LocalResult({"delta": tree.map(lambda leaf: delta.expand(leaf.shape), view.params)}, view.client)
        target = (own * torch.tensor(models["contraction"]["target"], dtype=torch.double)).sum()
        step = models["contraction"]["step"]
        return LocalResult({"delta": tree.map(lambda leaf: step * (target - leaf), view.params)}, view.client)


@dataclass(frozen=True)
class ScheduledWithoutGroups(Scheduled):
    """With the clients that the example draws without groups."""

    grouping: bool = False

    def selected(self, task, state):
        return torch.tensor(DC["selected_by_round"][state["round"]])


def example_task(**settings):
    size = {"sizes": tuple(SAMPLES), "participation": K / len(SAMPLES), "rounds": EXAMPLE["rounds"], "local_epochs": 1}
    return toy_task(**size, **settings)


def value(params) -> float:
    """The one number of all params."""
    (found,) = {number for leaf in tree.leaves(params) for number in leaf.flatten().tolist()}
    return found


def numbers(stacked) -> list[float]:
    """The number of each copy; leaves [K, ...]."""
    return [value(tree.row(stacked, copy)) for copy in range(K)]


def rounds_of(method: Scheduled, task):
    """State before, cohort, its results, and state after of each round."""
    state = method.init(task)
    for _ in range(EXAMPLE["rounds"]):
        cohort = method.sample(task, state)
        outputs = method.map_clients(task, method.local_update, cohort, state)
        before, state = state, method.step(task, state)
        yield before, cohort, outputs, state


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize(
    ("expected", "method"),
    [
        (EXAMPLE["fedcat_constant"], Scheduled()),
        (EXAMPLE["fedcat_contraction"], Scheduled(updates="contraction")),
        (EXAMPLE["fedcat_gc_contraction"]["rounds"], Scheduled(updates="contraction", concatenation=False)),
    ],
    ids=["constant", "contraction", "gc"],
)
def test_every_round_of_the_example(expected, method, engine):
    close = {"abs": 0.0 if method.concatenation else 1e-12, "rel": 0.0}
    task = example_task(engine=engine)
    for round, (before, cohort, outputs, after) in zip(expected, rounds_of(method, task), strict=True):
        visits, update = round["visits"], numbers(outputs.result.update["delta"])
        trained = numbers(method.local_models(before, outputs)["params"])
        assert before["round"] == round["round"] and [visit["copy"] for visit in visits] == [0, 1]
        assert cohort.ids.tolist() == [visit["device"] for visit in visits]
        assert cohort.num_examples.tolist() == [visit["device_samples"] for visit in visits]
        assert update == pytest.approx([visit["update_uploaded"] for visit in visits], **close)
        assert trained == pytest.approx([visit["copy_value_after"] for visit in visits], **close)
        received = [visit["model_received"] for visit in visits]
        assert [t - u for t, u in zip(trained, update, strict=True)] == pytest.approx(received, **close)
        groups = after["server"]["groups"][cohort.ids].tolist()
        assert groups == [visit["tag"] for visit in visits]
        assert after["server"]["counts"].tolist() == round["count_table_after"]
        assert value(after["params"]) == pytest.approx(round["global_after"], **close)
        assert (method.deploy(task, after, torch.arange(6)) is not None) == round["aggregate"]
        if method.concatenation:
            accumulated = after["server"]["examples"].tolist()
            assert accumulated == [visit["accumulated_samples_after"] for visit in visits]
            assert numbers(after["server"]["copies"]["params"]) == trained
        if round["aggregate"]:
            total = sum(visit["accumulated_samples_after"] for visit in visits)
            weights = [f"{visit['accumulated_samples_after']}/{total}" for visit in visits]
            assert weights == round["aggregation_weights"]


def test_the_example_without_groups():
    method, task = ScheduledWithoutGroups(updates="contraction"), example_task()
    for round, (before, cohort, outputs, after) in zip(DC["rounds"], rounds_of(method, task), strict=True):
        trained = numbers(method.local_models(before, outputs)["params"])
        rows = zip(range(K), cohort.ids.tolist(), trained, after["server"]["examples"].tolist(), strict=True)
        assert [*map(list, rows)] == [pytest.approx(row, abs=1e-12) for row in round["copy_device_value_samples"]]
        assert value(after["params"]) == pytest.approx(round["global_after"], abs=1e-12)
        assert (method.deploy(task, after, torch.arange(6)) is not None) == round["aggregate"]
        assert "counts" not in after["server"]


@pytest.mark.parametrize(
    "case", EXAMPLE["selection_example"]["cases"], ids=lambda case: f"{case['group']}{case['rule']}"
)
def test_weights_and_probabilities_of_the_example(case):
    weights = fedcat.weights_of(torch.tensor(case["counts"]), case["rule"])
    assert weights.tolist() == pytest.approx(case["weights"], abs=1e-11)
    assert (weights / weights.sum()).tolist() == pytest.approx(case["sampling_probabilities"], abs=1e-11)
    greedy = Counter(chosen(weights, 1.0))
    assert greedy.keys() == {case["group"].index(client) for client in case["argmax_set"]}
    assert all(abs(count / 1000 - 1 / len(greedy)) < 0.06 for count in greedy.values()), "ties are broken at random"
    drawn = Counter(chosen(weights, 0.0))
    for position, share in enumerate(case["sampling_probabilities"]):
        assert abs(drawn[position] / 1000 - share) < 0.06


def chosen(weights, greedy_share, count=1000) -> list[int]:
    draws = torch.Generator().manual_seed(0)
    return [fedcat.choose(weights, greedy_share, draws).item() for _ in range(count)]


def test_the_greedy_share_is_the_probability_of_the_largest_weight():
    """Weights 3 and 1: with share e of greedy choices the first is taken with probability e + (1 - e) 3/4."""
    for greedy_share in (0.0, 0.2, 0.8, 1.0):
        share = chosen(torch.tensor([3.0, 1.0]), greedy_share).count(0) / 1000
        assert abs(share - (greedy_share + (1 - greedy_share) * 0.75)) < 0.05


def test_rules_for_counts_of_zero():
    counts = torch.tensor([0, 1, 4])
    assert fedcat.weights_of(counts, "bellemare").tolist() == pytest.approx([10, 1.01**-0.5, 4.01**-0.5])
    assert fedcat.weights_of(counts[1:], "limit").tolist() == [1, 0.5]


def test_over_a_cycle_a_copy_visits_every_group_as_in_the_table_of_four_copies():
    task, method = toy_task(sizes=(4,) * 9, participation=4 / 9, rounds=4, local_epochs=1), FedCat()
    state, table = method.init(task), []
    visited = []
    for _ in range(4):
        ids = method.sample(task, state).ids
        state = method.step(task, state)
        table.append(state["server"]["groups"][ids].tolist())
        visited.append(ids.tolist())
    assert table == EXAMPLE["rotation_table_K4"]["table"]
    assert all(len(set(chain)) == 4 for chain in zip(*visited, strict=True))


def test_a_round_exchanges_one_model_per_client_and_direction():
    model = tree.num_bytes(example_task().initial_params())
    for method, key in ((Scheduled(), "fedcat"), (FedAvg(), "fedavg"), (ScheduledWithoutGroups(), "fedcat")):
        spent = train(method, example_task())["costs"]
        assert (spent["bytes_down"] + spent["bytes_up"]) / model == EXAMPLE["communication"][key]


# Groups and counts


@pytest.mark.parametrize(("clients", "cohort"), [(9, 4), (5, 2), (5, 5), (7, 1)])
def test_groups_are_of_nearly_equal_size_and_each_gives_a_client(clients, cohort):
    task = toy_task(sizes=(4,) * clients, participation=cohort / clients, rounds=cohort, local_epochs=1)
    sizes = FedCat().divide(task, 0).bincount()
    assert len(sizes) == cohort and sizes.sum() == clients and sizes.max() - sizes.min() <= 1
    state = train(FedCat(), task)
    assert state["server"]["counts"].sum(0).tolist() == [cohort] * cohort


def test_clients_are_grouped_anew_after_so_many_cycles_and_counts_go_on():
    task = toy_task(sizes=(4,) * 9, participation=1 / 3, rounds=12, local_epochs=1)
    for every in (1, 2):
        method, groups = FedCat(regroup_every=every), []
        state = method.init(task)
        for _ in range(12):
            state = method.step(task, state)
            groups.append(tuple(state["server"]["groups"].tolist()))
        divisions = [len([*same]) for _, same in itertools.groupby(groups)]
        assert divisions == [3 * every] * (4 // every)
        assert state["server"]["counts"].sum().item() == 36


def test_a_greedy_selection_takes_everyone_once_before_anyone_twice():
    """One group: a greedy selection is a turn of all clients."""
    task = toy_task(sizes=(4,) * 5, participation=0.2, rounds=10, local_epochs=1)
    state = train(FedCat(greedy_share=1.0), task)
    assert state["server"]["counts"].tolist() == [[2]] * 5


def test_cohorts_depend_on_seed_and_round_and_nothing_else():
    task, method = toy_task(participation=0.4, rounds=4, local_epochs=1), FedCat()
    state = train(method, task, rounds=1)
    assert method.sample(task, state).ids.tolist() == method.sample(task, state).ids.tolist()
    cohorts = {seed: schedule(method, replace(task, seed=seed)) for seed in range(3)}
    assert len(set(map(str, cohorts.values()))) == 3
    assert schedule(method, replace(task, engine="vectorised")) == cohorts[0]


def schedule(method, task) -> list[list[int]]:
    state, cohorts = method.init(task), []
    for _ in range(task.settings.rounds):
        cohorts.append(method.sample(task, state).ids.tolist())
        state = method.step(task, state)
    return cohorts


# Neighbours


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_without_grouping_and_concatenation_it_is_fedavg(engine):
    task = toy_task(participation=0.6, engine=engine)
    one, other = train(FedCat(grouping=False, concatenation=False), task), train(FedAvg(), task)
    assert_equal(one, other)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_without_grouping_one_client_per_round_is_fedavg(engine):
    task = toy_task(participation=0.2, engine=engine)
    one, other = train(FedCat(grouping=False), task), train(FedAvg(), task)
    for key in ("params", "buffers", "costs"):
        assert_equal(one[key], other[key])


def test_without_grouping_cohorts_are_those_of_fedavg():
    task = toy_task(participation=0.6, rounds=6, local_epochs=1)
    cohorts = schedule(FedCat(grouping=False), task)
    assert [sorted(ids) for ids in cohorts] == [task.sample_cohort(round).ids.tolist() for round in range(6)]
    assert any(sorted(ids) != ids for ids in cohorts), "which copy a client gets is drawn"


def test_equal_clients_that_are_all_there_start_the_first_cycle_as_in_fedavg():
    """Until a second client trains a copy, its mean with the others is FedAvg's model."""
    task = toy_task(sizes=(6,) * 4, rounds=4)
    method = FedCat()
    state = method.init(task)
    outputs = method.map_clients(task, method.local_update, method.sample(task, state), state)
    copies = method.local_models(state, outputs)["params"]
    mean = tree.map(lambda leaf: leaf.mean(0), copies)
    assert_equal(mean, train(FedAvg(), task, rounds=1)["params"], tolerance=1e-12)


# Runs


def test_rounds_within_a_cycle_have_no_accuracy():
    flat = FLAT | {"rounds": 8, "local_epochs": 1, "evaluate_every": 2, "trace_local_models": True}
    run = to_end(Run(resolve(flat), datasets.load("digits", None)))
    assert [row["round"] for row in run.rows if "accuracy" in row or "loss" in row] == [4, 8]
    assert [row["round"] for row in run.rows if "local_models" in row] == [4, 8]
    assert run.result()["summary"]["last10"]["accuracy"] == (run.rows[3]["accuracy"] + run.rows[7]["accuracy"]) / 2


# Options


def test_the_name_of_a_method_follows_from_its_options():
    for options, name in (
        ({}, "fedcat"),
        ({"concatenation": False}, "fedcat-gc"),
        ({"grouping": False}, "fedcat-dc"),
        ({"grouping": False, "concatenation": False}, "fedcat-gc"),
    ):
        config = resolve(FLAT | {"rounds": 8} | options)
        assert config.algorithm["name"] == name == algorithms.name_of(FedCat(**options))
        assert resolve(FLAT | {"rounds": 8, "algorithm": config.algorithm}) == config
    ablation = resolve(FLAT | {"rounds": 8, "algorithm": "fedcat-gc"})
    assert ablation == resolve(FLAT | {"rounds": 8, "concatenation": False})
    assert with_options(ablation, {"concatenation": True}) == resolve(FLAT | {"rounds": 8})
    assert algorithms.make("fedcat-dc", greedy_share=0.1) == FedCat(grouping=False, greedy_share=0.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "fedcat",
            "fedcat averages its 4 copies after every 4 rounds: rounds must be a multiple of 4, the clients of a ",
        ),
        ("fedcat-dc", "fedcat-dc averages its 4 copies"),
    ],
)
def test_rounds_that_end_within_a_cycle_are_refused(name, said):
    with pytest.raises(ConfigError) as caught:
        resolve(FLAT | {"algorithm": name, "rounds": 10})
    assert said in str(caught.value) and str(caught.value).endswith(
        "but got 10; set rounds=12, or a smaller participation than 0.2."
    )
    assert resolve(FLAT | {"algorithm": "fedcat-gc", "rounds": 10}).rounds == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regroup_every": 0}, "regroup_every must be at least 1, but got 0."),
        ({"greedy_share": 1.5}, "greedy_share must be between 0 and 1, but got 1.5."),
        ({"count_rule": "plus"}, "count_rule must be one of plus_one, limit, bellemare, but got 'plus'."),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        FedCat(**options)


def test_a_cluster_cannot_be_trained_and_a_calibration_has_no_model_within_a_cycle():
    with pytest.raises(ValueError, match="whose cohorts differ in size, but fedcat-gc needs cohorts of one size"):
        FedConcat(base=FedCat(concatenation=False))
    task, method = toy_task(participation=0.4, rounds=2), CCVR(base=FedCat())
    assert method.deploy(task, train(method, task, rounds=1), torch.arange(5)) is None
