"""FedConcat: what its stages do, by identities, by hand, and on real partitions."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import algorithms
from algorithms.fedavg import FedAvg
from algorithms.fedcm import FedCM
from algorithms.fedconcat import FedConcat
from algorithms.fedconcat_ib import FedConcatIB
from algorithms.fedconcat_id import FedConcatID
from algorithms.fedlesam import FedLESAM
from algorithms.fedprox import FedProx
from algorithms.local_training import LocalTraining
from algorithms.random_clusters import RandomClusters
from algorithms.scaffold import Scaffold
from algorithms.shared import label_inference, tree
from algorithms.shared.label_inference import bias_answers, label_shares, noisy_label_shares
from bench import models
from bench.config.code_version import files_of
from bench.config.resolve import resolve
from bench.errors import ConfigError
from bench.experiments.cost import bytes_per_client, is_bound
from bench.experiments.planning import check_engine
from bench.models.base import BoundModel, Model
from bench.models.concat import Concatenated, encoder_part
from bench.simulation.build import build_task
from bench.simulation.evaluation import evaluate
from bench.simulation.task import Task
from datasets import load, resized
from tests.support.toy import NUM_CLASSES, Normalised, assert_equal, normalised_task, toy_method, toy_task, train

SHORT = {"num_clusters": 2, "encoder_rounds": 2, "classifier_rounds": 2}


def deploy(method, task, state):
    return method.deploy(task, state, torch.arange(task.population))


@pytest.mark.parametrize("base", [FedAvg(), FedProx(mu=0.5), Scaffold()], ids=lambda base: type(base).__name__)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_one_cluster_without_classifier_rounds_is_the_base(base, participation):
    task = toy_task(participation=participation)
    method = FedConcat(1, 3, 0, classifier_init="clusters", base=base)
    found, expected = deploy(method, task, train(method, task)), train(base, task)["params"]
    x = torch.rand(7, 1, 6, 6, dtype=torch.float64)
    logits = BoundModel(found.model, found.buffers)(found.params, x)
    assert torch.equal(logits, BoundModel(task.model, {})(expected, x))


def test_classifier_from_clusters_gives_the_sum_of_the_cluster_logits():
    task = toy_task()
    method = FedConcat(**SHORT | {"classifier_rounds": 0}, classifier_init="clusters")
    before = train(method, task, 1)
    models = method.first_stage().models_of_clusters(task, method.first_stage().step(task, before["first"]))
    found = deploy(method, task, train(method, task))
    x = torch.rand(7, 1, 6, 6, dtype=torch.float64)
    each = [BoundModel(task.model, {})(params, x) for params, _ in models]
    torch.testing.assert_close(BoundModel(found.model, {})(found.params, x), each[0] + each[1])


def test_clusters_train_apart_from_one_initial_model():
    task = toy_task()
    state = FedConcat(**SHORT).init(task)["first"]
    after = FedConcat(**SHORT).first_stage().step(task, state)
    for name, model in state["models"].items():
        members = torch.nonzero(state["clusters"] == int(name)).flatten()
        own = task.restrict(members)
        assert all(torch.equal(model["params"][key], leaf) for key, leaf in task.initial_params().items())
        expected = FedAvg().step(own, FedAvg().init(own))["params"]
        assert all(torch.equal(after["models"][name]["params"][key], leaf) for key, leaf in expected.items())
    independent = FedConcat(**SHORT, cluster_init="independent").init(task)["first"]["models"]
    assert not torch.equal(
        independent["0"]["params"]["classifier.weight"], independent["1"]["params"]["classifier.weight"]
    )


def test_a_classifier_round_takes_three_steps_of_a_client_and_the_plain_mean():
    task = toy_task(sizes=(20, 4), momentum=0.5)
    method = FedConcat(num_clusters=1, encoder_rounds=1, classifier_rounds=1)
    before = train(method, task, 1)
    after = method.step(task, before)
    features = BoundModel(Concatenated((1, 6, 6), 3, (task.model,)), {})
    trained = []
    for client in range(2):
        weight, bias = before["params"]["classifier.weight"].clone(), before["params"]["classifier.bias"].clone()
        speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
        one_pass = replace(task, settings=replace(task.settings, local_epochs=1))
        rows, _, sizes = one_pass.batch_indices(client, 1)
        assert sizes == ([6, 6, 6, 2] if client == 0 else [4])
        for batch in rows.split(sizes)[:3]:
            z = features.features(before["params"], task.federation.images[batch].double() / 255)
            error = (z @ weight.T + bias).softmax(1) - torch.eye(3, dtype=torch.float64)[task.federation.labels[batch]]
            gradient = [error.T @ z / len(batch) + 1e-5 * weight, error.mean(0) + 1e-5 * bias]
            speed = [0.5 * v + g for v, g in zip(speed, gradient, strict=True)]
            weight, bias = weight - 0.05 * speed[0], bias - 0.05 * speed[1]
        trained.append(weight)
    torch.testing.assert_close(after["params"]["classifier.weight"], (trained[0] + trained[1]) / 2)
    assert all(torch.equal(after["params"][key], leaf) for key, leaf in encoder_part(before["params"]).items())
    assert after["costs"]["examples"] - before["costs"]["examples"] == 18 + 4


def test_classifiers_may_be_weighed_by_examples_as_in_line_15_of_algorithm_1():
    """Clients of 20 and 4 examples: 5/6 and 1/6 of their classifiers."""
    task = toy_task(sizes=(20, 4))
    options = {"num_clusters": 1, "encoder_rounds": 1, "classifier_rounds": 1}
    uniform, weighed = FedConcat(**options), FedConcat(**options, classifier_weighting="examples")
    before = train(uniform, task, 1)
    both = [
        uniform.step(task, before)["params"]["classifier.weight"],
        weighed.step(task, before)["params"]["classifier.weight"],
    ]
    first, second = (_classifier_of_one(uniform, task, before, client)["classifier.weight"] for client in (0, 1))
    torch.testing.assert_close(both[0], (first + second) / 2)
    torch.testing.assert_close(both[1], (5 * first + second) / 6)


def _classifier_of_one(method, task, state, client):
    """The classifier that a client alone trains in a classifier round."""
    stage, encoders = method._stage(task, state)
    classifier = {key: leaf for key, leaf in state["params"].items() if key.startswith("classifier.")}
    outputs = stage.map_clients(
        method._train_classifier,
        stage.cohort(torch.tensor([client])),
        round=state["round"],
        params=classifier,
        buffers=state["buffers"],
        server=encoders,
    )
    return tree.row(outputs.result.update, 0)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_cached_features_give_the_same_numbers_with_fewer_passes(engine, monkeypatch):
    passes = []
    encode = models.load("mlp").features

    def counted(self, params, x, bound):
        passes.append(len(x))
        return encode(self, params, x, bound)

    monkeypatch.setattr(models.load("mlp"), "features", counted)
    results, counts = [], []
    for cache in ("equivalent", "never"):
        task, method = toy_task(engine=engine), FedConcat(2, 2, 5, cache_features=cache)
        before = train(method, task, 2)
        passes.clear()
        for _ in range(5):
            before = method.step(task, before)
        counts.append(sum(passes))
        results.append(deploy(method, task, before).params)
    assert all(
        torch.allclose(one, other, atol=1e-12, rtol=0) for one, other in zip(*map(tree.leaves, results), strict=True)
    )
    assert counts[0] == 2 * 56  # every image once through two encoders
    assert counts[1] > counts[0]


def test_features_are_not_cached_where_that_would_differ_unless_asked_for():
    augmented = toy_task(model="simple-cnn", shape=(3, 16, 16), dataset="cifar10", transform="fedconcat")
    for task, cacheable in ((augmented, False), (toy_task(), True), (toy_task(noise=0.1), False)):
        assert FedConcat(**SHORT)._caches(task) == cacheable
        assert FedConcat(**SHORT, cache_features="always")._caches(task)
        assert not FedConcat(**SHORT, cache_features="never")._caches(task)
    assert not FedConcat(**SHORT).caveats(augmented)
    assert "computed once, as asked for" in FedConcat(**SHORT, cache_features="always").caveats(augmented)[0]
    assert not FedConcat(**SHORT, cache_features="always").caveats(toy_task())
    always, never = (
        deploy(method, augmented, train(method, augmented)).params["classifier.weight"]
        for method in (FedConcat(**SHORT, cache_features=how) for how in ("always", "never"))
    )
    assert not torch.equal(always, never)


def test_test_features_are_computed_once_and_give_the_same_accuracy():
    task, method = toy_task(), FedConcat(**SHORT)
    found = deploy(method, task, train(method, task))
    assert found.test_features.shape == (30, 2 * task.model.feature_dim)
    known, computed = evaluate(task, found), evaluate(task, found._replace(test_features=None))
    assert known == pytest.approx(computed, abs=1e-12)


def batch_norm_task(**settings) -> Task:
    task = toy_task(sizes=(4, 8), model="resnet50", shape=(3, 8, 8), local_epochs=1, batch_size=4, **settings)
    return replace(task, model=replace(task.model, width=1 / 16), dtype=torch.float32)


def test_running_statistics_move_from_client_to_client_in_training_mode_only():
    task = batch_norm_task()
    name = "encoder0.stem.norm.num_batches_tracked"
    moving, fixed = FedConcat(**SHORT), FedConcat(**SHORT, stage3_encoder_mode="eval")
    start = train(moving, task, 2)
    assert moving.step(task, start)["buffers"][name] == start["buffers"][name] + 1 + 2  # batches of both clients
    assert torch.equal(fixed.step(task, start)["buffers"][name], start["buffers"][name])
    assert deploy(moving, task, moving.step(task, start)).test_features is None
    assert deploy(fixed, task, fixed.step(task, start)).test_features is not None
    a, b = (method.step(task, start)["params"]["classifier.weight"] for method in (moving, fixed))
    assert not torch.equal(a, b)


def test_there_is_no_accuracy_before_the_classifier_rounds():
    task, method = toy_task(), FedConcat(**SHORT)
    assert [deploy(method, task, train(method, task, rounds)) is None for rounds in range(5)] == [True] * 3 + [
        False
    ] * 2


def test_a_cluster_without_a_participant_keeps_its_model():
    task = toy_task(participation=0.2)  # one client of five
    method = FedConcat(num_clusters="none", encoder_rounds=1, classifier_rounds=1)
    before = method.init(task)["first"]
    after = method.first_stage().step(task, before)
    changed = [
        not torch.equal(before["models"][name]["params"]["classifier.bias"], model["params"]["classifier.bias"])
        for name, model in after["models"].items()
    ]
    assert len(changed) == 5 and sum(changed) == 1


def test_number_of_clusters_by_rule():
    task = toy_task(sizes=(6,) * 12)
    single, elbow = FedConcat("none", 1, 1), FedConcat("elbow", 1, 1)
    assert deploy(single, task, train(single, task)).model.count == 12
    state = train(elbow, task)
    assert deploy(elbow, task, state).model.count == len(state["found"]["clusters"].unique()) < 12
    with pytest.raises(ValueError, match="known only when it has begun"):
        elbow.traffic(task)


def test_balanced_clusters_are_limited():
    """Four clients alike and two of their own: K-means leaves four together, balanced K-means at most three."""
    labels = [0] * 24 + [1] * 6 + [2] * 6
    task = toy_task(sizes=(6,) * 6)
    counts = torch.eye(3, dtype=torch.float64)[torch.tensor(labels)].view(6, 6, 3).sum(1)
    task = replace(task, federation=replace(task.federation, label_counts=counts))
    sizes = [
        sorted(FedConcat(2, 1, 0, balanced=balanced).init(task)["first"]["clusters"].bincount().tolist())
        for balanced in (False, True)
    ]
    assert sizes == [[2, 4], [3, 3]]


def test_random_clusters_ignore_labels_and_send_nothing():
    state = RandomClusters(**SHORT).init(toy_task())
    assert sorted(state["first"]["clusters"].bincount().tolist()) == [2, 3]
    assert state["costs"]["bytes_up"] == 0
    assert FedConcat(**SHORT).init(toy_task())["costs"]["bytes_up"] == 5 * 3 * 4


# Clusters with different models: Appendix A.4

TWO = "mlp+fedcollab-mlp"  # 64 and 200 features


@pytest.mark.parametrize(
    "make",
    [
        FedConcat,
        RandomClusters,
        functools.partial(FedConcatID, inference_images=100, inference_round="before"),
        functools.partial(algorithms.make, "dp-fedconcat"),
    ],
)
def test_clusters_train_the_models_that_are_named_in_turn_and_all_encoders_stand_side_by_side(make):
    task, method = toy_task(sizes=(6,) * 8), make(num_clusters=3, encoder_rounds=1, classifier_rounds=1, models=TWO)
    last, state = None, method.init(task)
    while "first" in state:
        last, state = state, method.step(task, state)
    apart = method.first_stage().models_of_clusters(task, method.first_stage().step(task, last["first"]))
    names = ["mlp", "fedcollab-mlp", "mlp"]
    assert [params.keys() for params, _ in apart] == [
        models.load(name)((1, 6, 6), 3).init(draw()).keys() for name in names
    ]
    state = method.step(task, state)
    found = deploy(method, task, state)
    assert [type(encoder) for encoder in found.model.encoders] == [models.load(name) for name in names]
    x = torch.rand(7, 1, 6, 6, dtype=torch.float64)
    parts = [
        BoundModel(encoder, {}).features(params, x)
        for encoder, (params, _) in zip(found.model.encoders, apart, strict=True)
    ]
    assert (
        [part.shape[1] for part in parts] == [64, 200, 64] == [encoder.feature_dim for encoder in found.model.encoders]
    )
    assert found.params["classifier.weight"].shape == (3, 328)
    logits = torch.cat(parts, 1) @ found.params["classifier.weight"].T + found.params["classifier.bias"]
    torch.testing.assert_close(BoundModel(found.model, {})(found.params, x), logits)
    assert method.diagnostics(state)["models"] == names and found.test_features.shape == (30, 328)


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_cluster_with_a_model_of_its_own_trains_it_as_its_clients_alone_would():
    task, method = toy_task(), FedConcat(**SHORT, models=TWO)
    state = method.first_stage().step(task, method.first_stage().init(task))
    for name, model in (("0", task.model), ("1", models.load("fedcollab-mlp")((1, 6, 6), 3))):
        own = replace(task.restrict(torch.nonzero(state["clusters"] == int(name)).flatten()), model=model)
        assert_equal(state["models"][name]["params"], FedAvg().step(own, FedAvg().init(own))["params"])


def test_classifiers_of_different_widths_start_as_the_sum_of_their_logits():
    task = toy_task()
    method = FedConcat(2, 1, 0, classifier_init="clusters", models=TWO)
    stage = method.first_stage()
    apart = stage.models_of_clusters(task, stage.step(task, method.init(task)["first"]))
    found = deploy(method, task, train(method, task))
    x = torch.rand(7, 1, 6, 6, dtype=torch.float64)
    each = [
        BoundModel(encoder, {})(params, x) for encoder, (params, _) in zip(found.model.encoders, apart, strict=True)
    ]
    torch.testing.assert_close(BoundModel(found.model, {})(found.params, x), each[0] + each[1])


def test_the_round_before_the_encoder_rounds_costs_the_model_that_all_clients_train_in_it():
    task = toy_task(sizes=(6,) * 5)
    method = FedConcatID(2, 1, 1, inference_images=100, inference_round="before", models=TWO)
    size = 8 * sum(leaf.numel() for leaf in task.initial_params().values())  # float64
    assert train(method, task, 1)["costs"]["bytes_down"] == 5 * size == train(method, task, 1)["costs"]["bytes_up"]


def test_features_are_cached_only_if_no_model_depends_on_the_mode():
    task = toy_task(model="simple-cnn", shape=(3, 32, 32))
    assert FedConcat(2, 1, 1, models="simple-cnn+moon-cnn")._caches(task)
    assert not FedConcat(2, 1, 1, models="simple-cnn+vgg9")._caches(task)
    normalised = FedConcat(2, 1, 1, models="simple-cnn+resnet18")
    assert not normalised._caches(task) and normalised._moving(task)
    assert not FedConcat(2, 1, 1, models="simple-cnn+vgg9")._moving(task)


def test_running_statistics_of_the_clusters_that_have_some_move_in_the_classifier_rounds():
    task = toy_task(sizes=(4, 8), model="simple-cnn", shape=(3, 16, 16), local_epochs=1, batch_size=4)
    task = replace(task, dtype=torch.float32)
    method = FedConcat(**SHORT | {"encoder_rounds": 1, "classifier_rounds": 1}, models="simple-cnn+mobilenetv2")
    before = train(method, task, 1)
    after = method.step(task, before)
    counts = [name for name in after["buffers"] if name.endswith("num_batches_tracked")]
    assert counts and all(name.startswith("encoder1.") for name in after["buffers"])
    assert all(after["buffers"][name] == before["buffers"][name] + 1 + 2 for name in counts)


def test_traffic_with_different_models_is_that_of_the_largest_at_most():
    flat = {"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2", "models": "simple-cnn+moon-cnn"}
    config = resolve(flat)
    small, large, classifier = 62_006 - 850, 92_626 - 2570, 10 * (3 * 84 + 2 * 256) + 10
    exact = 4 * (2 * 31 * 92_626 + 3 * small + 2 * large + 2 * 200 * classifier)
    assert bytes_per_client(config) == exact + 4 * 10 and is_bound(config)
    assert not is_bound(resolve(flat | {"models": "none"}))


def test_a_list_of_models_is_the_text_and_the_usual_value_names_no_new_run():
    flat = {"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2"}
    listed = resolve(flat | {"models": ["lenet-cifar", "vgg9"]})
    assert listed == resolve(flat | {"models": "simple-cnn+vgg9"}) != resolve(flat)
    assert listed.versions["model.vgg9"] == 1 and listed.canonical()["algorithm"]["models"] == "simple-cnn+vgg9"
    assert "models" not in resolve(flat).canonical()["algorithm"]
    wrapped = resolve(flat | {"algorithm": {"name": "ccvr", "base": listed.algorithm}})
    assert "model.vgg9" in wrapped.versions
    vgg, cnn = ({path.name for path in files_of(config)} for config in (listed, resolve(flat)))
    assert "vgg.py" in vgg - cnn


def test_one_engine_trains_the_models_of_all_clusters():
    digits = load("digits", None)
    flat = {"algorithm": "fedconcat", "dataset": "digits", "partition": "label-2", "model": "mlp", "clients": 10}
    resized = {"transform": "none", "image_size": 16}
    two = resolve(flat | resized | {"models": "mlp+vgg9", "num_clusters": 2})
    images = resized_to(digits, two)
    assert build_task(resolve(flat), digits).engine == "vectorised" and build_task(two, images).engine == "loop"
    with pytest.raises(ValueError, match="The vectorised engine cannot run Vgg9, which draws dropout masks"):
        build_task(two, images, engine="vectorised")
    with pytest.raises(
        ConfigError, match="The vectorised engine cannot run vgg9, which draws .* leave the cells of vgg9 out"
    ):
        check_engine("vectorised", [SimpleNamespace(config=two)])


def resized_to(dataset, config):
    """The images of a dataset in the size of a config."""
    return resized.of_config(config, None)


# Label inference


def test_noise_of_reports_is_laplace_with_scale_one_over_epsilon():
    task = toy_task(sizes=(2,) * 2000)
    noise = ((noisy_label_shares(task, 2.5) - label_shares(task)) * 2.5).flatten().numpy()
    assert stats.kstest(noise, "laplace").pvalue > 0.01
    assert noise.min() < -1  # not clipped
    assert torch.equal(noisy_label_shares(task, 2.5), noisy_label_shares(task, 2.5))


def test_inference_sees_ten_thousand_images_of_each_client_in_training_mode(monkeypatch):
    seen = []

    def features(self, params, x, bound):
        seen.append((len(x), float(x.min()), float(x.max()), bound.training))
        return encode(self, params, x, bound)

    encode = models.load("mlp").features
    task = toy_task()
    local_models = {"params": tree.stack([task.initial_params()] * 5), "buffers": {}}
    monkeypatch.setattr(models.load("mlp"), "features", features)
    answers = label_inference.answers_to_noise(task, local_models, FedConcatID().inference_images).shares
    assert len(seen) == 5 * 100 and all(count == 100 and training for count, _, _, training in seen)
    assert min(least for _, least, _, _ in seen) >= 0 and 0.99 < max(most for _, _, most, _ in seen) < 1
    torch.testing.assert_close(answers.sum(1), torch.ones(5, dtype=torch.float64))
    assert not torch.equal(answers[0], answers[1])  # the images of each client are its own
    few = label_inference.answers_to_noise(task, local_models, 100).shares
    assert len(seen) == 5 * 101 and not torch.equal(few, answers)


def test_first_round_of_inference_counts_in_the_clusters():
    """One cluster: the round of inference and the next are FedAvg's, with everybody in the first."""
    task = toy_task(participation=0.6)
    method = FedConcatID(1, 2, 0, classifier_init="clusters", inference_images=100)
    everybody = replace(task, settings=replace(task.settings, participation=1.0))
    expected = FedAvg().step(task, FedAvg().step(everybody, FedAvg().init(task)))["params"]
    found = deploy(method, task, train(method, task)).params
    assert torch.equal(found["classifier.weight"], expected["classifier.weight"])


def test_a_round_of_inference_before_the_encoder_rounds_leaves_their_start_as_it_was():
    """Lines 4 to 8 of Algorithm 1. One cluster: the encoder rounds are FedAvg's from its initial model."""
    task = toy_task(participation=0.6)
    method = FedConcatID(1, 2, 0, classifier_init="clusters", inference_images=100, inference_round="before")
    state = train(method, task)
    assert method.num_rounds(task.settings) == 3 == state["round"]
    expected = train(FedAvg(), task, 2)
    found = deploy(method, task, state).params
    assert torch.equal(found["classifier.weight"], expected["params"]["classifier.weight"])
    first = replace(task, settings=replace(task.settings, participation=1.0))
    of_inference = FedAvg().step(first, FedAvg().init(first))["costs"]
    for key in ("bytes_down", "bytes_up", "examples"):
        assert state["costs"][key] == expected["costs"][key] + of_inference[key]
    two = FedConcatID(2, 1, 1, inference_images=100, inference_round="before")
    assert train(two, task)["round"] == two.num_rounds(task.settings) == 3


def test_bias_answers_by_both_formulas():
    task = toy_task(sizes=(12, 6), local_epochs=1)  # 2 steps and 1 step, lr 0.05
    start = torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64)
    trained = torch.tensor([[0.3, 0.0, -0.1], [0.1, 0.2, -0.1]], dtype=torch.float64)
    torch.testing.assert_close(bias_answers(task, trained, start, "released"), trained.softmax(1))
    expected = torch.tensor([[0.2 / 0.1, 0, 0], [0, 0.2 / 0.05, 0]], dtype=torch.float64) + start.softmax(0)
    torch.testing.assert_close(bias_answers(task, trained, start, "intended"), expected)
    found = [FedConcatIB(**SHORT, estimate=form) for form in ("released", "intended")]
    a, b = (train(method, task, 1)["first"]["distributions"] for method in found)
    assert not torch.allclose(a, b)


def test_inference_runs_in_the_mode_that_is_asked_for():
    task = batch_norm_task()
    found = {
        mode: FedConcatID(**SHORT, inference_images=100, inference_mode=mode).init(task) for mode in ("train", "eval")
    }
    distributions = [
        FedConcatID(**SHORT, inference_images=100, inference_mode=mode)
        .first_stage()
        .step(task, state["first"])["distributions"]
        for mode, state in found.items()
    ]
    assert not torch.allclose(*distributions)


def test_noise_moves_running_statistics_only_if_asked_for():
    """One cluster and one pass over noise: a statistic r of a client becomes 0.9 r + 0.1 of the batch, and then their mean."""
    task = normalised_task(rounds=2)
    method = FedConcatID(1, 2, 0, classifier_init="clusters", inference_images=100)
    trained = FedAvg().step(task, FedAvg().init(task))
    found = {}
    for mode, moves in (("train", False), ("train", True), ("eval", True)):
        how = replace(method, inference_mode=mode, noise_moves_statistics=moves)
        (model,) = train(how, task, 1)["first"]["models"].values()
        assert torch.equal(model["params"]["classifier.weight"], trained["params"]["classifier.weight"])
        found[mode, moves] = model["buffers"]
    for left in (found["train", False], found["eval", True]):
        assert_equal(left, trained["buffers"])
    expected = torch.zeros(4)
    start = FedAvg().init(task)
    cohort = task.cohort(torch.arange(task.population))
    models = FedAvg().local_models(start, FedAvg().map_clients(task, FedAvg().local_update, cohort, start))
    for client, weight in enumerate(cohort.weights / cohort.weights.sum()):
        noise = torch.rand(100, *task.model.input_shape, generator=task.generator_for("inference", client))
        local = tree.row(models["params"], client)
        mean = F.conv2d(noise, local["stem.weight"], padding=1).mean((0, 2, 3))
        expected += weight * (0.9 * models["buffers"]["stem.norm.running_mean"][client] + 0.1 * mean)
    torch.testing.assert_close(found["train", True]["stem.norm.running_mean"], expected)
    assert (
        found["train", True]["stem.norm.num_batches_tracked"] == trained["buffers"]["stem.norm.num_batches_tracked"] + 1
    )


@pytest.mark.parametrize(
    "name, option, value",
    [
        ("fedconcat-fedsoft", "interval", 7),
        ("fedconcat-fedsoft", "smallest_importance", 0.125),
        ("fedconcat-fedsoft", "vote", "released"),
        ("fedconcat-fedsoft", "proximal", "intended"),
        ("fedconcat-fedsoft", "proximal_weight", 0.75),
        ("fedconcat-fesem", "cluster_init", "independent"),
        ("fedconcat-fesem", "proximal", "intended"),
        ("fedconcat-fesem", "proximal_weight", 0.75),
        ("fedconcat-ifca", "cluster_init", "independent"),
        ("fedconcat", "cluster_init", "independent"),
    ],
)
def test_options_of_the_first_stage_reach_it(name, option, value):
    """What they do there is tested with the first stages themselves."""
    assert getattr(toy_method(name, **{option: value}).first_stage(), option) == value
    assert getattr(toy_method(name).first_stage(), option) != value


def test_options_of_reports_and_inference_reach_them():
    task = toy_task()
    for epsilon in (0.5, 2.5):
        state = toy_method("dp-fedconcat", epsilon=epsilon).init(task)
        assert torch.equal(state["first"]["distributions"], noisy_label_shares(task, epsilon))
    found = [
        train(toy_method("fedconcat-id", inference_images=images), task, 1)["first"]["distributions"]
        for images in (200, 700)
    ]
    assert not torch.equal(*found)
    for name in ("fedconcat", "fedconcat-id", "dp-fedconcat"):
        assert toy_method(name, balanced=True).first_stage().group.keywords == {"num_clusters": 2, "balanced": True}


# What is refused


@pytest.mark.parametrize(
    "flat, sentence",
    [
        ({"num_clusters": 41}, "num_clusters must be at most the number of clients (40), but got 41."),
        ({"num_clusters": 0}, "fedconcat: num_clusters must be at least 1, but got 0."),
        (
            {"algorithm": {"name": "fedconcat", "base": {"name": "local"}}},
            "fedconcat: FedConcat needs one shared model per cluster, but local deploys one model per client.",
        ),
        (
            {"algorithm": {"name": "fedconcat", "base": {"name": "fedconcat"}}},
            "fedconcat: FedConcat needs a base that trains and averages one model in rounds, but fedconcat does not.",
        ),
        (
            {"algorithm": {"name": "fedconcat-id", "base": {"name": "oneshot"}}},
            "fedconcat-id: FedConcat needs a base that averages models in every round, but oneshot leaves them at clients.",
        ),
        (
            {"base": {"name": "fedsam", "swa": True, "swa_every": 2, "swa_last_lr": 1.0}},
            "swa_last_lr",
        ),
        ({"algorithm": "dp-fedconcat", "epsilon": 0}, "dp-fedconcat: epsilon must be greater than 0, but got 0"),
        ({"algorithm": "fedconcat-id", "inference_images": 150}, "must be a positive multiple of 100, but got 150"),
        (
            {"algorithm": {"name": "fedconcat", "base": {"name": "centralized"}}},
            "fedconcat: FedConcat divides clients into clusters, but centralized has only one",
        ),
        ({"num_clusters": "none", "balanced": True}, "fedconcat: balanced limits the size of clusters, but"),
        ({"algorithm": "fesem", "num_clusters": 7}, "num_clusters must divide its size (40 clients), but got 7."),
        (
            {"algorithm": "fedconcat-fesem", "num_clusters": 41},
            "must be at most the number of clients (40), but got 41.",
        ),
        ({"num_clusters": "elbw"}, "num_clusters must be a number, 'elbow' or 'none', but got 'elbw'."),
        ({"models": 3}, "fedconcat: models must be a text, a list, but got 3."),
        ({"models": [3]}, "models must be names of models, as simple-cnn+vgg9 or [simple-cnn, vgg9], but got [3]."),
        ({"models": "simple-cnn+vgg"}, "fedconcat: Unknown model 'vgg'. Did you mean 'vgg9'?"),
        ({"models": ["simple-cnn"]}, "models must name two or more models and not repeat itself"),
        ({"models": "simple-cnn+vgg9+simple-cnn+vgg9"}, "in turn, but got 'simple-cnn+vgg9+simple-cnn+vgg9'; for one"),
        ({"models": []}, "models must name two or more models and not repeat itself"),
        (
            {"models": "simple-cnn+vgg9", "num_clusters": 1},
            "models must name at most one model per cluster (num_clusters 1), but got 2: simple-cnn+vgg9.",
        ),
        (
            {"models": "vgg9+simple-cnn"},
            "With models vgg9+simple-cnn, the setting model must be the first of them, vgg9, but got simple-cnn.",
        ),
        (
            {"models": "resnet50+vgg9", "model": "resnet50", "model_width": 0.5},
            "With models resnet50+vgg9, model_width must be 1, but got 0.5.",
        ),
        (
            {"models": "resnet18+vgg9", "model": "resnet18", "weights": "w.pth"},
            "With models resnet18+vgg9, weights must be none, but got w.pth.",
        ),
        (
            {"models": "simple-cnn+vgg9+moon-cnn", "num_clusters": "none", "clients": 2, "partition": "iid"},
            "models must name at most one model per client (2), but got 3: simple-cnn+vgg9+moon-cnn.",
        ),
        (
            {"models": "mlp+simple-cnn", "model": "mlp", "dataset": "digits"},
            "SimpleCnn needs images of at least 16x16 pixels, but got 8x8",
        ),
        (
            {"models": "simple-cnn+vgg9", "algorithm": "fedconcat-id"},
            "fedconcat-id with models needs inference_round before, since its first round trains one model",
        ),
    ],
)
def test_impossible_options_are_refused_in_one_sentence(flat, sentence):
    with pytest.raises(ConfigError, match=".") as error:
        resolve({"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2"} | flat)
    assert len(error.value.mistakes) == 1 and sentence in str(error.value)


def test_there_may_be_as_many_models_as_clients():
    models = {"models": "simple-cnn+vgg9", "num_clusters": "none", "clients": 2, "partition": "iid"}
    assert resolve({"algorithm": "fedconcat", "dataset": "cifar10"} | models).clients == 2


def test_a_base_may_be_given_by_its_name():
    flat = {"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2"}
    found = resolve(flat | {"base": "fedprox"})
    assert found.algorithm["base"] == {"name": "fedprox", "mu": 0.01}
    assert found == resolve(flat | {"base": {"name": "fedprox"}})
    with pytest.raises(ConfigError, match="Unknown algorithm 'fedporx'. Did you mean 'fedprox'"):
        resolve(flat | {"base": "fedporx"})


def test_rounds_of_a_config_are_those_that_are_trained():
    config = resolve({"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2", "rounds": 50})
    assert config.rounds == 31 + 200
    assert config == resolve({"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2"})


# Communication: section 12 of the digest


@pytest.mark.parametrize(
    "dataset, flat, megabytes",
    [
        ("cifar10", {}, 23.34),
        ("svhn", {"algorithm": "fedconcat-id"}, 23.34),
        ("fmnist", {"classifier_rounds": 173}, 17.72),
        ("cifar10", {"encoder_rounds": 231}, 122.55),
        ("fmnist", {"encoder_rounds": 231, "classifier_rounds": 173}, 88.80),
        ("cifar10", {"algorithm": "fedavg", "model": "simple-cnn-concat5"}, 124.00),
        ("fmnist", {"algorithm": "fedavg", "model": "simple-cnn-concat5"}, 88.84),
        ("cifar10", {"algorithm": "moon", "model": "moon-cnn"}, 37.05),
        ("fmnist", {"algorithm": "moon"}, 17.77),
        ("cifar10", {"algorithm": "fedconcat-ib"}, 23.34),
        ("cifar10", {"algorithm": "dp-fedconcat"}, 23.34),
        ("cifar10", {"algorithm": "fedconcat-fesem"}, 23.34),
        ("cifar10", {"algorithm": "fedconcat-ifca"}, 54.09),
        ("cifar10", {"algorithm": "fedconcat-fedsoft"}, 54.09),
        ("fmnist", {"algorithm": "fedconcat-fesem", "classifier_rounds": 173}, 17.72),
        ("fmnist", {"algorithm": "fedconcat-ifca", "classifier_rounds": 173}, 39.75),
        ("fmnist", {"algorithm": "fedconcat-fedsoft", "classifier_rounds": 173}, 39.75),
    ],
)
def test_communication_is_that_of_the_paper(dataset, flat, megabytes):
    config = resolve({"algorithm": "fedconcat", "dataset": dataset, "partition": "label-2"} | flat)
    assert round(bytes_per_client(config) / 1e6, 2) == megabytes


def test_exact_count_of_communication():
    config = resolve({"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2"})
    model, encoder, classifier = 62_006, 61_156, 84 * 5 * 10 + 10
    exact = 4 * (2 * 31 * model + 5 * encoder + 2 * 200 * classifier)
    assert bytes_per_client(config) == exact + 4 * 10  # and the label distribution
    assert round(exact / 4 / (2 * model), 2) == 47.05
    doubled = {"participation": 0.5, "encoder_rounds": 62, "classifier_rounds": 400}
    half = resolve({"algorithm": "fedconcat", "dataset": "cifar10", "partition": "label-2"} | doubled)
    assert bytes_per_client(half) == bytes_per_client(config)
    both_ways = resolve({"algorithm": "fedconcat-id", "dataset": "cifar10", "partition": "label-2"} | doubled)
    # All clients take part in the first round: half a round more.
    assert bytes_per_client(both_ways) == exact + 4 * model


@pytest.mark.parametrize(
    "name, options",
    [
        ("fedconcat", {}),
        ("fedconcat-id", {}),
        ("fedconcat-id", {"inference_round": "before"}),
        ("random-clusters", {}),
    ],
)
def test_communication_of_a_base_whose_first_round_is_another(name, options):
    """FedCM's server has no momentum to send in the first round."""
    task = toy_task(rounds=3, participation=0.6)
    method = toy_method(name, base=FedCM(), encoder_rounds=3, classifier_rounds=2, **options)
    costs = train(method, task)["costs"]
    assert abs(method.traffic(task) - (costs["bytes_down"] + costs["bytes_up"]) / task.population) <= 1


def test_footnotes_of_a_base_are_those_of_its_clusters():
    task = toy_task(participation=0.2, rounds=3)
    base = FedLESAM()
    assert base.caveats(task)
    assert toy_method("fedconcat", base=base).caveats(task) == base.caveats(
        replace(task, settings=replace(task.settings, rounds=toy_method("fedconcat").encoder_rounds))
    )


def test_a_model_without_encoder_is_refused():
    class Logits(Model):
        def layers(self):
            return {"weights": (3, 36)}

    task = replace(toy_task(), model=Logits((1, 6, 6), 3))
    with pytest.raises(
        ValueError, match="needs a model with an encoder and a classifier, but Logits has no classifier"
    ):
        toy_method("fedconcat").init(task)


def test_every_variant_records_its_clusters():
    for name in ("fedconcat", "fedconcat-id", "fedconcat-ib", "dp-fedconcat", "random-clusters"):
        method, task = toy_method(name), toy_task()
        found = method.diagnostics(train(method, task))
        assert len(found["clusters"]) == 5
        assert ("distributions" in found) == (name != "random-clusters")
        assert algorithms.load(name)().num_clusters == 5
    shares = np.array(
        toy_method("fedconcat").diagnostics(train(toy_method("fedconcat"), toy_task(), 1))["distributions"]
    )
    np.testing.assert_allclose(shares, label_shares(toy_task()).numpy(), atol=1e-5)


def test_local_training_is_no_base():
    with pytest.raises(ValueError, match="one model per client"):
        FedConcat(base=LocalTraining())


class Pairwise(Normalised):
    """Takes batch statistics of at least two examples."""

    smallest_batch = 2


def test_a_pass_of_the_classifier_stage_needs_batches_that_the_model_can_take():
    task = normalised_task(
        local_epochs=None, local_steps=1
    )  # one batch of 6; a whole pass over 13 ends with a batch of 1
    task = replace(task, model=Pairwise(task.model.input_shape, NUM_CLASSES))
    task.require_batches([task.model])
    sentence = "at least 2 examples, but client 0 with 13 has a smaller batch"
    with pytest.raises(ValueError, match=sentence):
        toy_method("fedconcat", stage3_encoder_mode="train").init(task)
    toy_method("fedconcat", stage3_encoder_mode="eval").init(task)
