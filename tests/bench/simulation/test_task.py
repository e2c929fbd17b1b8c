"""Cohorts, batches and engines."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.fednova import FedNova
from algorithms.shared import tree
from algorithms.shared.base import average_buffers
from algorithms.shared.rounds import RoundBased
from bench import models
from bench.participation import cohort_size
from bench.simulation.engines import _BATCHES_PER_LAUNCH, _blocks, _cheapest_blocks, _pad, padding_share
from bench.simulation.task import images_at_once
from datasets import partitions
from tests.support.kinds import others_slow
from tests.support.toy import SETTINGS, SIZES, normalised_task, toy, toy_method, toy_task, train


@pytest.mark.parametrize(
    "settings, num_examples, expected",
    [
        ({}, 13, [[6, 6, 1], [6, 6, 1]]),
        ({}, 4, [[4], [4]]),
        ({"last_batch": "drop-if-full"}, 13, [[6, 6], [6, 6]]),
        ({"last_batch": "drop-if-full"}, 4, [[4], [4]]),
        ({"local_epochs": None, "local_steps": 5}, 13, [[6, 6, 1], [6, 6]]),
        ({"local_epochs": None, "local_steps": 3}, 4, [[4], [4], [4]]),
    ],
)
def test_batch_sizes_of_a_round(settings, num_examples, expected):
    assert replace(SETTINGS, **settings).passes(num_examples) == expected


def test_every_pass_visits_every_example_once_in_a_new_order():
    task = toy_task()
    rows, _, sizes = task.batch_indices(2, round=0)
    first, second = rows.split(SIZES[2])
    assert sorted(first.tolist()) == sorted(second.tolist()) == task.federation.clients[2].tolist()
    assert first.tolist() != second.tolist()
    assert sizes == [6, 6, 6, 2] * 2


def test_batches_depend_on_seed_round_and_client_only():
    def order(task, client=2, round=0):
        return task.batch_indices(client, round)[0].tolist()

    assert order(toy_task()) == order(toy_task(engine="vectorised", participation=0.2, model="mlp"))
    assert order(toy_task()) != order(toy_task(), round=1)
    assert order(toy_task()) != order(toy_task(seed=1))
    restricted = toy_task().restrict(torch.tensor([2, 4]))
    assert restricted.global_ids(torch.tensor([0])).tolist() == [2]


def test_cohorts_have_the_size_of_the_participation_and_change_from_round_to_round():
    task = toy_task(participation=0.6)
    cohorts = [task.sample_cohort(round).ids.tolist() for round in range(20)]
    assert all(len(cohort) == 3 and cohort == sorted(set(cohort)) for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 3
    assert set(sum(cohorts, [])) == set(range(5))
    assert cohorts[3] == toy_task(participation=0.6, engine="vectorised").sample_cohort(3).ids.tolist()


def test_a_tiny_participation_still_has_one_client():
    assert len(toy_task(participation=0.01).sample_cohort(0).ids) == 1


def test_the_size_of_a_cohort_is_rounded_down_or_to_the_nearest():
    sizes = {clients: (cohort_size(clients, 0.1), cohort_size(clients, 0.1, True)) for clients in (4, 174, 175, 180)}
    assert sizes == {4: (1, 1), 174: (17, 17), 175: (17, 18), 180: (18, 18)}
    assert len(toy_task(participation=0.3).sample_cohort(0).ids) == 1
    assert len(toy_task(participation=0.3, nearest_cohort=True).sample_cohort(0).ids) == 2


def test_a_restricted_task_gets_its_members_of_the_common_cohort():
    task = toy_task(participation=0.6)
    halves = [torch.tensor([0, 2]), torch.tensor([1, 3, 4])]
    for round in range(5):
        parts = [ids[task.restrict(ids).sample_cohort(round).ids].tolist() for ids in halves]
        assert sorted(sum(parts, [])) == task.sample_cohort(round).ids.tolist()


def test_a_round_without_participants_changes_nothing():
    task = toy_task(participation=0.2)
    absent = next(
        ids for ids in (torch.tensor([i]) for i in range(5)) if not len(task.restrict(ids).sample_cohort(0).ids)
    )
    alone = task.restrict(absent)
    start = FedAvg().init(alone)
    after = FedAvg().step(alone, start)
    assert after["round"] == 1 and after["costs"]["examples"] == 0
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(start["params"]), tree.leaves(after["params"]), strict=True)
    )


def test_cohort_knows_sizes_steps_and_label_counts():
    cohort = toy_task().cohort(torch.tensor([1, 2]))
    assert cohort.num_examples.tolist() == [4, 20] and cohort.num_steps.tolist() == [2, 8]
    assert cohort.label_counts.sum(1).tolist() == [4, 20] and cohort.label_counts[0, 0] == 0


def test_num_trained_counts_repetitions():
    task = toy_task(last_batch="drop-if-full")
    assert task.num_trained(task.cohort(torch.tensor([0, 1]))) == 2 * (12 + 4)


def test_noise_grows_with_the_client_and_is_the_same_on_both_engines():
    looped, vectorised = (toy_task(noise=0.5, engine=engine) for engine in ("loop", "vectorised"))
    assert looped.federation.noise_levels.tolist() == pytest.approx([0, 0.125, 0.25, 0.375, 0.5])
    for a, b in zip(*(tree.leaves(train(FedAvg(), task)["params"]) for task in (looped, vectorised)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


def test_noise_has_the_stated_spread_and_spares_the_first_client():
    task = toy_task(noise=0.5, shape=(1, 20, 20))
    plain = toy_task(shape=(1, 20, 20))
    residuals = []
    for client in (0, 4):
        rows, draws, sizes = task.batch_indices(client, 0)
        noisy = task.federation.inputs(rows, draws, task.data_of(client).noise_level, torch.float64)
        residuals.append(noisy - plain.federation.inputs(rows, {}, None, torch.float64))
    assert residuals[0].abs().max() == 0
    assert residuals[1].std().item() == pytest.approx(0.5, rel=0.05)
    assert not torch.equal(residuals[1][0], residuals[1][len(residuals[1]) // 2])  # drawn anew at each access


def test_blocks_hold_clients_of_similar_length_and_every_client_once():
    blocks = _blocks([10, 100, 95, 9, 75, 74])
    assert blocks == [[1, 2, 4], [5], [0, 3]]


def ways_to_cut(count: int, largest: int | None) -> Iterator[list[int]]:
    """Lengths of the parts into which so many in a row can be cut."""
    if not count:
        yield []
    for length in range(1, min(count, largest or count) + 1):
        yield from ([length, *rest] for rest in ways_to_cut(count - length, largest))


@pytest.mark.parametrize("largest", [None, 1, 3])
@pytest.mark.parametrize("num_steps", [[7], [4, 4, 4], [10, 100, 95, 9, 75, 74, 1, 1], [60, 3, 3, 3, 3, 3, 3, 3, 2]])
def test_blocks_on_a_gpu_are_the_cheapest(num_steps, largest):
    """Against all ways to cut the clients, longest first."""
    blocks = _cheapest_blocks(num_steps, largest)
    assert sorted(itertools.chain(*blocks)) == list(range(len(num_steps)))
    assert [num_steps[i] for i in itertools.chain(*blocks)] == sorted(num_steps, reverse=True)

    def cost(lengths: list[int]) -> int:
        ends = list(itertools.accumulate(lengths))
        firsts = [sorted(num_steps, reverse=True)[end - length] for end, length in zip(ends, lengths, strict=True)]
        return sum(first * (_BATCHES_PER_LAUNCH + length) for first, length in zip(firsts, lengths, strict=True))

    found = [len(block) for block in blocks]
    assert cost(found) == min(map(cost, ways_to_cut(len(num_steps), largest)))
    assert max(found) <= (largest or len(num_steps))


def test_padding_share_by_hand():
    """Blocks of clients with 4 and 3 steps of up to 6 rows, and with 1 step of 5: 4 * 6 * 2 + 5 rows are computed."""
    sizes = [[6, 6, 6, 2], [5], [6, 6, 1]]
    assert padding_share(sizes) == pytest.approx(1 - (20 + 5 + 13) / (48 + 5))
    assert padding_share([[6], [6]]) == 0


def test_padding_share_is_that_of_the_plans_that_the_engine_pads():
    task = toy_task()
    planned = [task.batch_indices(client, 0) for client in range(task.population)]
    masks = []
    for block in _blocks([len(sizes) for _, _, sizes in planned]):
        masks.append(_pad([planned[position] for position in block])[0]["mask"].flatten())
    assert padding_share([sizes for _, _, sizes in planned]) == pytest.approx(
        1 - torch.cat(masks).double().mean().item()
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("local_epochs", [1, 10])
def test_less_than_a_fifth_is_padding_under_strong_skew(seed, local_epochs):
    clients = partitions.parse("dir-0.1").split(np.arange(50_000) % 10, 100, 10, seed)
    settings = replace(SETTINGS, batch_size=64, local_epochs=local_epochs)
    assert padding_share([sum(settings.passes(len(rows)), []) for rows in clients]) < 0.2


def test_the_vectorised_engine_refuses_batch_norm_in_one_sentence():
    task = toy_task(model="resnet50", shape=(3, 8, 8), engine="vectorised")
    with pytest.raises(ValueError) as error:
        FedAvg().step(task, FedAvg().init(task))
    assert str(error.value) == (
        "The vectorised engine cannot run ResNet50, which normalises by batch statistics, which padding rows would enter; "
        "use the engine loop."
    )


def test_buffers_are_averaged_by_examples_and_counters_truncated():
    """Two clients of 4 and 8 examples in batches of 4: running statistics are averaged 1 : 2, counters (1 + 2 * 2) / 3."""
    task = toy_task(sizes=(4, 8), model="resnet50", shape=(3, 8, 8), local_epochs=1, batch_size=4)
    task = replace(task, model=replace(task.model, width=1 / 16), dtype=torch.float32)
    start = FedAvg().init(task)
    together = FedAvg().step(task, start)["buffers"]
    alone = [FedAvg().step(task.restrict(torch.tensor([client])), start)["buffers"] for client in range(2)]
    for name, averaged in together.items():
        expected = (alone[0][name].double() + 2 * alone[1][name].double()) / 3
        torch.testing.assert_close(averaged, expected.to(averaged.dtype))
    assert together["stem.norm.num_batches_tracked"] == 1


def test_equal_counters_stay_what_they_are_whatever_the_weights():
    for seed in range(200):
        weights = torch.rand(40, generator=torch.Generator().manual_seed(seed))
        assert average_buffers({"count": torch.full((40,), 10)}, weights)["count"] == 10


def test_fednova_extrapolates_buffers_in_the_mode_of_fedcollab_only():
    """Clients of 4 and 8 examples take 1 and 2 steps: weights p_i tau_eff / tau_i are 5/9 and 5/9, summing to 10/9."""
    task = toy_task(sizes=(4, 8), model="resnet50", shape=(3, 8, 8), local_epochs=1, batch_size=4)
    task = replace(task, model=replace(task.model, width=1 / 16), dtype=torch.float32)
    start = FedAvg().init(task)
    alone = [FedAvg().step(task.restrict(torch.tensor([client])), start)["buffers"] for client in range(2)]
    name = "stem.norm.running_mean"
    averaged = FedAvg().step(task, start)["buffers"][name]
    torch.testing.assert_close(FedNova().step(task, start)["buffers"][name], averaged)
    extrapolated = FedNova(momentum_mode="steps").step(task, start)["buffers"][name]
    torch.testing.assert_close(extrapolated, 5 / 9 * (alone[0][name] + alone[1][name]), rtol=1e-4, atol=1e-6)


ROUND_BASED = [
    name
    for name in algorithms.REGISTRY
    if issubclass(algorithms.load(name), RoundBased) and not (toy(name).alone or toy(name).chain)
]


# The contract tests train all methods with batch norm, on a smaller model.
@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", others_slow(ROUND_BASED))
def test_every_method_trains_a_model_with_batch_norm_and_keeps_its_local_models(name):
    task = toy_task(sizes=(4, 8), model="resnet50", shape=(3, 8, 8), local_epochs=1, batch_size=4)
    task = replace(task, model=replace(task.model, width=1 / 16), dtype=torch.float32)
    method = toy_method(name, **toy(name).deep)
    state = method.step(task, method.init(task))
    cohort = method.sample(task, state)
    outputs = method.map_clients(task, method.local_update, cohort, state)
    models = method.local_models(state, outputs)
    assert models["buffers"]["stem.norm.num_batches_tracked"].tolist() in toy(name).counters
    assert models["params"]["stem.weight"].shape[0] == 2 and tree.all_finite(models)
    assert tree.all_finite(method.finite_check(method.step(task, state)))


def test_every_batch_has_a_key_of_its_own_that_is_the_same_on_both_engines():
    def keys(round=0, **changes):
        task = toy_task(sizes=(12, 12, 12), **changes)
        start = {"params": task.initial_params(), "buffers": {}}
        cohort = task.cohort(torch.arange(task.population))
        return task.map_clients(
            lambda data, plan, view: torch.stack([data.take(index).key for index in plan]), cohort, round=round, **start
        ).result

    looped = keys()
    assert looped.shape == (3, 4) and len(set(looped.flatten().tolist())) == 12
    assert torch.equal(looped, keys(engine="vectorised"))
    for other in (keys(round=1), keys(seed=1)):
        assert not set(looped.flatten().tolist()) & set(other.flatten().tolist())


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_clients_may_have_params_buffers_and_a_broadcast_state_of_their_own(engine):
    """Three clients of 12, 36 and 12 examples: in two blocks of the vectorised engine."""
    task, params = toy_task(sizes=(12, 36, 12), engine=engine), torch.arange(3.0)
    found = task.map_clients(
        lambda data, plan, view: torch.stack([view.params["w"], view.model.buffers["b"], view.server["s"]]),
        task.cohort(torch.arange(3)),
        round=0,
        params={"w": params},
        buffers={"b": 10 * params},
        server={"s": 100 * params},
        own_params=True,
    )
    assert found.result.tolist() == [[0, 0, 0], [1, 10, 100], [2, 20, 200]]
    assert found.buffers["b"].tolist() == [0, 10, 20]


def test_running_statistics_have_the_precision_of_the_task_and_counters_stay_integers():
    """Batch normalisation refuses inputs and running statistics of two precisions."""
    task = replace(normalised_task(rounds=1), dtype=torch.float64)
    for buffers in (task.initial_buffers(), train(FedAvg(), task)["buffers"]):
        kinds = {name.rpartition(".")[2]: leaf.dtype for name, leaf in buffers.items()}
        assert kinds == {
            "running_mean": torch.float64,
            "running_var": torch.float64,
            "num_batches_tracked": torch.int64,
        }


def test_only_small_images_and_models_are_tested_in_large_batches_on_a_gpu():
    def at_once(model: str, side: int = 32, device: str = "cuda") -> int:
        return images_at_once(models.load(model)((3, side, side), 10), torch.device(device))

    assert (at_once("simple-cnn"), at_once("simple-cnn", device="cpu")) == (5000, 500)
    assert at_once("resnet50") == at_once("vgg9") == at_once("resnet50", 64) == 500
