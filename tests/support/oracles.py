"""What methods give, beside the numbers of tests/algorithms/*_oracle.json that they have to give."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench import models
from bench.models.base import BoundModel
from tests.support.by_hand import double
from tests.support.toy import toy_task, train


def oracle(name: str) -> dict[str, Any]:
    """The stored numbers: by case, inputs and what is expected."""
    return json.loads((Path(__file__).parents[1] / "algorithms" / f"{name}_oracle.json").read_text())


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.float64), double(expected), rtol=0, atol=tolerance)


def deployed(method, task, rounds=None):
    return method.deploy(task, train(method, task, rounds), torch.arange(task.population))


def logits_of(task, method, rounds=None):
    """What a method deploys says of the test images."""
    one = deployed(method, task, rounds)
    model = BoundModel(one.model, one.buffers)
    return task.map_images(lambda x, first: model(one.params, x), task.federation.test_images)


def paper_task(**settings):
    """The task of the byte counts: ten clients, the simple CNN, single precision."""
    task = toy_task(
        shape=(3, 32, 32), dataset="cifar10", dtype=torch.float32, sizes=(2,) * 10, rounds=1, local_epochs=None,
        **{"local_steps": 1, **settings},
    )  # fmt: skip
    return replace(task, model=models.load("simple-cnn")((3, 32, 32), 10))
