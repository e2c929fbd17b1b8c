"""FedCollab's objective and search, against its authors' matrices and coalitions and against cases with known answers."""

import itertools
import math

import pytest
import torch

from algorithms.shared.coalitions import bound, descend, objective, solve
from tests.support.oracles import oracle

ORACLE = oracle("fedcollab")
SETTINGS = ORACLE["settings"]
CASES = ORACLE["synthetic_cases"]


def labels(coalitions: list[list[int]]) -> torch.Tensor:
    """The number of the coalition of each client, from lists of clients."""
    numbers = {client: number for number, clients in enumerate(coalitions) for client in clients}
    return torch.tensor([numbers[client] for client in sorted(numbers)])


def sets(coalitions: torch.Tensor) -> set[frozenset[int]]:
    clients = coalitions.tolist()
    return {frozenset(i for i, own in enumerate(clients) if own == number) for number in set(clients)}


def expected(coalitions: list[list[int]]) -> set[frozenset[int]]:
    return set(map(frozenset, coalitions))


def problem(setting: dict) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Divergences as published, examples, and C."""
    divergences = torch.tensor(setting["divergence"]["matrix"], dtype=torch.float64)
    return divergences, torch.tensor(setting["train_counts"]["values"]).double(), setting["C"]


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(coalitions, divergences, num_examples, capacity) -> float:
    """The formula of the paper, client by client."""
    total = num_examples.sum()
    shares, value = num_examples / total, 0.0
    for client, own in enumerate(coalitions.tolist()):
        alpha = torch.where(coalitions == own, shares, 0) / shares[coalitions == own].sum()
        value += capacity / total.sqrt() * (alpha.square() / shares).sum().sqrt() + (alpha * divergences[client]).sum()
    return float(value)


# The bound of Theorem 3.3


def test_bound_of_three_clients_by_hand():
    """Clients of 1, 3 and 4 examples, the first two together: alpha of both is (1/4, 3/4), and M = 4 for everyone.

    sum alpha^2 / beta = (1/16) / (1/8) + (9/16) / (3/8) = 2 for these, 1 / (4/8) = 2 for the third; with delta = 4/e and d = 3,
    log(4 / delta) = 1, so that phi = sqrt(2 (6 log 18 + 1) / 8).
    """
    divergences = torch.tensor([[0, 0.4, 0.9], [0.4, 0, 0.8], [0.9, 0.8, 0]], dtype=torch.float64)
    found = bound(torch.tensor([0, 0, 1]), divergences, torch.tensor([1.0, 3, 4]).double(), 4 / math.e, 3)
    phi = math.sqrt(2 * (6 * math.log(18) + 1) / 8)
    assert found.quantity.tolist() == pytest.approx([2 * phi] * 3)
    assert found.divergence.tolist() == pytest.approx([2 * 0.75 * 0.4, 2 * 0.25 * 0.4, 0])
    assert found.excess.tolist() == pytest.approx([2 * phi + 0.6, 2 * phi + 0.2, 2 * phi])


@pytest.mark.parametrize("name", SETTINGS)
def test_bound_of_all_clients_is_twice_the_objective_at_the_capacity_that_it_implies(name):
    divergences, num_examples, _ = problem(SETTINGS[name])
    coalitions = labels(SETTINGS[name]["coalitions"]["coalitions"])
    delta, dimension = 0.1, 2
    capacity = math.sqrt(2 * dimension * math.log(2 * num_examples.sum() + 2) + math.log(4 / delta))
    limit = bound(coalitions, divergences, num_examples, delta, dimension).excess
    value = objective(coalitions[None], divergences.clamp(min=0), num_examples, capacity)
    torch.testing.assert_close(limit.sum(), 2 * value[0])


def test_bound_is_larger_with_more_certainty_and_more_hypotheses_and_ignores_negative_divergences():
    divergences, num_examples = torch.full((2, 2), -0.3).double(), torch.tensor([5.0, 7.0]).double()
    found = [
        bound(torch.tensor([0, 0]), divergences, num_examples, delta, dimension)
        for delta, dimension in ((0.1, 1), (0.05, 1), (0.05, 2))
    ]
    assert all((one.quantity < other.quantity).all() for one, other in itertools.pairwise(found))
    assert not any(one.divergence.any() for one in found)


# The objective


@pytest.mark.parametrize("name", SETTINGS)
def test_objective_of_known_partitions(name):
    divergences, num_examples, capacity = problem(SETTINGS[name])
    partitions = {
        "shipped_5_5_10": labels(SETTINGS[name]["coalitions"]["coalitions"]),
        "four_groups_5_5_5_5": torch.arange(20) // 5,
        "two_halves_10_10": torch.arange(20) // 10,
        "one_global_coalition": torch.zeros(20, dtype=torch.long),
        "all_singletons": torch.arange(20),
    }
    found = objective(torch.stack(list(partitions.values())), divergences.clamp(min=0), num_examples, capacity)
    known = SETTINGS[name]["objective_values"]["matrix4"]
    assert found.tolist() == pytest.approx([known[partition] for partition in partitions], abs=1e-8)


def test_objective_is_the_formula_of_the_paper_with_its_double_sum():
    generator = draws(3)
    divergences = torch.rand(7, 7, generator=generator, dtype=torch.float64)
    divergences = (divergences + divergences.T).fill_diagonal_(0)
    num_examples = torch.randint(1, 50, (7,), generator=generator).double()
    partitions = torch.randint(0, 7, (20, 7), generator=generator)
    found = objective(partitions, divergences, num_examples, 1.7)
    assert found.tolist() == pytest.approx([plain(one, divergences, num_examples, 1.7) for one in partitions])


# The search


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_published_coalitions_are_found_in_the_published_matrices(name, seed):
    setting = SETTINGS[name]
    coalitions, value = solve(*problem(setting), restarts=100, draws=draws(seed))
    assert sets(coalitions) == expected(setting["coalitions"]["coalitions"])
    assert float(value) == pytest.approx(setting["exact_optimum"]["value_matrix4"], abs=1e-8)


@pytest.mark.parametrize("name", SETTINGS)
def test_searches_in_the_order_of_the_clients(name):
    divergences, num_examples, capacity = problem(SETTINGS[name])
    clipped, known = divergences.clamp(min=0), SETTINGS[name]["greedy"]["identity_order"]
    found = descend(lambda: torch.arange(20)[None], clipped, num_examples, capacity)
    assert sets(found.coalitions[0]) == expected(known["coalitions"])
    assert found.sweeps.tolist() == [known["sweeps_including_last_idle"]]
    assert objective(found.coalitions, clipped, num_examples, capacity).item() == pytest.approx(known["objective"])


@pytest.mark.parametrize("name", SETTINGS)
def test_how_often_one_search_finds_the_best_coalitions(name):
    divergences, num_examples, capacity = problem(SETTINGS[name])
    generator = draws()
    found = descend(
        lambda: torch.rand(300, 20, generator=generator).argsort(1), divergences.clamp(min=0), num_examples, capacity
    )
    best = labels(SETTINGS[name]["coalitions"]["coalitions"])
    share = (found.coalitions == best).all(1).double().mean().item()
    # The difference of two shares of 300 has a standard deviation of 0.04 at most.
    assert share == pytest.approx(SETTINGS[name]["greedy"]["success_fraction_single_run"], abs=0.12)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("end, other", [("low", "optimum_just_below"), ("high", "optimum_just_above")])
def test_between_which_capacities_the_published_coalitions_are_the_best(name, end, other):
    # The search need not find what is best at these ends; the objective tells.
    divergences, num_examples, _ = problem(SETTINGS[name])
    interval, shipped = SETTINGS[name]["C_interval"], SETTINGS[name]["coalitions"]["coalitions"]
    both, inwards = torch.stack([labels(shipped), labels(interval[other])]), 1e-3 if end == "low" else -1e-3
    for side in (1, -1):
        capacity = (1 + side * inwards) * interval[end]
        ours, others = objective(both, divergences.clamp(min=0), num_examples, capacity).tolist()
        assert (ours < others) == (side == 1)


@pytest.mark.parametrize("case", CASES["two_clients"]["cases"])
def test_two_clients(case):
    divergences = torch.tensor([[0, case["D"]], [case["D"], 0]], dtype=torch.float64)
    num_examples = torch.tensor([case["m_a"], case["m_b"]]).double()
    both = objective(torch.tensor([[0, 0], [0, 1]]), divergences, num_examples, case["C"])
    assert both.tolist() == pytest.approx([case["merged"], case["separate"]], abs=1e-8)
    coalitions, value = solve(divergences, num_examples, case["C"], 1, draws())
    assert coalitions.tolist() == ([0, 0] if case["merge"] else [0, 1])
    assert value.item() == pytest.approx(min(case["merged"], case["separate"]), abs=1e-8)


@pytest.mark.parametrize("name", ["label_shift_total_variation", "concept_shift_total_variation"])
def test_clients_in_four_groups_with_exact_distances(name):
    case, groups = CASES[name], torch.arange(20) // 5
    divergences = torch.tensor(case["group_distance"], dtype=torch.float64)[groups][:, groups]
    coalitions, value = solve(divergences, torch.tensor(case["train_counts"]).double(), case["C"], 100, draws())
    assert sets(coalitions) == expected(case["optimal_coalitions"])
    assert value.item() == pytest.approx(case["objective"], abs=1e-8)


def test_small_random_cases_against_all_partitions():
    every = [one for one in itertools.product(range(6), repeat=6) if is_numbered(one)]
    assert len(every) == 203, "the Bell number of six clients"
    partitions = torch.tensor(every)
    for seed in range(5):
        generator = draws(seed)
        divergences = torch.rand(6, 6, generator=generator, dtype=torch.float64)
        divergences = (divergences + divergences.T).fill_diagonal_(0) / 2
        num_examples = torch.randint(2, 60, (6,), generator=generator).double()
        capacity = 1 + 2 * seed
        values = objective(partitions, divergences, num_examples, capacity)
        coalitions, value = solve(divergences, num_examples, capacity, 50, generator)
        assert value.item() == pytest.approx(values.min().item())
        assert coalitions.tolist() == list(every[values.argmin()])


def is_numbered(coalitions: tuple[int, ...]) -> bool:
    """Whether coalitions are numbered in the order of their first clients."""
    return all(own <= max(coalitions[:client], default=-1) + 1 for client, own in enumerate(coalitions))


def test_clients_that_gain_nothing_stay_where_they_are():
    # Merged and separate objectives are equal: 2 C / sqrt(2 m) + D = 2 C / sqrt(m).
    gain = 2 * (1 - 0.5**0.5)
    divergences = torch.tensor([[0, gain], [gain, 0]], dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    for more, together in ((0, False), (1e-11, False), (-1e-11, True)):
        coalitions, _ = solve(divergences + more * (1 - torch.eye(2)), ones, 1.0, 1, draws())
        assert (coalitions.tolist() == [0, 0]) == together


def test_only_some_searches_find_the_best_coalitions():
    setting = problem(SETTINGS["concept-shift"])
    single = [float(solve(*setting, 1, draws(seed))[1]) for seed in range(10)]
    best = float(solve(*setting, 100, draws())[1])
    assert min(single) >= best and max(single) > best


def test_negative_divergences_count_as_none():
    divergences, num_examples, capacity = problem(SETTINGS["concept-shift"])
    assert (divergences < 0).any()
    clipped = solve(divergences.clamp(min=0), num_examples, capacity, 10, draws())
    found = solve(divergences, num_examples, capacity, 10, draws())
    assert torch.equal(clipped[0], found[0]) and clipped[1] == found[1]
