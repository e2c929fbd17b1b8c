"""FedOV: terms of its loss, the attack, changes of images, and the vote."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import algorithms
from algorithms.fedov import FedOV, Outliers, attack, known_loss, mixup_loss
from algorithms.shared import outliers, tree
from algorithms.shared.types import Batch
from bench.config.resolve import resolve
from bench.experiments.cost import examples_to_train
from bench.models.base import BoundModel
from bench.models.calibrated import NormalisedClassifier, wrap
from bench.models.ensemble import Voting, vote
from bench.simulation.local_models import local_models
from tests.support.by_hand import Pixels, double, view_of
from tests.support.oracles import close, oracle, paper_task
from tests.support.toy import NUM_CLASSES, SIZES, assert_equal, normalised_task, toy_task, train

ORACLE = oracle("oneshot")
BYTES = ORACLE["oneshot_bytes"]["expected"]
OV = ORACLE["fedov_loss"]
OV_BATCH = Batch(torch.zeros(4, 1, 1, 1), torch.tensor(OV["inputs"]["y"]))


def padded(batch):
    """The batch with a padding row, and what a row of it does to a tensor."""
    mask = torch.tensor([True] * len(batch.y) + [False])
    more = lambda leaf: torch.cat([leaf, leaf[:1]])  # noqa: E731
    return Batch(more(batch.x), more(batch.y), mask), more


@pytest.mark.parametrize("pads", [False, True])
def test_the_terms_of_the_loss_follow_the_oracle(pads):
    given, expected = OV["inputs"], OV["expected"]
    batch, more = padded(OV_BATCH) if pads else (OV_BATCH, lambda leaf: leaf)
    x, o, a = (more(double(given[f"logits_{key}"])).requires_grad_() for key in ("x", "destroyed", "adversarial"))
    f = double(given["first_hidden"]).requires_grad_()
    order, b = torch.tensor(given["perm"]), given["b"]
    mixed = (b * f + (1 - b) * f[order]) @ double(given["later_layers_W"]) + double(given["later_layers_b"])
    order = torch.cat([order, torch.tensor([4])]) if pads else order
    mixup = mixup_loss(more(mixed), order, batch)
    close(mixup.item(), expected["mixup_before_0.01"])
    loss = known_loss(x, o, a, batch) + FedOV().mixup_weight * mixup
    close(loss.item(), expected["loss"])
    loss.backward()
    close(x.grad[:4], expected["grad_logits_x"])
    close(o.grad[:4], expected["grad_logits_destroyed"])
    close(f.grad, expected["grad_first_hidden_from_mixup"])
    zero = x.detach() * 0
    plain = known_loss(x, zero, zero, batch).item() - 2 * math.log(4)
    close(plain, expected["ce"] + expected["lowered"])
    close(known_loss(x, o, zero, batch).item() - plain - math.log(4), expected["dd"])
    close(known_loss(x, zero, a, batch).item() - plain - math.log(4), expected["aoe"])
    one_class = batch._replace(y=torch.zeros_like(batch.y))
    assert mixup_loss(more(mixed), order, one_class).item() == expected["one_class_client_mixup"]


def test_the_attack_follows_the_oracle():
    given, expected = ORACLE["fedov_attack"]["inputs"], ORACLE["fedov_attack"]["expected"]
    params = {"classifier.weight": double(given["model_W"]).T, "classifier.bias": double(given["model_b"])}
    view = SimpleNamespace(model=BoundModel(Pixels((3, 1, 1), 4), {}, training=True))
    start = double(given["o"])[:, :, None, None]
    losses = []
    for steps in range(6):
        found = attack(view, params, start, steps, given["step"])
        logits = view.model(params, found)
        losses.append(torch.nn.functional.cross_entropy(logits, torch.full((2,), given["unknown"])).item())
    close(losses, [expected["loss_before"], *expected["loss_after_each_step"]])
    close(found.flatten(1), expected["o_adversarial"])


def test_the_attack_reads_running_statistics():
    task = FedOV().training(normalised_task(rounds=1))
    params, buffers = task.initial_params(), task.initial_buffers()
    buffers["stem.norm.running_mean"] += torch.arange(4)
    x = torch.rand(6, *task.model.input_shape, generator=torch.Generator().manual_seed(0))
    slopes = []
    for training in (False, True):
        model, own = BoundModel(task.model, buffers).copy(training=training), x.clone().requires_grad_()
        (-model(params, own).log_softmax(1)[:, -1].sum()).backward()
        slopes.append(own.grad.sign())
    assert not torch.equal(*slopes)
    view = SimpleNamespace(model=BoundModel(task.model, buffers, training=True))
    torch.testing.assert_close(attack(view, params, x, 1, 0.1), x + 0.1 * slopes[0])


def test_the_vote_follows_the_oracle():
    given, expected = ORACLE["fedov_vote"]["inputs"], ORACLE["fedov_vote"]["expected"]
    logits = double(given["logits_client_sample"]).transpose(0, 1)
    q = logits.softmax(2)
    close(q.transpose(0, 1), expected["q"])
    assert q[0, :, -1].argsort().tolist() == expected["clients_by_unknown"]
    for voters, scores in expected["scores"].items():
        close(vote(logits, int(voters))[0], scores)
        model = Voting((1, 1, 1), 3, (Pixels((3, 1, 1), 4),) * 3, int(voters) % 3)
        assert model.combine({}, logits).argmax(1).tolist() == [expected["argmax"][voters]]
    closed = (1 - q[:, :, -1:]) * logits[:, :, :-1].softmax(2)
    close(closed[0], expected["identity_1_minus_unknown_times_closed_softmax"])


def test_equally_unknown_images_are_voted_on_by_the_mean_probability():
    closed = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unknown = closed.logsumexp(2, keepdim=True) - math.log(4)  # q[u] = 1 / 5 everywhere
    close(vote(torch.cat([closed, unknown], 2), 4), (4 * 0.8 * closed.softmax(2).mean(1)).tolist())


def test_features_are_mixed_in_the_first_hidden_layer():
    """The loss of a model by hand, and CE on x and o in one batch."""
    task = FedOV().training(toy_task(rounds=1))
    params = task.initial_params()
    view, batch = view_of(task, params)
    method = FedOV()
    found = method.outliers(params, batch, view, 0.0, method.attack_step)
    assert found.order.sort().values.tolist() == list(range(len(batch.y))) and 0 < found.share < 1
    assert float((found.attacked - found.destroyed).abs().max()) == pytest.approx(5 * method.attack_step)
    hidden = dict(task.model.hidden(params, batch.x, view.model))["linear1"]
    mixed = found.share * hidden + (1 - found.share) * hidden[found.order]
    later = torch.relu(torch.nn.functional.linear(mixed, params["linear2.weight"], params["linear2.bias"]))
    logits = [view.model(params, images) for images in (batch.x, found.destroyed, found.attacked)]
    expected = known_loss(*logits, batch) + 0.01 * mixup_loss(view.model.head(params, later), found.order, batch)
    torch.testing.assert_close(method.open_set_loss(params, batch, view, found), expected)
    joint = FedOV(terms="joint")
    found = joint.outliers(params, batch, view, 0.0, 0.0)
    unknown = torch.full_like(batch.y, NUM_CLASSES)
    together = torch.cat([view.model(params, batch.x), view.model(params, found.destroyed)])
    expected = torch.nn.functional.cross_entropy(together, torch.cat([batch.y, unknown]))
    torch.testing.assert_close(joint.open_set_loss(params, batch, view, found), expected)


def test_the_joint_loss_follows_the_oracle():
    given = OV["inputs"]
    params = {"classifier.weight": torch.eye(4).double(), "classifier.bias": torch.zeros(4).double()}
    model = SimpleNamespace(model=lambda params, x: x.flatten(1))
    x, o = (double(given[f"logits_{key}"])[:, :, None, None] for key in ("x", "destroyed"))
    found = Outliers(o, o, o, o)
    loss = FedOV(terms="joint").open_set_loss(params, OV_BATCH._replace(x=x), model, found)
    close(loss.item(), OV["expected"]["loss_mixed_variant_x_and_destroyed_in_one_batch"])


def test_steps_are_those_of_adam():
    task = toy_task(sizes=(12,), rounds=1, local_epochs=1)
    method = FedOV(client_init="common")
    _, found = method.trained(task, train(method, task))
    own = FedOV().training(task)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in own.initial_params().items()}
    assert task.settings.lr != method.adam_lr == 0.001
    adam = torch.optim.Adam(leaves.values(), lr=0.001, weight_decay=task.settings.weight_decay)

    def steps(data, plan, view):
        for index in plan:
            batch = data.take(index)
            extra = method.outliers(leaves, batch, view, 0.0, method.attack_step)
            adam.zero_grad()
            method.open_set_loss(leaves, batch, view, extra).backward()
            adam.step()
        return {}

    own.map_clients(steps, own.cohort(torch.tensor([0])), round=0, params=own.initial_params(), buffers={})
    for name, leaf in leaves.items():
        torch.testing.assert_close(tree.row(found["params"], 0)[name], leaf.detach(), rtol=0, atol=1e-9)


def test_normalised_images_take_steps_of_pixels_and_are_erased_to_black():
    task = toy_task(sizes=(6, 5), shape=(1, 16, 16), dataset="mnist", transform="fedcat", rounds=1, local_epochs=1)
    transform, seen = task.federation.transform, {}

    class Seen(FedOV):
        def outliers(self, params, batch, view, black, length):
            seen["black"], seen["length"] = black, length
            return super().outliers(params, batch, view, black, length)

    train(Seen(), task)
    black = transform.scale(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.float64)
    torch.testing.assert_close(seen["black"].flatten(), black.flatten())
    torch.testing.assert_close(seen["length"].flatten(), (0.002 / transform.std.double()).flatten())


IMAGES = torch.rand(400, 2, 12, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
KEYS = torch.arange(400)


def test_one_of_seven_changes_happens_to_an_image_whatever_others_there_are():
    found = outliers.destroyed(IMAGES, KEYS)
    assert torch.equal(outliers.destroyed(IMAGES[5:9], KEYS[5:9]), found[5:9])
    kinds = (outliers.uniform_from_keys(KEYS, 1)[:, 0] * 7).long()
    u = outliers.uniform_from_keys(KEYS, 12).double()[:, 1:]
    changes = [
        outliers._cropped(IMAGES, u), outliers._blurred(IMAGES, u), outliers._erased(IMAGES, u, 0.0),
        *[outliers._cut(IMAGES, u)] * 2, *[outliers._turned(IMAGES, u)] * 2,
    ]  # fmt: skip
    for row, kind in enumerate(kinds.tolist()):
        assert torch.equal(found[row], changes[kind][row])
    assert kinds.unique().tolist() == list(range(7))


def test_changes_are_those_of_the_code():
    u = outliers.uniform_from_keys(KEYS, 11).double()
    size = 12
    crops = outliers._stretch(size, torch.full((400,), 6.0).double(), u[:, 0])
    close(crops.sum(2), torch.ones(400, size).tolist())  # interpolation
    assert sorted({int((one > 0).any(0).sum()) for one in crops}) == [6]  # pixels
    blurs = outliers._smoothed(size, torch.tensor([0.0, 1.0, 4.0]).double(), torch.full((3,), 1e6).double())
    close(blurs.sum(2), torch.ones(3, size).tolist())
    close(blurs[0], torch.eye(size).tolist())
    close(blurs[1][0][:3], [1 / 3, 2 / 3, 0.0])  # reflected
    close(blurs[2][5], [0.0] + [1 / 9] * 9 + [0.0] * 2)
    erased = outliers._erased(IMAGES, u, -1.0)
    shares = (erased == -1).double().mean((1, 2, 3))
    assert 0.25 < shares.min() and shares.max() < 0.6 and 0.33 < shares.mean() < 0.5
    for change, kept in ((outliers._turned(IMAGES, u), True), (outliers._cut(IMAGES, u), False)):
        same = [
            torch.equal(a.flatten().sort().values, b.flatten().sort().values)
            for a, b in zip(change, IMAGES, strict=True)
        ]
        assert all(same) if kept else 100 < sum(same) < 300  # halves swapped; a band copied
        assert not any(torch.equal(a, b) for a, b in zip(change, IMAGES, strict=True))
    swapped = outliers._moved(4, torch.tensor([True]), torch.tensor([0.0]))
    assert swapped.tolist() == [[2, 3, 0, 1]]
    copied = {tuple(outliers._moved(8, torch.tensor([False]), torch.tensor([c]))[0].tolist()) for c in (0.0, 0.999)}
    assert copied == {(0, 1, 0, 1, 2, 3, 6, 7), (0, 1, 4, 5, 6, 7, 6, 7)}
    square = torch.arange(16.0).view(1, 1, 4, 4)
    turned = outliers._turned(square, torch.tensor([[0.0, 0.0, 0.5]]))[0, 0]  # by 90 and by 180 degrees
    expected = torch.cat([torch.rot90(square[0, 0, :2, :2]), torch.rot90(square[0, 0, :2, 2:], 2)], 1)
    assert torch.equal(turned, torch.cat([expected, square[0, 0, 2:]]))


@pytest.mark.parametrize("name", ["finetune-head", "finetune-body"])
def test_there_is_no_head_to_finetune_where_each_model_has_its_own(name):
    with pytest.raises(ValueError, match=f"{name} fine-tunes one model .* but fedov deploys several side by side"):
        algorithms.make(name, base=FedOV())


def test_bytes_and_passes_of_fedov():
    task = paper_task()
    assert FedOV().traffic(task) == 2 * 4 * BYTES["fedov_params"] + BYTES["fedov_ensemble"]
    assert FedOV().passes_per_example == 8 and FedOV(terms="joint").passes_per_example == 2


def test_templates_of_states_have_one_class_more_and_no_other():
    (template,), task = FedOV().state_templates(toy_task()), toy_task(rounds=1)
    assert (
        len(template["params"]["classifier.bias"])
        == len(FedOV().init(task)["params"]["classifier.bias"])
        == NUM_CLASSES + 1
    )


def test_models_with_running_statistics_are_trained_by_terms_joint():
    task = normalised_task(rounds=1, local_epochs=1)
    usual, joint, full = (train(FedOV(**options), task) for options in ({}, {"terms": "joint"}, {"terms": "full"}))
    assert_equal(usual["clients"], joint["clients"])
    assert usual["costs"]["examples"] == joint["costs"]["examples"] == 2 * sum(SIZES)
    assert not torch.equal(*(state["clients"]["rows"][0]["params"]["stem.weight"] for state in (usual, full)))
    again = local_models(task, FedOV(), FedOV().init(task))
    assert torch.equal(again["params"]["stem.weight"][0], usual["clients"]["rows"][0]["params"]["stem.weight"])
    common = {
        "dataset": "cifar10",
        "partition": "iid",
        "algorithm": "fedov",
        "clients": 10,
        "rounds": 1,
        "local_epochs": 1,
    }
    plain, normalised = (examples_to_train(resolve(common | {"model": name})) for name in ("simple-cnn", "resnet18"))
    assert (plain, normalised) == (8 * 50000, 2 * 50000)


def test_that_moments_of_adam_start_anew_is_said_whatever_the_momentum():
    for momentum in (0.0, 0.9):
        (said,) = FedOV().caveats(toy_task(rounds=2, momentum=momentum))
        assert "in each of which the moments of Adam started anew" in said
    assert FedOV(optimizer="sgd").caveats(toy_task(rounds=2, momentum=0.0)) == []
    assert FedOV().caveats(toy_task(rounds=1)) == FedOV().caveats(normalised_task(rounds=1)) == []


def test_models_without_a_place_to_mix_or_for_the_class_unknown_are_refused():
    task = toy_task(rounds=1)
    wrapped = replace(task, model=wrap(NormalisedClassifier, task.model))
    with pytest.raises(ValueError, match="the classifier of NormalisedClassifier cannot have it"):
        FedOV().init(wrapped)
