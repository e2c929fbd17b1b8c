"""FedDisco: weights from label counts, around every method that weighs clients by their examples, and around no other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.fedbabu import FedBabu
from algorithms.feddisco import FedDisco, discrepancies
from algorithms.feddyn import FedDyn
from algorithms.fedexp import FedExP
from algorithms.fednova import FedNova
from algorithms.fedopt import FedAdam
from algorithms.fedprox import FedProx
from algorithms.moon import Moon
from algorithms.scaffold import Scaffold
from algorithms.shared import tree
from bench.config.resolve import resolve, wrapped
from bench.errors import ConfigError
from bench.simulation.build import build_algorithm
from datasets import transforms
from datasets.federation import federate
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, assert_equal, normalised_task, toy_task, train

KNOWN = oracle("rivals")["feddisco"]
INPUTS, EXPECTED = KNOWN["inputs"], KNOWN["expected"]

BASES = [FedAvg(), FedProx(mu=1.0), Moon(), FedNova(), FedNova("steps"), Scaffold(weighting="examples"), FedAdam()]
BASES += [FedExP(), FedDyn(mean="examples"), FedBabu()]


def with_labels(task, counts):
    """The task with clients of these label counts [[examples of each label] of each client]."""
    labels = np.concatenate([np.repeat(np.arange(len(of)), of) for of in np.array(counts, dtype=int)])
    shape = task.model.input_shape
    images = np.random.default_rng(3).integers(0, 256, (len(labels), *shape), dtype=np.uint8)
    clients = np.split(np.arange(len(labels)), np.cumsum(np.array(counts, dtype=int).sum(1))[:-1])
    prepared = transforms.build("none", "digits", shape)
    return replace(task, federation=federate(images, labels, images, labels, clients, len(counts[0]), prepared, 0.0))


def weights(method, task, ids=None):
    """The normalised weights of clients in a cohort."""
    found = method.inside(task).cohort(torch.arange(task.population) if ids is None else torch.tensor(ids)).weights
    return (found / found.sum()).tolist()


def known_task():
    return with_labels(toy_task(), INPUTS["class_counts"])


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, "weights_kl_normalised"),
        ({"metric": "l2", "normalise": False}, "weights_l2"),
        ({"a": 0.0, "b": 0.0}, "weights_a0_b0"),
    ],
)
def test_weights_follow_the_oracle(options, expected):
    method = FedDisco(**{"a": INPUTS["a"], "b": INPUTS["b"]} | options)
    assert weights(method, known_task()) == pytest.approx(EXPECTED[expected], abs=KNOWN["tol"])
    assert (FedDisco().a, FedDisco().b) == (INPUTS["a"], INPUTS["b"])


@pytest.mark.parametrize("metric", ["kl", "l2"])
def test_discrepancies_follow_the_oracle(metric):
    counts = torch.tensor(INPUTS["class_counts"], dtype=torch.float64)
    found = discrepancies(counts, metric)
    assert found.tolist() == pytest.approx(EXPECTED[metric], abs=KNOWN["tol"])
    if metric == "kl":
        assert (found / found.sum()).tolist() == pytest.approx(EXPECTED["kl_normalised"], abs=KNOWN["tol"])


def test_other_discrepancies_by_hand():
    """Two of four labels: |1/2 - 1/4| four times; cosine (1/4) / (sqrt(1/2) sqrt(1/4)) = sqrt(1/2). One label: 3/4 + 3/4;
    cosine 1/2."""
    counts = torch.tensor([[5.0, 5.0, 0.0, 0.0], [0.0, 7.0, 0.0, 0.0]], dtype=torch.float64)
    assert discrepancies(counts, "l1").tolist() == pytest.approx([1.0, 1.5])
    assert discrepancies(counts, "cosine").tolist() == pytest.approx([1 - 0.5**0.5, 0.5])


@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
def test_rounding_is_no_discrepancy(metric):
    """Divided by its sum it would be a large one."""
    task = with_labels(toy_task(), [[1, 1, 1], [7, 7, 7], [2, 2, 2]])
    assert weights(FedDisco(b=0.0, metric=metric), task) == pytest.approx([0.1, 0.7, 0.2], abs=1e-12)


def test_discrepancies_shares_and_clipping_are_those_of_the_cohort():
    """Clients 1 and 2 of the oracle: shares 10/13 and 3/13; without the others their discrepancies sum to 1."""
    kl = EXPECTED["kl"][1], EXPECTED["kl"][2]
    raw = [share - 0.5 * d / sum(kl) + 0.1 for share, d in zip((10 / 13, 3 / 13), kl, strict=True)]
    expected = [max(0, value) for value in raw]
    found = weights(FedDisco(), known_task(), [1, 2])
    assert found == pytest.approx([value / sum(expected) for value in expected], abs=1e-9) and found[1] == 0


def test_equal_discrepancies_are_an_offset_that_makes_weights_more_equal_or_less():
    """Shares 1/3 and 2/3, discrepancies 1/2 and 1/2, so that b - 1/4 is added to each."""
    task = with_labels(toy_task(), [[3, 3, 0], [0, 6, 6]])
    for b in (0.0, 0.1, 0.25, 0.4, 1e9):
        expected = [(share + b - 0.25) / (1 + 2 * b - 0.5) for share in (1 / 3, 2 / 3)]
        assert weights(FedDisco(b=b), task) == pytest.approx(expected, abs=1e-12)
    assert weights(FedDisco(a=0.0, b=1e9), task) == pytest.approx([0.5, 0.5], abs=1e-8)


# Around a base


@pytest.mark.slow_but_first
@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_without_discrepancy_and_offset_it_is_the_base(base, engine):
    task = toy_task(engine=engine, participation=0.6)
    state = train(FedDisco(base=base, a=0.0, b=0.0), task)
    alone = train(base, task)
    for key in ("params", "server", "buffers"):
        assert_equal(state[key], alone[key])


# All but FedDyn, whose mean memory is uniform, whatever the weights.
@pytest.mark.parametrize("base", [base for base in BASES if not isinstance(base, FedDyn)], ids=str)
@pytest.mark.parametrize("engine", ["loop", "vectorised", "streamed"])
def test_a_client_with_all_the_weight_is_the_whole_cohort(base, engine):
    """Its labels are uniform; those of the others are so far from that that they weigh nothing."""
    how = {"engine": "vectorised"} if engine == "vectorised" else {}
    task = with_labels(toy_task(rounds=1, **how), [[8, 0, 0], [4, 4, 4], [0, 9, 5]])
    task = replace(task, largest_stack=0) if engine == "streamed" else task
    state = train(FedDisco(base=base, a=100.0), task)
    assert_equal(state["params"], train(base, task.restrict(torch.tensor([1])))["params"], tolerance=1e-8)
    assert sorted(state["clients"]["rows"]) == [0, 1, 2], "all have trained"


def test_running_statistics_are_weighed_too():
    task = with_labels(normalised_task(rounds=1), [[8, 0, 0], [4, 4, 4], [0, 9, 5]])
    state = train(FedDisco(a=100.0), task)
    assert_equal(state["buffers"], train(FedAvg(), task.restrict(torch.tensor([1])))["buffers"], tolerance=1e-6)


def test_the_mean_is_by_these_weights():
    task, method = toy_task(), FedDisco()
    start = method.init(task)
    outputs = FedAvg().map_clients(task, FedAvg().local_update, task.sample_cohort(0), start)
    shares = weights(method, task)
    assert len(set(shares)) == 5 and 0 in shares
    expected = tree.weighted_mean(outputs.result.update["delta"], torch.tensor(shares, dtype=torch.double))
    moved = tree.subtract(method.step(task, start)["params"], start["params"])
    assert_equal(moved, expected, tolerance=1e-10)


def test_clients_see_their_true_sizes():
    task = FedDisco().inside(toy_task())

    def sizes(data, plan, view):
        return view.num_examples

    cohort = task.sample_cohort(0)
    seen = FedAvg().map_clients(task, sizes, cohort, FedAvg().init(task)).result
    assert seen.tolist() == cohort.num_examples.tolist() == task.sizes(cohort.ids) != cohort.weights.tolist()


def test_where_all_are_clipped_examples_are_the_weights_and_that_is_counted():
    task = with_labels(toy_task(), [[8, 0, 0], [0, 4, 0], [0, 0, 9]])
    method = FedDisco(a=10.0, b=0.0)
    state = train(method, task)
    assert_equal(state["params"], train(FedAvg(), task)["params"])
    assert method.diagnostics(state) == {"all_clipped": 3}
    assert method.diagnostics(train(FedDisco(), task)) == {"all_clipped": 0}


def test_rounds_in_which_some_clients_are_clipped_are_not_counted():
    task = with_labels(toy_task(), [[8, 0, 0], [4, 4, 4], [0, 0, 9]])
    method = FedDisco(a=10.0, b=0.0)
    assert method._weights(task.cohort(torch.arange(3))).tolist() == [0, 12, 0]
    assert method.diagnostics(train(method, task)) == {"all_clipped": 0}


def test_a_cohort_of_nobody_is_not_clipped():
    task = toy_task(participation=0.2).restrict(torch.tensor([0]))
    cohorts = [len(task.sample_cohort(round).ids) for round in range(3)]
    assert 0 in cohorts
    assert FedDisco().diagnostics(train(FedDisco(), task)) == {"all_clipped": 0}


def test_each_client_sends_its_label_counts_once():
    task = toy_task(dtype=torch.float32, participation=0.6)
    first, last = train(FedDisco(), task, rounds=1)["costs"], train(FedDisco(), task)["costs"]
    for spent, rounds in ((first, 1), (last, 3)):
        plain = train(FedAvg(), task, rounds)["costs"]
        assert spent == plain | {"bytes_up": plain["bytes_up"] + 5 * 4 * NUM_CLASSES}
    assert FedDisco().traffic(task) == FedAvg().traffic(task) + 4 * NUM_CLASSES


@pytest.mark.parametrize(
    "base, does",
    [
        ("scaffold", "does so with weighting=examples only"),
        ("feddyn", "does so with mean=examples only"),
        ("clusamp", "does not"),
        ("fedcat", "does not"),
        ("fedconcat", "does not"),
    ],
)
def test_methods_with_other_means_are_refused_in_one_sentence(base, does):
    with pytest.raises(ValueError) as error:
        FedDisco(base=algorithms.make(base))
    assert str(error.value) == (
        f"feddisco needs a base whose server averages models in rounds by number of examples, but {base} {does}."
    )


@pytest.mark.parametrize("base", ["ditto", "local", "ccvr", "clsnorm", "feddisco", "centralized"])
def test_methods_without_one_shared_model_wrappers_and_calibrations_are_refused(base):
    with pytest.raises(ValueError, match=f"^feddisco .* but {base} "):
        FedDisco(base=algorithms.make(base))


def test_a_method_with_a_mean_of_its_own_is_refused_unless_it_says_that_it_reads_the_weights():
    class Mine(FedAvg):
        def weighted_means(self, updates, cohort):
            return super().weighted_means(updates, cohort)

    class Says(Mine):
        weighs_clients = True

    with pytest.raises(ValueError, match="but Mine does not"):
        FedDisco(base=Mine())
    assert FedDisco(base=Says()).base == Says()


def test_options_of_both_are_set_from_a_config():
    flat = {"algorithm": "scaffold", "dataset": "digits", "partition": "label-2"}
    around = {"name": "feddisco", "b": 0.02}
    config = wrapped(resolve(flat | {"weighting": "examples"}), around)
    assert build_algorithm(config.algorithm) == FedDisco(base=Scaffold(weighting="examples"), b=0.02)
    with pytest.raises(ConfigError, match="but scaffold does so with weighting=examples only"):
        wrapped(resolve(flat), around)


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedDisco(a=-1.0), "a must be at least 0, but got -1.0."),
    (lambda: FedDisco(b=-1.0), "b must be at least 0, but got -1.0."),
    (lambda: FedDisco(metric="l3"), "metric must be one of kl, l1, l2, cosine, but got 'l3'."),
)
