"""Per-client accuracy: how equally the deployed model serves the clients."""

import math
from dataclasses import dataclass

from bench.callbacks import Callback, registered_callback
from bench.simulation.evaluation import client_accuracies


@registered_callback(
    "per-client-accuracy", percent=("*",), more_is_better=("mean", "worst", "worst-tenth"), less_is_better=("std",)
)
@dataclass(frozen=True)
class PerClientAccuracy(Callback):
    """Accuracies of the model that each client uses, shared or its own, of evaluated rounds.

    They are on the client's own test data; where it has none, those of the classes, weighted by its training label shares. The
    metrics are "mean", "std" (population), "worst", and "worst-tenth", the mean over the tenth of the clients with the lowest
    accuracies, rounded up.
    """

    def after_round(self, outcome, own):
        if not outcome.is_evaluated:
            return own, {}
        found = client_accuracies(outcome.task, outcome.deployed).sort().values
        tenth = found[: math.ceil(len(found) / 10)]
        return own, {
            "mean": found.mean(),
            "std": found.std(correction=0),
            "worst": found[0],
            "worst-tenth": tenth.mean(),
        }
