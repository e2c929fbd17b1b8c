"""What a run costs, known before it is played and without its images."""

import functools
import json

import numpy as np

import datasets
from bench.config import RunConfig
from datasets import Dataset, Split, transforms


def examples_to_train(config: RunConfig) -> int:
    """Training examples of a run, summed over clients, epochs and rounds; 0 where the size of the dataset is unknown.

    Under partial participation the mean over cohorts.
    """
    if config.local_steps:
        per_round = config.clients * config.local_steps * config.batch_size
    else:
        info = datasets.INFO.get(config.dataset)
        per_round = (config.train_examples or (info.train_size if info else 0)) * config.local_epochs
    return round(config.rounds * config.participation * per_round)


def bytes_per_client(config: RunConfig) -> int:
    """Bytes that a client sends and receives in a run, mean over the population; 0 for a dataset that is not known."""
    if config.dataset not in datasets.INFO:
        return 0
    parts = (config.dataset, config.transform, config.model, config.model_width, json.dumps(config.algorithm))
    return round(config.rounds * config.participation * _bytes_per_round(*parts))


@functools.cache
def _bytes_per_round(dataset: str, transform: str, model: str, model_width: float, algorithm: str) -> int:
    """What one client exchanges in one round, by playing a step with it on blank images."""
    from bench.config import resolve
    from bench.run import Run

    options = json.loads(algorithm)
    alone = {"clients": 1, "partition": "none" if options["name"] == "centralized" else "iid"}
    tiny = {"rounds": 1, "local_steps": 1, "batch_size": 2}
    settings = {"dataset": dataset, "transform": transform, "model": model, "model_width": model_width}
    config = resolve({"algorithm": options, **settings, **alone, **tiny})
    row = Run(config, _blank(dataset, transform)).step()
    return row["bytes_down"] + row["bytes_up"]


def _blank(name: str, transform: str) -> Dataset:
    """Two black images of each class, in the shape in which a run sees the dataset's."""
    info = datasets.INFO[name]
    channels, *sides = info.input_shape
    size = transforms.recipe(transform, name).image_size
    labels = np.arange(info.num_classes, dtype=np.int64).repeat(2)
    images = np.zeros((len(labels), channels, *([size, size] if size else sides)), np.uint8)
    split = Split(images, labels)
    return Dataset(name, split, split, tuple(map(str, range(info.num_classes))), "blank images", "blank images", "", "")
