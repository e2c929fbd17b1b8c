"""Rounds of Flower and fluke, stored as numbers that tests repeat: `python -m tests.support.other_programs [flower] [fluke]`.

Needs an environment of its own, with this checkout's libraries and the program: `flwr==1.42.0` or `fluke-fl==0.8.1`. No test
and no continuous integration runs it; tests read the file that it writes.

Of Flower there are steps of servers: the deltas of three clients go in, five rounds long, and the server's models come out.
Of fluke there are whole rounds: images, labels and an initial model go in. Batches are taken in order, none is shuffled.
Everything is in double precision.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

STORED = Path(__file__).parents[1] / "algorithms" / "other_programs.json"
ROUNDS = 5
EXAMPLES = [6, 3, 5]  # of each client
BATCH = 3

_ADAPTIVE = {"eta": 0.1, "tau": 1e-3}
_FLOWER: dict[str, tuple[str, dict[str, float]]] = {
    "fedavgm": ("FedAvgM", {"server_learning_rate": 0.7, "server_momentum": 0.9}),
    "fedadagrad": ("FedAdagrad", _ADAPTIVE),
    "fedadam": ("FedAdam", {**_ADAPTIVE, "beta_1": 0.9, "beta_2": 0.99}),
    "fedyogi": ("FedYogi", {**_ADAPTIVE, "beta_1": 0.9, "beta_2": 0.99}),
}
_LOCAL = {"lr": 0.2, "local_epochs": 2}
_FLUKE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # class, options of clients, and of the server
    "fedavg": ("fedavg:FedAVG", {}, {}),
    "fedprox": ("fedprox:FedProx", {"mu": 0.5}, {}),
    "fedrs": ("fedrs:FedRS", {"alpha": 0.5, "count_as_missing": 0}, {}),
    "moon": ("moon:MOON", {"mu": 1.0, "tau": 0.5}, {}),
    "scaffold": ("scaffold:SCAFFOLD", {}, {"global_step": 1.0, "weighted": False}),
    "fednova": ("fednova:FedNova", {}, {}),
}


def of_flower() -> dict[str, Any]:
    """Server models of Flower's strategies for the same deltas."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp import strategy

    rng = np.random.default_rng(0)
    start, deltas = rng.normal(size=4), 0.1 * rng.normal(size=(ROUNDS, len(EXAMPLES), 4))
    cases = []
    for method, (name, settings) in _FLOWER.items():
        server, params, models = getattr(strategy, name)(**settings), start, []
        server.current_arrays = ArrayRecord({"w": Array(start)})
        for round, of_round in enumerate(deltas):
            if name != "FedAvgM":  # which keeps them itself
                server.current_arrays = {"w": params}
            replies = []
            for delta, examples in zip(of_round, EXAMPLES, strict=True):
                arrays, metrics = ArrayRecord({"w": Array(params + delta)}), MetricRecord({"num-examples": examples})
                content = RecordDict({"arrays": arrays, "metrics": metrics})
                replies.append(SimpleNamespace(content=content, has_error=lambda: False))
            new, _ = server.aggregate_train(round + 1, replies)  # Flower counts rounds from 1
            params = new["w"].numpy()
            models.append(params.tolist())
        cases.append({"method": method, "class": name, "settings": settings, "models": models})
    inputs = {"start": start.tolist(), "deltas": deltas.tolist(), "examples": EXAMPLES}
    return {"program": "flwr", "version": version("flwr"), "inputs": inputs, "cases": cases}


class Network(nn.Module):
    """A hidden layer and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


def of_fluke() -> dict[str, Any]:
    """Server models of fluke's algorithms for the same images and the same initial model."""
    import importlib

    from fluke import DDict, FlukeENV
    from fluke.data import FastDataLoader

    torch.set_default_dtype(torch.float64)  # of the weights that its FedNova makes a tensor of
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (examples, 1, 2, 2), dtype=np.uint8) for examples in EXAMPLES]
    labels = [np.arange(examples) % 3 for examples in EXAMPLES]
    labels[1][:] = [0, 0, 1]  # a client without a label
    torch.manual_seed(0)
    start = Network().double()
    names = {"encoder.1": "hidden", "head": "classifier"}

    def numbers(model: nn.Module) -> dict[str, Any]:
        found = {name.rpartition("."): leaf for name, leaf in model.state_dict().items()}
        return {f"{names[layer]}.{kind}": leaf.tolist() for (layer, _, kind), leaf in found.items()}

    def loaders() -> list:
        return [
            FastDataLoader(
                torch.tensor(x) / 255.0, torch.tensor(y), num_labels=3, batch_size=BATCH, skip_singleton=False
            )
            for x, y in zip([x.astype(np.float64) for x in images], labels, strict=True)
        ]

    inputs = {
        "images": [x.reshape(len(x), -1).tolist() for x in images],
        "labels": [y.tolist() for y in labels],
        "start": numbers(start),
        **_LOCAL,
    }
    cases = []
    for method, (place, of_clients, of_server) in _FLUKE.items():
        module, _, name = place.partition(":")
        model = Network().double()
        model.load_state_dict(start.state_dict())
        splitter = SimpleNamespace(assign=lambda count, size: ((loaders(), [None] * count), None))
        client = {
            "batch_size": 0,
            "local_epochs": _LOCAL["local_epochs"],
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": _LOCAL["lr"], "momentum": 0.0},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
            **of_clients,
        }
        settings = {"client": client, "server": {"weighted": True, **of_server}, "model": model}
        FlukeENV().set_device("cpu")
        algorithm = getattr(importlib.import_module(f"fluke.algorithms.{module}"), name)(
            len(EXAMPLES), splitter, DDict(**settings)
        )
        models = []
        for round in range(ROUNDS):
            eligible = algorithm.server.get_eligible_clients(1.0)
            algorithm.server.broadcast_model(eligible)
            for one in sorted(eligible, key=lambda one: one.index):
                one.local_update(round + 1)
            received = algorithm.server.receive_client_models(eligible, state_dict=False)
            algorithm.server.aggregate(eligible, received)
            models.append(numbers(algorithm.server.model))
        shown = {"clients": of_clients, "server": {"weighted": True, **of_server}}
        cases.append({"method": method, "class": name, "settings": shown, "models": models})
    return {"program": "fluke-fl", "version": version("fluke-fl"), "inputs": inputs, "cases": cases}


if __name__ == "__main__":
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for program in sys.argv[1:] or ("flower", "fluke"):
        stored[program] = {"flower": of_flower, "fluke": of_fluke}[program]()
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
