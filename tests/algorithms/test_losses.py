"""What each method adds to FedAvg, against numbers worked out by hand."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from algorithms.fedavgm import FedAvgM
from algorithms.fedlc import FedLC
from algorithms.fednova import FedNova
from algorithms.fedprox import FedProx
from algorithms.fedrs import FedRS
from algorithms.moon import Moon
from algorithms.scaffold import Scaffold
from algorithms.shared.local_sgd import cross_entropy, descend, momentum_steps, task_loss
from algorithms.shared.types import Batch, BatchIndex, Cohort
from bench.models.base import Model
from bench.simulation.client import bind
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import normalised_task, toy_task
from tests.support.views import cohort, view

ORACLE = oracle("ccvr")


def batch(*labels, mask=None):
    return Batch(torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels), mask)


def given(z=(1.0, 0.0), logits=(2.0, 1.0, 0.0)):
    return {"z": torch.tensor(z), "logits": torch.tensor(logits)}


def test_task_loss_is_the_mean_cross_entropy_of_real_rows():
    # log(e^2 + e + 1) = 2.4076; label 0: 0.4076, label 2: 2.4076; the masked third row does not count.
    loss = task_loss(given(), batch(0, 2, 1, mask=torch.tensor([True, True, False])), view(given()))
    assert loss.item() == pytest.approx((0.4076 + 2.4076) / 2, abs=1e-4)


def test_a_batch_of_padding_only_has_zero_loss_and_no_nan_in_its_gradient():
    params = given()
    params["logits"].requires_grad_()
    loss = task_loss(params, batch(0, mask=torch.tensor([False])), view(params))
    (gradient,) = torch.autograd.grad(loss, params["logits"])
    assert loss.item() == 0 and torch.equal(gradient, torch.zeros(3))


def test_fedprox_adds_half_mu_times_the_squared_distance():
    # Distance from (1, 0 | 2, 1, 0) to (3, 0 | 2, 1, 1): 4 + 1 = 5; half of mu 0.2 times 5 is 0.5.
    received = given(z=(3.0, 0.0), logits=(2.0, 1.0, 1.0))
    extra = FedProx(mu=0.2).local_loss(given(), batch(0), view(received)) - task_loss(given(), batch(0), view(received))
    assert extra.item() == pytest.approx(0.5, abs=1e-6)


def test_moon_contrasts_received_and_previous_features():
    # The example of ccvr_oracle.json: similarities 0.8911 and 0.3333 at temperature 0.5 give 0.2834623914.
    z, received, previous = (1.0, 2.0, -1.0), (0.5, 2.0, 0.0), (-1.0, 2.0, 1.0)
    client = {"previous": given(previous), "buffers": {}}
    how = {"client": client}
    loss = Moon(mu=5.0).local_loss(given(z), batch(0), view(given(received), **how))
    plain = task_loss(given(z), batch(0), view(given(received)))
    assert (loss - plain).item() == pytest.approx(5 * 0.2834623914, abs=1e-5)
    assert Moon(mu=5.0).local_loss(given(z), batch(0), view(given(received), round=0, **how)) == plain


def test_moon_differentiates_the_local_features_only():
    params, received, previous = (given(z=(1.0, 2.0, -1.0)), given(z=(0.5, 2.0, 0.0)), given(z=(-1.0, 2.0, 1.0)))
    for tensors in (params, received, previous):
        tensors["z"].requires_grad_()
    loss = Moon().local_loss(params, batch(0), view(received, client={"previous": previous, "buffers": {}}))
    gradients = torch.autograd.grad(loss, [p["z"] for p in (params, received, previous)], allow_unused=True)
    assert gradients[0].abs().sum() > 0 and gradients[1] is None and gradients[2] is None


def test_moon_at_a_batch_size_of_one_is_refused_since_all_batches_would_be_skipped():
    assert Moon().validate(SimpleNamespace(batch_size=2)) == []
    assert Moon().validate(SimpleNamespace(batch_size=1)) == [
        "moon skips batches of one example: batch_size must be at least 2, but got 1."
    ]


def test_moon_follows_the_oracle():
    known = ORACLE["moon_contrastive"]
    own, received, previous = (given(tuple(known[name])) for name in ("z", "z_glob", "z_prev"))
    seen = view(received, client={"previous": previous, "buffers": {}})
    method = Moon(mu=3.0, temperature=known["tau"])
    added = method.local_loss(own, batch(0), seen) - task_loss(own, batch(0), seen)
    assert added.item() == pytest.approx(3 * known["loss"], abs=1e-6)
    for other, similarity in ((received, "sim_glob"), (previous, "sim_prev")):
        assert F.cosine_similarity(own["z"], other["z"], dim=0).item() == pytest.approx(known[similarity], abs=1e-6)


@dataclass(frozen=True)
class Normed(Model):
    """A model whose features are its images [B, 2, 1, 1] after batch normalisation, times its param z."""

    def features(self, params, x, bound):
        return bound.batch_norm(params, x, "norm").flatten(1) * params["z"]

    def head(self, params, z):
        return params["logits"].expand(len(z), -1)


@pytest.mark.parametrize("mode, cosine", [("train", 1.0), ("eval", 1 / math.sqrt(2))])
def test_moon_runs_the_received_model_in_the_mode_that_is_asked_for(mode, cosine):
    """Images (1, 0) and (-1, 0) have mean 0 and variance (1, 0): in training mode the features of the received model are
    theirs, as those of the local one are. Its running mean is (0, -1), so that in evaluation mode they are (1, 1) and
    (-1, 1). Those of the previous model are (-1, 0) and (1, 0)."""
    norm = {"norm.weight": torch.ones(2), "norm.bias": torch.zeros(2)}
    own, previous = (norm | given((sign, 1.0)) for sign in (1.0, -1.0))
    statistics = {"norm.running_var": torch.ones(2), "norm.num_batches_tracked": torch.tensor(0)}
    received, before = (statistics | {"norm.running_mean": torch.tensor(mean)} for mean in ((0.0, -1.0), (0.0, 0.0)))
    seen = view(own, client={"previous": previous, "buffers": before})
    seen = replace(seen, model=bind(Normed((2, 1, 1), 3), received), buffers=received)
    images = Batch(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).view(2, 2, 1, 1), torch.tensor([0, 0]))
    added = Moon(mu=2.0, global_model_mode=mode).local_loss(own, images, seen) - task_loss(own, images, seen)
    assert added.item() == pytest.approx(2 * math.log(1 + math.exp((-1 - cosine) / 0.5)), abs=1e-5)
    assert received["norm.running_mean"].tolist() == [0.0, -1.0]


def test_moon_skips_batches_of_one_example():
    task = toy_task(sizes=(7,), local_epochs=1)  # batches of 6 and 1
    only_full = toy_task(sizes=(7,), local_epochs=1, last_batch="drop-if-full")
    moved, expected = (Moon().step(t, Moon().init(t))["params"] for t in (task, only_full))
    assert all(torch.equal(moved[name], expected[name]) for name in moved)


def test_fedrs_scales_the_logits_of_absent_classes():
    # Classes 1 and 2 are absent: logits (2, 0.5, 0).
    loss = FedRS(alpha=0.5).local_loss(given(), batch(0), view(given(), label_counts=(4.0, 0.0, 0.0)))
    assert loss.item() == pytest.approx(math.log(math.exp(2) + math.exp(0.5) + 1) - 2, abs=1e-6)


def test_fedlc_subtracts_margins_that_fall_with_the_label_count():
    # Counts 16 and 1 give margins tau / 2 and tau; count 0 gives 100 tau, which leaves two classes in the softmax.
    loss = FedLC(tau=1.0).local_loss(given(), batch(0), view(given(), label_counts=(16.0, 1.0, 0.0)))
    assert loss.item() == pytest.approx(math.log(math.exp(1.5) + math.exp(0)) - 1.5, abs=1e-6)
    loss = FedLC(tau=1.0, smallest_count=1.0).local_loss(
        given(), batch(0), view(given(), label_counts=(16.0, 1.0, 0.0))
    )
    assert loss.item() == pytest.approx(math.log(math.exp(1.5) + math.exp(0) + math.exp(-1)) - 1.5, abs=1e-6)


@pytest.mark.parametrize("form", ["plain", "damped", "nesterov"])
def test_fedavgm_follows_the_oracle(form):
    """A scalar model, and the averages of its clients in four rounds."""
    known = ORACLE["fedavgm"]
    method = FedAvgM(form=form, server_momentum=known["beta"])
    params = {"w": torch.tensor(known["start"], dtype=torch.float64)}
    server = method.init_server(None, params)
    for average, weight in zip(known["client_averages"], known[form], strict=True):
        updates = {"delta": {"w": torch.tensor([average], dtype=torch.float64) - params["w"]}}
        params, server = method.aggregate(None, params, server, updates, cohort(8))
        assert params["w"].item() == pytest.approx(weight, abs=1e-12)


def test_displacement_under_momentum_is_that_of_momentum_steps_plain_steps():
    for steps, momentum in ((1, 0.9), (25, 0.9), (50, 0.9), (7, 0.0), (10, 0.5)):
        velocity = position = 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1.0
            position += velocity
        assert momentum_steps(steps, momentum) == pytest.approx(position)
    # The ratios stated for 25, 50 and 100 steps at 0.9 (fedcat.md section 4.3).
    assert [round(momentum_steps(t, 0.9) / t, 1) for t in (25, 50, 100)] == [6.7, 8.2, 9.1]


@pytest.mark.parametrize("momentum, work", [(0.0, (2.0, 4.0)), (0.9, (2.9, 9.049))])
def test_fednova_by_hand(momentum, work):
    """Two clients, 10 and 30 examples, 2 and 4 steps, deltas 1 and 2.

    a_i at momentum 0.9: 1 + 1.9 = 2.9 and 1 + 1.9 + 2.71 + 3.439 = 9.049. Effective work is 0.25 a_1 + 0.75 a_2, the mean
    of normalised deltas 0.25 * 1 / a_1 + 0.75 * 2 / a_2.
    """
    method, params = FedNova(), {"w": torch.tensor(5.0, dtype=torch.float64)}
    works = [momentum_steps(torch.tensor(steps, dtype=torch.float64), momentum) for steps in (2.0, 4.0)]
    assert [w.item() for w in works] == pytest.approx(work)
    updates = {"delta": {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}, "work": torch.stack(works)}
    new, _ = method.aggregate(None, params, {}, updates, cohort(10, 30))
    effective = 0.25 * work[0] + 0.75 * work[1]
    assert new["w"].item() == pytest.approx(5 + effective * (0.25 * 1 / work[0] + 0.75 * 2 / work[1]))


def test_fednova_weights_of_the_fedcollab_digest():
    """FashionMNIST: ten clients of 2,100 examples and 66 steps, ten of 14 examples and one step (fedcollab.md section 5)."""
    examples, steps = torch.tensor([2100.0, 14.0] * 10), torch.tensor([66.0, 1.0] * 10)
    weights = []
    for client in range(2):
        delta = torch.zeros(20, dtype=torch.float64)
        delta[client] = 1
        updates = {"delta": {"w": delta}, "work": steps.double()}
        sizes = Cohort(torch.arange(20), examples, steps, torch.zeros(20, 1), 20)
        new, _ = FedNova(momentum_mode="steps").aggregate(None, {"w": torch.tensor(0.0)}, {}, updates, sizes)
        weights.append(new["w"].item())
    assert weights == pytest.approx([0.09869, 0.04342], abs=1e-5)


@pytest.mark.parametrize(
    "mode, momentum, steps, delta, control",
    [
        # A step of 0.1 (3 - 1 + 2) = 0.4. The new control is -1 + 0.4 / 0.1, the gradient itself.
        *((mode, 0.0, 1, -0.4, 3.0) for mode in ("outside", "effective-lr", "inside", "none")),
        ("outside", 0.5, 2, -0.95, 3.75),  # velocities 3 and 4.5, and the correction 1 in each step
        ("effective-lr", 0.5, 2, -1.0, 3.0),  # velocities 4 and 6; two steps are worth 2.5
        ("inside", 0.5, 2, -1.0, 4.0),
        ("none", 0.5, 2, -0.8, 3.0),
    ],
)
def test_scaffold_by_hand(mode, momentum, steps, delta, control):
    """Steps of lr 0.1 on a loss with gradient 3, client control 1, server control 2."""
    params = {"w": torch.tensor(0.0)}
    plan = [BatchIndex(torch.tensor([0]), None, {}, 1)] * steps
    seen = view(
        params,
        client={"control": {"w": torch.tensor(1.0)}},
        server={"control": {"w": torch.tensor(2.0)}},
        num_steps=float(steps),
        lr=0.1,
        momentum=momentum,
        weight_decay=0.0,
    )

    @dataclass(frozen=True)
    class Sloped(Scaffold):
        def local_loss(self, params, batch, view):
            return 3 * params["w"]

    result = Sloped(momentum_mode=mode).local_update(_Take(), plan, seen)
    assert result.update["delta"]["w"].item() == pytest.approx(delta)
    assert result.client["control"]["w"].item() == pytest.approx(control)
    assert result.update["change"]["w"].item() == pytest.approx(control - 1)


@pytest.mark.parametrize("largest_stack", [10**9, 0])
@pytest.mark.parametrize("weighting, weights", [("uniform", [1.0, 1.0]), ("examples", [13.0, 4.0])])
def test_scaffold_averages_running_statistics_as_it_does_params(weighting, weights, largest_stack):
    task = replace(normalised_task(sizes=(13, 4), rounds=1), largest_stack=largest_stack)
    method = Scaffold(weighting=weighting)
    state, cohort = method.init(task), task.cohort(torch.arange(2))
    trained = method.map_clients(task, method.local_update, cohort, state).buffers["stem.norm.running_mean"]
    expected = (torch.tensor(weights)[:, None] * trained).sum(0) / sum(weights)
    found = method.step(task, state)["buffers"]["stem.norm.running_mean"]
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(trained[0], trained[1])


def test_scaffold_moves_the_server_control_by_the_share_of_the_population():
    updates = {"delta": {"w": torch.tensor([1.0, 3.0])}, "change": {"w": torch.tensor([4.0, 8.0])}}
    sampled = Cohort(torch.arange(2), torch.tensor([10.0, 30.0]), torch.ones(2), torch.ones(2, 1), population=8)
    start, control = {"w": torch.tensor(0.0)}, {"control": {"w": torch.tensor(1.0)}}
    params, server = Scaffold(server_lr=0.5).aggregate(None, start, control, updates, sampled)
    assert params["w"].item() == pytest.approx(1.0)  # half of the unweighted mean 2
    assert server["control"]["w"].item() == pytest.approx(1 + 6 * 2 / 8)
    weighted, _ = Scaffold(weighting="examples").aggregate(None, start, control, updates, sampled)
    assert weighted["w"].item() == pytest.approx(2.5)


def test_descend_is_torch_sgd():
    """Momentum and weight decay as in torch.optim.SGD, over several steps of both forms of the loop."""
    torch.manual_seed(0)
    start = {"w": torch.randn(4, dtype=torch.float64)}
    target = torch.randn(3, 4, dtype=torch.float64)
    leaf = start["w"].clone().requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=0.1, momentum=0.9, weight_decay=0.01)
    for row in target:
        optimizer.zero_grad()
        ((leaf - row) ** 2).sum().backward()
        optimizer.step()
    loss = lambda params, batch, view: ((params["w"] - target[batch.y[0]]) ** 2).sum()  # noqa: E731
    seen = view({}, lr=0.1, momentum=0.9, weight_decay=0.01)
    for mask in (None, torch.tensor([True])):
        plan = [BatchIndex(torch.tensor([row]), mask, {}, 1) for row in range(3)]
        trained = descend(loss, start, _Take(), plan, seen).params["w"]
        torch.testing.assert_close(trained, leaf.detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("masked", [False, True])
def test_offsets_act_inside_and_outside_the_momentum(masked):
    loss = lambda params, batch, view: 0 * params["w"]  # noqa: E731
    plan = [BatchIndex(torch.tensor([0]), torch.tensor([True]) if masked else None, {}, 1)] * 2
    seen = view({}, lr=1.0, momentum=0.5, weight_decay=0.0)
    start, offset = {"w": torch.tensor(0.0)}, {"w": torch.tensor(1.0)}
    inside = descend(loss, start, _Take(), plan, seen, gradient_offset=offset).params["w"]
    outside = descend(loss, start, _Take(), plan, seen, step_offset=offset).params["w"]
    assert inside.item() == -(1 + 1.5) and outside.item() == -2  # velocities 1 and 1.5 against two plain steps


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedProx(mu=-1), "mu must be at least 0, but got -1."),
    (lambda: FedProx(mu=math.nan), "mu must be at least 0, but got nan."),
    (lambda: Moon(temperature=0), "temperature must be greater than 0, but got 0."),
    (lambda: FedRS(alpha=1.5), "alpha must be between 0 and 1, but got 1.5."),
    (lambda: FedLC(smallest_count=0), "smallest_count must be greater than 0, but got 0."),
    (lambda: FedAvgM(server_momentum=1), "server_momentum must be at least 0 and below 1, but got 1."),
    (lambda: FedAvgM(form="heavy"), "form must be one of plain, damped, nesterov, but got 'heavy'."),
    (
        lambda: Scaffold(momentum_mode="in"),
        "momentum_mode must be one of outside, effective-lr, inside, none, but got 'in'.",
    ),
)


def test_cross_entropy_matches_torch():
    logits = torch.randn(5, 3)
    labels = batch(0, 1, 2, 0, 1)
    torch.testing.assert_close(cross_entropy(logits, labels), F.cross_entropy(logits, labels.y))


class _Take:
    """Client data whose batch holds the plan's rows as labels."""

    def take(self, index):
        return Batch(torch.zeros(len(index.rows), 1), index.rows, index.mask)
