"""CCVR against numbers computed by hand, and what its options do."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from algorithms.ccvr import CCVR, upload_size
from algorithms.clsnorm import ClsNorm
from algorithms.clsprox import ClsProx
from algorithms.fedavg import FedAvg
from algorithms.fedconcat import FedConcat
from algorithms.fednova import FedNova
from algorithms.oracle import Oracle
from algorithms.scaffold import Scaffold
from algorithms.shared import calibration
from algorithms.shared.class_gaussians import (
    Gaussian,
    allocate,
    draw,
    gaussian_of,
    pool,
    pool_classes,
    root,
    separability,
    sliced_wasserstein,
)
from algorithms.shared.local_sgd import task_loss
from algorithms.shared.types import Batch
from bench.config.resolve import resolve
from bench.experiments.cost import bytes_per_client, is_bound
from bench.models.base import BoundModel
from bench.models.calibrated import NormalisedClassifier, tukey, wrap
from bench.models.concat import encoder_part
from bench.models.mlp import Mlp
from bench.simulation.evaluation import evaluate
from tests.support.by_hand import double
from tests.support.oracles import close, oracle
from tests.support.toy import NUM_CLASSES, toy_task, train

ORACLE = oracle("ccvr")
EVERYONE = torch.arange(5)


def held(features: dict) -> list[dict[int, Gaussian]]:
    """The Gaussians that each client of the oracle sends."""
    return [
        {label: gaussian_of(double(rows)) for label, rows in enumerate(client.values()) if rows}
        for client in features.values()
    ]


@pytest.fixture
def short(monkeypatch):
    """Classifiers are trained again for 20 steps instead of 1,000, where epochs do not ask for more."""
    monkeypatch.setattr(calibration, "_LEAST_STEPS", 20)


@pytest.fixture
def features():
    return ORACLE["federated_gaussian"]["features"]


def transformed(features: dict) -> dict:
    return {
        client: {label: tukey(double(rows), 0.5, True).tolist() if rows else [] for label, rows in classes.items()}
        for client, classes in features.items()
    }


@pytest.mark.parametrize("space", ["federated_gaussian", "then_federated"])
def test_clients_send_the_gaussians_of_their_classes(features, space):
    raw = space == "federated_gaussian"
    expected = ORACLE["federated_gaussian"]["local"]["values"] if raw else ORACLE["tukey"][space]["local"]
    found = held(features if raw else transformed(features))
    for sent, client in zip(found, expected.values(), strict=True):
        for label, values in enumerate(client.values()):
            if not values["n"]:
                assert label not in sent
                continue
            assert sent[label].size == values["n"]
            close(sent[label].mean, values["mean"])
            close(sent[label].covariance, values["cov"])


@pytest.mark.parametrize("space", ["federated_gaussian", "then_federated"])
def test_the_pooled_gaussian_is_that_of_all_features_together(features, space):
    raw = space == "federated_gaussian"
    expected = ORACLE["federated_gaussian"]["pooled"]["values"] if raw else ORACLE["tukey"][space]["pooled"]
    for label, values in enumerate(expected.values()):
        found = pool_classes(held(features if raw else transformed(features)))[label]
        assert found.size == values["n"]
        close(found.mean, values["mean"])
        close(found.covariance, values["cov"])
        close(torch.linalg.eigvalsh(found.covariance), values["eigenvalues_ascending"])
        together = [
            double(client[f"class_{label}"]) for client in (features if raw else transformed(features)).values()
        ]
        close(found.covariance, torch.cat([part for part in together if len(part)]).T.cov().tolist())


def test_none_of_the_known_mistakes_is_made(features):
    wrong = ORACLE["federated_gaussian"]["pooled_wrong"]["values"]
    for label, mistakes in enumerate(wrong.values()):
        for covariance in mistakes.values():
            assert not torch.allclose(pool_classes(held(features))[label].covariance, double(covariance), atol=1e-3)


def test_a_class_with_one_feature_anywhere_gets_the_mean_covariance_of_the_others():
    many = gaussian_of(torch.randn(9, 2, generator=torch.Generator().manual_seed(0)))
    pooled = pool_classes([{0: many, 2: gaussian_of(torch.ones(1, 2))}])
    assert list(pooled) == [0, 2]
    close(pooled[2].covariance, many.covariance.tolist())
    assert pool([gaussian_of(torch.ones(1, 2))]).covariance.abs().sum() == 0


def test_vectors_have_the_gaussians_mean_and_covariance_and_fewer_are_the_first_of_more():
    target = Gaussian(9, double([1.0, -2.0, 0.5]), double([[2.0, 0.6, 0.1], [0.6, 1.0, -0.2], [0.1, -0.2, 0.3]]))
    count = 200_000
    drawn = draw(target, count, key=5)
    largest = torch.linalg.eigvalsh(target.covariance)[-1]
    assert (drawn.mean(0) - target.mean).norm() < 5 * (largest / count).sqrt()
    assert (drawn.T.cov() - target.covariance).norm() < 0.02 * target.covariance.norm()
    assert torch.equal(draw(target, 7, key=5), drawn[:7])
    assert not torch.equal(draw(target, 7, key=6), drawn[:7])


def test_covariances_of_lower_rank_are_drawn_from_and_others_that_are_none_are_refused():
    one_line = gaussian_of(double([[0.0, 0.0, 1.0], [1.0, 2.0, 1.0], [2.0, 4.0, 1.0]]))
    drawn = draw(one_line, 50, key=1)
    assert torch.isfinite(drawn).all()
    close(drawn[:, 1] - 2 * drawn[:, 0], [0.0] * 50)
    repair = ORACLE["psd_repair"]
    close(torch.linalg.eigvalsh(double(repair["matrix"])), repair["eigenvalues_ascending"])
    square_root = root(double(repair["clipped"]))
    torch.testing.assert_close(square_root @ square_root, double(repair["clipped"]), rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="has the eigenvalue -0.0634 beside 2.63"):
        draw(Gaussian(3, torch.zeros(3), double(repair["matrix"])), 2, key=0)


def test_virtual_features_are_divided_by_the_largest_remainders():
    for case in ORACLE["m_c_allocation"]["cases"]:
        assert allocate(case["class_counts"], case["total"]) == case["m_c"]


def test_tukeys_transformation():
    x = double(ORACLE["tukey"]["x"])
    close(tukey(x, 0.5, relu=True), ORACLE["tukey"]["lambda_0.5"])
    close(tukey(x, 1, relu=True), ORACLE["tukey"]["lambda_1"])
    close(tukey(x, 2, relu=False), x.square().tolist())
    with pytest.raises(ValueError, match=r"Negative features have no power 0\.5; calibrate with relu"):
        tukey(x, 0.5, relu=False)


def test_clsnorm_has_rows_of_length_1_and_no_bias():
    case = ORACLE["clsnorm"]
    model = wrap(NormalisedClassifier, Mlp((1, 6, 6), 2))
    assert "classifier.bias" not in model.init(torch.Generator())
    logits = model.head({"classifier.weight": double(case["weight"])}, double([case["feature"]]))
    close(logits[0], case["logits"])
    close(logits[0].softmax(0), case["softmax"])


def test_clsprox_pulls_the_classifier_alone():
    case = ORACLE["clsprox"]
    model = Mlp((1, 6, 6), 2)
    start = {**model.init(torch.Generator()), "classifier.weight": double(case["received_weight"])}
    start = {name: leaf.double() for name, leaf in start.items()}
    params = {name: leaf + (name == "linear1.weight") for name, leaf in start.items()}
    params["classifier.weight"] = double(case["local_weight"]).requires_grad_()
    batch = Batch(torch.zeros(2, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1]))

    view = SimpleNamespace(model=lambda params, x: torch.zeros(2, 2, dtype=torch.float64), params=start)
    penalty = ClsProx(mu=case["mu"]).local_loss(params, batch, view) - task_loss(params, batch, view)
    close(penalty.detach(), case["penalty"])
    close(torch.autograd.grad(penalty, params["classifier.weight"])[0], case["gradient"])


def test_what_clients_send_is_accounted():
    for case in ORACLE["upload_size"]["cases"]:
        assert upload_size(case["d"], case["classes"]) == case["with_int64_count_per_class"]
    task = toy_task()
    assert (task.federation.label_counts > 0).sum() == 13, "two clients lack a class or two"
    spent = CCVR().deploy_traffic(task, task.model)
    encoder = sum(leaf.numel() for name, leaf in task.initial_params().items() if not name.startswith("classifier"))
    assert spent == {"bytes_up": upload_size(64, 13), "bytes_down": 5 * 4 * encoder}
    for free in (Oracle(), CCVR(virtual_per_class=0), FedAvg()):
        assert set(free.deploy_traffic(task, task.model).values()) == {0}


def test_before_a_run_each_client_may_hold_every_class():
    settings = {"dataset": "digits", "partition": "iid", "clients": 10, "train_examples": 1000, "rounds": 1}
    ccvr, fedavg, free = (
        resolve(settings | method)
        for method in ({"algorithm": "ccvr"}, {"algorithm": "fedavg"}, {"algorithm": "ccvr", "virtual_per_class": 0})
    )
    model = Mlp((1, 8, 8), 10)
    encoder = 4 * sum(leaf.numel() for leaf in encoder_part(model.init(torch.Generator())).values())
    assert bytes_per_client(ccvr) == bytes_per_client(fedavg) + encoder + upload_size(model.feature_dim, 10) == 190_880
    assert (is_bound(ccvr), is_bound(fedavg), is_bound(free)) == (True, False, False)
    assert bytes_per_client(free) == bytes_per_client(fedavg)


def deployed(method, task=None):
    task = task or toy_task()
    return method.deploy(task, train(method, task), EVERYONE)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("method", [CCVR(), Oracle()])
def test_training_and_the_encoder_stay_as_they_are(method):
    task = toy_task()
    before = deployed(FedAvg(), task).params
    after = deployed(method, task).params
    assert all(torch.equal(before[name], after[name]) == (not name.startswith("classifier")) for name in before)
    state = train(FedAvg(), task)
    assert all(torch.equal(leaf, train(method, task)["params"][name]) for name, leaf in state["params"].items())


@pytest.mark.usefixtures("short")
def test_without_virtual_features_or_data_nothing_changes():
    base = deployed(FedAvg())
    for method in (CCVR(virtual_per_class=0), Oracle(fraction=0.0)):
        found = deployed(method)
        assert found.model == base.model
        assert all(torch.equal(found.params[name], base.params[name]) for name in base.params)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "change",
    [
        {"virtual_per_class": 50},
        {"proportional": True},
        {"transform_stage": "on_samples"},
        {"transform_stage": "none"},
        {"tukey": 0.7},
        {"tukey": 2.0, "relu": False},
        {"calibration_lr": 0.1},
        {"calibration_momentum": 0.5},
        {"calibration_weight_decay": 0.1},
        {"calibration_batch_size": 32},
        {"calibration_epochs": 300},
    ],
)
def test_every_option_changes_the_classifier(change):
    usual, other = deployed(CCVR()), deployed(CCVR(**change))
    assert not torch.equal(usual.params["classifier.weight"], other.params["classifier.weight"])
    assert (other.model == toy_task().model) == (change.get("transform_stage") == "none")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "change", [{"calibration_batch_size": 32}, {"calibration_epochs": 1200}, {"transform_features": True}]
)
def test_every_option_changes_the_oracle(change):
    usual, other = deployed(Oracle()), deployed(Oracle(**change))
    assert not torch.equal(usual.params["classifier.weight"], other.params["classifier.weight"])


def test_the_deployed_model_transforms_features_as_the_clients_did():
    found, base = deployed(CCVR()), deployed(FedAvg())
    x = torch.rand(4, 1, 6, 6, dtype=torch.float64)
    before = BoundModel(base.model, {}).features(base.params, x)
    torch.testing.assert_close(BoundModel(found.model, {}).features(found.params, x), before.clamp(min=0).sqrt())


def test_the_oracle_may_transform_features_too():
    usual, other = deployed(Oracle(transform_features=True)), deployed(Oracle(transform_features=True, tukey=0.7))
    assert not torch.equal(usual.params["classifier.weight"], other.params["classifier.weight"])
    assert usual.model == deployed(CCVR()).model


def test_draws_hardly_change_where_features_hardly_do():
    """Eigenvectors may change their signs; what is drawn must not."""
    features = torch.randn(20, 60, generator=torch.Generator().manual_seed(0)).double().clamp(min=0)
    noise = 1e-9 * torch.randn(20, 60, generator=torch.Generator().manual_seed(1)).double()
    one, other = (draw(gaussian_of(of), 30, key=3) for of in (features, features + noise))
    assert (one - other).abs().max() < 1e-3


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "base", [FedConcat(num_clusters=2, encoder_rounds=2, classifier_rounds=2), Scaffold(), FedNova()]
)
def test_it_calibrates_every_method_with_one_shared_model(base):
    task = toy_task()
    plain, found = deployed(base, task), deployed(CCVR(base), task)
    assert found.params["classifier.weight"].shape == plain.params["classifier.weight"].shape
    assert not torch.equal(found.params["classifier.weight"], plain.params["classifier.weight"])
    without_cache = found._replace(test_features=None)
    assert evaluate(task, found) == pytest.approx(evaluate(task, without_cache))


def test_features_that_are_not_finite_give_a_classifier_that_is_not():
    task = toy_task()
    state = train(FedAvg(), task)
    broken = {**state, "params": {name: leaf * torch.inf for name, leaf in state["params"].items()}}
    found = CCVR().deploy(task, broken, EVERYONE)
    assert not torch.isfinite(found.params["classifier.weight"]).any()


def test_a_class_that_nobody_holds_is_named():
    task = toy_task()
    counts = task.federation.label_counts.clone()
    counts[:, 2] = 0
    lacking = replace(task, federation=replace(task.federation, label_counts=counts))
    assert CCVR().caveats(task) == []
    assert CCVR().caveats(lacking) == ["ccvr: no client has an example of 2, so there are no virtual features of it."]


@pytest.mark.usefixtures("short")
def test_more_real_features_than_a_fraction_are_another_calibration():
    whole, half = deployed(Oracle()), deployed(Oracle(fraction=0.5))
    assert not torch.equal(whole.params["classifier.weight"], half.params["classifier.weight"])
    task = toy_task()
    rows = Oracle(fraction=0.5)._rows(task)
    assert len(set(rows.tolist())) == len(rows)
    labels = task.federation.labels
    for label in range(NUM_CLASSES):
        assert (labels[rows] == label).sum() == round(0.5 * (labels == label).sum().item())


class Headless(Mlp):
    def layers(self):
        return {"linear1": (NUM_CLASSES, 36)}


def test_methods_that_make_no_sense_are_refused_in_one_sentence():
    from algorithms.local_training import LocalTraining

    with pytest.raises(ValueError, match="^ccvr calibrates one shared model, but local deploys one model per client.$"):
        CCVR(LocalTraining())
    with pytest.raises(ValueError, match="^oracle needs a base that trains, but ccvr only changes what another method"):
        Oracle(CCVR())
    with pytest.raises(ValueError, match="^clsnorm needs a base that trains one model in rounds, but got fedconcat.$"):
        ClsNorm(FedConcat())
    headless = replace(toy_task(), model=Headless((1, 6, 6), NUM_CLASSES))
    with pytest.raises(ValueError, match="^ccvr trains a classifier again, but Headless has none.$"):
        CCVR().init(headless)
    with pytest.raises(ValueError, match="virtual_per_class must be at least 0, but got -1"):
        CCVR(virtual_per_class=-1)
    with pytest.raises(ValueError, match="tukey must be greater than 0, but got 0"):
        CCVR(tukey=0.0)


@pytest.mark.usefixtures("short")
def test_clsnorm_trains_another_classifier_and_composes():
    task = toy_task()
    plain, normal = train(FedAvg(), task), train(ClsNorm(), task)
    assert normal["params"].keys() == plain["params"].keys() - {"classifier.bias"}
    both = train(ClsNorm(ClsProx(mu=5.0)), task)
    assert not torch.equal(both["params"]["classifier.weight"], normal["params"]["classifier.weight"])
    found = deployed(CCVR(ClsNorm()), task)
    assert "classifier.bias" not in found.params
    assert isinstance(found.model.inner, NormalisedClassifier)


def test_sliced_wasserstein_distance(features):
    known = ORACLE["sliced_wasserstein"]
    pooled = list(pool_classes(held(features)).values())[:2]
    directions = double(known["directions"])
    for direction, squared in zip(directions, known["w2_squared_per_direction"], strict=True):
        close(sliced_wasserstein(pooled, direction[None])[0, 1] ** 2, squared)
    found = sliced_wasserstein(pooled, directions)
    close(found, [[0, known["sliced_w2"]], [known["sliced_w2"], 0]])


def test_separability_is_about_pairs_of_classes_and_its_relative_form_not_about_scale():
    generator = torch.Generator().manual_seed(0)
    shifts = double([[0, 0, 0, 0], [3, 0, 0, 0], [0, 4, 0, 0]])
    samples = [torch.randn(5000, 4, generator=generator, dtype=torch.double) + shift for shift in shifts]
    found = separability([gaussian_of(one) for one in samples])
    # Along random directions the squared distance of two means is their squared distance over the dimension.
    assert found["sliced_wasserstein"] == pytest.approx((3 + 4 + 5) / 3 / 2, rel=0.05)
    assert found["relative_sliced_wasserstein"] == pytest.approx(found["sliced_wasserstein"], rel=0.02)
    larger = separability([gaussian_of(10 * one) for one in samples])
    assert larger["sliced_wasserstein"] == pytest.approx(10 * found["sliced_wasserstein"])
    assert larger["relative_sliced_wasserstein"] == pytest.approx(found["relative_sliced_wasserstein"])


@pytest.mark.usefixtures("short")
def test_what_is_deployed_tells_how_far_apart_classes_are():
    task = toy_task()
    deployed = CCVR().deploy(task, train(CCVR(), task, rounds=2), EVERYONE)
    assert set(deployed.diagnostics) == {"sliced_wasserstein", "relative_sliced_wasserstein"}
    assert all(distance > 0 for distance in deployed.diagnostics.values())
    assert not Oracle().deploy(task, train(Oracle(), task, rounds=2), EVERYONE).diagnostics
