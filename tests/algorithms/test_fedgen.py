"""FedGen: the generator, its losses and steps, the terms on clients, and what is sent."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.fedgen import FedGen
from algorithms.shared import tree
from algorithms.shared.generator import Generator, diversity_loss, teacher_loss
from algorithms.shared.types import Batch
from bench import models
from bench.models.base import BoundModel, Model
from bench.models.mlp import Mlp
from bench.seeding import keys_from, uniform_from_keys
from tests.support.toy import NUM_CLASSES, SIZES, history, toy_method, toy_task, train


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ((32, 256, 10, 32), 19_744),
        ((32, 256, 26, 32), 23_840),
        ((100, 512, 10, 84), 100_948),
        ((100, 512, 20, 84), 106_068),
        ((100, 512, 62, 256), 215_808),
    ],
)
def test_parameters_of_the_published_generators(sizes, expected):
    assert num_params(Generator(*sizes).init(torch.Generator())) == expected


@pytest.mark.parametrize(
    "model, shape, num_classes, expected",
    [
        ("lenet-cifar", (3, 32, 32), 10, 100_948),
        ("mcmahan2017-cifar-cnn", (3, 32, 32), 20, 161_472),
        ("mcmahan2017-mnist-cnn", (1, 28, 28), 10, 320_512),
        ("mcmahan2017-mnist-cnn", (1, 28, 28), 62, 347_136),
        ("fedmr-femnist-cnn", (1, 28, 28), 62, 215_808),
    ],
)
def test_a_generator_has_the_width_of_the_models_features(model, shape, num_classes, expected):
    task = replace(toy_task(), model=models.load(model)(shape, num_classes))
    server = FedGen().init(task)["server"]
    assert num_params(server["generator"]["params"]) == expected


def num_params(params) -> int:
    return sum(leaf.numel() for leaf in params.values())


# The losses of the generator


def test_teacher_loss_weights_each_classifier_by_its_share_of_the_class():
    losses, weights, found = teacher_terms("per_label")
    assert found == pytest.approx((weights * losses).mean(1).sum(), rel=1e-12)


def test_teacher_loss_of_the_code_is_the_mean_of_a_table_of_all_weights_and_losses():
    losses, weights, found = teacher_terms("code")
    expected = sum(np.mean(of_client[:, None] * loss) for of_client, loss in zip(weights, losses, strict=True))
    assert found == pytest.approx(expected, rel=1e-12)
    assert found != pytest.approx(teacher_terms("per_label")[2], rel=1e-2)


def teacher_terms(weighting):
    """Losses and weights a_k(y) of two classifiers for four labels, each [2, 4], and the teacher loss."""
    rng = np.random.default_rng(0)
    logits, labels, counts = rng.normal(size=(2, 4, 3)), np.array([0, 2, 2, 1]), np.array([[3, 0, 1], [1, 2, 0]])
    shares = counts / counts.sum(0)
    probabilities = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    losses = -np.log(probabilities[:, np.arange(4), labels])
    found = teacher_loss(torch.tensor(logits), torch.tensor(labels), torch.tensor(shares), weighting)
    return losses, shares[:, labels], found.item()


def test_diversity_loss_by_hand():
    """Noises (0, 0) and (2, 0) are (4 + 0) / 2 = 2 apart, features (1, 1, 1) and (1, 4, 4) are (0 + 3 + 3) / 3 = 2: of four
    pairs two are 0 and two 4."""
    noise = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    features = torch.tensor([[1.0, 1.0, 1.0], [1.0, 4.0, 4.0]])
    assert diversity_loss(noise, features).item() == pytest.approx(np.exp(-2), rel=1e-6)


def test_diversity_loss_is_that_of_all_pairs():
    rng = np.random.default_rng(1)
    noise, features = rng.random((40, 5)), rng.normal(size=(40, 3))
    noises = ((noise[:, None] - noise) ** 2).mean(2)
    distances = np.abs(features[:, None] - features).mean(2)
    found = diversity_loss(torch.tensor(noise), torch.tensor(features))
    assert found.item() == pytest.approx(np.exp(-(noises * distances).mean()), rel=1e-9)


# Its steps on the server

SMALL = FedGen(noise_width=4, hidden_width=6, generator_steps=5, generator_batch_size=8, generator_lr=0.01, decay=0.5)
COUNTS = torch.tensor(
    [[3.0, 0.0, 1.0], [1.0, 2.0, 0.0]], dtype=torch.float64
)  # of two clients; the third class has no two


def classifiers(task) -> dict:
    """Two classifiers, leaves [2, ...]."""
    random = torch.Generator().manual_seed(1)
    shape = (2, NUM_CLASSES, task.model.feature_dim)
    return {
        "classifier.weight": torch.randn(shape, generator=random, dtype=task.dtype),
        "classifier.bias": torch.randn(shape[:2], generator=random, dtype=task.dtype),
    }


@pytest.mark.parametrize("noise", ["uniform", "gaussian"])
def test_two_rounds_of_the_generator_are_those_of_pytorchs_layers_and_adam(noise):
    task, method = toy_task(), replace(SMALL, noise=noise)
    heads = classifiers(task)
    server = method.init(task)["server"]
    start = server["generator"]["params"]
    network = nn.Sequential(
        nn.Linear(4 + 3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, task.model.feature_dim)
    ).double()
    for parameter, leaf in zip(network.parameters(), start.values(), strict=True):
        parameter.data = leaf.clone()
    adam = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, 0.5)
    draw = {"uniform": torch.rand, "gaussian": torch.randn}[noise]
    for round in range(2):
        server = method.train_generator(task, server, heads, COUNTS)
        draws = task.generator_for("generator", 5 * round)
        labels = torch.randint(2, (5, 8), generator=draws)  # classes 0 and 1 have a client with more than one example
        noises = draw(5, 8, 4, generator=draws).double()
        for e, y in zip(noises, labels, strict=True):
            features = network(torch.cat([e, nn.functional.one_hot(y, 3)], 1))
            logits = torch.stack(
                [
                    nn.functional.linear(features, weight, bias)
                    for weight, bias in zip(heads["classifier.weight"], heads["classifier.bias"], strict=True)
                ]
            )
            loss = teacher_loss(logits, y, COUNTS / COUNTS.sum(0)) + diversity_loss(e, features)
            adam.zero_grad()
            loss.backward()
            adam.step()
        schedule.step()
    assert server["steps"] == 10
    for parameter, leaf in zip(network.parameters(), server["generator"]["params"].values(), strict=True):
        torch.testing.assert_close(leaf, parameter.detach(), rtol=0, atol=1e-10)
    running = server["generator"]["buffers"]
    torch.testing.assert_close(running["norm.mean"], network[1].running_mean)
    torch.testing.assert_close(running["norm.variance"], network[1].running_var)


def test_only_labels_of_which_a_client_has_more_than_one_example_are_generated():
    """Without weight decay, the input of a label that was never drawn keeps its weights."""
    task, method = toy_task(), replace(SMALL, generator_weight_decay=0.0)
    server = method.init(task)["server"]
    counts = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    new = method.train_generator(task, server, classifiers(task), counts)
    before, after = (one["generator"]["params"]["hidden.weight"] for one in (server, new))
    moved = (after != before).any(0)
    assert moved[:5].all() and not moved[5:].any(), "four noises and the first label"
    assert method.train_generator(task, server, classifiers(task), counts.clamp(max=1)) is server


def test_adam_goes_on_from_round_to_round():
    _, states = history(toy_method("fedgen"))
    assert [int(state["server"]["steps"]) for state in states] == [0, 3, 6, 9]
    moments = [state["server"]["moments"]["first"]["features.bias"] for state in states]
    assert not moments[0].any() and all(moment.abs().max() > 0 for moment in moments[1:])


def test_the_generator_learns_what_the_classifiers_have_in_common():
    """They agree, so that the teacher loss can fall to about 0."""
    task, method = toy_task(), replace(SMALL, generator_steps=200, decay=1.0, generator_weight_decay=0.0)
    heads = tree.map(lambda leaf: 3 * leaf[:1].expand_as(leaf), classifiers(task))
    server = method.init(task)["server"]
    counts = torch.full((2, 3), 5.0, dtype=torch.float64)
    trained = method.train_generator(task, server, heads, counts)
    labels, noise = torch.arange(3).repeat(20), torch.rand(60, 4, generator=torch.Generator().manual_seed(0)).double()

    def accuracy(server):
        features = Generator(4, 6, 3, task.model.feature_dim)(**server["generator"], noise=noise, labels=labels)
        logits = nn.functional.linear(features, heads["classifier.weight"][0], heads["classifier.bias"][0])
        return (logits.argmax(1) == labels).double().mean()

    assert accuracy(server) < 0.7 and accuracy(trained) > 0.95


# The terms on clients


def client(method, round: int, rows: int = 5):
    """A view with a generator that is neither new nor centred, the params of a toy model, and a batch of its images."""
    task = toy_task()
    random = torch.Generator().manual_seed(2)
    generator = method.init(task)["server"]["generator"]
    generator["buffers"] = {
        "norm.mean": torch.rand(method.hidden_width, generator=random).double(),
        "norm.variance": 1 + torch.rand(method.hidden_width, generator=random).double(),
    }
    view = SimpleNamespace(
        model=BoundModel(task.model, {}, training=True),
        settings=replace(task.settings, batch_size=6),
        round=round,
        server={"generator": generator},
        label_counts=torch.ones(3),
    )
    x = torch.rand(rows, 1, 6, 6, generator=random).double()
    batch = Batch(x, torch.arange(rows) % 3, None, torch.tensor(987654321))
    return view, task.initial_params(), batch


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def terms(method, params, batch, view) -> tuple[float, float, float]:
    """Cross-entropy of the batch, of the generated features, and distance of predictions: in NumPy."""
    p = {name: leaf.numpy() for name, leaf in view.server["generator"]["params"].items()}
    mean, variance = (leaf.numpy() for leaf in view.server["generator"]["buffers"].values())
    count, own = method.generated_per_step, len(batch.y)
    of_labels, of_noise = keys_from(batch.key, 2)
    drawn = np.floor(uniform_from_keys(of_labels[None], count)[0].numpy() * 3).astype(int)
    labels = np.concatenate([drawn, batch.y.numpy()])
    noise = uniform_from_keys(keys_from(of_noise, count + own), method.noise_width).numpy()
    hidden = np.concatenate([noise, np.eye(3)[labels]], 1) @ p["hidden.weight"].T + p["hidden.bias"]
    hidden = (hidden - mean) / np.sqrt(variance + 1e-5) * p["norm.weight"] + p["norm.bias"]
    features = np.maximum(hidden, 0) @ p["features.weight"].T + p["features.bias"]
    log_p = log_softmax(features @ params["classifier.weight"].numpy().T + params["classifier.bias"].numpy())
    log_q = log_softmax(view.model(params, batch.x).numpy())
    taught, rows = log_p[count:], np.arange(own)
    cross_entropy = -log_q[rows, batch.y.numpy()].mean()
    generated = -log_p[np.arange(count), drawn].mean()
    return cross_entropy, generated, (np.exp(taught) * (taught - log_q)).sum(1).mean()


def test_the_loss_of_a_client_in_numpy():
    method = FedGen(2.0, 3.0, decay=0.5, generated_per_step=9, noise_width=4, hidden_width=6)
    view, params, batch = client(method, round=3)
    cross_entropy, generated, distance = terms(method, params, batch, view)
    assert generated > 0.1 and distance > 0.01
    # A and B are divided by 2^3; how many features are generated for a batch does not matter.
    expected = cross_entropy + 2 / 8 * generated + 3 / 8 * distance
    assert method.local_loss(params, batch, view).item() == pytest.approx(expected, rel=1e-6)


def test_no_gradient_passes_through_the_predictions_for_generated_features():
    """Central differences of B KL(taught || q) with respect to the classifier's bias, taught as it is."""
    method = FedGen(0.0, 1.0, decay=1.0, generated_per_step=2, noise_width=4, hidden_width=6)
    view, params, batch = client(method, round=1)
    biased = params["classifier.bias"].clone().requires_grad_()
    loss = method.local_loss({**params, "classifier.bias": biased}, batch, view)
    gradient = torch.autograd.grad(loss, biased)[0]
    logits = view.model(params, batch.x)
    cross_entropy = (torch.softmax(logits, 1) - torch.eye(3)[batch.y]).mean(0)
    features = method._generated(batch, view)[1][2:]
    taught = torch.softmax(view.model.head(params, features), 1)
    distance = (torch.softmax(logits, 1) - taught).mean(0)
    torch.testing.assert_close(gradient, cross_entropy + distance, rtol=0, atol=1e-10)


def test_weights_decay_from_round_to_round_but_not_below_their_least():
    method = FedGen(label_weight=10.0, latent_weight=0.0, generated_per_step=6, noise_width=4, hidden_width=6)
    view, params, batch = client(method, round=0)
    plain = method.local_loss(params, batch, view).item()
    assert plain == pytest.approx(terms(method, params, batch, view)[0], rel=1e-12), "the first round is plain"

    def weight(round: int) -> float:
        view.round = round
        return (method.local_loss(params, batch, view).item() - plain) / terms(method, params, batch, view)[1]

    assert weight(1) == pytest.approx(9.8, rel=1e-6)
    assert weight(7) == pytest.approx(10 * 0.98**7, rel=1e-6)
    assert weight(2000) == pytest.approx(1e-4, rel=1e-6)


def test_the_first_generated_term_has_the_factor_a_whatever_the_sizes_of_both_batches():
    """128 features for batches of 50: the factor was 10 * 128 / 50 = 25.6 in version 1."""
    method = FedGen(latent_weight=0.0, decay=1.0)
    view, params, batch = client(method, round=1)
    view.settings = replace(view.settings, batch_size=50)
    cross_entropy, generated, _ = terms(method, params, batch, view)
    factor = (method.local_loss(params, batch, view).item() - cross_entropy) / generated
    assert factor == pytest.approx(10, rel=1e-6) and method.version == 2


@pytest.mark.parametrize("noise", ["uniform", "gaussian"])
def test_what_is_drawn_for_a_row_does_not_depend_on_padding(noise):
    method = FedGen(generated_per_step=7, noise_width=4, hidden_width=6, noise=noise)
    view, params, batch = client(method, round=1)
    padding = batch.x[:1].expand(4, -1, -1, -1)
    mask = torch.arange(9) < 5
    padded = Batch(torch.cat([batch.x, padding]), torch.cat([batch.y, batch.y[:1].expand(4)]), mask, batch.key)
    alone, together = (method.local_loss(params, one, view).item() for one in (batch, padded))
    assert together == pytest.approx(alone, rel=1e-12)
    other = method.local_loss(params, batch._replace(key=batch.key + 1), view).item()
    assert other != pytest.approx(alone, rel=1e-6)


# Whole rounds


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_without_its_terms_a_run_is_fedavg_bit_by_bit_but_for_what_is_sent(engine):
    task = toy_task(
        engine=engine, participation=0.6, transform="fedconcat", model="simple-cnn", shape=(3, 16, 16), rounds=2
    )
    plain, state = (train(method, task) for method in (FedAvg(), FedGen(0.0, 0.0, generator_steps=2)))
    assert all(torch.equal(leaf, state["params"][name]) for name, leaf in plain["params"].items())
    assert state["costs"]["examples"] == plain["costs"]["examples"]
    assert state["clients"] == plain["clients"]


def test_the_first_round_is_that_of_fedavg_and_the_second_is_not():
    method = toy_method("fedgen")
    _, ours = history(method)
    _, plain = history(FedAvg())
    same = [
        torch.equal(a["params"]["classifier.weight"], b["params"]["classifier.weight"])
        for a, b in zip(ours, plain, strict=True)
    ]
    assert same == [True, True, False, False]


@pytest.mark.parametrize("largest_stack", [10**9, 0])
def test_bytes_are_those_of_the_model_the_generator_and_the_label_counts(largest_stack):
    task = replace(toy_task(dtype=torch.float32, participation=0.6), largest_stack=largest_stack)
    method = FedGen(noise_width=4, hidden_width=6, generator_steps=2)
    model, width = num_params(task.initial_params()), task.model.feature_dim
    generator = (4 + 3) * 6 + 6 + 2 * 6 + 6 * width + width + 2 * 6  # with mean and variance of each hidden unit
    spent = train(method, task)["costs"]
    clients = 3 * 3
    assert spent["bytes_down"] == clients * 4 * (model + generator)
    assert spent["bytes_up"] == clients * 4 * (model + NUM_CLASSES)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("counted", ["data", "batches"])
def test_labels_are_counted_in_all_data_or_in_the_batches_of_the_round(engine, counted):
    task, method = toy_task(engine=engine), toy_method("fedgen", counted=counted)
    cohort = task.cohort(torch.arange(len(SIZES)))
    update = method.map_clients(task, method.local_update, cohort, method.init(task)).result.update
    expected = cohort.label_counts if counted == "data" else 1 + task.settings.local_epochs * cohort.label_counts
    assert torch.equal(update["label_counts"], expected)


def test_the_server_reads_the_classifiers_of_the_trained_models():
    task, method = toy_task(), toy_method("fedgen")
    state = method.init(task)
    cohort = method.sample(task, state)
    outputs = method.map_clients(task, method.local_update, cohort, state)
    trained = method.local_models(state, outputs)["params"]
    assert set(outputs.result.update["classifier"]) == {"classifier.weight", "classifier.bias"}
    for name, leaf in outputs.result.update["classifier"].items():
        torch.testing.assert_close(leaf, trained[name])


@pytest.mark.parametrize("wrapper", ["fedconcat", "fedconcat-id", "clsnorm", "ccvr"])
def test_it_can_be_the_base_of_a_wrapper(wrapper):
    options = {"calibration_epochs": 1, "tukey": 1.0} if wrapper == "ccvr" else {}
    method = toy_method(wrapper, base=toy_method("fedgen"), **options)
    task = toy_task(participation=0.6)
    state = train(method, task)
    deployed = method.deploy(task, state, torch.arange(len(SIZES)))
    assert tree.all_finite(deployed.params)
    with_fedavg = toy_method(wrapper, base=FedAvg(), **options)
    other = with_fedavg.deploy(task, train(with_fedavg, task), torch.arange(len(SIZES)))
    name = next(iter(deployed.params))
    assert not torch.equal(deployed.params[name], other.params[name])


def test_a_model_with_several_encoders_has_a_generator_of_their_width():
    task = toy_task(model="simple-cnn-concat5", shape=(3, 16, 16), rounds=2, local_epochs=1)
    state = train(toy_method("fedgen"), task)
    assert state["server"]["generator"]["params"]["features.bias"].shape == (5 * 84,)


# What is refused


@dataclass(frozen=True)
class Whole(Model):
    """A model without parts."""

    def layers(self):
        return {"all": (self.num_classes, 36)}


@dataclass(frozen=True)
class Doubled(Mlp):
    """A model whose features are twice as wide as its classifier says."""

    def features(self, params, x, bound):
        z = super().features(params, x, bound)
        return torch.cat([z, z], 1)


@pytest.mark.parametrize(
    "model, sentence",
    [
        (Whole, "fedgen generates the input of a classifier, but Whole has no classifier"),
        (Doubled, "features of width"),
    ],
)
def test_a_model_whose_features_cannot_be_generated_is_refused_before_any_work(model, sentence):
    task = replace(toy_task(), model=model((1, 6, 6), NUM_CLASSES))
    with pytest.raises(ValueError, match=sentence):
        algorithms.make("fedgen").init(task)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"label_weight": -1}, "label_weight must be at least 0"),
        ({"latent_weight": -1}, "latent_weight must be at least 0"),
        ({"decay": 0}, "decay must be greater than 0"),
        ({"decay": 1.1}, "decay must be between 0 and 1"),
        ({"generated_per_step": 0}, "generated_per_step must be at least 1"),
        ({"noise_width": 0}, "noise_width must be at least 1"),
        ({"hidden_width": 0}, "hidden_width must be at least 1"),
        ({"noise": "normal"}, "noise must be one of uniform, gaussian"),
        ({"generator_lr": 0}, "generator_lr must be greater than 0"),
        ({"generator_weight_decay": -1}, "generator_weight_decay must be at least 0"),
        ({"generator_steps": 0}, "generator_steps must be at least 1"),
        ({"generator_batch_size": 1}, "generator_batch_size must be at least 2"),
        ({"counted": "rounds"}, "counted must be one of data, batches"),
        ({"teacher_weighting": "mean"}, "teacher_weighting must be one of per_label, code"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        FedGen(**options)
