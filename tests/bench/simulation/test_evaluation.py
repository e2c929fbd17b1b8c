"""Test metrics by hand."""

import math
from dataclasses import replace

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.local_training import LocalTraining
from algorithms.shared.base import Deployed
from bench.simulation.evaluation import evaluate, local_accuracy, require_local_accuracies
from tests.support.toy import toy_task, train


def test_local_accuracy_weights_classes_by_the_clients_label_shares():
    # Class accuracies 1/2, 1 and 0; the client has labels 0 and 1 in shares 1/4 and 3/4.
    labels = torch.tensor([0, 0, 1, 2])
    correct = torch.tensor([True, False, True, False])
    assert local_accuracy(correct, labels, torch.tensor([1.0, 3.0, 0.0])).item() == 0.25 * 0.5 + 0.75 * 1


def test_local_accuracy_leaves_out_classes_without_test_examples():
    labels, correct = torch.tensor([0, 0]), torch.tensor([True, False])
    assert local_accuracy(correct, labels, torch.tensor([1.0, 3.0, 0.0])).item() == 0.5


def test_clients_without_a_label_that_is_tested_are_refused_before_they_train():
    task = toy_task(own_tests=False)
    require_local_accuracies(task)
    tested = task.federation.test_labels != 1  # the second client has examples of label 1 only
    few = replace(
        task.federation,
        test_images=task.federation.test_images[tested],
        test_labels=task.federation.test_labels[tested],
    )
    with pytest.raises(
        ValueError, match="Client 1 has only labels of which there is no test example, .* test_examples"
    ):
        require_local_accuracies(replace(task, federation=few))
    everyone = tuple(torch.arange(3) for _ in few.clients)
    require_local_accuracies(replace(task, federation=replace(few, test_clients=everyone)))


def test_shared_model_that_always_says_class_1():
    task = toy_task()  # 30 test images, 10 of each of 3 classes
    params = {name: torch.zeros_like(leaf) for name, leaf in task.initial_params().items()}
    params["classifier.bias"][1] = math.log(2)
    scores = evaluate(task, Deployed(task.model, params, {}, False))
    assert scores["accuracy"] == pytest.approx(1 / 3)
    # softmax (1/4, 1/2, 1/4): the loss is log 2 for a third of the examples, else log 4.
    assert scores["loss"] == pytest.approx((math.log(2) + 2 * math.log(4)) / 3)


def test_one_model_per_client_is_scored_on_everything_and_on_its_own_classes():
    task = toy_task(sizes=(4, 6))
    stacked = {name: torch.zeros(2, *leaf.shape, dtype=leaf.dtype) for name, leaf in task.initial_params().items()}
    stacked["classifier.bias"][0, 0] = 1.0  # client 0 always says class 0, client 1 class 2
    stacked["classifier.bias"][1, 2] = 1.0
    scores = evaluate(task, Deployed(task.model, stacked, {}, True))
    assert scores.keys() == {"global_accuracy", "local_accuracy"}
    assert scores["global_accuracy"] == pytest.approx(1 / 3)
    shares = [task.cohort(torch.tensor([client])).label_counts[0] for client in range(2)]
    expected = (shares[0][0] / shares[0].sum() + shares[1][2] / shares[1].sum()) / 2
    assert scores["local_accuracy"] == pytest.approx(expected.item())


def test_personal_models_beat_a_shared_one_on_their_own_labels_under_extreme_skew():
    task = toy_task(rounds=5)
    state = train(LocalTraining(), task)
    own = evaluate(task, LocalTraining().deploy(task, state, torch.arange(5)))
    assert own["local_accuracy"] != own["global_accuracy"]


def test_under_noise_the_test_set_has_one_noisy_copy_per_client():
    clean, noisy = toy_task(), toy_task(noise=3.0)
    params = train(FedAvg(), clean)["params"]
    deployed = Deployed(clean.model, params, {}, False)
    assert evaluate(clean, deployed) != evaluate(noisy, deployed)
    assert evaluate(noisy, deployed) == evaluate(noisy, deployed)
    only_first = noisy.restrict(torch.tensor([0]))  # the first client has no noise
    assert evaluate(only_first, deployed) == pytest.approx(evaluate(clean, deployed))
    only_last = noisy.restrict(torch.tensor([4]))  # who keeps its noise
    assert evaluate(only_last, deployed) != pytest.approx(evaluate(clean, deployed))


def test_noise_of_test_images_does_not_depend_on_how_many_are_tested_at_once(monkeypatch):
    noisy = toy_task(noise=3.0)
    deployed = Deployed(noisy.model, train(FedAvg(), noisy)["params"], {}, False)
    whole = evaluate(noisy, deployed)
    monkeypatch.setattr("bench.simulation.task._AT_ONCE", 7)
    assert evaluate(noisy, deployed) == pytest.approx(whole)
