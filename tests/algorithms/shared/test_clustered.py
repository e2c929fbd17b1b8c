"""Methods with several cluster models: who trains which of them, and what becomes of them."""

from dataclasses import replace

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.fedconcat_ifca import FedConcatIFCA
from algorithms.fedsoft import FedSoft
from algorithms.fesem import FeSEM
from algorithms.ifca import IFCA
from algorithms.shared import tree
from algorithms.shared.clustered import lowest, on_each_model, one_hot, pull, squared_distances
from algorithms.shared.types import ClientView, Cohort
from bench.models.resnet import ResNet50
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import on_host
from bench.simulation.evaluation import evaluate
from tests.support.refusals import refused
from tests.support.toy import assert_equal, toy_task, train

METHODS = [IFCA, FedSoft, FeSEM]
VARIANTS = [
    IFCA(2),
    IFCA(3, cluster_init="independent"),
    FedSoft(3, interval=1),
    FedSoft(vote="released", proximal="intended", proximal_weight=0.2),
    FeSEM(2, proximal="intended"),
    FeSEM(3, cluster_init="independent"),
]
EQUAL = (13,) * 10


def everyone(task):
    return torch.arange(task.population)


# Engines, purity, resuming: the contract, with options beside their defaults


@pytest.mark.slow_but_first
@pytest.mark.parametrize("method", VARIANTS, ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"participation": 0.6, "rounds": 4},
        {"local_epochs": None, "local_steps": 5},
        {"last_batch": "drop-if-full", "noise": 0.1},
    ],
    ids=["full", "partial", "steps", "drop-and-noise"],
)
def test_engines_agree(method, how):
    tasks = [toy_task(engine=engine, **how) for engine in ("loop", "vectorised")]
    looped, vectorised = (train(method, task) for task in tasks)
    assert_equal(looped, vectorised, tolerance=1e-8)
    scores = [
        evaluate(task, method.deploy(task, state, everyone(task)))
        for task, state in zip(tasks, (looped, vectorised), strict=True)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-8)


@pytest.mark.parametrize("method", VARIANTS, ids=str)
def test_resumed_equals_uninterrupted_and_leaves_its_inputs_alone(method, tmp_path):
    task = toy_task(participation=0.6, rounds=4)
    Folder(tmp_path).save("state.pt", on_host(train(method, task, rounds=2)))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    method.deploy(task, state, everyone(task))
    method.step(task, state)
    for _ in range(2):
        state = method.step(task, state)
    assert_equal(state, train(method, task))


@pytest.mark.parametrize(
    "one, other",
    [
        (IFCA(5), IFCA(2)),
        (IFCA(), IFCA(cluster_init="independent")),
        (FedSoft(5), FedSoft(2)),
        (FedSoft(), FedSoft(interval=1)),
        (FedSoft(), FedSoft(smallest_importance=0.2)),
        (FedSoft(), FedSoft(vote="released")),
        (FedSoft(), FedSoft(proximal="intended")),
        (FedSoft(proximal="intended"), FedSoft(proximal="intended", proximal_weight=0.1)),
        (FeSEM(5), FeSEM(2)),
        (FeSEM(), FeSEM(cluster_init="independent")),
        (FeSEM(), FeSEM(proximal="intended")),
        (FeSEM(proximal="intended"), FeSEM(proximal="intended", proximal_weight=0.2)),
    ],
    ids=str,
)
def test_options_have_an_effect(one, other):
    task = toy_task()
    a, b = (method.deploy(task, train(method, task), everyone(task)).params for method in (one, other))
    assert not torch.equal(a["classifier.weight"], b["classifier.weight"])


# One cluster


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_with_one_cluster_a_method_is_fedavg(method, participation, engine):
    task = toy_task(engine=engine, participation=participation)
    clustered, fedavg = method(num_clusters=1), FedAvg()
    state, expected = train(clustered, task), train(fedavg, task)
    assert_equal(tree.row(state["params"], 0), expected["params"], tolerance=1e-12)
    deployed = clustered.deploy(task, state, everyone(task)).params
    for client in range(task.population):
        assert_equal(tree.row(deployed, client), expected["params"], tolerance=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_running_statistics_belong_to_clusters_and_choosing_does_not_move_them(method):
    task = toy_task(sizes=(7, 4), shape=(1, 16, 16), rounds=2, dtype=torch.float32)
    task = replace(task, model=ResNet50((1, 16, 16), 3, width=1 / 32))
    state = method(num_clusters=1).init(task)
    for _ in range(2):
        models = {key: tree.row(state[key], 0) for key in ("params", "buffers")}
        expected = FedAvg().step(task, {**FedAvg().init(task), "round": state["round"], **models})
        state = method(num_clusters=1).step(task, state)
        assert_equal(tree.row(state["buffers"], 0), expected["buffers"])
    # 4 and 2 batches a round: (7 * 4 + 4 * 2) / 11 = 3, then (7 * (3 + 4) + 4 * (3 + 2)) / 11 = 6, both truncated
    assert state["buffers"]["stem.norm.num_batches_tracked"].tolist() == [6]


# Aggregation


def sampled(*examples):
    sizes = torch.tensor(examples, dtype=torch.float64)
    ones = torch.ones(len(examples))
    return Cohort(torch.arange(len(examples)), sizes, ones, ones[:, None], len(examples))


def test_clusters_become_means_by_examples_and_membership_and_empty_ones_stay():
    models = {"w": torch.tensor([100.0, 200.0, 300.0], dtype=torch.float64)}
    updates = {
        "params": {"w": torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)},
        "buffers": {"count": torch.tensor([10, 20, 31])},
        "memberships": torch.tensor([[1.0, 0.5, 0], [1.0, 0, 0], [0, 0.25, 0]], dtype=torch.float64),
    }
    clients = sampled(10, 30, 20)
    params, server = IFCA(3).aggregate(None, models, {}, updates, clients)
    # (10*1 + 30*2) / 40;  weights 10*0.5 and 20*0.25: (5*1 + 5*6) / 10;  nobody
    torch.testing.assert_close(params["w"], torch.tensor([1.75, 3.5, 300.0], dtype=torch.float64))
    assert server == {}
    counts = IFCA(3).aggregate_buffers({"count": torch.tensor([7, 8, 9])}, {}, updates, clients)["count"]
    assert counts.tolist() == [17, 20, 9]  # 17.5 and 20.5, truncated


def test_each_client_trains_the_model_of_its_largest_membership():
    task = toy_task(sizes=EQUAL, rounds=1)
    method = FeSEM(3, cluster_init="independent")
    start, end = method.init(task), train(method, task)
    clusters = method.clusters(end)
    assert set(clusters.values()) == {0, 1, 2}
    for client, cluster in clusters.items():
        alone = task.map_clients(
            FedAvg().local_update,
            task.cohort(torch.tensor([client])),
            round=0,
            params=tree.row(start["params"], cluster),
            buffers={},
        ).result.update["delta"]
        trained = tree.add(tree.row(start["params"], cluster), tree.row(alone, 0))
        assert_equal(end["clients"]["rows"][client]["params"], trained, tolerance=1e-12)


@pytest.mark.parametrize("method", [IFCA(3), FedSoft(3), FeSEM(3)], ids=str)
def test_local_models_average_to_the_clusters(method):
    task = toy_task()
    before = train(method, task, rounds=1)
    cohort = task.sample_cohort(1)
    outputs = method.map_clients(task, method.local_update, cohort, before)
    models = method.local_models(before, outputs)
    after = method.step(task, before)
    weights = outputs.result.update["memberships"] * cohort.num_examples[:, None]
    used = weights.sum(0) > 0
    expected = torch.einsum(
        "ck,ci->ki", weights[:, used] / weights[:, used].sum(0), models["params"]["classifier.bias"]
    )
    torch.testing.assert_close(after["params"]["classifier.bias"][used], expected, rtol=0, atol=1e-12)
    params, buffers = method.cluster_models(task, after)
    assert {len(leaf) for leaf in tree.leaves(params)} == {3} and buffers == {}


@pytest.mark.parametrize("method", [IFCA(3), FedSoft(3), FeSEM(3)], ids=str)
def test_clients_deploy_the_model_of_their_cluster(method):
    task = toy_task(participation=0.4)
    state = train(method, task)
    models = {tuple(row) for row in state["params"]["classifier.bias"].tolist()}
    deployed = method.deploy(task, state, torch.tensor([4, 1])).params["classifier.bias"].tolist()
    assert len(deployed) == 2 and {tuple(row) for row in deployed} <= models


def test_diagnostics_name_the_cluster_of_each_client_that_took_part():
    task = toy_task(participation=0.6, rounds=1)
    method = FeSEM(2)
    assert method.diagnostics(method.init(task)) == {"clients": [], "clusters": []}
    diagnostics = method.diagnostics(train(method, task))
    assert diagnostics["clients"] == task.sample_cohort(0).ids.tolist()
    assert sorted(diagnostics["clusters"]) == [0, 0, 1]


# Communication


@pytest.mark.parametrize("method, received", [(IFCA(3), 3), (FedSoft(3), 3), (FeSEM(3), 1)], ids=str)
def test_bytes_per_round(method, received):
    task = toy_task(participation=0.6, rounds=2)  # 3 of 5 clients
    model = tree.num_bytes(task.initial_params())
    spent = train(method, task)["costs"]
    assert spent["bytes_down"] == 2 * 3 * received * model
    assert spent["bytes_up"] == 2 * 3 * model
    assert method.traffic(task) == round((spent["bytes_down"] + spent["bytes_up"]) / task.population)


# How clients come to clusters


def test_choice_spreads_equal_models_over_clients():
    """All examples fall into batches differently for each model, else everybody would choose the first."""
    task = toy_task(sizes=EQUAL)
    assert len(set(IFCA().clusters(train(IFCA(), task, rounds=1)).values())) >= 3


def test_full_batches_tie_and_ties_go_to_the_first_cluster():
    for engine in ("loop", "vectorised"):
        task = toy_task(sizes=(6, 12, 4), engine=engine)
        assert IFCA().clusters(train(IFCA(), task, rounds=1)) == {0: 0, 1: 0, 2: 0}


def test_ifca_chooses_the_model_of_lowest_mean_batch_loss():
    task = toy_task(sizes=(13, 8))
    method = IFCA(2)
    state = with_favourites(method.init(task), [1, 2])
    # Models are sure of label 1 and 2 by logit 10, so losses are 0 or 10 an example: more examples, lower loss.
    first = [row[1] >= row[2] for row in task.cohort(everyone(task)).label_counts.tolist()]
    assert method.memberships(task, task.cohort(everyone(task)), state).tolist() == [
        [1, 0] if more else [0, 1] for more in first
    ]
    assert len(set(first)) == 2


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_importance_is_the_share_of_examples_that_a_model_fits_best(engine):
    task = toy_task(engine=engine)
    method = FedSoft(4)
    cohort = task.cohort(everyone(task))
    state = with_favourites(method.init(task), [0, 1, 2, 2])
    shares = cohort.label_counts / cohort.num_examples[:, None]
    expected = torch.cat([shares, torch.zeros(5, 1, dtype=task.dtype)], 1).clamp(min=0.0001)  # a tie for label 2
    torch.testing.assert_close(method.assign(task, cohort, state), expected)
    mismatched = replace(method, vote="released").assign(task, cohort, state)
    assert not torch.allclose(mismatched, expected)
    assert mismatched.sum(1).min() > 0.99  # every place of a pass has one vote


def test_importance_lasts_until_the_next_vote():
    task = toy_task(rounds=5)
    method = FedSoft(3, interval=2)
    kept = [train(method, task, rounds)["clients"]["rows"][2]["memberships"] for rounds in (1, 2, 3)]
    assert torch.equal(kept[0], kept[1]) and not torch.equal(kept[1], kept[2])


def test_first_groups_are_equal_and_random():
    groups = []
    for seed in (0, 1):
        task = toy_task(sizes=EQUAL, seed=seed)
        groups.append(FeSEM(5).assign(task, task.sample_cohort(0), FeSEM(5).init(task)))
        assert groups[-1].sum(0).tolist() == [2.0] * 5 and groups[-1].sum(1).tolist() == [1.0] * 10
    assert not torch.equal(*groups)


def test_nearest_counts_params_and_buffers_of_the_last_local_model():
    task = toy_task(sizes=(4, 4))
    method = FeSEM(2)
    state = method.init(task)
    state["params"] = {"w": torch.tensor([[0.0, 0.0], [3.0, 0.0]])}
    state["buffers"] = {"count": torch.tensor([0, 2])}
    near_by_params = {"params": {"w": torch.tensor([1.0, 0.0])}, "buffers": {"count": torch.tensor(0)}}  # 1 and 4 + 4
    far_by_buffers = {"params": {"w": torch.tensor([1.0, 0.0])}, "buffers": {"count": torch.tensor(2)}}  # 1 + 4 and 4
    rows = {0: near_by_params, 1: far_by_buffers}
    own = torch.zeros(2)
    state["clients"] = {
        "fresh": {"memberships": own, **near_by_params},
        "rows": {client: {"memberships": own, **row} for client, row in rows.items()},
    }
    assert method.assign(task, task.cohort(everyone(task)), state).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    "method",
    [IFCA(2), IFCA(2, cluster_init="independent"), FedSoft(2), FeSEM(2)],
    ids=str,
)
def test_clients_with_disjoint_labels_come_into_different_clusters(method):
    """Even clients have labels 0 and 1, odd ones label 2."""
    sizes = (20,) * 8
    task = toy_task(sizes=sizes, rounds=8)
    rows = [torch.full((20,), 2) if client % 2 else torch.arange(20) % 2 for client in range(len(sizes))]
    counts = torch.stack([torch.bincount(labels, minlength=3) for labels in rows]).double()
    task = replace(task, federation=replace(task.federation, labels=torch.cat(rows), label_counts=counts))
    clusters = list(method.clusters(train(method, task)).values())
    assert clusters in ([0, 1] * 4, [1, 0] * 4)


def with_favourites(state, labels):
    """A state whose model k says label labels[k] for every image, by a logit of 10."""
    params = tree.map(torch.zeros_like, state["params"])
    params["classifier.bias"] = 10 * one_hot(torch.tensor(labels), 3, torch.float64)
    return {**state, "params": params}


# Parts


def test_passes_are_apart_or_the_same():
    task = toy_task()
    state = IFCA(3).init(task)
    read = lambda data, plan, view: data.take(plan[0]).y[:4]  # noqa: E731
    cohort = task.cohort(torch.tensor([0, 2, 4]))
    same, apart = (on_each_model(read, task, cohort, state, apart=apart) for apart in (False, True))
    assert same.shape == (3, 3, 4)
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    assert not torch.equal(apart[0], apart[1]) and not torch.equal(apart[1], apart[2])


def test_a_pass_is_one_of_all_examples_whatever_the_settings():
    task = toy_task(local_epochs=None, local_steps=1, last_batch="drop-if-full")
    count = lambda data, plan, view: torch.tensor([len(plan), sum(len(index.rows) for index in plan)])  # noqa: E731
    said = on_each_model(count, task, task.cohort(torch.tensor([0])), IFCA(1).init(task), apart=True)
    assert said.tolist() == [[[3, 13]]]


def test_lowest_takes_the_first_of_those_equal_up_to_rounding():
    values = torch.tensor([[1.0 + 2e-16, 3.0, 0.5], [1.0, 2.0, 0.5], [1.1, 2.0 + 1e-9, 0.4]], dtype=torch.float64)
    assert lowest(values).tolist() == [0, 1, 2]


def test_pull_weights_squared_distances_by_membership():
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.0)}
    models = {"a": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "b": torch.tensor([1.0, 3.0])}
    assert squared_distances(params, models).tolist() == [5, 10]  # 4 + 1, 1 + 9
    view = ClientView(None, None, 0, models, {}, {}, {"memberships": torch.tensor([0.5, 0.1])}, None, None, None)
    assert pull(params, view).item() == pytest.approx(3.5)


def test_intended_proximal_term_keeps_clients_near_their_cluster():
    task = toy_task(rounds=1)
    distances = []
    for mu in (0.0, 5.0):
        method = FeSEM(2, proximal="intended", proximal_weight=mu)
        start = method.init(task)
        end = method.step(task, start)
        distances.append(tree.squared_distance(start["params"], end["params"]).item())
        if mu == 0:
            assert_equal(end, train(FeSEM(2), task), tolerance=1e-12)
    assert distances[1] < 0.5 * distances[0]


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: IFCA(num_clusters=0), "num_clusters must be at least 1, but got 0."),
    (lambda: IFCA(cluster_init="same"), "cluster_init must be one of common, independent, but got 'same'."),
    (lambda: FedSoft(interval=0), "interval must be at least 1, but got 0."),
    (lambda: FedSoft(smallest_importance=2), "smallest_importance must be between 0 and 1, but got 2."),
    (lambda: FedSoft(vote="some"), "vote must be one of per-sample, released, but got 'some'."),
    (lambda: FedSoft(proximal="on"), "proximal must be one of released, intended, but got 'on'."),
    (lambda: FeSEM(proximal_weight=-1), "proximal_weight must be at least 0, but got -1."),
)


@pytest.mark.parametrize("method", [IFCA(2), FedConcatIFCA()])
@pytest.mark.parametrize("length", [{"last_batch": "drop-if-full"}, {"local_epochs": None, "local_steps": 1}])
def test_a_batch_that_only_the_comparison_of_models_has_is_refused_before_training(method, length):
    task = toy_task(model="resnet18", shape=(3, 16, 16), sizes=(13, 8), dtype=torch.float32, **length)
    task.require_batches([task.model])  # local training has none
    with pytest.raises(ValueError, match="client 0 with 13 has a smaller batch; use another batch_size") as error:
        method.init(task)
    assert isinstance(method, FedConcatIFCA) or "drop-if-full" not in str(error.value), "that would not help"
