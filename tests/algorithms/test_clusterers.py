"""FedCluster and KMeans: when a cluster is cut and where, on hand-made updates, and who ends up together."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans as Reference
from sklearn.metrics import adjusted_rand_score

from algorithms import fedcluster
from algorithms.fedavg import FedAvg
from algorithms.fedcluster import FedCluster, cosines, lengths
from algorithms.kmeans import KMeans
from algorithms.shared import tree
from algorithms.shared.client_states import no_rows
from algorithms.shared.clustering import bipartition, cluster_seed, coordinates, inner_products
from algorithms.shared.local_sgd import LocalResult
from algorithms.shared.types import ClientOutputs
from bench.models.resnet import ResNet50
from tests.support.refusals import refused
from tests.support.toy import assert_equal, toy_task, train

EVERYONE = torch.arange(5)
ALWAYS = {"eps1": 2.0, "eps2": 0.0}


def opposed(num_clients: int = 8, **settings):
    """A task whose odd clients have other labels for the same kind of images: those of even clients, one further."""
    sizes = (12,) * num_clients
    task = toy_task(sizes=sizes, **{"rounds": 10, "momentum": 0.0} | settings)
    federation = task.federation
    # Images of one brightness for each label, so that there is something to learn.
    labels = torch.arange(12).repeat(num_clients) % 3
    images = (60 + 60 * labels)[:, None, None, None].expand_as(federation.images).to(torch.uint8)
    odd = torch.arange(len(labels)) // 12 % 2
    outputs = (labels + odd) % 3
    counts = torch.stack([torch.bincount(own, minlength=3) for own in outputs.split(12)]).double()
    return replace(task, federation=replace(federation, images=images.clone(), labels=outputs, label_counts=counts))


# Two kinds of clients


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("method", [FedCluster(2, eps1=0.8, eps2=0.4), KMeans(2, warm_up_rounds=3)], ids=str)
def test_clients_with_opposite_label_maps_are_separated(method, participation, engine):
    task = opposed(participation=participation, engine=engine)
    state = train(method, task)
    assert adjusted_rand_score([0, 1] * 4, state["server"]["clusters"].tolist()) == 1
    # Each kind has a model of its own: the labels of one are never right for the other.
    first, second = state["params"]["classifier.bias"]
    assert not torch.equal(first, second)


# The cut, by hand


def test_the_cut_has_the_least_similar_most_similar_pair():
    """Pairs by similarity: 0-2 (0.9), 1-3 (0.8), 0-1 (0.3), ...: what is joined last is {0, 2} with {1, 3}, at 0.3. Complete
    linkage would also look at 2-3."""
    similarities = np.array([[1, 0.3, 0.9, -0.5], [0.3, 1, -0.2, 0.8], [0.9, -0.2, 1, -1], [-0.5, 0.8, -1, 1]])
    assert bipartition(similarities).tolist() == [0, 1, 0, 1]


def test_a_chain_of_similar_clients_stays_together():
    """Angles 0, 40, 80, 120 and 190 degrees: neighbours are 40 degrees apart, but the last two are 70."""
    angles = np.radians([0, 40, 80, 120, 190])
    assert bipartition(np.cos(angles[:, None] - angles)).tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_no_cut_has_a_lower_most_similar_pair(seed):
    similarities = np.corrcoef(np.random.default_rng(seed).normal(size=(7, 4)))
    across = {
        number: max(similarities[i, j] for i in range(7) for j in range(7) if number >> i & 1 and not number >> j & 1)
        for number in range(1, 2**7 - 1)
    }
    found = sum(1 << int(i) for i in np.flatnonzero(bipartition(similarities)))
    assert across[found] == min(across.values())


def test_ties_and_a_pair_are_cut_too():
    assert bipartition(np.ones((2, 2))).tolist() == [0, 1]
    assert sorted(np.bincount(bipartition(np.ones((3, 3))))) == [1, 2]


def test_lengths_and_cosines_by_hand():
    """Updates (3, 4) and (0, -5), both of length 5, and 0: cosine -20 / 25."""
    updates = {"a": torch.tensor([[3.0], [0.0], [0.0]]), "b": torch.tensor([[4.0], [-5.0], [0.0]])}
    products = inner_products(updates)
    assert lengths(updates).tolist() == [5, 5, 0]
    assert products.tolist() == [[25, -20, 0], [-20, 25, 0], [0, 0, 0]]
    assert cosines(products).tolist() == [[1, -0.8, 0], [-0.8, 1, 0], [0, 0, 0]]


# The criterion, by hand: clients of 4 examples each send these updates


def after(method, *rounds, sizes=(4, 4, 4, 4)):
    """Clusters after rounds in which clients have sent these updates {client: (x, y)}, and the state."""
    task = toy_task(sizes=sizes)
    state = method.init(task)
    state["params"] = {"w": torch.zeros(method.num_clusters, 2, dtype=torch.float64)}
    state["clients"] = no_rows({"update": {"w": torch.zeros(2, dtype=torch.float64)}})
    for updates in rounds:
        ids = torch.tensor(sorted(updates))
        sent = {"w": torch.tensor([updates[client] for client in ids.tolist()], dtype=torch.float64)}
        start = tree.row(state["params"], state["server"]["clusters"][ids])
        update = {"params": tree.add(start, sent), "buffers": {}}
        state = method.finish_round(task, state, task.cohort(ids), ClientOutputs(LocalResult(update, {}), {}))
    return state["server"]["clusters"].tolist(), state


FIRST = {client: (1.0, 0.0) for client in range(4)}  # the mean update, of length 1, is the unit
SPLIT = {0: (0.6, 0.05), 1: (0.5, 0.05), 2: (-0.6, 0.05), 3: (-0.5, 0.05)}  # mean (0, 0.05), longest about 0.602


@pytest.mark.parametrize(
    "eps1, eps2, expected",
    [
        (0.06, 0.6, [0, 0, 1, 1]),
        (0.04, 0.6, [0, 0, 0, 0]),  # the mean update is not below eps1
        (0.06, 0.61, [0, 0, 0, 0]),  # no update is above eps2
    ],
)
def test_both_criteria_count_in_units_of_the_largest_mean_update(eps1, eps2, expected):
    assert after(FedCluster(2, eps1, eps2), FIRST, SPLIT)[0] == expected
    # All updates ten times as long: the same.
    longer = [{client: (10 * x, 10 * y) for client, (x, y) in sent.items()} for sent in (FIRST, SPLIT)]
    assert after(FedCluster(2, eps1, eps2), *longer)[0] == expected


def test_the_mean_update_weights_clients_by_their_examples():
    """With 8, 4, 4, 4 examples the mean of SPLIT is (0.6 / 5, 0.05), of length 0.13."""
    sizes = (8, 4, 4, 4)
    assert after(FedCluster(2, 0.14, 0.5), FIRST, SPLIT, sizes=sizes)[0] == [0, 0, 1, 1]
    assert after(FedCluster(2, 0.12, 0.5), FIRST, SPLIT, sizes=sizes)[0] == [0, 0, 0, 0]


def test_parts_average_their_own_clients_in_the_round_of_the_cut():
    _, before = after(FedCluster(3, 0.06, 0.6), FIRST)
    clusters, state = after(FedCluster(3, 0.06, 0.6), FIRST, SPLIT)
    assert clusters == [0, 0, 1, 1] and before["params"]["w"][0].tolist() == [1, 0]
    expected = torch.tensor([[1.55, 0.05], [0.45, 0.05], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(state["params"]["w"], expected)


def test_the_last_updates_of_absent_clients_count_and_nobody_is_cut_unheard():
    method = FedCluster(2, 0.06, 0.6)
    some, others = ({client: SPLIT[client] for client in ids} for ids in ((0, 2), (1, 3)))
    assert after(method, FIRST, some)[0] == [0, 0, 0, 0]  # of 1 and 3 those of the first round count: a long mean
    clusters, state = after(method, FIRST, some, others)
    assert clusters == [0, 0, 1, 1]
    # 0 and 2 were absent in the round of the cut: their halves become the models of 1 and of 3 alone.
    start = after(method, FIRST, some)[1]["params"]["w"][0]
    torch.testing.assert_close(state["params"]["w"] - start, torch.tensor([SPLIT[1], SPLIT[3]], dtype=torch.float64))
    unheard = {client: SPLIT[client] for client in (0, 1, 2)}
    assert after(FedCluster(2, **ALWAYS), unheard)[0] == [0, 0, 0, 0]


def test_a_cluster_is_cut_again_only_when_its_clients_have_sent_new_updates():
    method = FedCluster(4, **ALWAYS)
    clusters, state = after(method, FIRST, SPLIT)
    assert clusters != after(method, FIRST)[0]
    one = after(method, SPLIT, {0: SPLIT[0], 2: SPLIT[2]})
    assert one[0] == [0, 0, 1, 1] and one[1]["server"]["sent"].tolist() == [True, False, True, False]
    assert len(set(after(method, SPLIT, SPLIT)[0])) == 4


def test_no_more_clusters_than_asked_for():
    assert after(FedCluster(3, **ALWAYS), SPLIT, SPLIT, SPLIT)[0] == [0, 2, 1, 1]


def test_updates_are_kept_until_no_cut_can_come_any_more():
    assert len(after(FedCluster(3, **ALWAYS), SPLIT)[1]["clients"]["rows"]) == 4
    clusters, state = after(FedCluster(2, **ALWAYS), SPLIT, SPLIT)
    assert clusters == [0, 0, 1, 1] and not state["clients"]["rows"]
    assert not after(FedCluster(1, **ALWAYS), SPLIT)[1]["clients"]["rows"]


def test_updates_are_compared_with_each_other_only_where_a_cluster_is_cut(monkeypatch):
    calls = []
    monkeypatch.setattr(fedcluster, "inner_products", lambda stacked: calls.append(1) or inner_products(stacked))
    after(FedCluster(2, 0.04, 0.6), FIRST, SPLIT)
    after(FedCluster(2, 0.06, 0.61), FIRST, SPLIT)
    assert not calls
    after(FedCluster(2, 0.06, 0.6), FIRST, SPLIT)
    assert len(calls) == 1


# KMeans


@pytest.mark.parametrize("num_clusters", [2, 3])
def test_clusters_are_those_of_k_means_on_the_trained_params(num_clusters):
    task = toy_task(sizes=(13, 4, 20, 8, 11, 9, 15), participation=0.6)
    method = KMeans(num_clusters, warm_up_rounds=2)
    before = train(method, task, rounds=1)
    everyone = task.cohort(torch.arange(7))
    trained = method.map_clients(task, method.local_update, everyone, before).result.update["params"]
    points = torch.cat([leaf.flatten(1) for leaf in tree.leaves(trained)], 1).numpy()
    expected = Reference(num_clusters, n_init=10, random_state=cluster_seed(task)).fit(points)
    state = method.step(task, before)
    clusters = state["server"]["clusters"].numpy()
    assert adjusted_rand_score(expected.labels_, clusters) == 1 and len(set(clusters)) == num_clusters
    # Each model is the mean of its clients' models, by number of examples.
    for cluster in range(num_clusters):
        mine = clusters == cluster
        mean = tree.weighted_mean(tree.row(trained, torch.from_numpy(mine)), everyone.num_examples[mine])
        assert_equal(tree.row(state["params"], cluster), mean, tolerance=1e-12)


def test_coordinates_keep_distances():
    points = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5
    found = torch.from_numpy(coordinates(inner_products(points)))
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(points, points))
    torch.testing.assert_close(found.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-5)


def test_the_warm_up_is_fedavg_and_its_last_round_is_one_of_all_clients():
    task = toy_task(participation=0.6)
    method = KMeans(2, warm_up_rounds=3)
    state = train(method, task, rounds=2)
    assert_equal(tree.row(state["params"], 0), train(FedAvg(), task, rounds=2)["params"], tolerance=1e-12)
    assert method.sample(task, state).ids.tolist() == [0, 1, 2, 3, 4]
    assert len(method.sample(task, method.init(task)).ids) == 3


def test_clusters_stay_after_the_warm_up():
    task = toy_task(rounds=4)
    method = KMeans(2, warm_up_rounds=1)
    early, late = (train(method, task, rounds=number) for number in (1, 4))
    assert len(early["server"]["clusters"].unique()) == 2
    assert torch.equal(early["server"]["clusters"], late["server"]["clusters"])


def test_fewer_clients_than_clusters_make_one_each():
    task = toy_task(rounds=2).restrict(torch.tensor([1, 3]))
    clusters = train(KMeans(5, warm_up_rounds=1), task)["server"]["clusters"]
    assert sorted(clusters.tolist()) == [0, 1]


def test_too_few_rounds_are_refused_in_one_sentence():
    config = SimpleNamespace(population=20, rounds=5)
    assert KMeans().validate(config) == [
        "kmeans makes clusters after warm_up_rounds (5) rounds and trains them in the others: rounds must be larger than "
        "that, but got 5."
    ]
    assert KMeans().validate(SimpleNamespace(population=20, rounds=6)) == []


# Both


@pytest.mark.parametrize("method", [FedCluster(1, **ALWAYS), KMeans(1, warm_up_rounds=1)], ids=str)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_with_one_cluster_a_method_is_fedavg(method, engine):
    task = toy_task(engine=engine)
    state, expected = train(method, task), train(FedAvg(), task)
    assert_equal(tree.row(state["params"], 0), expected["params"], tolerance=1e-12)
    deployed = method.deploy(task, state, EVERYONE).params
    for client in range(task.population):
        assert_equal(tree.row(deployed, client), expected["params"], tolerance=1e-12)


def test_a_cluster_that_is_never_cut_is_fedavg_with_any_cohorts():
    task = toy_task(participation=0.6)
    state = train(FedCluster(3, eps1=0.1, eps2=100.0), task)
    assert_equal(tree.row(state["params"], 0), train(FedAvg(), task)["params"], tolerance=1e-12)


@pytest.mark.parametrize("method", [FedCluster(2, **ALWAYS), KMeans(2, warm_up_rounds=1)], ids=str)
def test_a_client_exchanges_one_model_and_deploys_that_of_its_cluster(method):
    task = toy_task(rounds=2)
    state, model = train(method, task), tree.num_bytes(task.initial_params())
    assert state["costs"]["bytes_down"] == state["costs"]["bytes_up"] == 2 * 5 * model
    clusters = state["server"]["clusters"]
    deployed = method.deploy(task, state, torch.tensor([4, 1])).params
    assert_equal(deployed, tree.row(state["params"], clusters[[4, 1]]))
    assert method.diagnostics(state) == {"clients": [0, 1, 2, 3, 4], "clusters": clusters.tolist()}


@pytest.mark.parametrize("method", [FedCluster(2, **ALWAYS), KMeans(2, warm_up_rounds=1)], ids=str)
def test_running_statistics_belong_to_clusters(method):
    task = toy_task(sizes=(7, 4, 6), shape=(1, 16, 16), rounds=2, dtype=torch.float32)
    task = replace(task, model=ResNet50((1, 16, 16), 3, width=1 / 32))
    state = train(method, task)
    counted, clusters = state["buffers"]["stem.norm.num_batches_tracked"], state["server"]["clusters"]
    # 4, 2 and 2 batches a round; in both rounds means of the same cluster, by number of examples, truncated.
    sizes, batches = torch.tensor([7.0, 4.0, 6.0]), torch.tensor([4.0, 2.0, 2.0])
    for cluster in (0, 1):
        mine = clusters == cluster
        mean = lambda values: int((sizes * values)[mine].sum() / sizes[mine].sum() + 1e-6)  # noqa: B023, E731
        assert counted[cluster] == mean(mean(batches) + batches)


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedCluster(eps1=0), "eps1 must be greater than 0, but got 0."),
    (lambda: FedCluster(eps2=-1), "eps2 must be at least 0, but got -1."),
    (lambda: FedCluster(num_clusters=0), "num_clusters must be at least 1, but got 0."),
    (lambda: KMeans(warm_up_rounds=0), "warm_up_rounds must be at least 1, but got 0."),
)
