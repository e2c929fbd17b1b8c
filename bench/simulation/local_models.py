"""Local models: what a cohort's clients have trained when a round ends, or after some of its epochs."""

from dataclasses import replace
from typing import Any

import torch

from algorithms.shared import tree
from algorithms.shared.base import Deployed
from algorithms.shared.rounds import RoundBased
from bench.simulation.evaluation import evaluate_clients, evaluate_own


def local_models(task: Any, algorithm: RoundBased, state: dict, epochs: int | None = None) -> dict[str, Any]:
    """The cohort's models at the end of the local training that follows a state, or after some epochs of it, trained
    once more: training is a function of the state, so these are the models that the round averages.

    Returns:
        "ids" of the cohort [K], "params" and "buffers", leaves [K, *p]; a client that is in the cohort twice is there once.
    """

    def update(data, plan, view):
        # Only engine "loop" gives a client a plan without padding, of which an epoch is a fixed part.
        steps = len(plan) if epochs is None else epochs * (len(plan) // task.settings.local_epochs)
        return algorithm.local_update(data, plan[:steps], view)

    cohort = algorithm.sample(task, state)
    engine = task.engine if epochs is None else "loop"
    outputs = algorithm.map_clients(replace(task, engine=engine), update, cohort, state)
    models, ids = {"ids": cohort.ids, **algorithm.local_models(state, outputs)}, cohort.ids.tolist()
    first = [ids.index(client) for client in dict.fromkeys(ids)]
    return models if len(first) == len(ids) else tree.map(lambda leaf: leaf[first], models)


def trace(task: Any, algorithm: RoundBased, before: dict, after: dict) -> dict[str, list]:
    """Accuracy of a cohort's models during a round, on the clients' own test data, or on test data with their label shares
    where they have none.

    Args:
        before, after: the states around the round.

    Returns:
        "clients": ids [K]; "accuracies": for each of them, in [0, 1], after every local epoch, then of the model that it
        deploys after aggregation: [K][local_epochs + 1].
    """
    curves = []
    for epoch in range(1, task.settings.local_epochs + 1):
        models = local_models(task, algorithm, before, epoch)
        deployed = Deployed(task.model, models["params"], models["buffers"], True)
        curves.append(_accuracies(task, deployed, models["ids"]))
    ids = models["ids"]
    deployed = algorithm.deploy(task, after, ids)
    if not deployed.per_client:
        deployed = deployed.for_each(len(ids))
    curves.append(_accuracies(task, deployed, ids))
    return {"clients": ids.tolist(), "accuracies": torch.stack(curves, 1).tolist()}


def _accuracies(task: Any, deployed: Deployed, ids: torch.Tensor) -> torch.Tensor:
    """Accuracy of each client's model, [K]."""
    if task.federation.test_clients is None:
        return evaluate_clients(task, deployed, ids)[1]
    return evaluate_own(task, deployed, ids)[0]
