"""Local models: how the models of a cohort's clients get on during a round, epoch by epoch."""

from dataclasses import dataclass

import torch

import algorithms
from algorithms import Deployed
from bench.callbacks import Callback, Noted, registered_callback
from bench.simulation.evaluation import evaluate_clients, evaluate_own
from bench.simulation.local_models import local_models


@registered_callback("local-models")
@dataclass(frozen=True)
class LocalModels(Callback):
    """How each local model of the cohort got on in an evaluated round, for the figure `local-models`.

    This trains them (local_epochs + 1) / 2 times more. The setting `trace_local_models` is this callback.
    """

    version = 2  # 1 evaluated local models of GPFL and FedCP without their valve and gate

    def validate(self, config, algorithm):
        mistakes = []
        said = "trace_local_models" if config.trace_local_models else "local-models"
        if not algorithm.trains_whole_models:
            name = algorithms.name_of(algorithm)
            mistakes.append(
                f"{name} does not train one whole model in rounds, so {said} has no local models of a round; leave it out."
            )
        if config.local_epochs is None:
            mistakes.append(
                f"{said} evaluates models after every local epoch: set local_epochs, not local_steps "
                f"({config.local_steps})."
            )
        return mistakes

    def after_round(self, outcome, own):
        return Noted(own, local_models=_trace(outcome) if outcome.is_evaluated else None)


def _trace(outcome) -> dict[str, list]:
    """Accuracy of a cohort's models during a round, on the clients' own test data, or on test data with their label shares
    where they have none.

    Returns:
        "clients": ids [K]; "accuracies": for each of them, in [0, 1], after every local epoch, then of the model that it
        deploys after aggregation: [K][local_epochs + 1].
    """
    task, algorithm, curves = outcome.task, outcome.algorithm, []
    for epoch in range(1, task.settings.local_epochs + 1):
        models = local_models(task, algorithm, outcome.before, epoch)
        deployed = Deployed(algorithm.local_model(task), models["params"], models["buffers"], True)
        curves.append(_accuracies(task, deployed, models["ids"]))
    ids = models["ids"]
    deployed = algorithm.deploy(task, outcome.after, ids)
    if not deployed.per_client:
        deployed = deployed.for_each(len(ids))
    curves.append(_accuracies(task, deployed, ids))
    return {"clients": ids.tolist(), "accuracies": torch.stack(curves, 1).tolist()}


def _accuracies(task, deployed: Deployed, ids: torch.Tensor) -> torch.Tensor:
    """Accuracy of each client's model, [K]."""
    if task.federation.test_clients is None:
        return evaluate_clients(task, deployed, ids)[1]
    return evaluate_own(task, deployed, ids)[0]
