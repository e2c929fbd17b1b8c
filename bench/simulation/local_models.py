"""Local models: what a cohort's clients have trained when a round ends, or after some of its epochs."""

from dataclasses import replace
from typing import Any

from algorithms.shared import tree
from algorithms.shared.rounds import RoundBased


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

    task = algorithm.training(task)
    cohort = algorithm.sample(task, state)
    engine = task.engine if epochs is None else "loop"
    outputs = algorithm.map_clients(replace(task, engine=engine), update, cohort, state)
    models, ids = {"ids": cohort.ids, **algorithm.local_models(state, outputs)}, cohort.ids.tolist()
    first = [ids.index(client) for client in dict.fromkeys(ids)]
    return models if len(first) == len(ids) else tree.map(lambda leaf: leaf[first], models)
