"""From a config to its algorithm, engine and task."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import algorithms
from algorithms.shared.base import Algorithm
from algorithms.shared.types import Settings
from bench import models
from bench.models import pretrained
from bench.models.base import Model
from bench.simulation.data import divide
from bench.simulation.engines import refuse_loop_only
from bench.simulation.graphs import Graphs, cuda_graphs
from bench.simulation.task import Task
from datasets import cache, partitions, transforms
from datasets.federation import federate


def build_algorithm(spec: dict[str, Any]) -> Algorithm:
    """The method of a resolved config: {"name": ..., field: value}; wrapped methods are nested in the same form."""
    options = {
        key: build_algorithm(value) if isinstance(value, dict) and "name" in value else value
        for key, value in spec.items()
        if key != "name"
    }
    return algorithms.make(spec["name"], **options)


def build_task(
    config: Any, dataset: Any, *, device: str = "cpu", engine: str = "auto", data_dir: Path | None = None
) -> Task:
    """The federated learning problem of a config; its partition is drawn from the labels of the dataset.

    Args:
        data_dir: where files with weights are, if the config names some.

    Raises:
        ValueError: if the parts of the config do not fit together, clients have too few examples for a validation part, or
            weights cannot be read.
    """
    weights = None if config.weights == "none" else pretrained.load(config.weights, data_dir)
    division = divide(config, dataset)
    shape = division.images.shape[1:]
    federation = federate(
        division.images,
        division.labels,
        division.test_images,
        division.test_labels,
        division.clients,
        dataset.num_classes,
        transforms.build(config.transform, dataset.name, shape, device),
        partitions.parse(config.partition).noise,
        device,
        division.test_clients,
        division.scores_together,
        config.clients,
    )
    model_class = models.load(config.model)
    widened = {"width": config.model_width} if "width" in {field.name for field in fields(model_class)} else {}
    model = model_class(tuple(shape), dataset.num_classes, **widened)
    settings = Settings.of(config)
    trained = [model, *named_models(build_algorithm(config.algorithm), model)]
    if engine == "vectorised":
        for one in trained:
            refuse_loop_only(one)
    elif engine == "auto":  # one engine for the whole run, which its record names
        engine = "loop" if any(choose_engine(one, device) == "loop" for one in trained) else "vectorised"
    return Task(
        model,
        settings,
        federation,
        config.seed,
        engine,
        graphs=Graphs(cuda_graphs()) if engine == "vectorised" and device == "cuda" else None,
        cache_dir=cache.default_dir() / "derived",
        weights=weights,
        data_dir=data_dir,
    )


def named_models(algorithm: Algorithm, like: Model) -> list[Model]:
    """The models that the options of a method name for clients to train, each once, for the images and classes of a model."""
    return [models.load(name)(like.input_shape, like.num_classes) for name in dict.fromkeys(algorithm.named_models)]


def choose_engine(model, device: str) -> str:
    """The faster engine: small models are bound by the number of operations, which the vectorised engine shares among
    clients; on a CPU that only pays for models without convolutions."""
    convolutional = any(len(shape) == 4 for shape in model.layers().values())
    return "loop" if device == "cpu" and convolutional or model.loop_only else "vectorised"
