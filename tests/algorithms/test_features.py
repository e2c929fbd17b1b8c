"""Methods with terms on features: their formulas, padding, what the terms are for few examples, and what prototypes cost."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.feddecorr import FedDecorr
from algorithms.fedproto import FedProto
from algorithms.feduv import FedUV, _closeness, _lower_median
from algorithms.local_training import LocalTraining
from algorithms.shared import tree
from algorithms.shared.local_sgd import cross_entropy, gradient
from algorithms.shared.moments import class_sums, moments
from algorithms.shared.types import Batch, BatchIndex
from bench.models.base import BoundModel, Model
from bench.models.calibrated import NearestPrototype, wrap
from bench.models.cnn import SimpleCnn
from bench.simulation.evaluation import evaluate
from tests.support.by_hand import Pixels, double
from tests.support.oracles import oracle
from tests.support.refusals import refused
from tests.support.toy import NUM_CLASSES, SIZES, assert_equal, normalised_task, toy_task, train
from tests.support.views import cohort, view

ORACLE = oracle("rivals")
ENGINES = ("loop", "vectorised")
EVERYONE = torch.arange(len(SIZES))


@dataclass(frozen=True)
class Rows(Model):
    """A model whose params are the features z [B, d] and the logits [B, num_classes] of a batch."""

    def features(self, params, x, bound):
        return params["z"]

    def head(self, params, z):
        return params["logits"]


def seen(**how):
    return replace(view({}, **how), model=BoundModel(Rows((1, 1, 1), NUM_CLASSES), {}, training=True))


def measured(method, z, logits, labels, padding=0, **how):
    """What a local loss adds to cross-entropy, and its gradients by z and logits; other rows pad the batch."""
    z, logits, labels = (torch.as_tensor(values) for values in (z, logits, labels))
    more = torch.arange(1.0, padding + 1).to(z.dtype)[:, None]
    params = {
        "z": torch.cat([z, 3 + more.expand(-1, z.shape[1])]).requires_grad_(),
        "logits": torch.cat([logits, more * logits.new_tensor([1.0, -2.0, 5.0])]).requires_grad_(),
    }
    labels = torch.cat([labels, labels.new_zeros(padding)])
    mask = torch.arange(len(labels)) < len(z) if padding else None
    batch = Batch(torch.zeros(len(labels), 1, 1, 1), labels, mask)
    added = method.local_loss(params, batch, seen(**how)) - cross_entropy(params["logits"], batch)
    by_z, by_logits = torch.autograd.grad(added, list(params.values()), allow_unused=True, materialize_grads=True)
    assert not by_z[len(z) :].any() and not by_logits[len(z) :].any()  # padding
    return added.detach(), by_z[: len(z)], by_logits[: len(z)]


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


# Statistics


def test_moments_and_class_sums_are_those_of_the_real_rows():
    values, labels = torch.randn(7, 4, dtype=torch.float64), torch.tensor([0, 2, 2, 0, 2, 1, 1])
    real = values[:5]
    for mask, given in ((None, real), (torch.arange(7) < 5, values)):
        found = moments(given, mask)
        assert found.num_rows == 5
        torch.testing.assert_close(found.deviations[:5], real - real.mean(0))
        assert not found.deviations[5:].any()
        torch.testing.assert_close(found.variance, real.var(0))
        sums = class_sums(given, labels[: len(given)], 3, mask)
        assert sums.counts.tolist() == [2, 0, 3]
        torch.testing.assert_close(sums.totals[2], real[1] + real[2] + real[4])
        assert not sums.totals[1].any()


def test_a_single_row_has_no_variance_and_no_row_no_moments():
    for real in (1, 0):
        found = moments(torch.randn(3, 2), torch.arange(3) < real)
        assert found.num_rows == real and not found.variance.any() and not found.deviations.any()


# FedDecorr


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("variant", ["code", "paper"])
def test_feddecorr_follows_the_oracle(variant, padding):
    known = ORACLE["feddecorr"]
    features, beta = double(known["inputs"]["features"]), known["inputs"]["beta"]
    loss, by_z, by_logits = measured(
        FedDecorr(beta, variant), features, torch.zeros(4, 3).double(), [0, 1, 2, 0], padding
    )
    close(loss / beta, known["expected"][f"loss_{variant}"], known["tol"])
    close(by_z / beta, known["expected"][f"grad_{variant}"], known["tol"])
    assert not by_logits.any()


def test_feddecorrs_code_has_a_larger_gradient_than_its_paper():
    known = ORACLE["feddecorr"]
    for features, expected in (
        (double(known["inputs"]["features"]), known["expected"]["grad_ratio_code_over_paper"]),
        (torch.randn(64, 84, dtype=torch.float64), known["expected"]["ratio_for_N64_d84"]),
    ):
        logits, labels = torch.zeros(len(features), 3).double(), [0] * len(features)
        code, paper = (measured(FedDecorr(1.0, of), features, logits, labels)[1] for of in ("code", "paper"))
        assert (code.norm() / paper.norm()).item() == pytest.approx(expected, abs=1e-5)


def test_uncorrelated_features_have_no_penalty_of_the_code_and_the_least_one_of_the_paper():
    features = double([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    logits, labels = torch.zeros(4, 3).double(), [0] * 4
    assert measured(FedDecorr(1.0), features, logits, labels)[0] == 0
    assert measured(FedDecorr(1.0, "paper"), features, logits, labels)[0].item() == pytest.approx(1 / 2, abs=1e-7)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(
    "method", [FedDecorr(), FedDecorr(variant="paper"), FedUV(), FedUV(detach_sigma=True)], ids=repr
)
def test_a_batch_of_one_example_has_no_terms_on_features(method, padding):
    loss, *gradients = measured(method, torch.ones(1, 4), torch.tensor([[2.0, 1.0, 0.0]]), [1], padding)
    assert loss == 0 and not any(one.any() for one in gradients)


@pytest.mark.parametrize("variant", ["code", "paper"])
def test_gradients_of_feddecorr_are_finite_where_features_are_dead_in_single_precision(variant):
    method = FedDecorr(10.0, variant)
    z = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
    z[:, 0], z[:, 1], z[:, 2] = 0, 3.7, 0  # dead, constant, and alive for one example only
    z[3, 2] = 1e-6
    _, by_z, _ = measured(method, z, torch.zeros(8, 3), [0] * 8)
    assert by_z.isfinite().all() and by_z.abs().max() > 0


@pytest.mark.parametrize("method", [FedDecorr(), FedUV()], ids=repr)
def test_a_network_with_dead_features_is_trained_in_single_precision(method):
    task = toy_task(dtype=torch.float32, sizes=(20,))
    alive = task.initial_params()
    rows, draws, sizes = task.batch_indices(0, 0)
    batch = task.data_of(0).take(BatchIndex(rows[:6], None, tree.map(lambda leaf: leaf[:6], draws), 6))
    bound = replace(view({}), model=BoundModel(task.model, {}, training=True))
    for dead in (60, 64):  # nearly all, all
        params = {**alive, "linear2.bias": alive["linear2.bias"] - 1e3 * (torch.arange(64) < dead)}
        assert tree.all_finite(gradient(method.local_loss, params, batch, bound))
        masked = Batch(batch.x, batch.y, torch.arange(6) < 5)
        assert tree.all_finite(gradient(method.local_loss, params, masked, bound))


# FedUV


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("detached", [False, True])
def test_feduv_follows_the_oracle(detached, padding):
    given, expected, tol = (ORACLE["feduv"][key] for key in ("inputs", "expected", "tol"))
    z, logits, labels = double(given["features"]), double(given["logits"]), given["y"]
    weights = (given["std_coeff"], given["unif_coeff"])
    loss, by_z, by_logits = measured(FedUV(*weights, detached), z, logits, labels, padding)
    close(loss + expected["ce"], expected["loss"], tol)
    suffix = "_sigma_detached" if detached else ""
    close(by_z, given["unif_coeff"] * double(expected["grad_features_uniformity" + suffix]), tol)
    of_both = _cross_entropy_gradient(logits, labels) + by_logits
    close(of_both, expected["grad_logits"], tol)
    variance, by_z, _ = measured(FedUV(1.0, 0.0), z, logits, labels, padding)
    close(variance, expected["variance_loss"], tol)
    assert not by_z.any()
    uniformity, _, by_logits = measured(FedUV(0.0, 1.0, detached), z, logits, labels, padding)
    close(uniformity, expected["uniformity_loss"], tol)
    assert not by_logits.any()


def _cross_entropy_gradient(logits, labels):
    return (logits.softmax(1) - torch.nn.functional.one_hot(torch.tensor(labels), 3)) / len(labels)


@pytest.mark.parametrize("padding", [0, 3])
def test_equal_features_and_outputs_give_finite_gradients_of_feduv(padding):
    z, logits = torch.full((4, 2), 0.3), torch.tensor([[2.0, 1.0, 0.0]]).expand(4, -1)
    loss, by_z, by_logits = measured(FedUV(), z, logits, [0, 1, 2, 0], padding)
    # No output varies, and all features are as close as can be: 2.5 / sqrt(3) + 0.5.
    assert loss.item() == pytest.approx(2.5 / math.sqrt(3) + 0.5, abs=1e-6)
    assert not by_z.any() and not by_logits.any()


def test_pairs_of_equal_features_count_as_close_but_not_in_the_median():
    # Distances 0, 1, 1, 4, 4, 9 of the points 0, 0, 1, -2 (4 twice): the lower median of 1, 1, 4, 4, 9 is 4.
    z, logits = double([[0.0], [0.0], [1.0], [-2.0]]), torch.zeros(4, 3).double()
    loss, _, _ = measured(FedUV(0.0, 1.0), z, logits, [0] * 4)
    terms = [math.exp(-distance / 4) for distance in (0, 1, 1, 4, 4, 9)]
    assert loss.item() == pytest.approx(sum(terms) / 6, abs=1e-12)


def test_uniformity_does_not_depend_on_the_scale_of_features_unless_sigma_is_constant():
    z, logits = torch.randn(6, 3, dtype=torch.float64), torch.zeros(6, 3).double()
    slope, detached = (
        (measured(FedUV(0.0, 1.0, constant), z, logits, [0] * 6)[1] * z).sum() for constant in (False, True)
    )
    assert abs(slope) < 1e-12 and abs(detached) > 1e-3


def undivided(features, mask, detach_sigma):
    """The uniformity term without care for pairs that are far apart: exp(-D/sigma) of all pairs, then those of the mask."""
    size = len(features)
    pairs = torch.ones(size, size, dtype=torch.bool).triu(1)
    if mask is not None:
        pairs = pairs & mask & mask[:, None]
    distances = torch.where(pairs, (features[:, None] - features).square().sum(2), 0).flatten()
    sigma = _lower_median(distances)
    closeness = torch.exp(-distances / (sigma.detach() if detach_sigma else sigma))
    return torch.where(pairs.flatten(), closeness, 0).sum() / pairs.sum().clamp(min=1)


def test_leaving_out_pairs_far_apart_changes_no_bit_where_the_gradient_was_finite():
    """300 random batches, of distances over six orders of magnitude: one in four has a pair far apart."""
    random, far = torch.Generator().manual_seed(0), 0
    for batch in range(300):
        size, width = (int(torch.randint(low, 20, (), generator=random)) for low in (1, 1))
        scales = 10.0 ** torch.randint(-3, 1, (size, 1), generator=random)
        features = (scales * torch.randn(size, width, generator=random)).requires_grad_()
        mask = torch.arange(size) < max(1, size - 3) if batch % 2 else None
        results = []
        for term in (_closeness, undivided):
            loss = term(features, mask, batch % 4 > 1)
            results.append((loss, *torch.autograd.grad(loss, features)))
        assert all(torch.isfinite(leaf).all() for leaf in results[1])
        assert all(map(torch.equal, *results)), batch
        distances = torch.pdist(features.detach()[: size if mask is None else int(mask.sum())]).square()
        far += bool(len(distances) and distances.max() / distances.median() > 110)  # exp(-104) is 0
    assert far > 50


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("detached", [False, True])
def test_a_sigma_that_is_tiny_beside_a_distance_gives_finite_gradients(padding, detached):
    """Five features 1e-12 apart and one at 100: D/sigma^2 is 1e52, more than a float has, and was multiplied by exp(-1e28)."""
    z = torch.tensor([[1e-12 * k] for k in range(5)] + [[100.0]])
    loss, by_z, _ = measured(FedUV(0.0, 1.0, detached), z, torch.zeros(6, 3), [0] * 6, padding)
    assert torch.isfinite(loss) and torch.isfinite(by_z).all() and by_z.abs().max() > 0
    if not detached:
        whole = z.requires_grad_()
        slope = torch.autograd.grad(undivided(whole, None, False), whole)[0]
        assert torch.isnan(slope).any(), "what is left out would have been no number"


def test_a_large_learning_rate_has_a_caveat_unless_sigma_is_constant():
    (said,) = FedUV().caveats(toy_task(lr=0.2))
    assert said.startswith("feduv: at a learning rate of 0.2 runs may diverge")
    assert not FedUV().caveats(toy_task(lr=0.01))
    assert not FedUV(detach_sigma=True).caveats(toy_task(lr=0.2))
    assert not FedUV(uniformity_weight=0.0).caveats(toy_task(lr=0.2))


def test_outputs_of_a_client_with_one_class_are_still_varied():
    _, _, by_logits = measured(FedUV(), torch.randn(4, 2), torch.randn(4, 3), [1] * 4)
    assert by_logits.abs().max() > 1e-3


# Values at which methods become others


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedDecorr(0.0), FedDecorr(0.0, "paper"), FedUV(0.0, 0.0)], ids=repr)
def test_without_their_terms_feddecorr_and_feduv_are_fedavg(method, engine):
    task = toy_task(engine=engine)
    assert_equal(train(method, task), train(FedAvg(), task))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("collect", ["after", "last_epoch"])
def test_without_its_term_fedproto_is_local_training(collect, engine):
    task = toy_task(engine=engine, participation=0.6)
    protos, alone = (train(method, task) for method in (FedProto(0.0, collect), LocalTraining()))
    assert_equal(protos["clients"], alone["clients"])
    # In the first round there are no prototypes.
    assert_equal(train(FedProto(5.0, collect), task, 1)["clients"], train(LocalTraining(), task, 1)["clients"])


# FedProto


class Held:
    """Client data with given pixels and labels."""

    def __init__(self, x, y):
        self.x, self.y = double(x)[:, :, None, None], torch.tensor(y)

    def take(self, index):
        return Batch(self.x[index.rows], self.y[index.rows], index.mask)


def trained_by_oracle(method, client: dict, mask):
    """The update of a client of the oracle, whose features are its pixels, after one epoch."""
    data, model = Held(client["features"], client["y"]), Pixels((2, 1, 1), NUM_CLASSES)
    size = len(client["y"])
    rows = torch.arange(size if mask is None else len(mask)).clamp(max=size - 1)
    plan = [BatchIndex(rows, mask, {}, size)]
    params = {name: leaf.double() for name, leaf in model.init(torch.Generator().manual_seed(0)).items()}
    own = view(params, client={"params": params, "buffers": {}}, num_steps=1.0, local_epochs=1)
    server = {"prototypes": torch.zeros(NUM_CLASSES, 2).double(), "known": torch.zeros(NUM_CLASSES).bool()}
    own = replace(own, model=BoundModel(model, {}, True), server=server, num_examples=double(size))
    return method.local_update(data, plan, own).update


def oracle_server(method, padding=0):
    """The server state after both clients of the oracle."""
    clients = [ORACLE["fedproto"]["inputs"][name] for name in ("client0", "client1")]
    masks = [torch.arange(len(one["y"]) + padding) < len(one["y"]) if padding else None for one in clients]
    updates = [trained_by_oracle(method, one, mask) for one, mask in zip(clients, masks, strict=True)]
    server = {"prototypes": torch.zeros(NUM_CLASSES, 2).double(), "known": torch.zeros(NUM_CLASSES).bool()}
    return updates, method.aggregate(None, {}, server, tree.stack(updates), cohort(3, 1))[1]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("collect", ["after", "last_epoch"])
def test_prototypes_follow_the_oracle(collect, padding):
    expected = ORACLE["fedproto"]["expected"]
    for weighting, name in (("uniform", "global_uniform"), ("examples", "global_count_weighted")):
        updates, server = oracle_server(FedProto(collect=collect, weighting=weighting), padding)
        for update, own in zip(updates, ("client0_protos", "client1_protos"), strict=True):
            held = [str(label) for label in torch.nonzero(update["weights"]).flatten().tolist()]
            assert held == list(expected[own])
            close(update["prototypes"][update["weights"] > 0], list(expected[own].values()), 1e-12)
        assert server["known"].tolist() == [True, True, False]
        close(server["prototypes"][:2], list(expected[name].values()), 1e-12)


@pytest.mark.parametrize("padding", [0, 2])
def test_the_term_of_fedproto_follows_the_oracle(padding):
    given, expected, tol = (ORACLE["fedproto"][key] for key in ("inputs", "expected", "tol"))
    method = FedProto(given["lambda"])
    server, features = oracle_server(method)[1], double(given["batch_features"])
    logits, labels = torch.zeros(3, 3).double(), given["batch_y"]
    loss, by_z, _ = measured(method, features, logits, labels, padding, server=server)
    close(loss, expected["batch_proto_loss_uniform"], tol)
    close(by_z, expected["grad_batch_features"], tol)
    nothing = {**server, "known": torch.zeros(3).bool()}
    assert measured(method, features, logits, labels, padding, server=nothing)[0] == 0


def test_the_nearest_prototype_follows_the_oracle():
    server, model = oracle_server(FedProto())[1], wrap(NearestPrototype, Pixels((2, 1, 1), NUM_CLASSES))
    z = double(ORACLE["fedproto"]["inputs"]["batch_features"])
    logits = model.head(server, z)
    assert logits.argmax(1).tolist() == ORACLE["fedproto"]["expected"]["nearest_prototype"]
    close(logits[:, :2], -(z[:, None] - server["prototypes"][:2]).square().sum(2), 1e-12)
    close(logits[:, 2], logits[:, :2].amin(1) - 1, 1e-12)  # the class without prototype
    assert not model.head({**server, "known": torch.zeros(3).bool()}, z).any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("collect", ["after", "last_epoch"])
def test_every_example_counts_once_in_prototypes(collect, engine):
    method = FedProto(collect=collect, weighting="examples")

    def collected(**settings):
        task = toy_task(engine=engine, **settings)
        one = task.cohort(EVERYONE)
        return one.label_counts, method.map_clients(task, method.local_update, one, method.init(task)).result.update

    for settings in ({"local_epochs": 3}, {"local_epochs": None, "local_steps": 12}):
        held, update = collected(**settings)
        torch.testing.assert_close(update["weights"], held)
    held, update = collected(last_batch="drop-if-full")  # 13, 4, 20, 8, 11 examples in batches of 6
    assert update["weights"].sum(1).tolist() == [12, 4, 18, 6, 6]
    held, update = collected(local_epochs=None, local_steps=2)
    assert update["weights"].sum(1).tolist() == [12, 4, 12, 8, 11]


@pytest.mark.parametrize("engine", ENGINES)
def test_prototypes_are_those_of_the_params_before_or_after_training(engine):
    """One step: in the last epoch they are taken before it, and otherwise after it."""
    task = toy_task(engine=engine, local_epochs=1, batch_size=20)
    labels = task.federation.labels[task.federation.clients[2]]
    images = task.federation.inputs(task.federation.clients[2], {}, None, torch.float64)
    for collect in ("after", "last_epoch"):
        method = FedProto(collect=collect)
        start = method.init(task)
        result = method.map_clients(task, method.local_update, task.cohort(EVERYONE), start).result
        trained = tree.row(result.client["params"], 2)
        features = BoundModel(task.model, {}).features(trained if collect == "after" else start["params"], images)
        for label in range(NUM_CLASSES):
            own = result.update["prototypes"][2, label]
            torch.testing.assert_close(own, features[labels == label].mean(0), rtol=0, atol=1e-12)


def test_prototypes_of_the_last_epoch_do_not_change_training_with_statistics_and_dropout():
    """They are of the features that the step trains: its batch statistics, and its dropout masks."""
    small = {"shape": (3, 32, 32), "local_epochs": 1, "dtype": torch.float32}
    for task in (normalised_task(local_epochs=1), toy_task(model="vgg9", sizes=(4, 8), **small)):
        protos, alone = FedProto(0.0, "last_epoch"), LocalTraining()
        assert_equal(train(protos, task, 1)["clients"], train(alone, task, 1)["clients"])
    # One step of one example: its features are those that training sees, and not those of evaluation.
    task = toy_task(model="vgg9", sizes=(1,), **small)
    one, passes = task.cohort(torch.tensor([0])), []

    @dataclass(frozen=True)
    class Noted(FedProto):
        def local_loss(self, params, given, view):
            features = view.model.features(params, given.x)
            passes.append((features.detach()[0], BoundModel(task.model, {}).features(params, given.x).detach()[0]))
            return cross_entropy(view.model.head(params, features), given)

    method = Noted(collect="last_epoch")
    update = method.map_clients(task, method.local_update, one, method.init(task)).result.update
    (trained, evaluated), prototype = passes[0], update["prototypes"][0].sum(0)
    torch.testing.assert_close(prototype, trained, rtol=0, atol=1e-6)
    assert not torch.allclose(prototype, evaluated)


def test_prototypes_of_absent_classes_are_carried_or_forgotten():
    only_one = {
        "prototypes": torch.tensor([[[0.0, 0.0], [4.0, 2.0], [0.0, 0.0]]]),
        "weights": torch.tensor([[0.0, 1.0, 0.0]]),
    }
    before = {
        "prototypes": torch.tensor([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]),
        "known": torch.tensor([True, True, False]),
    }
    for carry, first, known, carried in ((True, 1.0, [True, True, False], 1), (False, 0.0, [False, True, False], 0)):
        method = FedProto(carry=carry)
        _, server = method.aggregate(None, {}, before, only_one, cohort(5))
        assert server["known"].tolist() == known
        assert server["prototypes"].tolist() == [[first, first], [4.0, 2.0], [0.0, 0.0]]
        assert method.diagnostics({"server": server}) == {"prototypes": sum(known), "carried_prototypes": carried}


def test_clients_deploy_the_servers_prototypes_if_they_predict_by_the_nearest():
    task = toy_task()
    own, nearest = FedProto(), FedProto(predict="nearest")
    state = train(nearest, task)
    assert_equal(state, train(own, task))  # training is the same
    deployed = nearest.deploy(task, state, EVERYONE)
    assert deployed.per_client and deployed.model == nearest.deployed_model(task)
    shapes = {name: leaf.shape for name, leaf in deployed.model.init(torch.Generator()).items()}
    assert {name: leaf.shape[1:] for name, leaf in deployed.params.items()} == shapes
    scores, plain = evaluate(task, deployed), evaluate(task, own.deploy(task, state, EVERYONE))
    assert scores != plain
    images = task.federation.transform.scale(task.federation.test_images, torch.float64)
    accuracies = []
    for client in range(len(SIZES)):
        features = BoundModel(task.model, {}).features(tree.row(deployed.params, client), images)
        guessed = torch.cdist(features, state["server"]["prototypes"]).argmin(1)
        accuracies.append((guessed == task.federation.test_labels).double().mean().item())
    assert scores["global_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
    assert all(map(math.isfinite, evaluate(task, nearest.deploy(task, nearest.init(task), EVERYONE)).values()))


def test_prototypes_alone_are_exchanged():
    task = toy_task(dtype=torch.float32, rounds=2)
    method, width = FedProto(), 64
    state = train(method, task)
    held = int((task.federation.label_counts > 0).sum())
    assert held < NUM_CLASSES * len(SIZES)
    assert state["costs"]["bytes_up"] == 2 * held * width * 4
    assert state["costs"]["bytes_down"] == len(SIZES) * NUM_CLASSES * width * 4  # nothing before the first round
    assert method.traffic(task) == 3 * NUM_CLASSES * width * 4
    # The last prototypes are received once more by clients that predict by them.
    of_nearest = FedProto(predict="nearest")
    assert of_nearest.traffic(task) - method.traffic(task) == NUM_CLASSES * width * 4
    assert of_nearest.deploy_traffic(task, task.model) == {
        "bytes_down": len(SIZES) * NUM_CLASSES * width * 4,
        "bytes_up": 0,
    }


def test_prototypes_of_the_simple_cnn_have_the_bytes_of_the_oracle():
    task = replace(toy_task(dtype=torch.float32, rounds=1), model=SimpleCnn((3, 32, 32), 10))
    method = FedProto()
    state = method.init(task)
    state["server"]["known"] = torch.ones(10).bool()
    full = ORACLE["bytes_simple_cnn"]["expected"]["prototypes_full_one_way"]
    assert tree.num_bytes(method.downloads(state)) == method.traffic(task) == full


test_impossible_options_are_refused_in_one_sentence = refused(
    (lambda: FedDecorr(beta=-0.1), "beta must be at least 0, but got -0.1."),
    (lambda: FedDecorr(variant="port"), "variant must be one of code, paper, but got 'port'."),
    (lambda: FedUV(variance_weight=-1), "variance_weight must be at least 0, but got -1."),
    (lambda: FedUV(uniformity_weight=math.inf), "uniformity_weight must be at least 0, but got inf."),
    (lambda: FedProto(prototype_weight=-1), "prototype_weight must be at least 0, but got -1."),
    (lambda: FedProto(collect="before"), "collect must be one of after, last_epoch, but got 'before'."),
    (lambda: FedProto(weighting="size"), "weighting must be one of examples, uniform, but got 'size'."),
    (lambda: FedProto(predict="mean"), "predict must be one of argmax, nearest, but got 'mean'."),
)
