"""Heads on frozen features, against the same training written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.measurements.heads import Examples, classification_loss, reconstruction_loss
from bench.seeding import generator_for, seed_for
from bench.simulation.client import Settings

SETTINGS = Settings(
    rounds=1,
    local_epochs=3,
    local_steps=None,
    batch_size=8,
    lr=0.1,
    momentum=0.9,
    weight_decay=0.01,
    participation=1.0,
    last_batch="keep",
)


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
