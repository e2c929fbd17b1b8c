"""Short runs of everything that declares a `version`, as numbers; `python -m tests.support.fingerprints` stores them anew."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import algorithms
from algorithms.shared import tree
from bench import models
from bench.config.code_version import ENGINE_VERSION
from bench.models.base import BoundModel
from bench.models.modules import model_of
from bench.simulation.evaluation import evaluate
from datasets import partitions, transforms
from datasets.partitions.shift import Shift
from tests.support.toy import settings_for, toy, toy_method, toy_task, train

STORED = Path(__file__).with_name("fingerprints.json")
RENEW = "then store the new fingerprints with `python -m tests.support.fingerprints`."
PARTITIONS = (
    *("label-2", "dir-0.5", "iid", "quantity-0.5", "noise-0.1", "none", "natural", "region-4-0.5"),
    *("dirichlet-equal-0.5", "shards-2"),
    *("label-shift", "feature-shift", "concept-shift"),
)


def of_algorithm(name: str) -> dict:
    """Runs of two and of four rounds on the toy task, or of the method's own: squared length of the deployed params, and test
    metrics. What clients and the server keep from round to round is not seen in two, such as a wrong sign of it."""
    settings, method = settings_for(name, None if toy(name).in_cycles else 0.8), toy_method(name)
    tasks = [toy_task(**settings | {"rounds": rounds}) for rounds in (2, 4)]
    numbers: list[float] = []
    for task in {method.num_rounds(task.settings): task for task in tasks}.values():
        deployed = method.deploy(task, train(method, task), torch.arange(task.population))
        squared = sum(float(leaf.square().sum()) for leaf in tree.leaves(deployed.params))
        numbers += [squared, *evaluate(task, deployed).values()]
    return {"version": method.version, "numbers": numbers}


def of_model(name: str) -> dict:
    """Logits of the initial model for fixed images, evaluated and trained."""
    model = models.load(name)((3, 32, 32), 10)
    params = tree.map(lambda leaf: leaf.double(), model.init(torch.Generator().manual_seed(0)))
    x = torch.linspace(0, 1, 2 * 3 * 32 * 32, dtype=torch.float64).view(2, 3, 32, 32)
    numbers = []
    for training in (False, True):
        buffers = {
            key: leaf.double() if leaf.is_floating_point() else leaf for key, leaf in model.init_buffers().items()
        }
        bound = BoundModel(model, buffers, training, torch.Generator().manual_seed(0))
        numbers.append(float(bound(params, x).square().sum()))
    return {"version": model.version, "numbers": numbers}


class _Module(nn.Module):
    """What modules of labs have: a param before the first layer, a constant and, normalised, moving statistics and dropout."""

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int, normalised: bool):
        super().__init__()
        channels, height, width = input_shape
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.register_buffer("shift", torch.linspace(0, 0.5, width))
        self.conv = nn.Conv2d(channels, 4, 3)
        self.norm, self.dropout = (nn.BatchNorm2d(4), nn.Dropout(0.3)) if normalised else (nn.Identity(), nn.Identity())
        self.classifier = nn.Linear(4 * (height - 2) * (width - 2), num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.conv(x * self.scale + self.shift)))
        return self.classifier(self.dropout(hidden.flatten(1)))


def of_module(name: str) -> dict:
    """Four rounds of FedAvg on the toy task with an ordinary module: squared lengths of params and buffers, and test metrics.
    Labs have such models, and their runs follow the version of the engine."""
    task = toy_task(rounds=4, engine="vectorised" if name == "plain" else "loop")
    kind = model_of(name, _Module, normalised=name == "normalised")
    task = replace(task, model=kind(task.model.input_shape, task.model.num_classes))
    method = toy_method("fedavg")
    deployed = method.deploy(task, train(method, task), torch.arange(task.population))
    leaves = (*deployed.params.values(), *deployed.buffers.values())
    return {
        "version": ENGINE_VERSION,
        "numbers": [*(float(leaf.double().square().sum()) for leaf in leaves), *evaluate(task, deployed).values()],
    }


def of_partition(name: str) -> dict:
    """Checksum of all index lists of twenty clients."""
    clients = 1 if name == "none" else 20
    partition = partitions.parse(name)
    if isinstance(partition, Shift):
        return _of_shift(partition)
    indices = partition.split(np.arange(2000) % 10, clients, 10, 0, groups=np.arange(2000) % 20)
    digest = hashlib.sha256(b"".join(client.astype("<i8").tobytes() for client in indices)).hexdigest()
    return {"version": partition.version, "numbers": [int(digest[:12], 16)]}


def _of_shift(partition: Shift) -> dict:
    """Checksum of the index lists of twenty clients, and of what one client of each group makes of images and labels."""
    classes = partition.needed_classes or 10
    drawn = partition.draw(np.arange(20_000) % classes, 20, classes, 0, num_test=4000)
    images, labels = np.arange(3 * 32 * 32, dtype=np.uint16).reshape(1, 3, 32, 32), np.arange(classes)
    parts = [*drawn.indices, *drawn.test_indices]
    for client in range(2, 20, 5):
        parts += [partition.client_images(images, client, 20), partition.client_labels(labels, client, 20)]
    digest = hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()
    return {"version": partition.version, "numbers": [int(digest[:12], 16)]}


def of_transform(name: str) -> dict:
    """Sums of augmented and scaled images of every dataset that the transform treats in its own way."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8))
    weights = torch.linspace(0, 1, images.numel(), dtype=torch.float64).view_as(images)
    numbers = []
    for dataset in [one for one in transforms.recipes_of(name) if one != transforms.ALL] or ["digits"]:
        transform = transforms.build(name, dataset, (3, 32, 32))
        draws = transform.draw(4, torch.Generator().manual_seed(0))
        numbers.append(float((transform.scale(transform.augment(images, draws), torch.float64) * weights).sum()))
    return {"version": transforms.version_of(name), "numbers": numbers}


KINDS: dict[str, tuple[Callable[[str], dict], tuple[str, ...]]] = {
    "algorithm": (of_algorithm, tuple(algorithms.REGISTRY)),
    "model": (of_model, tuple(models.REGISTRY)),
    "module": (of_module, ("plain", "normalised")),
    "partition": (of_partition, PARTITIONS),
    "transform": (of_transform, tuple(transforms.REGISTRY)),
}


def compute() -> dict[str, dict[str, dict]]:
    """All fingerprints, by kind and name; with one thread, since several wait for each other on a busy machine."""
    torch.set_num_threads(1)
    return {kind: {name: make(name) for name in names} for kind, (make, names) in KINDS.items()}


def complaints(computed: Mapping[str, Mapping[str, dict]]) -> list[str]:
    """What to do about fingerprints that are not as they are stored, a sentence for each."""
    stored = json.loads(STORED.read_text())
    found = (
        complaint(kind, name, stored[kind].get(name), one) for kind, of in computed.items() for name, one in of.items()
    )
    return [sentence for sentence in found if sentence]


def complaint(kind: str, name: str, stored: dict | None, found: dict) -> str:
    """What to do about a fingerprint, as a sentence; empty if it is as it was."""
    if stored is None:
        return f"The {kind} {name} has no fingerprint yet: {RENEW.removeprefix('then ')}"
    same = np.allclose(found["numbers"], stored["numbers"], rtol=1e-6, atol=1e-12)
    if found["version"] == stored["version"]:
        if same:
            return ""
        version = "ENGINE_VERSION" if kind == "module" else "its version"
        return f"The numbers of the {kind} {name} have changed: raise {version} above {stored['version']}, {RENEW}"
    return f"The {kind} {name} has version {found['version']}, its fingerprint {stored['version']}: {RENEW}"


def renewed(computed: Mapping[str, Mapping[str, dict]]) -> dict[str, dict[str, dict]]:
    """What to store: a fingerprint that still holds stays, to the last digit, since processors round each in its own way."""
    stored = json.loads(STORED.read_text())
    kept = {
        (kind, name): stored[kind][name]
        for kind, of in computed.items()
        for name, one in of.items()
        if not complaint(kind, name, stored[kind].get(name), one)
    }
    return {kind: {name: kept.get((kind, name), one) for name, one in of.items()} for kind, of in computed.items()}


if __name__ == "__main__":
    STORED.write_text(json.dumps(renewed(compute()), indent=1) + "\n")
