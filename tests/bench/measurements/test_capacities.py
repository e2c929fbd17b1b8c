"""The best coalitions that are found for every C: against a search of all partitions, and the paper's matrices."""

import math

import pytest
import torch

from algorithms.shared.coalitions import objective, solve
from bench.measurements import capacities
from bench.measurements.capacities import best_coalitions
from tests.support.oracles import oracle

ORACLE = oracle("fedcollab")["settings"]
# Where an exact search over all partitions finds the coalitions that the authors ship.
RANGES = {"label-shift": (2.90, 10.42), "feature-shift": (5.32, 12.83), "concept-shift": (4.15, 8.08)}


def partitions(count: int, first: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """All partitions of so many clients, numbered in the order of their first clients."""
    if len(first) == count:
        return [first]
    labels = range(max(first, default=-1) + 2)
    return [found for label in labels for found in partitions(count, (*first, label))]


def greedy(divergences, num_examples):
    def search(capacity: float) -> torch.Tensor:
        return solve(divergences, num_examples, capacity, 20, torch.Generator().manual_seed(0))[0]

    return search


@pytest.mark.slow
@pytest.mark.parametrize("name", RANGES)
def test_coalitions_of_the_authors_are_best_in_the_known_range_of_c(name):
    setting = ORACLE[name]
    divergences = torch.tensor(setting["divergence"]["matrix"], dtype=torch.float64)
    num_examples = torch.tensor(setting["train_counts"]["values"]).double()
    number_of = {client: number for number, of in enumerate(setting["coalitions"]["coalitions"]) for client in of}
    shipped = tuple(number_of[client] for client in range(20))
    alone = tuple(range(20))
    # They are found, not only kept: what is known is another partition.
    found = best_coalitions(divergences, num_examples, (0.5, 50.0), greedy(divergences, num_examples), alone)
    place = found["coalitions"].tolist().index(list(shipped))
    assert found["ends"][place : place + 2].tolist() == pytest.approx(RANGES[name], abs=0.005)
    assert found["ends"][[0, -1]].tolist() == [0.5, 50] and found["coalitions"][-1].tolist() == [0] * 20


@pytest.mark.parametrize("seed", range(3))
def test_no_partition_is_better_anywhere(seed):
    draws = torch.Generator().manual_seed(seed)
    divergences = torch.rand(6, 6, generator=draws, dtype=torch.float64)
    divergences = (divergences + divergences.T).fill_diagonal_(0) / 2 - 0.05  # some are negative: they count as 0
    num_examples = torch.randint(5, 200, (6,), generator=draws).double()
    found = best_coalitions(
        divergences, num_examples, (0.1, 30.0), greedy(divergences, num_examples), (0, 1, 2, 3, 4, 5)
    )
    everything = torch.tensor(partitions(6))
    assert len(everything) == 203  # Bell number
    assert len(found["coalitions"]) > 3
    for low, high, coalitions in zip(found["ends"], found["ends"][1:], found["coalitions"], strict=False):
        for capacity in (float(low), float(low + high) / 2, float(high)):
            values = objective(everything, divergences.clamp(min=0), num_examples, capacity)
            own = objective(coalitions[None], divergences.clamp(min=0), num_examples, capacity)
            assert float(own) == pytest.approx(float(values.min()), abs=1e-6)


def test_two_clients_join_where_the_gain_of_the_one_exceeds_the_distance():
    # 2 C / sqrt(200) + 0.5 = 2 C / sqrt(100): C = 0.25 / (0.1 - 0.0707107)
    divergences = torch.tensor([[0, 0.5], [0.5, 0]], dtype=torch.float64)
    num_examples = torch.tensor([100.0, 100.0], dtype=torch.float64)
    found = best_coalitions(divergences, num_examples, (1.0, 100.0), greedy(divergences, num_examples), (0, 1))
    assert found["coalitions"].tolist() == [[0, 1], [0, 0]]
    assert found["ends"].tolist() == pytest.approx([1, 0.25 / (0.1 - 200**-0.5), 100])


def test_what_a_search_misses_is_found_by_moves_and_mergers():
    groups = torch.arange(8) // 2
    divergences = 0.2 * (groups[:, None] != groups).double()
    num_examples = torch.full((8,), 50.0, dtype=torch.float64)

    def blind(capacity: float) -> torch.Tensor:
        return groups

    found = best_coalitions(divergences, num_examples, (0.001, 50.0), blind, tuple(groups.tolist()))
    assert found["coalitions"].tolist()[0] == groups.tolist() and found["coalitions"].tolist()[-1] == [0] * 8
    apart = (0.3 + 3 * divergences).fill_diagonal_(0)
    spread = best_coalitions(apart, num_examples, (0.1, 50.0), blind, tuple(groups.tolist()))
    assert spread["coalitions"].tolist()[0] == list(range(8))


@pytest.mark.parametrize("seed", range(3))
def test_improved_coalitions_are_not_improved_by_any_move_or_merger(seed):
    draws = torch.Generator().manual_seed(seed)
    divergences = torch.rand(9, 9, generator=draws, dtype=torch.float64)
    divergences = (divergences + divergences.T).fill_diagonal_(0) / 4
    num_examples = torch.randint(5, 200, (9,), generator=draws).double()
    start = torch.randint(0, 9, (9,), generator=draws)
    found = capacities.improved(start, divergences, num_examples, 4.0)
    moved = [found.index_fill(0, torch.tensor([client]), into) for client in range(9) for into in range(9)]
    merged = [torch.where(found == one, other, found) for one in range(9) for other in range(9)]
    values = objective(torch.stack([found, start, *moved, *merged]), divergences, num_examples, 4.0)
    assert values[0] < values[1] and values[0] <= values.min() + 1e-9


def test_coalitions_of_the_run_count_only_where_they_are_better():
    # Of 0 with 2 and 1 with 3 no client had better move alone, and no two coalitions had better be one.
    divergences = torch.tensor([[0, 0, 0.04, 1], [0, 0, 1, 0.04], [0.04, 1, 0, 0], [1, 0.04, 0, 0]]).double()
    num_examples = torch.full((4,), 100.0, dtype=torch.float64)

    def best(known: tuple[int, ...]) -> list[list[int]]:
        crossed = torch.tensor([0, 1, 0, 1])
        return best_coalitions(divergences, num_examples, (1.0, 1.1), lambda capacity: crossed, known)[
            "coalitions"
        ].tolist()

    assert best((0, 1, 2, 3)) == best((0, 0, 0, 0)) == best((0, 1, 0, 1)) == [[0, 1, 0, 1]]
    assert best((0, 0, 1, 1)) == [[0, 0, 1, 1]]


def test_what_a_file_holds_is_checked():
    whole = {"ends": torch.tensor([0.5, 3.0, 50.0]).double(), "coalitions": torch.tensor([[0, 1, 2], [0, 0, 1]])}
    assert capacities._are_intervals(whole, 3)
    wrong = [
        None,
        {"ends": whole["ends"]},
        whole | {"ends": [0.5, 3.0, 50.0]},
        whole | {"ends": whole["ends"].float()},
        whole | {"ends": whole["ends"].flip(0)},
        whole | {"ends": torch.tensor([0.5, 3.0, math.nan]).double()},
        whole | {"ends": torch.tensor(0.5).double()},
        whole | {"coalitions": whole["coalitions"][:1]},
        whole | {"coalitions": whole["coalitions"].double()},
        whole | {"coalitions": whole["coalitions"] + 1},
    ]
    assert not any(capacities._are_intervals(found, 3) for found in wrong)
    assert not capacities._are_intervals(whole, 4)
