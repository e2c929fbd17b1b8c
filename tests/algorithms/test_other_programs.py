"""Rounds that Flower and fluke have computed (see `tests.support.other_programs`), repeated by the methods here."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from algorithms.fedavg import FedAvg
from algorithms.fedavgm import FedAvgM
from algorithms.fednova import FedNova
from algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from algorithms.fedprox import FedProx
from algorithms.fedrs import FedRS
from algorithms.moon import Moon
from algorithms.scaffold import Scaffold
from algorithms.shared.types import Cohort
from bench.models.base import Model
from bench.simulation.task import Task
from datasets import transforms
from datasets.federation import federate
from tests.support.by_hand import double
from tests.support.other_programs import BATCH, EXAMPLES, ROUNDS, STORED
from tests.support.toy import toy_task

KNOWN = json.loads(STORED.read_text())
TOLERANCE = 1e-13  # the largest deviation was 7e-16


def case_of(program, method):
    return next(case for case in KNOWN[program]["cases"] if case["method"] == method)


_START = {"initial_second_moment": "zero"}
FLOWER = {
    "fedavgm": FedAvgM(server_lr=0.7, server_momentum=0.9),
    "fedadagrad": FedAdagrad(server_lr=0.1, adaptivity=1e-3, beta1=0.0, **_START),
    "fedadam": FedAdam(server_lr=0.1, adaptivity=1e-3, beta1=0.9, beta2=0.99, bias_correction=True, **_START),
    "fedyogi": FedYogi(server_lr=0.1, adaptivity=1e-3, beta1=0.9, beta2=0.99, **_START),
}


@pytest.mark.parametrize("name", FLOWER)
def test_servers_of_flower(name):
    known, method = KNOWN["flower"]["inputs"], FLOWER[name]
    params, ones = {"w": double(known["start"])}, torch.ones(3)
    server = method.init_server(toy_task(), params)
    cohort = Cohort(torch.arange(3), double(known["examples"]), ones, ones[:, None], 3)
    models = case_of("flower", name)["models"]
    assert len(models) == ROUNDS
    for deltas, expected in zip(known["deltas"], models, strict=True):
        params, server = method.aggregate(None, params, server, {"delta": {"w": double(deltas)}}, cohort)
        torch.testing.assert_close(params["w"], double(expected), rtol=0, atol=TOLERANCE)


@dataclass(frozen=True)
class Network(Model):
    """A hidden layer and a classifier, which start from stored params."""

    def layers(self):
        return {"hidden": (3, 4), "classifier": (3, 3)}

    def init(self, generator):
        return {name: double(leaf) for name, leaf in KNOWN["fluke"]["inputs"]["start"].items()}

    def features(self, params, x, bound):
        return F.relu(F.linear(x.flatten(1), params["hidden.weight"], params["hidden.bias"]))


FLUKE = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=0.5),
    "fedrs": FedRS(alpha=0.5),
    "moon": Moon(mu=1.0, temperature=0.5),
    "scaffold": Scaffold(momentum_mode="none"),
}


def in_order(task, client, round):
    """`Task.batch_indices` without a shuffle."""
    rows = task.federation.clients[client]
    passes = task.settings.passes(len(rows))
    visited = torch.cat([torch.arange(sum(sizes)) for sizes in passes])
    draws = task.federation.transform.draw(len(visited), task.generator_for("augment", round, client), noisy=False)
    return rows[visited], draws, sum(passes, [])


def task_of_fluke(engine):
    known = KNOWN["fluke"]["inputs"]
    images = np.array(sum(known["images"], []), dtype=np.uint8).reshape(-1, 1, 2, 2)
    labels = np.array(sum(known["labels"], []))
    clients = np.split(np.arange(len(labels)), np.cumsum(EXAMPLES)[:-1])
    scaled = transforms.build("none", "digits", (1, 2, 2))
    federation = federate(images, labels, images, labels, clients, 3, scaled, 0.0)
    settings = {"lr": known["lr"], "local_epochs": known["local_epochs"], "momentum": 0.0, "weight_decay": 0.0}
    task = toy_task(engine=engine, rounds=ROUNDS, batch_size=BATCH, **settings)
    return replace(task, model=Network((1, 2, 2), 3), federation=federation)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("name", FLUKE)
def test_rounds_of_fluke(name, engine, monkeypatch):
    monkeypatch.setattr(Task, "batch_indices", in_order)
    task, method = task_of_fluke(engine), FLUKE[name]
    state, models = method.init(task), case_of("fluke", name)["models"]
    assert len(models) == ROUNDS
    for expected in models:
        state = method.step(task, state)
        for layer, leaf in expected.items():
            torch.testing.assert_close(state["params"][layer], double(leaf), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_rounds_of_fluke_with_fednova_but_for_the_scale_of_the_model(engine, monkeypatch):
    """fluke averages models, and not deltas, by p_i (sum p a) / a_i. The sum of these weights is above 1 where clients take 4,
    2 and 4 steps, and a multiple of the model before the round is added to that of the paper."""
    monkeypatch.setattr(Task, "batch_indices", in_order)
    task, method, before = task_of_fluke(engine), FedNova(), KNOWN["fluke"]["inputs"]["start"]
    shares, steps = double(EXAMPLES) / sum(EXAMPLES), double([4, 2, 4])
    more = (shares * (shares * steps).sum() / steps).sum() - 1
    assert more > 0.05
    for round, expected in enumerate(case_of("fluke", "fednova")["models"]):
        params = {name: double(leaf) for name, leaf in before.items()}
        found = method.step(task, {**method.init(task), "round": round, "params": params})["params"]
        for layer, leaf in expected.items():
            scaled = found[layer] + more * params[layer]
            torch.testing.assert_close(scaled, double(leaf), rtol=0, atol=TOLERANCE)
        before = expected


def test_methods_of_both_programs_are_told_apart():
    """No two give the same models, so that none passes for another."""
    for program, methods in (("flower", [*FLOWER]), ("fluke", [*FLUKE, "fednova"])):
        cases = KNOWN[program]["cases"]
        assert [case["method"] for case in cases] == methods
        assert len({json.dumps(case["models"][-1]) for case in cases}) == len(cases)
