"""Pairwise discriminators, against autograd on the formulas and two clients that really average their models."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from algorithms.shared import divergence
from algorithms.shared.divergence import check_sizes, estimate, exchanged, num_bytes, stratified
from bench.models.base import uniform_init
from bench.models.pretrained import load
from bench.seeding import generator_for
from tests.support.toy import NUM_CLASSES, toy_task
from tests.support.weights import write_weights

SMALL, LARGE = (13, 4, 20, 8, 11), (60, 50, 56)  # fewer and more training examples than an image has pixels


def initial(task) -> dict[str, torch.Tensor]:
    draws, params = task.generator_for("discriminator"), {}
    for name, shape in {"pixels": (200, 36), "labels": (200, NUM_CLASSES), "head": (1, 200)}.items():
        params |= task.place(uniform_init(name, shape, draws))
    return params


def logits(params, x, y):
    scale = NUM_CLASSES / math.sqrt(NUM_CLASSES - 1)
    image = F.linear(x.flatten(1), params["pixels.weight"], params["pixels.bias"])
    label = F.linear(scale * F.one_hot(y, NUM_CLASSES).to(x), params["labels.weight"], params["labels.bias"])
    return F.linear(torch.relu(image + 2 * label), params["head.weight"], params["head.bias"])[:, 0]


def halves(task, client: int, half: int):
    """(x, y) of the examples for training and for validation."""
    rows = divergence._divided(task, client, half)
    x, y = task.federation.images[rows].to(task.dtype) / 255, task.federation.labels[rows]
    return (x[:half], y[:half]), (x[half:], y[half:])


def reference(task, i: int, j: int, lr: float, rounds: int) -> tuple[float, int]:
    """Divergence and rounds of one pair: each client takes a step of its own, the server averages."""
    half = min(task.sizes(torch.arange(task.population))) // 2
    data = [halves(task, client, half) for client in (i, j)]
    params, best, idle = initial(task), -1.0, 0
    for round in range(rounds + 1):
        if round % 10 == 1 or round == rounds:
            right = [
                ((logits(params, *validation) >= 0) == bool(target)).double().mean().item()
                for target, (_, validation) in enumerate(data)
            ]
            best, idle = (sum(right), 0) if sum(right) > best else (best, idle + 1)
            if idle == 10:
                return best - 1, round
        if round == rounds:
            return best - 1, round
        trained = []
        for target, (training, _) in enumerate(data):
            own = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
            found = logits(own, *training)
            loss = F.binary_cross_entropy_with_logits(found, torch.full_like(found, target))
            slopes = torch.autograd.grad(loss, list(own.values()))
            trained.append([leaf.detach() - lr * slope for leaf, slope in zip(own.values(), slopes, strict=True)])
        params = {name: (a + b) / 2 for name, a, b in zip(params, *trained, strict=True)}
    raise AssertionError


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_all_pairs_are_as_two_clients_that_average_their_models(sizes):
    # Batches are all training examples, fewer than 32, so that both take the same steps.
    task = toy_task(sizes=sizes)
    half, inputs = min(sizes) // 2, 36 + NUM_CLASSES + 2
    assert half <= 32 and (2 * half < inputs) == (sizes == SMALL), "both ways to compute are tested"
    found = estimate(task, 0.3, 130)
    for i in range(len(sizes)):
        for j in range(i + 1, len(sizes)):
            value, rounds = reference(task, i, j, 0.3, 130)
            assert found.divergences[i, j].item() == pytest.approx(value) and found.rounds[i, j] == rounds
    assert torch.equal(found.divergences, found.divergences.T) and not found.divergences.diagonal().any()
    assert torch.equal(found.rounds, found.rounds.T) and not found.rounds.diagonal().any()
    assert len(found.rounds.unique()) > 2, "some pairs stop, others go on"


def test_the_last_round_is_evaluated_whatever_its_number():
    task = toy_task(sizes=LARGE)
    values = [[reference(task, 0, 2, 0.3, rounds)[0] for rounds in (11, number)] for number in range(12, 21)]
    number = next(number for number, (before, after) in enumerate(values, 12) if after > before)
    found = estimate(task, 0.3, number)
    value, rounds = reference(task, 0, 2, 0.3, number)
    assert found.divergences[0, 2].item() == pytest.approx(value) and found.rounds[0, 2] == rounds == number


def test_the_learning_rate_and_the_seed_count():
    task = toy_task(sizes=LARGE)
    found = estimate(task, 0.3, 50).divergences
    assert not torch.equal(found, estimate(task, 0.01, 50).divergences)
    assert not torch.equal(found, estimate(replace(task, seed=1), 0.3, 50).divergences)


def test_pairs_in_blocks_are_as_all_at_once(monkeypatch):
    task = toy_task(sizes=(80, 90, 100))  # batches of 32 of 40
    whole = estimate(task, 0.1, 40)
    monkeypatch.setattr(divergence, "_NUMBERS_AT_ONCE", 1)
    for one, other in zip(whole, estimate(task, 0.1, 40), strict=True):
        torch.testing.assert_close(one, other)


def test_what_blocks_have_found_is_kept_when_a_later_one_is_interrupted(monkeypatch, tmp_path):
    task, trained, train = toy_task(sizes=(80, 90, 100)), [], divergence._Block.train
    whole = estimate(task, 0.1, 40)
    monkeypatch.setattr(divergence, "_NUMBERS_AT_ONCE", 1)  # three blocks of one pair

    def interrupted(block, rounds):
        trained.append(block)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return train(block, rounds)

    monkeypatch.setattr(divergence._Block, "train", interrupted)
    task = replace(task, cache_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        estimate(task, 0.1, 40)
    for one, other in zip(whole, estimate(task, 0.1, 40), strict=True):
        torch.testing.assert_close(one, other)
    assert len(trained) == 4, "the third pair twice"
    estimate(task, 0.2, 40)
    estimate(task, 0.1, 30)
    assert len(trained) == 10


def test_a_batch_is_32_different_training_examples_of_either_client():
    task = toy_task(sizes=(80, 90, 100))
    clients = range(3)
    inputs = [divergence._inputs(task, client, 40) for client in clients]
    start = divergence._initial(task)
    hidden = [of @ start["hidden"] for of in inputs]
    block = divergence._Block(task, [(0, 1), (0, 2)], inputs, hidden, 40, start, False, 0.1, 9)
    batches = torch.stack([block._batches(round) for round in range(9)])
    assert batches.shape == (9, 2, 64)
    first, second = batches.split(32, 2)
    assert int(first.min()) == 0 and int(first.max()) == 39 and int(second.min()) == 40 and int(second.max()) == 79
    assert all(len(one.unique()) == 64 for one in batches.flatten(0, 1))
    assert not torch.equal(batches[0], batches[1]) and not torch.equal(batches[:, 0], batches[:, 1])


COLOUR = {"sizes": (20, 24, 22), "shape": (3, 8, 8)}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A ResNet-18 with random weights."""
    folder = tmp_path_factory.mktemp("weights")
    write_weights(folder / "w.pth")
    return load("w.pth", folder)


@pytest.mark.slow
def test_with_a_network_discriminators_read_its_features_of_each_image(network, monkeypatch):
    task = toy_task(**COLOUR)
    monkeypatch.setattr(divergence, "_IMAGES", 7)
    inputs, pixels = divergence._inputs(task, 1, 10, network), divergence._inputs(task, 1, 10)
    assert inputs.shape == (24, 512 + 1 + NUM_CLASSES + 1) and torch.equal(inputs[:, 512:], pixels[:, 3 * 64 :])
    images = task.federation.images[divergence._divided(task, 1, 10)].to(task.dtype) / 255
    for features, image in zip(inputs[:, :512], images, strict=True):
        torch.testing.assert_close(features, network.features(image[None])[0])


def test_features_give_other_divergences_that_are_the_same_each_time(network):
    task = toy_task(**COLOUR)
    found, again = (estimate(task, 0.3, 20, network).divergences for _ in range(2))
    assert torch.equal(found, again) and not torch.equal(found, estimate(task, 0.3, 20).divergences)


def relabelled(task, changed: dict[int, int]):
    """The task in which clients add a number to their labels."""
    labels = task.federation.labels.clone()
    for client, more in changed.items():
        rows = task.federation.clients[client]
        labels[rows] = (labels[rows] + more) % NUM_CLASSES
    counts = torch.stack([torch.bincount(labels[rows], minlength=NUM_CLASSES) for rows in task.federation.clients])
    return replace(task, federation=replace(task.federation, labels=labels, label_counts=counts.double()))


def test_clients_that_differ_in_images_or_in_labels_are_told_apart_and_others_are_not():
    task = toy_task(sizes=(400, 400, 400, 400))
    images, labels = task.federation.images.clone(), torch.zeros_like(task.federation.labels)
    rows = task.federation.clients
    images[rows[2]] //= 2  # darker
    labels[rows[3]] = 1
    counts = F.one_hot(torch.tensor([0, 0, 0, 1]), NUM_CLASSES).double() * 400
    own = replace(task.federation, images=images, labels=labels, label_counts=counts)
    found = estimate(replace(task, federation=own), 0.05, 200).divergences
    assert found[0, 1] < 0.25, "of the same kind, but the best of several evaluations"
    assert found[0, 2] > 0.9 and found[0, 3] > 0.95 and found[2, 3] > 0.9


def test_noise_of_a_client_is_seen_by_its_discriminators():
    quiet, noisy = (estimate(toy_task(sizes=LARGE, noise=noise), 0.3, 20).divergences for noise in (0.0, 3.0))
    assert not torch.equal(quiet[0, 2], noisy[0, 2])


@pytest.mark.parametrize(
    "counts, size, expected",
    [
        ([2, 4, 4, 4], 7, [1, 2, 2, 2]),
        ([300, 600, 600, 600], 7, [1, 2, 2, 2]),
        ([3, 3, 3], 4, [2, 1, 1]),  # equal remainders: the first label
        ([1, 1, 8], 5, [1, 0, 4]),
        ([5, 0, 1], 3, [3, 0, 0]),  # 2.5 and 0.5: equal remainders
    ],
)
def test_halves_have_the_label_shares_of_the_client(counts, size, expected):
    assert stratified(torch.tensor(counts), size).tolist() == expected


def test_a_division_keeps_every_example_once_and_the_label_shares():
    task = toy_task(sizes=(30, 20))
    for client, rows in enumerate(task.federation.clients):
        divided = divergence._divided(task, client, 10)
        assert sorted(divided.tolist()) == rows.tolist()
        counts = torch.from_numpy(np.bincount(task.federation.labels[rows].numpy(), minlength=NUM_CLASSES))
        chosen = torch.bincount(task.federation.labels[divided[:10]], minlength=NUM_CLASSES)
        assert chosen.tolist() == stratified(counts, 10).tolist()
    other = divergence._divided(replace(task, seed=1), 0, 10)
    assert other.tolist() != divergence._divided(task, 0, 10).tolist()


def test_a_pair_has_its_own_draws_whoever_else_takes_part():
    task = toy_task(sizes=(80, 80, 90))
    whole, part = estimate(task, 0.1, 30), estimate(task.restrict(torch.tensor([0, 2])), 0.1, 30)
    assert part.divergences[0, 1] == whole.divergences[0, 2]


def test_what_is_no_estimate_is_told_from_one():
    found = estimate(toy_task(), 0.3, 10)._asdict()
    assert divergence.is_estimate(found, 5, 10)
    d, rounds = found["divergences"], found["rounds"]
    skewed = d.clone()
    skewed[0, 1] += 0.1
    wrong = [
        *([1, 2], {}, {"divergences": d}, found | {"more": d}, found | {"rounds": 3}),
        *(
            found | {"divergences": one}
            for one in (d.float(), d[:3, :3], d * math.nan, d - 7, d + torch.eye(5), skewed)
        ),
        *(found | {"rounds": one} for one in (rounds.double(), rounds[:3, :3], -rounds, rounds + 1, 2 * rounds)),
    ]
    assert [divergence.is_estimate(one, 5, 10) for one in wrong] == [False] * 16
    assert not divergence.is_estimate(found, 4, 10) and not divergence.is_estimate(found, 5, 9)


def test_bytes():
    task = toy_task()  # 36 pixels and 3 labels, in double precision
    size = 8 * (36 * 200 + 200 + 3 * 200 + 200 + 200 + 1)
    assert num_bytes(task) == size == 8 * sum(leaf.numel() for leaf in initial(task).values())
    assert num_bytes(task, of_features=True) - size == 8 * (512 - 36) * 200
    features = exchanged(task, torch.tensor([20]), of_features=True)
    assert features == {"bytes_down": 2 * 21 * num_bytes(task, True), "bytes_up": 2 * 20 * num_bytes(task, True)}
    assert exchanged(task, torch.tensor([20, 1])) == {"bytes_down": 2 * 23 * size, "bytes_up": 2 * 21 * size}


def test_clients_that_are_too_small():
    check_sizes(toy_task(sizes=(2, 20)))
    with pytest.raises(ValueError, match="at least 2 training examples of each client.* but client 1 has 1; use fewer"):
        check_sizes(toy_task(sizes=(20, 1, 5)))


def test_purposes_of_the_draws_differ():
    names = ("discriminator", "discriminator-data", "coalitions")
    assert len({torch.rand(1, generator=generator_for(0, name)).item() for name in names}) == 3
