"""Methods with a classifier of their own, fixed or in two parts: their formulas, what they keep, and whom they refuse."""

import itertools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import algorithms
from algorithms.ccvr import CCVR
from algorithms.clsnorm import ClsNorm
from algorithms.fedavg import FedAvg
from algorithms.fedbabu import FedBabu
from algorithms.fedconcat import FedConcat
from algorithms.fedconcat_ib import FedConcatIB
from algorithms.fedetf import FedETF
from algorithms.fedgela import FedGELA, class_weights
from algorithms.fedrod import FedRoD
from algorithms.finetune import Finetune
from algorithms.fusefl import FuseFL
from algorithms.shared import calibration, tree
from algorithms.shared.etf import random_basis, simplex
from algorithms.shared.local_sgd import descend
from algorithms.shared.types import Batch, BatchIndex, ClientView
from bench import models
from bench.models.base import BoundModel, Model
from bench.simulation.local_models import local_models
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import SETTINGS, assert_equal, toy_task, train

ORACLE = oracle("rivals")
TOLERANCE = {"rtol": 0, "atol": 1e-9}  # that of the oracle
EVERYONE = torch.arange(5)
ENGINES = ("loop", "vectorised")
BOTH_FORMS = pytest.mark.parametrize("masked", [False, True])


def known(name):
    """Inputs and expected numbers of the oracle, as tensors where they are lists."""

    def tensor(value):
        return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value

    parts = ({key: tensor(value) for key, value in ORACLE[name][part].items()} for part in ("inputs", "expected"))
    given, expected = parts
    return {**given, "y": given["y"].long()}, expected


@dataclass(frozen=True)
class Free(Model):
    """A model whose features are its param f, and whose logits are its param logits, if it has one."""

    def layers(self):
        return {"classifier": (self.num_classes, 4)}

    def features(self, params, x, bound):
        return params["f"]

    def head(self, params, z):
        return params["logits"] if "logits" in params else super().head(params, z)


def seen(counts, etf=None, params=None):
    return ClientView(
        model=BoundModel(Free((1, 1, 1), len(counts)), {}, training=True),
        settings=SETTINGS,
        round=0,
        params=params or {},
        buffers={},
        server={} if etf is None else {"etf": etf},
        client={},
        num_examples=counts.sum(),
        num_steps=torch.tensor(1.0),
        label_counts=counts,
    )


def batch(y, mask=None):
    return Batch(torch.zeros(len(y), 1, 1, 1), y, mask)


def loss_and_gradient(method, params, y, view, mask=None):
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    loss = method.local_loss(leaves, batch(y, mask), view)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return loss.detach(), dict(zip(leaves, gradients, strict=True))


def close(found, expected):
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected, dtype=torch.float64), **TOLERANCE)


# The matrix


def test_the_simplex_follows_the_oracle():
    given, expected = known("fedetf")
    close(simplex(given["P"]), expected["M"])
    close(simplex(given["P"]).T @ simplex(given["P"]), expected["gram_MtM"])


@pytest.mark.parametrize("width, num_classes", [(10, 10), (84, 10), (2, 2), (128, 100)])
def test_columns_have_length_one_and_equal_angles(width, num_classes):
    matrix = simplex(random_basis(width, num_classes, torch.Generator().manual_seed(0)))
    cosines = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(matrix.T @ matrix, cosines, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [FedETF(), FedGELA()], ids=algorithms.name_of)
def test_the_matrix_follows_from_the_seed_alone_and_stays(method):
    task = toy_task(rounds=2)
    etf = method.init(task)["server"]["etf"]
    assert torch.equal(train(method, task)["server"]["etf"], etf)
    others = (task.restrict(torch.tensor([3])), replace(task, initial_model=2), toy_task(lr=1.0, engine="vectorised"))
    assert all(torch.equal(method.init(other)["server"]["etf"], etf) for other in others)
    assert not torch.equal(method.init(toy_task(seed=1))["server"]["etf"], etf)


@pytest.mark.parametrize("method", [FedETF(), FedGELA()], ids=algorithms.name_of)
def test_the_matrix_is_read_from_the_state(method):
    task = toy_task()
    start = method.init(task)
    other = {**start, "server": {"etf": start["server"]["etf"].flip(1)}}
    assert not torch.equal(*(method.step(task, state)["params"]["linear1.weight"] for state in (start, other)))
    weights = [method.deploy(task, state, EVERYONE).params["classifier.weight"] for state in (start, other)]
    torch.testing.assert_close(weights[0].flip(0), weights[1])


@pytest.mark.parametrize("method", [FedETF(), FedGELA(), FedRoD()], ids=algorithms.name_of)
def test_the_encoder_starts_where_that_of_fedavg_does(method):
    task = toy_task()
    own, common = (one.init(task)["params"] for one in (method, FedAvg()))
    assert all(torch.equal(own[name], common[name]) for name in common if "classifier" not in name)


def test_the_projection_starts_anew_with_each_independent_model():
    task = toy_task()
    first, again, other = (
        FedETF().init(replace(task, initial_model=index))["params"]["projection.weight"] for index in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    "method, numbers",
    [
        (FedETF(), "fedetf_params_with_linear_proto_84x10_and_scale"),
        (FedGELA(), "fedgela_params"),
        (FedRoD(), "params"),
        (FedRoD(personal_head=True), "params"),
    ],
    ids=lambda value: value if isinstance(value, str) else algorithms.name_of(value),
)
def test_bytes_follow_the_oracle(method, numbers):
    small = toy_task(dtype=torch.float32, model="simple-cnn", shape=(3, 32, 32), rounds=1, local_epochs=1)
    ten = replace(small.federation, label_counts=torch.ones(5, 10, dtype=torch.float64))
    task = replace(small, model=models.load("simple-cnn")((3, 32, 32), 10), federation=ten)
    expected = (
        ORACLE["bytes_simple_cnn"]["inputs"]["bytes_per_number"] * ORACLE["bytes_simple_cnn"]["expected"][numbers]
    )
    assert tree.num_bytes(method.downloads(method.init(task))) == expected
    assert method.traffic(task) == 2 * expected


# FedETF


def test_fedetf_follows_the_oracle():
    given, expected = known("fedetf")
    etf = simplex(given["P"])
    params = {
        "f": given["features_before_normalisation"],
        "projection.weight": torch.eye(4, dtype=torch.float64),
        "projection.bias": torch.zeros(4, dtype=torch.float64),
        "scale": torch.tensor(given["scale"], dtype=torch.float64),
    }
    loss, gradients = loss_and_gradient(FedETF(), params, given["y"], seen(given["counts"], etf))
    close(loss, expected["loss"])
    close(gradients["f"], expected["grad_features"])
    close(gradients["scale"], expected["grad_scale"])
    equal, _ = loss_and_gradient(FedETF(), params, given["y"], seen(torch.full((3,), 5.0).double(), etf))
    close(equal, expected["loss_equal_counts"])
    assert equal == F.cross_entropy(10 * F.normalize(params["f"], dim=1) @ etf, given["y"])
    close(F.cross_entropy(expected["logits"], given["y"]), equal)


@pytest.mark.parametrize("width", [None, 3, 7])
def test_fedetf_deploys_the_predictions_of_projection_and_matrix(width):
    task = toy_task()
    method = FedETF(width=width)
    state = train(method, task)
    params, etf = state["params"], state["server"]["etf"]
    assert etf.shape == (width or 3, 3) and params["projection.weight"].shape[0] == (width or 3)
    x = task.federation.transform.scale(task.federation.test_images, task.dtype)
    bound = BoundModel(task.model, {})
    projected = F.linear(bound.features(params, x), params["projection.weight"], params["projection.bias"])
    logits = F.normalize(projected, dim=1) @ etf
    deployed = bound(method.deploy(task, state, EVERYONE).params, x)
    torch.testing.assert_close(deployed / projected.norm(dim=1, keepdim=True), logits)


def test_fedetf_says_what_became_of_the_scale():
    task = toy_task()
    start = FedETF(scale=2.5).init(task)
    assert FedETF().diagnostics(start) == {"scale": 2.5}
    assert FedETF().diagnostics(FedETF().step(task, start))["scale"] not in (2.5, None)
    lost = {**start, "params": {**start["params"], "scale": torch.tensor(math.nan)}}
    assert FedETF().diagnostics(lost) == {"scale": None}


# FedGELA


def test_fedgela_follows_the_oracle():
    given, expected = known("fedgela")
    etf = simplex(known("fedetf")[0]["P"])
    params, view = {"f": given["features"]}, seen(given["counts"], etf)
    method = FedGELA(temperature=given["temperature"])
    close(class_weights(given["counts"]), expected["Ew"])
    loss, gradients = loss_and_gradient(method, params, given["y"], view)
    close(loss, expected["loss_unit"])
    close(gradients["f"], expected["grad_unit"])
    raw = replace(method, normalise=False)
    close(loss_and_gradient(raw, params, given["y"], view)[0], expected["loss_raw_features"])
    equal = seen(torch.full((3,), 4.0, dtype=torch.float64), etf)
    close(loss_and_gradient(method, params, given["y"], equal)[0], expected["loss_uniform_counts"])
    plain = F.cross_entropy(F.normalize(given["features"], dim=1) @ etf / 0.2, given["y"])
    assert loss_and_gradient(method, params, given["y"], equal)[0] == plain


def test_fedgela_deploys_the_matrix_or_the_scaled_one():
    given, expected = known("fedgela")
    etf = simplex(known("fedetf")[0]["P"])
    counts = torch.stack([given["counts"], torch.tensor([0.0, 0.0, 9.0], dtype=torch.float64)])
    task = SimpleNamespace(model=Free((1, 1, 1), 3), cohort=lambda ids: SimpleNamespace(label_counts=counts[ids]))
    state, unit = {"params": {}, "buffers": {}, "server": {"etf": etf}}, F.normalize(given["features"], dim=1)
    shared = FedGELA().deploy(task, state, torch.arange(2))
    assert not shared.per_client
    close(task.model.head(shared.params, unit), expected["global_logits_unit"])
    own = FedGELA(personal_head=True).deploy(task, state, torch.arange(2))
    assert own.per_client
    close(task.model.head(tree.row(own.params, 0), unit) / given["temperature"], expected["local_logits_unit"])
    only_one = task.model.head(tree.row(own.params, 1), unit)
    close(only_one, torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64) * (unit @ etf))  # E = C on the one class


@pytest.mark.parametrize("engine", ENGINES)
def test_personal_classifiers_change_nothing_of_the_shared_model(engine):
    task = toy_task(engine=engine, participation=0.6)
    for method in (FedGELA, FedRoD):
        shared, personal = (train(method(personal_head=own), task) for own in (False, True))
        assert_equal(*({**state, "clients": None} for state in (shared, personal)))


# FedRoD


def personal_params(given):
    logits = {"logits": given["generic_logits"], "personal.logits": given["personal_logits"]}
    return {**logits, "f": torch.ones(3, 4, dtype=torch.float64)}


def test_fedrod_follows_the_oracle():
    given, expected = known("fedrod")
    params, view = personal_params(given), seen(given["counts"])
    for method, loss, gradient in (
        (FedRoD(), "bsm_counts_exact_zero_excluded", "grad_exact"),
        (FedRoD(vacant="clamp"), "bsm_clamp_1", "grad_clamp_1"),
    ):
        found, gradients = loss_and_gradient(method, params, given["y"], view)
        close(found, expected[loss])
        close(gradients["logits"], expected[gradient])
        assert gradients["personal.logits"] is None
        # The personal loss is added, and its gradient reaches the personal classifier alone.
        both, gradients = loss_and_gradient(replace(method, personal_head=True), params, given["y"], view)
        close(both - found, expected["personal_loss"])
        close(gradients["logits"], expected[gradient])
        close(gradients["personal.logits"], expected["grad_personal_logits"])
    close(loss_and_gradient(FedRoD(), params, given["y"], view)[0], expected["bsm_eps_1e-12"])
    equal, _ = loss_and_gradient(FedRoD(), params, given["y"], seen(torch.full((4,), 7.0, dtype=torch.float64)))
    close(equal, expected["bsm_uniform_counts"])
    assert equal == F.cross_entropy(given["generic_logits"], given["y"])


def test_fedrod_deploys_the_generic_logits_or_the_sum():
    given, expected = known("fedrod")
    task, basis = SimpleNamespace(model=Free((1, 1, 1), 4)), torch.eye(3, dtype=torch.float64)

    def head(logits):
        return {"classifier.weight": logits.T, "classifier.bias": torch.zeros(4, dtype=torch.float64)}

    rows = {"fresh": head(torch.ones(3, 4, dtype=torch.float64)), "rows": {1: head(given["personal_logits"])}}
    state = {"params": head(given["generic_logits"]), "buffers": {}, "clients": rows}
    shared = task.model.head(FedRoD().deploy(task, state, torch.arange(2)).params, basis)
    assert shared.argmax(1).tolist() == expected["argmax_generic"].tolist()
    own = FedRoD(personal_head=True).deploy(task, state, torch.arange(2)).params
    never, once = (task.model.head(tree.row(own, client), basis) for client in range(2))
    close(never, shared)  # a client that has not taken part
    close(once, given["generic_logits"] + given["personal_logits"])
    assert once.argmax(1).tolist() == expected["argmax_personal_sum"].tolist()


def test_fedrod_by_hand():
    """Two clients' three steps: v moves on features and logits from before the step of the shared model, without momentum."""
    task = toy_task(sizes=(14, 10), local_epochs=1, momentum=0.9, weight_decay=1e-2)
    method = FedRoD(personal_head=True)
    start = method.init(task)
    state = method.step(task, start)
    for client in range(2):
        model = [leaf.clone().requires_grad_() for leaf in start["params"].values()]
        own = [start["params"][f"classifier.{part}"].clone().requires_grad_() for part in ("weight", "bias")]
        shared = torch.optim.SGD(model, lr=task.settings.lr, momentum=0.9, weight_decay=1e-2)
        alone = torch.optim.SGD(own, lr=task.settings.lr)
        counts = task.federation.label_counts[client]
        rows, draws, sizes = task.batch_indices(client, 0)
        for part in rows.split(sizes):
            params = dict(zip(start["params"], model, strict=True))
            index = BatchIndex(part, None, {}, len(part))
            x, y = task.data_of(client).take(index)[:2]
            features = BoundModel(task.model, {}).features(params, x)
            logits = task.model.head(params, features)
            balanced = F.cross_entropy(logits + counts.log(), y)
            personal = F.cross_entropy(logits.detach() + F.linear(features.detach(), *own), y)
            for optimizer, loss in ((shared, balanced), (alone, personal)):
                optimizer.zero_grad()
                loss.backward()
            shared.step()
            alone.step()
        kept = state["clients"]["rows"][client]
        torch.testing.assert_close(kept["classifier.weight"], own[0].detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(kept["classifier.bias"], own[1].detach(), rtol=0, atol=1e-12)
    assert len(sizes) == 2 and not torch.equal(kept["classifier.bias"], start["params"]["classifier.bias"])


def test_the_personal_classifier_of_an_absent_client_stays():
    task = toy_task(participation=0.4)
    states = [FedRoD(personal_head=True).init(task)]
    for _ in range(3):
        states.append(FedRoD(personal_head=True).step(task, states[-1]))
    moved = 0
    for before, after in itertools.pairwise(states):
        cohort = task.sample_cohort(before["round"]).ids.tolist()
        for client, row in after["clients"]["rows"].items():
            if client in cohort:
                old = before["clients"]["rows"].get(client, before["clients"]["fresh"])
                moved += not torch.equal(row["classifier.weight"], old["classifier.weight"])
            else:
                assert_equal(row, before["clients"]["rows"][client])
    assert moved == 6  # two clients in each of three rounds


def equal_counts(**settings):
    """A toy task in which every client has as many examples of each class."""
    task = toy_task(sizes=(12, 6, 18, 9, 15), **settings)
    labels = torch.arange(60) % 3
    counts = torch.tensor([4.0, 2, 6, 3, 5], dtype=torch.float64)[:, None].expand(5, 3)
    return replace(task, federation=replace(task.federation, labels=labels, label_counts=counts))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("personal_head", [False, True])
@pytest.mark.parametrize("vacant", ["exclude", "clamp"])
def test_fedrod_is_fedavg_without_balancing_and_with_equal_counts(engine, personal_head, vacant):
    for gamma, make in ((0.0, toy_task), (1.3, equal_counts)):
        task = make(engine=engine, rounds=2)
        method = FedRoD(gamma=gamma, vacant=vacant, personal_head=personal_head)
        assert_equal(train(method, task)["params"], train(FedAvg(), task)["params"])


@BOTH_FORMS
@pytest.mark.parametrize("method", [FedRoD(), FedRoD(personal_head=True), FedETF(), FedGELA()], ids=algorithms.name_of)
def test_a_client_with_one_class_has_finite_gradients(method, masked):
    """The third row is padding, of a class that the client does not have."""
    generator = torch.Generator().manual_seed(0)
    params = {
        "f": torch.randn(3, 4, generator=generator, dtype=torch.float64),
        "projection.weight": torch.randn(4, 4, generator=generator, dtype=torch.float64),
        "projection.bias": torch.zeros(4, dtype=torch.float64),
        "scale": torch.tensor(10.0, dtype=torch.float64),
        "logits": torch.randn(3, 3, generator=generator, dtype=torch.float64),
        "personal.logits": torch.randn(3, 3, generator=generator, dtype=torch.float64),
    }
    etf = simplex(random_basis(4, 3, generator))
    labels, mask = torch.tensor([1, 1, 2 if masked else 1]), torch.tensor([True, True, False])
    view = seen(torch.tensor([0.0, 5.0, 0.0], dtype=torch.float64), etf)
    loss, gradients = loss_and_gradient(method, params, labels, view, mask if masked else None)
    found = [gradient for gradient in gradients.values() if gradient is not None]
    assert loss.isfinite() and len(found) and tree.all_finite(found)
    if type(method) is FedRoD:
        assert torch.equal(gradients["logits"], torch.zeros(3, 3)), "one class is left in the softmax"
        assert method.personal_head == (loss > 0)
    else:
        assert loss > 0, "vacant classes compete"
    if masked:
        assert all(not gradient[2].any() for gradient in found if gradient.shape[:1] == (3,))


# Plain steps of local SGD


@BOTH_FORMS
def test_plain_params_take_steps_without_momentum_decay_and_offsets(masked):
    slopes = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]], dtype=torch.float64)
    start = {"v": torch.tensor(2.0).double(), "w": torch.tensor(1.0).double()}
    loss = lambda params, batch, view: slopes[batch.y[0]] @ torch.stack([params["v"], params["w"]])  # noqa: E731
    take = SimpleNamespace(take=lambda index: Batch(torch.zeros(1, 1), index.rows, index.mask))
    plan = [BatchIndex(torch.tensor([row]), torch.tensor([True]) if masked else None, {}, 1) for row in range(3)]
    one = replace(seen(torch.ones(3)), settings=replace(SETTINGS, lr=0.1, momentum=0.9, weight_decay=0.01))
    both = {name: {"v": torch.tensor(9.0), "w": torch.tensor(number)} for name, number in (("in", 0.3), ("out", 0.2))}
    offsets = {"gradient_offset": both["in"], "step_offset": both["out"]}
    trained = descend(loss, start, take, plan, one, plain=("v",), **offsets)
    assert trained.params["v"].item() == pytest.approx(2 - 0.1 * 4.5) and trained.velocity["v"] == 0
    w, speed = 1.0, 0.0
    for slope in (2.0, -1.0, 4.0):
        speed = 0.9 * speed + slope + 0.01 * w + 0.3
        w -= 0.1 * (speed + 0.2)
    assert trained.params["w"].item() == pytest.approx(w) and trained.velocity["w"].item() == pytest.approx(speed)


# Around these methods, and refusals


@pytest.mark.parametrize("base", [FedETF(), FedGELA(), FedRoD()], ids=algorithms.name_of)
def test_wrappers_go_on_from_what_is_deployed(base, monkeypatch):
    monkeypatch.setattr(calibration, "_LEAST_STEPS", 20)
    task = toy_task(rounds=1, local_epochs=1)
    deployed = base.deploy(task, train(base, task), EVERYONE).params
    tuned = Finetune(base).deploy(task, train(Finetune(base), task), EVERYONE).params
    calibrated = CCVR(base, calibration_epochs=1).deploy(task, train(base, task), EVERYONE).params
    assert not torch.equal(tuned["classifier.weight"][0], deployed["classifier.weight"])
    assert torch.equal(calibrated["linear1.weight"], deployed["linear1.weight"])
    assert not torch.equal(calibrated["classifier.weight"], deployed["classifier.weight"])
    around = FedConcat(2, 1, 1, 1, base=base)
    assert tree.all_finite(around.deploy(task, train(around, task), EVERYONE).params)


@pytest.mark.parametrize("method", [FedETF(), FedGELA(), FedRoD()], ids=algorithms.name_of)
def test_local_models_are_models_of_the_task(method):
    task = toy_task()
    found = local_models(task, method, method.init(task))["params"]
    shapes = {name: (5, *leaf.shape) for name, leaf in task.initial_params().items()}
    assert {name: tuple(leaf.shape) for name, leaf in found.items()} == shapes
    mean = tree.weighted_mean(found, task.cohort(EVERYONE).num_examples)
    deployed = method.deploy(task, train(method, task, rounds=1), EVERYONE).params
    # Merging is linear in what is averaged, so that the shared model is the mean of the local ones.
    assert_equal({name: deployed[name] for name in mean}, mean, tolerance=1e-12)


test_what_cannot_work_is_refused_in_one_sentence = refused(
    (lambda: FedETF(width=1), "width must be at least 2, but got 1."),
    (lambda: FedETF(scale=0.0), "scale must be greater than 0, but got 0.0."),
    (lambda: FedGELA(temperature=0.0), "temperature must be greater than 0, but got 0.0."),
    (lambda: FedRoD(gamma=-1.0), "gamma must be at least 0, but got -1.0."),
    (lambda: FedRoD(vacant="keep"), "vacant must be one of exclude, clamp, but got 'keep'."),
    (
        lambda: FedETF(width=2).init(toy_task()),
        "fedetf needs a vector for each class in as many dimensions: width must be at least 3, the number of classes, but "
        "got 2.",
    ),
    (
        lambda: FedGELA().init(replace(toy_task(), model=Free((1, 1, 1), 5))),
        "fedgela needs a vector for each class in as many dimensions: the number of features of Free must be at least 5, "
        "the number of classes, but got 4.",
    ),
    (
        lambda: FedETF().init(replace(toy_task(), model=Free((1, 1, 1), 1))),
        "fedetf needs at least 2 classes, but the data have 1.",
    ),
    (
        lambda: ClsNorm(FedETF()),
        "clsnorm normalises the classifier of the model, but fedetf replaces it by another one.",
    ),
    (
        lambda: FedETF().init(ClsNorm().inside(toy_task())),
        "fedetf replaces a linear classifier with a bias, but NormalisedOfStages has none; use another model.",
    ),
    (
        lambda: FedRoD(personal_head=True).init(ClsNorm().inside(toy_task())),
        "fedrod-personal adds to a linear classifier with a bias, but NormalisedOfStages has none; use another model.",
    ),
    (
        lambda: FedConcatIB().init(ClsNorm().inside(toy_task())),
        "fedconcat-ib reads label distributions from a linear classifier with a bias, but NormalisedOfStages has none; use "
        "another model.",
    ),
    (
        lambda: FedConcat(classifier_init="clusters").init(ClsNorm().inside(toy_task())),
        "fedconcat joins a linear classifier with a bias, but NormalisedOfStages has none; use another model.",
    ),
    (
        lambda: FuseFL(blocks=2).init(ClsNorm().inside(toy_task())),
        "fusefl joins a linear classifier with a bias, but NormalisedOfStages has none; use another model.",
    ),
    (
        lambda: ClsNorm(FedGELA(personal_head=True)),
        "clsnorm normalises the classifier of one shared model, but fedgela-personal deploys one model per client.",
    ),
    (
        lambda: FedConcatIB(base=FedGELA()),
        "fedconcat-ib reads label distributions from the bias of the classifier, but fedgela trains no classifier; use "
        "another base, or fedconcat-id.",
    ),
)


def test_without_a_head_fedbabu_trains_the_classifier_that_fedconcat_ib_reads():
    assert FedConcatIB(base=FedBabu(head_layers=0)).base.classifier == "trained"
    with pytest.raises(ValueError, match="but fedbabu trains no classifier; use another base, or fedconcat-id.$"):
        FedConcatIB(base=FedBabu())


def test_clsnorm_takes_a_classifier_without_a_bias():
    inside = ClsNorm().inside(ClsNorm().inside(toy_task()))
    assert "classifier.bias" not in inside.initial_params()


def test_names_and_options_are_one_run():
    assert algorithms.make("fedrod-personal") == FedRoD(personal_head=True)
    assert algorithms.name_of(FedRoD(personal_head=True)) == "fedrod-personal"
    assert algorithms.name_of(FedGELA()) == "fedgela" and not FedGELA().personal
    assert algorithms.make("fedgela-personal").personal
