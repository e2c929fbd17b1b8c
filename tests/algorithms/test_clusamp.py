"""CluSamp: its distributions by hand and as properties, the tree that they come from, and what a client counts."""

import itertools
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import ClusterWarning, fcluster, linkage

from algorithms import clusamp
from algorithms.clusamp import CluSamp, fill, merges, similarities, subtrees, with_products
from algorithms.fedavg import FedAvg
from algorithms.fedconcat import FedConcat
from algorithms.shared import tree
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import on_host
from bench.simulation.local_models import local_models
from tests.support.toy import assert_equal, normalised_task, toy_task, train

KINDS = ["arccos", "l1", "l2"]
BUSY = {"sizes": (4, 9, 6, 5, 8, 4), "participation": 0.5, "local_epochs": 1}  # no client has more than a third


# Distributions


def test_distributions_by_hand():
    """Shares of 2, 4, 6, 4 and 4 of 10; clients 0 and 1, then 3 and 4 are joined, and with client 2 each would exceed 10. The
    heaviest clusters begin the distributions; 4 of the 6 of client 2 fill the first one, and 2 the second."""
    shares = fill([1, 2, 3, 2, 2], 2, [[0, 1], [3, 4], [2, 5], [6, 7]], [0, 1, 2, 3, 4])
    assert shares.tolist() == [[2, 4, 4, 0, 0], [0, 0, 2, 4, 4]]


def test_clients_of_other_clusters_fill_up_in_their_order():
    """Of 12 each: pairs of 8, 8 and 8, of which the first one in the tree is poured; its members have 4 each."""
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    for order, first, second in (([0, 1], 0, 1), ([1, 0], 1, 0)):
        shares = fill([2] * 6, 2, pairs, [*order, 2, 3, 4, 5])
        assert shares[0].nonzero().flatten().tolist() == [first, 2, 3]
        assert shares[1].nonzero().flatten().tolist() == [second, 4, 5]


def test_a_client_above_one_share_fills_distributions_alone():
    """16 of 10 for each of two distributions: all of one, and 6 of the other."""
    assert fill([8, 1, 1], 2, [[0, 1], [2, 3]], [0, 1, 2]).tolist() == [[10, 0, 0], [6, 2, 2]]
    assert fill([18, 1, 1], 2, [[0, 1], [2, 3]], [0, 1, 2]).tolist() == [[20, 0, 0], [16, 2, 2]]
    assert fill([5, 3, 2], 2, [[0, 1], [2, 3]], [0, 1, 2]).tolist() in (
        [[10, 0, 0], [0, 6, 4]],
        [[0, 6, 4], [10, 0, 0]],
    )
    assert fill([7], 1, [], [0]).tolist() == [[7]]


@st.composite
def federations(draw):
    """Sizes of clients, number of draws, and an order of the clients; and a tree over updates, of which some are 0."""
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=14))
    number = len(sizes)
    seed, absent = draw(st.integers(0, 1000)), draw(st.integers(0, number))
    random = np.random.default_rng(seed)
    updates = torch.from_numpy(random.normal(size=(number, 3)))
    updates[random.permutation(number)[:absent]] = 0
    joined = merges(similarities(updates @ updates.T, "arccos"))
    return sizes, draw(st.integers(1, number)), joined, random.permutation(number).tolist()


@settings(max_examples=150)
@given(federations())
def test_rows_sum_to_one_and_columns_to_the_share_of_each_client(federation):
    sizes, count, joined, order = federation
    shares, total = fill(sizes, count, joined, order), sum(sizes)
    assert shares.shape == (count, len(sizes)) and (shares >= 0).all()
    assert shares.sum(1).tolist() == [total] * count
    assert shares.sum(0).tolist() == [count * size for size in sizes]
    # The mean weight of a client in an aggregate is its share of all examples.
    weights = [sum(Fraction(part, total) for part in column) / count for column in shares.T.tolist()]
    assert weights == [Fraction(size, sum(sizes)) for size in sizes]


@settings(max_examples=60)
@given(federations())
def test_the_heaviest_clusters_are_in_one_distribution_each(federation):
    sizes, count, joined, order = federation
    total = sum(sizes)
    assume(all(count * size <= total for size in sizes))
    clusters = subtrees(joined, [count * size for size in sizes], total)
    assert len(clusters) >= count and sorted(itertools.chain(*clusters)) == [*range(len(sizes))]
    shares = fill(sizes, count, joined, order)
    weights = [sum(sizes[client] for client in cluster) for cluster in clusters]
    whole = {
        number
        for number, cluster in enumerate(clusters)
        for row in shares
        if all(row[client] == count * sizes[client] for client in cluster)
    }
    lightest = sorted(weights)[-count]
    assert all(number in whole for number, weight in enumerate(weights) if weight > lightest)


@settings(max_examples=60)
@given(federations())
def test_subtrees_are_those_of_a_cut_of_scipy_at_their_weights(federation):
    sizes, count, joined, _ = federation
    if len(sizes) == 1:
        return
    heights, table = list(map(float, sizes)), []
    for one, other in joined:
        heights.append(heights[one] + heights[other])
        table.append([one, other, heights[-1], 2])
    labels = fcluster(np.array(table), sum(sizes) / count + 1e-9, "distance")
    found = subtrees(joined, [count * size for size in sizes], sum(sizes))
    assert {frozenset(cluster) for cluster in found} == {
        frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels)
    }


# From updates to a tree


def test_the_tree_is_that_of_scipy_on_rows_without_its_warning():
    alike = similarities(torch.from_numpy(np.cov(np.random.default_rng(0).normal(size=(9, 4)))), "arccos")
    with pytest.warns(ClusterWarning):
        expected = linkage(alike.numpy(), "ward")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert merges(alike) == expected[:, :2].astype(int).tolist()


def test_angles_by_hand():
    """(1, 0), (1, 1), (0, 2), (-3, 0), and a client that has not taken part."""
    updates = torch.tensor([[1.0, 0], [1, 1], [0, 2], [-3, 0], [0, 0]], dtype=torch.double)
    eighths = (similarities(updates @ updates.T, "arccos") / torch.pi * 4).tolist()
    expected = [[0, 1, 2, 4, 0], [1, 0, 1, 3, 0], [2, 1, 0, 2, 0], [4, 3, 2, 0, 0], [0] * 5]
    assert all(row == pytest.approx(right) for row, right in zip(eighths, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_are_those_of_the_updates_that_the_server_keeps(kind, monkeypatch):
    """The kept products, which follow the cohorts, against the definitions on all updates."""
    monkeypatch.setattr(clusamp, "_STACKED", 100)  # many pieces
    task = toy_task(**BUSY, rounds=3)
    state = train(CluSamp(similarity=kind), task)
    rows = state["clients"]["rows"]
    assert 0 < len(rows) < task.population, "someone has not taken part"
    flat = {client: torch.cat([leaf.flatten() for leaf in tree.leaves(row)]).numpy() for client, row in rows.items()}
    zero = np.zeros_like(next(iter(flat.values())))
    updates = [flat.get(client, zero) for client in range(task.population)]
    found = similarities(state["server"]["products"], kind)
    for (i, one), (j, other) in itertools.product(enumerate(updates), repeat=2):
        if kind == "arccos":
            lengths = np.linalg.norm(one) * np.linalg.norm(other)
            expected = np.arccos(one @ other / lengths) if lengths and i != j else 0
        else:
            expected = np.linalg.norm(one - other, 1) if kind == "l1" else np.square(one - other).sum()
        assert found[i, j].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert torch.equal(found, found.T)


def test_products_do_not_depend_on_the_pieces_in_which_they_are_computed(monkeypatch):
    rows = {
        client: {"update": {"a": torch.full((2, 3), client + 1.0), "b": torch.ones(5) * client}} for client in (0, 2, 3)
    }
    before = torch.zeros(4, 4, dtype=torch.double)
    for stacked in (1, 8, 2**20):
        monkeypatch.setattr(clusamp, "_STACKED", stacked)
        found = with_products(before, rows, [0, 2, 3], "arccos")
        # 6 (i + 1) (j + 1) + 5 i j
        assert found.tolist() == [[6, 0, 18, 24], [0] * 4, [18, 0, 74, 102], [24, 0, 102, 141]]


# Cohorts


def test_the_first_tree_is_of_equal_rows_and_gives_distributions():
    task, method = toy_task(**BUSY), CluSamp()
    shares = method.distributions(task, method.init(task))
    assert shares.sum(1).tolist() == [36] * 3 and shares.sum(0).tolist() == [3 * size for size in BUSY["sizes"]]


@pytest.mark.parametrize("sizes", [BUSY["sizes"], (30, 4, 5, 4, 5, 4)])
def test_over_many_rounds_clients_are_drawn_as_often_as_they_have_examples(sizes):
    task, method = toy_task(**BUSY | {"sizes": sizes}), CluSamp()
    state, drawn = train(method, task, rounds=2), np.zeros(6)
    for round in range(300):
        ids = method.sample(task, {**state, "round": round}).ids
        assert len(ids) == 3 and ids.tolist() == sorted(ids.tolist())
        drawn += np.bincount(ids, minlength=6)
    np.testing.assert_allclose(drawn / drawn.sum(), np.array(sizes) / sum(sizes), atol=0.04)


def test_cohorts_depend_on_seed_and_round_and_nothing_else():
    task, method = toy_task(**BUSY), CluSamp()
    cohorts = {seed: cohorts_of(method, replace(task, seed=seed)) for seed in range(3)}
    assert len(set(map(str, cohorts.values()))) == 3
    assert cohorts_of(method, task) == cohorts[0] == cohorts_of(method, replace(task, engine="vectorised"))
    assert cohorts_of(method, replace(task, largest_stack=0)) == cohorts[0]


def cohorts_of(method, task, rounds: int = 3) -> list[list[int]]:
    state, cohorts = method.init(task), []
    for _ in range(rounds):
        cohorts.append(method.sample(task, state).ids.tolist())
        state = method.step(task, state)
    return cohorts


def test_a_run_goes_on_as_if_it_had_not_been_interrupted_with_rows_in_files(monkeypatch, tmp_path):
    task, method = toy_task(**BUSY, rounds=5), CluSamp()
    expected = train(method, task)
    monkeypatch.setattr("algorithms.shared.row_files.MEMORY_BYTES", 0)
    Folder(tmp_path).save("state.pt", on_host(train(method, task, rounds=3)))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for _ in range(2):
        state = method.step(task, state)
    assert_equal(state, expected)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (toy_task, {}),
        (toy_task, {"engine": "vectorised"}),
        (toy_task, {"largest_stack": 0}),
        (normalised_task, {}),
        (normalised_task, {"largest_stack": 0}),
    ],
    ids=["loop", "vectorised", "streamed", "statistics", "statistics streamed"],
)
def test_a_client_that_is_drawn_twice_trains_twice_and_counts_twice(make, options):
    """The first client has more than half of all examples: one of two draws is its own, and most of the other one."""
    task = replace(make(sizes=(16, 4, 4), participation=0.7, local_epochs=1, rounds=1), **options)
    method = CluSamp()
    start = method.init(task)
    task = replace(
        task, seed=next(s for s in range(20) if method.sample(replace(task, seed=s), start).ids.tolist() == [0, 0])
    )
    start = method.init(task)
    models = local_models(task, method, start)
    assert models["ids"].tolist() == [0], "of both trainings, whose models are the same"
    assert {len(leaf) for leaf in tree.leaves(models)} == {1}
    after, other = method.step(task, start), FedAvg().step(task, start)
    close = 1e-12 if task.dtype == torch.float64 else 1e-6
    for key in ("params", "buffers"):
        assert_equal(after[key], tree.row(models[key], 0), tolerance=close)
    assert list(after["clients"]["rows"]) == [0]
    assert after["costs"]["examples"] == 2 * 16
    assert {**after["costs"], "examples": 0} == {**other["costs"], "examples": 0}


def test_models_count_alike_whatever_their_clients_have():
    task, method = toy_task(**BUSY, rounds=1), CluSamp()
    start = method.init(task)
    models, after = local_models(task, method, start), method.step(task, start)
    assert len({BUSY["sizes"][client] for client in models["ids"]}) > 1
    assert_equal(after["params"], tree.map(lambda leaf: leaf.mean(0), models["params"]), tolerance=1e-12)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_with_equal_clients_that_are_all_there_it_is_fedavg(engine):
    task = toy_task(sizes=(8,) * 4, engine=engine)
    one, other = train(CluSamp(), task), train(FedAvg(), task)
    for key in ("params", "buffers", "costs"):
        assert_equal(one[key], other[key], tolerance=1e-12)


# Refusals and caveats


def test_large_clients_are_named_in_a_footnote():
    assert CluSamp().caveats(toy_task(**BUSY)) == []
    (said,) = CluSamp().caveats(toy_task(sizes=(16, 4, 4), participation=0.7))
    assert "clients with more than 1/2 of all examples are in every cohort of 2: 1 of 3;" in said


def test_a_cluster_of_fedconcat_cannot_be_trained():
    with pytest.raises(ValueError, match="whose cohorts differ in size, but clusamp needs cohorts of one size"):
        FedConcat(base=CluSamp())


def test_unknown_similarities_are_refused():
    with pytest.raises(ValueError, match="similarity must be one of arccos, l1, l2, but got 'cosine'."):
        CluSamp(similarity="cosine")
