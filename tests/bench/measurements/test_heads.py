"""Heads on frozen features, against the same training written out."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.measurements.heads import Examples, classification_loss, information, reconstruction_loss
from bench.seeding import generator_for, seed_for
from tests.support.by_hand import PLAIN

SETTINGS = replace(PLAIN, local_epochs=3, batch_size=8, momentum=0.9, weight_decay=0.01)


@pytest.fixture
def examples():
    """20 examples of 5 features, with 3 classes and 4 pixels."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(20, 5, generator=draw)
    return Examples(z, torch.arange(20) % 3), Examples(z, torch.rand(20, 4, generator=draw))


def by_hand(head, loss, examples):
    """The same training written out: v = 0.9 v + gradient + 0.01 w, w = w - 0.1 v, three passes over the same batches."""
    params, order = list(head.parameters()), generator_for(4, "head-batches", 2)
    speeds = [torch.zeros_like(leaf) for leaf in params]
    for rows in sum((torch.randperm(20, generator=order).split(8) for _ in range(3)), ()):
        gradients = torch.autograd.grad(loss(head(examples.features[rows]), examples.targets[rows]), params)
        speeds = [0.9 * v + g + 0.01 * w.detach() for v, g, w in zip(speeds, gradients, params, strict=True)]
        for leaf, speed in zip(params, speeds, strict=True):
            leaf.data -= 0.1 * speed
    return loss(head(examples.features), examples.targets).item()


def initial(build):
    torch.manual_seed(seed_for(4, "head-init"))
    return build()


def test_a_classifier_is_trained_by_sgd(examples):
    expected = by_hand(initial(lambda: nn.Linear(5, 3)), F.cross_entropy, examples[0])
    assert classification_loss(examples[0], 3, SETTINGS, 4, 2) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("width", [0, 6])
def test_a_decoder_is_trained_by_sgd(examples, width):
    def build():
        layers = [nn.Linear(5, width), nn.ReLU()] if width else []
        return nn.Sequential(*layers, nn.Linear(width or 5, 4), nn.Sigmoid())

    expected = by_hand(initial(build), F.mse_loss, examples[1])
    assert reconstruction_loss(examples[1], width, SETTINGS, 4, 2) == pytest.approx(expected, rel=1e-5)


def test_the_seed_and_the_examples_key_the_training_of_a_head(examples):
    found = {classification_loss(examples[0], 3, SETTINGS, seed, data) for seed in (0, 1) for data in (0, 1)}
    assert len(found) == 4


def test_a_head_leaves_the_global_random_state_alone(examples):
    before = torch.random.get_rng_state()
    classification_loss(examples[0], 3, SETTINGS, 4, 2)
    assert torch.equal(before, torch.random.get_rng_state())


# Information of features about labels

LONG = replace(SETTINGS, local_epochs=60, batch_size=200, weight_decay=0.0, lr=0.5)
FLIPPED = math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)  # nats: log 2 minus the entropy of one flip in ten


def through_a_channel(zeros: int, ones: int) -> Examples:
    """Labels 0 and 1, of each ten times as many, whose features name the label, but one in ten times the other one."""
    labels = torch.arange(2).repeat_interleave(torch.tensor([10 * zeros, 10 * ones]))
    sent = torch.cat([torch.arange(10 * count) % 10 == 0 for count in (zeros, ones)])
    return Examples(F.one_hot(labels ^ sent.long(), 2).float(), labels)


def test_information_through_a_binary_channel_is_known():
    """A linear classifier of features that are one-hot can be the true p(y | z), so that the bound is met."""
    known = through_a_channel(10, 10)
    found = information(known, known, 2, LONG, 0, 0)
    assert found.bound == pytest.approx(FLIPPED, abs=1e-3) and found.bound <= FLIPPED + 1e-6
    assert found.entropy == pytest.approx(math.log(2))


def test_labels_have_the_shares_that_they_have_among_the_examples():
    known = through_a_channel(10, 10)
    for zeros, ones in ((2, 18), (30, 1)):
        found = information(known, through_a_channel(zeros, ones), 2, LONG, 0, 0)
        assert found.bound == pytest.approx(FLIPPED, abs=1e-3)
    few = information(through_a_channel(2, 18), known, 2, LONG, 0, 0)
    assert few.entropy == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    assert few.bound < few.entropy


def test_features_that_name_the_label_tell_everything_and_noise_tells_nothing():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    named = Examples(20 * F.one_hot(labels, 4).float(), labels)
    found = information(named, named, 4, LONG, 0, 0)
    assert found.bound == pytest.approx(math.log(4), abs=1e-2) and found.bound <= found.entropy
    known, fresh = (Examples(torch.randn(400, 8, generator=draw), labels) for _ in range(2))
    assert information(known, fresh, 4, LONG, 0, 0).bound <= 0
    assert information(known, known, 4, LONG, 0, 0).bound > 0, "which is why the examples must be others"


def test_a_label_without_a_held_out_example_leaves_the_information_unknown():
    known = through_a_channel(10, 10)
    assert math.isnan(information(known, through_a_channel(5, 0), 2, LONG, 0, 0).bound)
    third = Examples(known.features, known.targets.clone())
    assert information(known, third, 3, LONG, 0, 0).bound == pytest.approx(FLIPPED, abs=1e-2), "a class of neither"
