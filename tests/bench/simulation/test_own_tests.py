"""Clients with test data of their own: what they hold, and how what they deploy is scored."""

import math

import numpy as np
import pytest
import torch

from algorithms.shared.base import Deployed
from bench.config.resolve import resolve
from bench.results.schema import check_record
from bench.simulation.build import build_task
from bench.simulation.data import divide
from bench.simulation.evaluation import evaluate, evaluate_own
from bench.simulation.run import Run
from datasets import Dataset, Split, shifts
from datasets.partitions import parse
from tests.support.trained import to_end

SHIFTS = {"label-shift": 10, "feature-shift": 10, "concept-shift": 20}  # and the classes that they need
SIDE = 5


def synthetic(num_classes: int, train: int = 2000, test: int = 400) -> Dataset:
    """Images whose pixel of the number of their label is bright; each image is unique."""
    rng = np.random.default_rng(0)

    def split(size: int) -> Split:
        labels = rng.permutation(np.arange(size) % num_classes)
        images = rng.integers(0, 100, (size, 1, SIDE, SIDE), dtype=np.uint8)
        images.reshape(size, -1)[np.arange(size), labels] = 255
        return Split(images, labels)

    names = tuple(f"class-{label}" for label in range(num_classes))
    return Dataset("synthetic", split(train), split(test), names, "arrays", "arrays", "0", "")


def config(name: str, algorithm: str = "fedavg", **settings):
    usual = {
        "clients": 4,
        "rounds": 3,
        "local_epochs": 1,
        "batch_size": 16,
        "lr": 0.1,
        "model": "mlp",
        "transform": "none",
    }
    return resolve({"algorithm": algorithm, "dataset": "imagefolder:x", "partition": name, **usual, **settings}, None)


def play(name: str, algorithm: str = "fedavg", engine: str = "auto", **settings) -> Run:
    return to_end(Run(config(name, algorithm, **settings), synthetic(SHIFTS.get(name, 10)), engine=engine))


def owners(dataset: Dataset) -> dict[bytes, int]:
    """Image -> its label."""
    parts = dataset.train, dataset.test
    return {image.tobytes(): label for part in parts for image, label in zip(part.images, part.labels, strict=True)}


@pytest.mark.slow_but_first
@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
@pytest.mark.parametrize("name", SHIFTS)
def test_a_run_scores_each_client_on_its_own_test_data_whatever_the_engine(name, algorithm):
    looped, vectorised = (play(name, algorithm, engine) for engine in ("loop", "vectorised"))
    for run in (looped, vectorised):
        found = {key for key in run.rows[-1] if key.endswith("accuracy")}
        assert found == {"own_accuracy"}
        result = run.result()
        accuracies = result["client_accuracies"]
        assert len(accuracies) == 4 and result["summary"]["last"]["own_accuracy"] == pytest.approx(np.mean(accuracies))
        assert all(
            abs(share * len(rows) - round(share * len(rows))) < 1e-9
            for share, rows in zip(accuracies, run.task.federation.test_clients, strict=True)
        )
    assert looped.rows[-1]["loss"] == pytest.approx(vectorised.rows[-1]["loss"], rel=1e-4)
    # One image of the smallest test part may tip.
    assert looped.result()["client_accuracies"] == pytest.approx(vectorised.result()["client_accuracies"], abs=1 / 50)


@pytest.mark.slow
def test_rich_clients_learn_their_own_shift():
    accuracies = play("concept-shift", "local", rounds=20, local_epochs=2).result()["client_accuracies"]
    assert min(accuracies[:2]) > 0.9 > max(accuracies[2:])


@pytest.mark.parametrize("name", SHIFTS)
def test_clients_hold_what_was_dealt_as_they_know_it(name):
    dataset = synthetic(SHIFTS[name])
    federation = build_task(config(name), dataset).federation
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    images = np.concatenate([dataset.train.images, dataset.test.images])
    drawn = parse(name).draw(labels, 4, SHIFTS[name], 0, num_test=400)
    for client in range(4):
        for rows, own, held, named in (
            (drawn.indices, federation.clients, federation.images, federation.labels),
            (drawn.test_indices, federation.test_clients, federation.test_images, federation.test_labels),
        ):
            seen, called = images[rows[client]], labels[rows[client]]
            seen = shifts.rotate(seen, client) if name == "feature-shift" else seen
            called = shifts.rename(called, client) if name == "concept-shift" else called
            assert np.array_equal(held[own[client]], seen) and np.array_equal(named[own[client]], called)
        counts = np.bincount(federation.labels[federation.clients[client]], minlength=SHIFTS[name])
        assert federation.label_counts[client].tolist() == counts.tolist(), (
            "counts are of the labels as clients name them"
        )
    both = [*federation.images, *federation.test_images]
    if name != "feature-shift":
        assert len({image.numpy().tobytes() for image in both}) == len(both), "no image is with two clients"


def test_scores_by_hand():
    task = build_task(config("label-shift"), synthetic(10))
    labels = [task.federation.test_labels[rows] for rows in task.federation.test_clients]
    params = {key: torch.zeros_like(leaf) for key, leaf in task.initial_params().items()}
    params["classifier.bias"][1] = math.log(2)  # probability 2/11 for label 1, 1/11 for each other
    shares = [(own == 1).double().mean().item() for own in labels]
    scores = evaluate(task, Deployed(task.model, params, {}, False))
    assert scores.keys() == {"own_accuracy", "loss"}
    assert scores["own_accuracy"] == pytest.approx(np.mean(shares)) and shares[2] == 0
    assert scores["loss"] == pytest.approx(np.mean([math.log(11) - share * math.log(2) for share in shares]))
    features = torch.zeros(len(task.federation.test_labels), task.model.feature_dim)
    assert evaluate(task, Deployed(task.model, params, {}, False, features)) == pytest.approx(scores)

    stacked = {key: torch.zeros(4, *leaf.shape) for key, leaf in task.initial_params().items()}
    for client, label in enumerate((1, 4, 6, 0)):  # the last one is no label of its client
        stacked["classifier.bias"][client, label] = 1.0
    deployed = Deployed(task.model, stacked, {}, True)
    expected = [(own == label).double().mean().item() for own, label in zip(labels, (1, 4, 6, 0), strict=True)]
    assert evaluate(task, deployed)["own_accuracy"] == pytest.approx(np.mean(expected)) and expected[3] == 0
    found, _ = evaluate_own(
        task, Deployed(task.model, {k: v[[2, 0]] for k, v in stacked.items()}, {}, True), torch.tensor([2, 0])
    )
    assert found.tolist() == pytest.approx([expected[2], expected[0]])


def test_a_part_of_the_clients_is_tested_on_its_own_data_alone():
    task = build_task(config("label-shift"), synthetic(10))
    params = {key: torch.zeros_like(leaf) for key, leaf in task.initial_params().items()}
    params["classifier.bias"][6] = 1.0  # a label of the third and the fourth client
    deployed = Deployed(task.model, params, {}, False)
    assert evaluate(task.restrict(torch.tensor([0, 1])), deployed)["own_accuracy"] == 0
    assert evaluate(task.restrict(torch.tensor([2, 3])), deployed)["own_accuracy"] == pytest.approx(
        2 * evaluate(task, deployed)["own_accuracy"]
    )


def test_elsewhere_no_record_has_accuracies_of_clients():
    run = play("iid")
    assert "accuracy" in run.rows[-1] and "own_accuracy" not in run.rows[-1]
    assert "client_accuracies" not in run.result() and run.task.federation.test_clients is None


def test_a_round_that_fails_leaves_the_accuracies_of_clients_as_they_were(monkeypatch):
    run = Run(config("feature-shift"), synthetic(10))
    run.step()
    before = run.result()["client_accuracies"]
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(run, "_save", lambda previous: 1 / 0)
        run.step()
    assert run.result()["client_accuracies"] == run.checkpoint()["client_accuracies"] == before
    run.step()
    assert run.result()["client_accuracies"] != before


def test_accuracies_of_clients_are_those_of_the_last_evaluated_round_also_after_a_checkpoint(tmp_path):
    name, dataset = "feature-shift", synthetic(10)
    whole = play(name, evaluate_every=2)
    assert ["own_accuracy" in row for row in whole.rows] == [False, True, True]
    first, second = (Run(config(name, evaluate_every=2), dataset) for _ in range(2))
    first.step()
    assert "client_accuracies" not in first.result()
    first.step()
    second.restore(first.checkpoint())
    assert second.result()["client_accuracies"] == first.result()["client_accuracies"]
    second.step()
    assert second.result()["client_accuracies"] == whole.result()["client_accuracies"]
    record = {"id": "0123456789abcdef", **whole.result()}
    folder = tmp_path / record["id"]
    assert check_record(folder / "record.json", record)["client_accuracies"] == whole.result()["client_accuracies"]
    for wrong in ("0.5", [0.5, None]):
        with pytest.raises(Exception, match="client_accuracies"):
            check_record(folder / "record.json", record | {"client_accuracies": wrong})


@pytest.mark.parametrize("name", SHIFTS)
def test_validation_is_on_training_examples_that_each_client_has_set_aside(name):
    dataset = synthetic(SHIFTS[name], train=6000, test=1200)
    tested, searched = (divide(config(name, split=split), dataset) for split in ("test", "validation"))
    for client in range(4):
        before = {image.tobytes() for image in tested.images[tested.clients[client]]}
        kept = {image.tobytes() for image in searched.images[searched.clients[client]]}
        held = {image.tobytes() for image in searched.test_images[searched.test_clients[client]]}
        assert kept | held == before and not kept & held and held
        assert not held & {image.tobytes() for image in tested.test_images}
    run = Run(config(name, split="validation"), dataset)
    run.step()
    assert "own_accuracy" in run.rows[0]


def test_subsets_are_taken_of_both_files_and_set_the_share_of_the_test_part():
    found = divide(config("feature-shift", train_examples=600, test_examples=200), synthetic(10))
    # 80 of each class, 20 for each client: a quarter is for testing, and poor clients keep 15 e^-2 = 2.03 of the others.
    assert [len(own) for own in found.clients] == [150, 150, 20, 20]
    assert [len(own) for own in found.test_clients] == [50] * 4
    first = divide(config("feature-shift", first_clients=3), synthetic(10))
    whole = divide(config("feature-shift"), synthetic(10))
    assert len(first.clients) == len(first.test_clients) == 3
    assert np.array_equal(first.test_images, whole.test_images[: len(first.test_images)])


def test_local_models_are_traced_on_the_clients_own_test_data():
    run = Run(config("concept-shift", "local", trace_local_models=True, evaluate_every=1), synthetic(20))
    row = run.step()
    assert [curve[-1] for curve in row["local_models"]["accuracies"]] == run.result()["client_accuracies"]
