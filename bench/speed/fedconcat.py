"""What FedConcat costs beside FedAvg, and its inference of labels and clusters alone; needs neither Ray nor pydantic."""

from dataclasses import replace

import numpy as np
import torch

import datasets
from algorithms.fedavg import FedAvg
from algorithms.fedconcat import FedConcat
from algorithms.shared import tree
from algorithms.shared.clustering import balanced_k_means, k_means
from algorithms.shared.label_inference import IMAGES_PER_BATCH, answers_to_noise
from bench.models.base import BoundModel
from bench.simulation.evaluation import evaluate
from bench.simulation.task import Task
from bench.speed.rows import Row, not_measured
from bench.speed.workload import Setting, median_seconds, task_on

_FEDAVG_ROUNDS, _LOCAL_EPOCHS = 50, 10  # of Table 1 of the paper; FedConcat's own are its defaults
_INFERRED_CLIENTS, _IMAGES = 4, 10_000


def fedconcat(setting: Setting) -> list[Row]:
    """FedConcat against FedAvg, one thread of the CPU."""
    task, repeats = task_on(setting.folder, participation=setting.share), setting.repeats
    rows = [_trial("FedConcat trial of Table 1 on CIFAR-10", task, repeats)]
    case = "FedConcat trial of Table 1 on MNIST (features cached)"
    try:
        rows.append(_trial(case, task_on(setting.data_dir, dataset="mnist", participation=setting.share), repeats))
    except datasets.MissingData:
        rows.append(not_measured(case, "no MNIST here"))
    return [*rows, _inference(task, repeats), _clusters(repeats)]


def _trial(case: str, task: Task, repeats: int) -> Row:
    """Seconds of a trial, put together from those of its kinds of rounds, with all clients in each."""
    task = replace(task, settings=replace(task.settings, participation=1.0, local_epochs=1))
    everyone, fedavg, concat = torch.arange(task.population), FedAvg(), FedConcat(encoder_rounds=1)
    state, start = fedavg.init(task), concat.step(task, concat.init(task))
    trained = fedavg.step(task, state)

    def classifiers():
        nonlocal start
        start = concat.step(task, start)
        evaluate(task, concat.deploy(task, start, everyone))

    # With the features of the test images, and of all images where they are cached.
    once = median_seconds(classifiers, 1)
    epoch = median_seconds(lambda: fedavg.step(task, state), repeats)
    test = median_seconds(lambda: evaluate(task, fedavg.deploy(task, trained, everyone)), repeats)
    of_fedavg = _FEDAVG_ROUNDS * (_LOCAL_EPOCHS * epoch + test)
    encoders = FedConcat.encoder_rounds * _LOCAL_EPOCHS * epoch
    of_concat = encoders + once + (FedConcat.classifier_rounds - 1) * median_seconds(classifiers, repeats)
    return Row(case, of_concat, "s", f"{of_concat / of_fedavg:.2f} of FedAvg ({of_fedavg:,.0f} s)")


def _inference(task: Task, repeats: int) -> Row:
    """FedConcat-ID's inference of some clients against the forward passes alone."""
    few = task.restrict(torch.arange(_INFERRED_CLIENTS))
    params = task.initial_params()
    models = {"params": tree.stack([params] * _INFERRED_CLIENTS), "buffers": {}}
    bound = BoundModel(task.model, {}, training=True)
    x = torch.rand(IMAGES_PER_BATCH, *task.model.input_shape).to(memory_format=torch.channels_last)

    @torch.no_grad()
    def passes():
        for _ in range(_INFERRED_CLIENTS * _IMAGES // IMAGES_PER_BATCH):
            bound(params, x)

    answering = median_seconds(lambda: answers_to_noise(few, models, _IMAGES), repeats)
    note = f"{answering / median_seconds(passes, repeats):.2f} of its forward passes"
    return Row("FedConcat-ID's inference of 40 clients", answering * task.population / _INFERRED_CLIENTS, "s", note)


def _clusters(repeats: int) -> Row:
    points = np.random.default_rng(0).dirichlet([0.1] * 100, 200)
    k_means(points, 2, 0)  # imports scikit-learn
    plain = median_seconds(lambda: k_means(points, 5, 0), repeats)
    balanced = median_seconds(lambda: balanced_k_means(points, 2, 0), repeats)
    return Row("clusters of 200 clients, 100 classes", plain, "s", f"balanced: {balanced:.2f} s")
