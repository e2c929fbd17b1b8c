"""From a command to a table on real images."""

import functools

import numpy as np
import pytest
import torch

import datasets
from algorithms.shared import tree
from bench.config.resolve import resolve
from bench.simulation.run import Run
from datasets import transforms
from tests.support.processes import call_bench


@pytest.mark.slow
def test_table_1_at_its_smallest_budget_on_real_cifar10(real_data, tmp_path):
    cells = ("--grid", "paper_table1", "--budget", "smoke", "--only", "dataset=cifar10|svhn,partition=label-2|none")
    code, text = call_bench("run", *cells, "--data-dir", real_data, "--results-dir", tmp_path)
    assert code == 0, text
    table = (tmp_path / "reports" / "paper_table1@smoke.md").read_text()
    cifar10, svhn = (next(line for line in table.splitlines() if f"| {name} " in line) for name in ("CIFAR-10", "SVHN"))
    assert cifar10.count("(53.") >= 3 and cifar10.count("±") >= 5  # published values beside the measured ones
    assert svhn.count("no data: SVHN") == 8
    assert "Budget smoke is not the paper's" in table and "Data: CIFAR-10 from image folders" in table


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "dataset, settings",
    [
        ("mnist", {"partition": "dir-0.5", "clients": 20, "train_examples": 2000}),
        ("tinyimagenet", {"partition": "iid", "clients": 20, "train_examples": 400, "model_width": 0.125}),
        ("cifar10", {"partition": "noise-0.1", "clients": 3, "train_examples": 600}),
    ],
)
def test_other_real_images_train_too(real_data, dataset, settings):
    common = {"algorithm": "fedavg", "rounds": 1, "local_epochs": 1, "batch_size": 16, "test_examples": 200}
    size = transforms.recipe("fedconcat", dataset).image_size
    images = datasets.load(dataset, real_data, image_size=size)
    config = resolve({"dataset": dataset, **common, **settings})
    run = Run(config, images)
    row = run.step()
    assert row["examples"] == settings["train_examples"] and 0 < row["accuracy"] < 1
    assert run.task.federation.input_shape == ((1, 28, 28) if dataset == "mnist" else (3, 32, 32))


@pytest.mark.slow
def test_a_model_learns_real_handwriting(real_data):
    settings = {"dataset": "mnist", "partition": "iid", "clients": 5, "rounds": 3, "local_epochs": 2, "lr": 0.05}
    config = resolve({"algorithm": "fedavg", **settings, "train_examples": 5000, "test_examples": 1000})
    run = Run(config, datasets.load("mnist", real_data))
    while not run.finished:
        row = run.step()
    assert row["accuracy"] > 0.9


@functools.cache
def load_tiny(real_data):
    return datasets.load("tinyimagenet", real_data, image_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedconcat", "fedconcat-id"])
def test_the_path_of_large_models_on_real_tiny_imagenet(real_data, method):
    """Table 3 at a tiny scale: ResNet-50, partial participation, balanced clusters, classifier from theirs."""
    stages = {"num_clusters": 2, "encoder_rounds": 2, "classifier_rounds": 2, "balanced": True}
    inference = {"inference_images": 100} if method == "fedconcat-id" else {}
    settings = {"clients": 20, "participation": 0.2, "local_epochs": 1, "batch_size": 8, "model_width": 0.125}
    subset = {"train_examples": 400, "test_examples": 100}
    config = resolve(
        {"algorithm": method, "dataset": "tinyimagenet", "partition": "label-2", "classifier_init": "clusters"}
        | {**stages, **inference, **settings, **subset},
        facts=None,  # 20 of the 200 classes are there
    )
    run = Run(config, load_tiny(real_data))
    rows = []
    while not run.finished:
        rows.append(run.step())
    assert ["accuracy" in row for row in rows] == [False, False, True, True]
    result = run.result()
    assert result["status"] == "done" and len(result["diagnostics"]["clusters"]) == 20
    assert max(np.bincount(result["diagnostics"]["clusters"])) <= 12
    counters = [leaf for name, leaf in run.state["buffers"].items() if name.endswith("num_batches_tracked")]
    assert all(counter > 3 for counter in counters)  # running statistics went on moving in the classifier rounds


@pytest.mark.slow
def test_one_training_step_of_the_full_resnet50_on_real_tiny_imagenet(real_data):
    settings = {"clients": 20, "local_steps": 1, "batch_size": 64, "test_examples": 20, "train_examples": 1280}
    config = resolve(
        {"algorithm": "fedavg", "dataset": "tinyimagenet", "partition": "iid", "rounds": 1} | settings, facts=None
    )
    run = Run(config, load_tiny(real_data))
    only = run.task.restrict(torch.tensor([0]))
    before = run.algorithm.init(only)
    after = run.algorithm.step(only, before)
    encoder = sum(leaf.numel() for name, leaf in after["params"].items() if not name.startswith("classifier"))
    assert encoder == 23_500_352
    assert tree.all_finite(after["params"]) and after["costs"]["examples"] == 64
    assert all(
        not torch.equal(after["params"][name], leaf) for name, leaf in before["params"].items() if "conv" in name
    )


@pytest.mark.slow
def test_inferred_labels_correlate_with_the_true_ones_on_real_handwriting(real_data):
    settings = {"dataset": "mnist", "partition": "label-2", "clients": 20, "classifier_rounds": 1}
    subset = {"train_examples": 4000, "test_examples": 100, "num_clusters": 5, "encoder_rounds": 1}
    methods = {"fedconcat": {"local_epochs": 1}, "fedconcat-id": {"local_epochs": 5, "inference_images": 1000}}
    distributions, data = {}, datasets.load("mnist", real_data)
    for method, own in methods.items():  # true labels need no training
        run = Run(resolve({"algorithm": method} | settings | subset | own), data)
        run.step()
        distributions[method] = np.array(run.algorithm.diagnostics(run.state)["distributions"])
    true, inferred = distributions.values()
    correlation = np.corrcoef(true.ravel(), inferred.ravel())[0, 1]
    assert correlation > 0.5  # 0.76 when written
