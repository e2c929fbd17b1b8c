"""FedRCL and FedMLB, whose losses read several stages of a model, against momentum_family_oracle.json."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

import algorithms
from algorithms.clsnorm import ClsNorm
from algorithms.fedavg import FedAvg
from algorithms.fedmlb import FedMLB
from algorithms.fedrcl import FedRCL
from algorithms.shared import tree
from algorithms.shared.local_sgd import cross_entropy, gradient
from algorithms.shared.types import Batch, ClientView
from bench import models
from bench.models.base import BatchNormalised, BoundModel, Layered, Staged
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import SETTINGS, assert_equal, normalised_task, toy_task, train

ORACLE = oracle("momentum_family")
both_forms = pytest.mark.parametrize("masked", [False, True])
both_engines = pytest.mark.parametrize("engine", ["loop", "vectorised"])


def tensor(values):
    return torch.as_tensor(values, dtype=torch.float64)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(found), tensor(expected), rtol=0, atol=tolerance)


def batch_of(labels, masked):
    """Without images; masked, with two rows of padding that have labels of real rows."""
    y = torch.as_tensor(labels)
    mask = torch.tensor([True] * len(y) + [False] * 2) if masked else None
    y = torch.cat([y, y[:2]]) if masked else y
    return Batch(torch.zeros(len(y), 1, 1, 1), y, mask)


def padded(rows, masked):
    """Rows, and padding of which the first is equal to a real one."""
    return torch.cat([rows, rows[:1], torch.ones_like(rows[:1])]) if masked else rows


# FedRCL

RCL = ORACLE["fedrcl"]["expected"]
FEATURES, LABELS = tensor(ORACLE["fedrcl"]["inputs"]["features"]), torch.tensor(ORACLE["fedrcl"]["inputs"]["y"])


def terms(features, labels, masked, index=None):
    """Contrast and penalty, or the gradient of one of them by the features."""
    leaf = padded(features, masked).requires_grad_()
    found = FedRCL().level_terms(leaf, batch_of(labels, masked))
    if index is None:
        return [term.detach() for term in found]
    return torch.autograd.grad(found[index], leaf)[0]


@both_forms
def test_the_terms_of_a_level_follow_the_oracle(masked):
    tolerance = ORACLE["fedrcl"]["tol"]
    contrast, penalty = terms(FEATURES, LABELS, masked)
    close(contrast, RCL["scl"], tolerance)
    close(penalty, RCL["penalty"], tolerance)
    for index, key in enumerate(("grad_scl", "grad_penalty")):
        found = terms(FEATURES, LABELS, masked, index)
        close(found[:6], RCL[key], tolerance)
        assert not found[6:].any(), "padding"
    f = F.normalize(FEATURES, dim=1)
    close(f @ f.T, RCL["similarity"], tolerance)


def test_the_mined_pairs_are_those_of_the_oracle():
    """Moving the features of a chosen example changes the terms of a row; of others, it does not."""
    for row, (positive, negatives, penalised) in enumerate(RCL["positive_negatives_penalised"]):
        leaf = FEATURES.clone().requires_grad_()
        cosines = F.normalize(leaf, dim=1)
        cosines = cosines @ cosines.detach().T  # gradients by the row alone
        rest = {positive, *negatives, *([] if penalised is None else [penalised])}
        assert len(rest) >= 3 - (positive == row) and all(0 <= one < 6 for one in rest)
        alike = LABELS == LABELS[row]
        own = cosines[row].detach()
        assert own.masked_fill(~alike, 2).argmin() == positive
        assert own.masked_fill(alike, -2).topk(2).indices.tolist() == negatives
        others = own.masked_fill(~alike | (torch.arange(6) == row), 2)
        near = others.min() if 0.7 <= others.min() <= 1 else None
        assert (None if near is None else others.argmin()) == penalised


@both_forms
def test_batches_of_one_class_or_of_one_example_have_no_contrast(masked):
    tolerance = ORACLE["fedrcl"]["tol"]
    contrast, penalty = terms(FEATURES[:3], LABELS[:3], masked)
    close(contrast, RCL["one_class_batch_scl"], tolerance)
    close(penalty, RCL["one_class_batch_penalty"], tolerance)
    assert not terms(FEATURES[:3], LABELS[:3], masked, 0).any()
    assert terms(FEATURES[3:5], LABELS[3:5], masked, 1)[:2].any(), "the penalty acts"
    if masked:
        return
    contrast, penalty = terms(FEATURES[:1], LABELS[:1], masked)
    assert contrast == RCL["single_row_scl"] == 0
    assert penalty.item() == pytest.approx(RCL["single_row_penalty_log1p_exp_minus_40"], rel=1e-12)
    assert not terms(FEATURES[:1], LABELS[:1], masked, 0).any() and not terms(FEATURES[:1], LABELS[:1], masked, 1).any()


def test_features_of_zero_and_equal_ones_leave_everything_finite():
    for rows in (torch.zeros(4, 3), torch.ones(4, 3)):
        for index in (0, 1):
            assert terms(rows.double(), torch.tensor([0, 0, 1, 1]), False, index).isfinite().all()


def test_options_of_fedrcl_act_as_they_say():
    """Of the first row alone: p = 0.3948, n = 0.5198, 0.2908, 0.2104 by the oracle; and its other cosine is 0.9711."""
    batch = batch_of(LABELS, False)._replace(mask=torch.tensor([True] * 6))
    one = lambda **options: FedRCL(**options).level_terms(FEATURES, batch)  # noqa: E731
    s = tensor(RCL["similarity"])
    for count in (1, 2, 3):
        rows = []
        for row in range(6):
            alike = LABELS == LABELS[row]
            negatives = s[row][~alike].sort(descending=True).values[:count]
            rows.append(((negatives - s[row][alike].min()) / 0.1).exp().sum().log1p())
        close(one(num_negatives=count, temperature=0.1)[0], torch.stack(rows).mean())
    pairs = [s[0][2], s[1][2], s[2][0], s[3][4], s[4][3]]  # the least of others of the class
    for threshold in (-1.0, 0.5, 0.9):
        pens = [((pair - 1) / 0.1).exp().log1p() if pair >= threshold else tensor(-20).exp() for pair in pairs]
        close(one(threshold=threshold, temperature=0.1)[1], (sum(pens) + tensor(-20).exp()) / 6, 1e-8)


# Stages, as FedRCL and FedMLB see them


STAGED = [name for name in models.REGISTRY if issubclass(models.load(name), Staged)]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", STAGED)
def test_stages_lead_from_images_to_logits_and_from_each_level(name):
    """Bit for bit, in evaluation mode; the last output are the features."""
    model = models.of_any_size(name)
    params = model.init(torch.Generator().manual_seed(0))
    bound, x = BoundModel(model, model.init_buffers()), torch.rand(2, *model.input_shape)
    levels, logits = bound.stages(params, x), bound(params, x)
    assert tuple(level.name for level in levels) == model.stages
    assert torch.equal(levels[-1].output, bound.features(params, x))
    for level in levels:
        assert torch.equal(model.activated(level.name, level.before, bound), level.output)
        assert torch.equal(bound.after(level.name, params, level.output), logits)
        assert (level.before < 0).any() or name == "moon-cnn", "before ReLU"
    outputs = bound.outputs(params, x)
    for level in levels:
        assert level.name not in outputs or torch.equal(outputs[level.name], level.output)


@pytest.mark.parametrize("method", [FedRCL, FedMLB])
def test_models_without_stages_are_refused_in_one_sentence(method):
    name = algorithms.name_of(method())
    with pytest.raises(ValueError) as error:
        method().init(toy_task(model="mobilenetv2", shape=(3, 32, 32)))
    assert str(error.value) == (
        f"{name} needs a model whose encoder is cut into stages, but MobileNetV2 has none; use another one, such as "
        "simple-cnn, mlp, vgg9 or resnet18."
    )
    ClsNorm(base=method()).init(toy_task())  # its classifier alone is another one


@both_engines
@pytest.mark.parametrize(
    "method",
    [FedRCL(contrast_weight=0, penalty_weight=0, clip=None), FedMLB(branch_weight=0, distillation_weight=0, clip=None)],
    ids=algorithms.name_of,
)
def test_with_both_weights_0_it_is_fedavg(method, engine):
    task = toy_task(engine=engine)
    assert_equal(train(method, task)["params"], train(FedAvg(), task)["params"])


@pytest.mark.parametrize("method", [FedRCL(), FedMLB()], ids=algorithms.name_of)
def test_running_statistics_are_those_of_one_pass_of_the_local_model(method):
    """After one step they are those of FedAvg."""
    task = normalised_task(rounds=1, local_epochs=None, local_steps=1)
    assert_equal(train(method, task)["buffers"], train(FedAvg(), task)["buffers"])


@pytest.mark.parametrize("method", [FedRCL(), FedMLB()], ids=algorithms.name_of)
def test_both_engines_agree_on_convolutions(method):
    options = {"model": "simple-cnn", "shape": (3, 16, 16), "rounds": 1, "dataset": "cifar10"}
    loop, vectorised = (
        train(method, toy_task(engine=engine, **options))["params"] for engine in ("loop", "vectorised")
    )
    assert_equal(loop, vectorised, 1e-9)


def test_fedrcl_pools_pixels_and_takes_means_over_all_stages():
    task, method = toy_task(model="simple-cnn", shape=(3, 16, 16), dataset="cifar10"), FedRCL(contrast_weight=0.5)
    params, x = task.initial_params(), torch.rand(4, 3, 16, 16, dtype=torch.float64)
    batch = Batch(x, torch.tensor([0, 1, 1, 2]))
    view = seen(task.model, params)
    P = lambda name: (params[f"{name}.weight"], params[f"{name}.bias"])  # noqa: E731
    conv1 = F.max_pool2d(F.conv2d(x, *P("conv1")), 2)
    conv2 = F.max_pool2d(F.conv2d(conv1.relu(), *P("conv2")), 2)
    linear1 = F.linear(conv2.relu().flatten(1), *P("linear1"))
    linear2 = F.linear(linear1.relu(), *P("linear2"))
    logits = F.linear(linear2.relu(), *P("classifier"))
    found = [method.level_terms(level, batch) for level in (conv1.mean((2, 3)), conv2.mean((2, 3)), linear1, linear2)]
    contrast, penalty = (sum(part) / 4 for part in zip(*found, strict=True))
    close(method.local_loss(params, batch, view), F.cross_entropy(logits, batch.y) + 0.5 * contrast + penalty)


# FedMLB

MLB = ORACLE["fedmlb"]["expected"]
GIVEN = {key: tensor(value) for key, value in ORACLE["fedmlb"]["inputs"].items() if isinstance(value, list)}


@dataclass(frozen=True)
class OneLevel(Staged):
    """A stage whose output are the params f, before a linear classifier without a bias."""

    stages = ("first",)

    def layers(self):
        return {"classifier": (self.num_classes, 2)}

    def stage(self, name, params, x, bound):
        return params["f"]

    def activated(self, name, x, bound):
        return x

    def head(self, params, z):
        return z @ params["classifier.weight"].T


def seen(model, received):
    one = torch.tensor(1.0)
    return ClientView(BoundModel(model, {}, training=True), SETTINGS, 1, received, {}, {}, {}, one, one, torch.ones(3))


def grafted(method, masked, local="local_rest_of_net"):
    """Loss and gradient."""
    params = {"f": padded(GIVEN["level_features"], masked), "classifier.weight": GIVEN[local]}
    view = seen(OneLevel((1, 1, 1), 3), {**params, "classifier.weight": GIVEN["global_rest_of_net"]})
    batch = batch_of(GIVEN["y"].long(), masked)
    return method.local_loss(params, batch, view).detach(), gradient(method.local_loss, params, batch, view)


@both_forms
def test_the_loss_of_fedmlb_follows_the_oracle(masked):
    loss, found = grafted(FedMLB(), masked)
    close(loss, MLB["loss"])
    close(found["f"][:3], MLB["grad_features"])
    close(found["classifier.weight"], MLB["grad_local_rest"])
    assert (found["f"][:3] - tensor(MLB["grad_features_kl_target_detached"])).abs().max() > 1e-3
    alone, own = grafted(FedMLB(branch_weight=0, distillation_weight=0), masked)
    close(alone, MLB["ce_main"])
    close(own["f"][:3], MLB["lambda_0_grad_features"])
    branch, distance = (
        grafted(FedMLB(branch_weight=first, distillation_weight=second), masked)[0] - alone
        for first, second in ((1, 0), (0, 1))
    )
    close(branch, MLB["ce_branch"])
    close(distance, MLB["kl_branch_main"])
    close(grafted(FedMLB(branch_weight=0, temperature=3.0), masked)[0] - alone, MLB["kl_T3"])
    close(grafted(FedMLB(), masked, "global_rest_of_net")[0], MLB["round_start_loss_is_2_ce"])
    only = grafted(FedMLB(branch_weight=0, distillation_weight=0), masked, "global_rest_of_net")[0]
    close(only, MLB["round_start_ce"])


def test_at_the_start_of_a_round_the_encoder_has_twice_the_gradient_of_fedavg_and_the_classifier_once():
    task = toy_task(model="simple-cnn", shape=(3, 16, 16), dataset="cifar10")
    params, batch = task.initial_params(), Batch(torch.rand(4, 3, 16, 16).double(), torch.tensor([0, 1, 1, 2]))
    view = seen(task.model, params)
    plain = gradient(lambda own, batch, view: cross_entropy(view.model(own, batch.x), batch), params, batch, view)
    found = gradient(FedMLB().local_loss, params, batch, view)
    # A branch of stage k passes the gradient to the stages up to k: of 4 stages, the first has all branches.
    for factor, layer in ((2, "conv1"), (1.75, "conv2"), (1.5, "linear1"), (1.25, "linear2"), (1, "classifier")):
        close(found[f"{layer}.weight"], factor * plain[f"{layer}.weight"], 1e-12)


def test_the_received_model_stays_and_branches_train_the_local_one():
    """Its layers above a stage are those that were received, even after steps."""
    task = toy_task(rounds=1)
    received = task.initial_params()
    moved = tree.map(lambda leaf: leaf + 0.1, received)
    x, y = torch.rand(4, 1, 6, 6).double(), torch.tensor([0, 1, 2, 1])
    view = seen(task.model, received)
    hidden = BoundModel(task.model, {}).outputs(moved, x)
    first = F.linear(hidden["linear1"], received["linear2.weight"], received["linear2.bias"]).relu()
    branches = [
        F.linear(z, received["classifier.weight"], received["classifier.bias"]) for z in (first, hidden["linear2"])
    ]
    logits = hidden["classifier"]
    expected = F.cross_entropy(logits, y) + sum(
        F.cross_entropy(b, y) + F.kl_div(logits.log_softmax(1), b.softmax(1), reduction="batchmean") for b in branches
    ) / len(branches)
    close(FedMLB().local_loss(moved, Batch(x, y), view), expected)


def test_passes_of_the_branches_are_in_a_caveat():
    """After each of 4 stages: 3 + 2 + 1 stages more."""
    said = "fedmlb: branches cost about 1.5 more passes of the encoder per example, which are not in the counts."
    task = toy_task(model="simple-cnn", shape=(3, 16, 16), dataset="cifar10")
    assert FedMLB().caveats(task) == [said]
    assert FedMLB(branch_weight=0, distillation_weight=0).caveats(task) == FedMLB().caveats(normalised_task()) == []


@dataclass(frozen=True)
class TwoNorms(BatchNormalised, Layered):
    """Two convolutions with batch normalisation; features are means over pixels."""

    def layers(self):
        return {"one": (4, 1, 3, 3), "two": (4, 4, 3, 3), "classifier": (self.num_classes, 4)}

    def stage(self, name, params, x, bound):
        return self.conv(params, bound, x, name)

    def activated(self, name, x, bound):
        return F.relu(x) if name == "one" else F.relu(x).mean((2, 3))


def test_the_received_model_is_in_evaluation_mode_on_the_received_buffers():
    model = TwoNorms((1, 6, 6), 3)
    params, x, y = model.init(torch.Generator().manual_seed(0)), torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 1])
    received = {name: leaf + 0.5 if leaf.is_floating_point() else leaf for name, leaf in model.init_buffers().items()}
    view = replace(seen(model, params), model=BoundModel(model, model.init_buffers(), training=True), buffers=received)
    first, last = view.model.copy(training=True).stages(params, x)
    conv = F.conv2d(first.output, params["two.weight"], padding=1)
    norm = (params["two.norm.weight"], params["two.norm.bias"])
    known = F.batch_norm(conv, received["two.norm.running_mean"], received["two.norm.running_var"], *norm)
    branches = [model.head(params, z) for z in (known.relu().mean((2, 3)), last.output)]
    found = FedMLB(distillation_weight=0).local_loss(params, Batch(x, y), view)
    expected = F.cross_entropy(branches[1], y) + sum(F.cross_entropy(branch, y) for branch in branches) / 2
    close(found.double(), expected.double(), 1e-6)


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedRCL(contrast_weight=-1), "contrast_weight must be at least 0, but got -1."),
    (lambda: FedRCL(penalty_weight=-1), "penalty_weight must be at least 0, but got -1."),
    (lambda: FedRCL(temperature=0), "temperature must be greater than 0, but got 0."),
    (lambda: FedRCL(threshold=2), "threshold must be between -1 and 1, but got 2."),
    (lambda: FedRCL(num_negatives=0), "num_negatives must be at least 1, but got 0."),
    (lambda: FedMLB(branch_weight=-1), "branch_weight must be at least 0, but got -1."),
    (lambda: FedMLB(distillation_weight=-1), "distillation_weight must be at least 0, but got -1."),
    (lambda: FedMLB(temperature=0), "temperature must be greater than 0, but got 0."),
    (lambda: FedMLB(clip=0), "clip must be greater than 0, but got 0."),
)
