"""What runs report, and the summary of a run's rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.results.records import Summary

LAST_ROUNDS = 10  # over how many of the last evaluated rounds "last10" is the mean

METRICS = {
    "accuracy": "the shared model",
    "global_accuracy": "each client's own model on the whole split, mean over clients",
    "local_accuracy": "each client's own model, classes weighted by the client's training label shares, mean "
    "over clients",
    "own_accuracy": "the model that each client uses on the client's own test data, mean over clients",
}
"""Accuracy -> whose it is."""


def summarise(rows: Sequence[Mapping[str, Any]]) -> Summary:
    """Last, best and mean of the last ten evaluated rounds, and the population std of these ten, of every accuracy."""
    evaluated = [row for row in rows if any(key.endswith("accuracy") for key in row)]
    if not evaluated:
        return {"last": {}, "best": {}, "last10": {}, "last10_std": {}}
    keys = [key for key in evaluated[-1] if key.endswith("accuracy")]
    recent = evaluated[-LAST_ROUNDS:]
    return {
        "last": {key: evaluated[-1][key] for key in keys},
        "best": {key: max(row[key] for row in evaluated) for key in keys},
        "last10": {key: sum(row[key] for row in recent) / len(recent) for key in keys},
        "last10_std": {key: float(np.std([row[key] for row in recent])) for key in keys},
    }
