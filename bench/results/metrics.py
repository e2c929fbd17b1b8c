"""What runs report, and the summary of a run's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.results.records import Summary

LAST_ROUNDS = 10  # over how many of the last evaluated rounds "last10" is the mean
_ROUNDING = 1e-9  # of an accuracy, at most: devices divide by the number of examples in different ways

ACCURACIES = {
    "accuracy": "the shared model",
    "global_accuracy": "each client's own model on the whole split, mean over clients",
    "local_accuracy": "each client's own model, classes weighted by the client's training label shares, mean "
    "over clients",
    "own_accuracy": "the model that each client uses on the client's own test data, mean over clients",
}
"""What runs report, and curves show: accuracy -> whose it is."""


@dataclass(frozen=True)
class Metric:
    """What a table may show of runs.

    Attributes:
        about: what it is, as a footnote ends.
        title: as a heading of a column.
        less_is_better: whether the smallest is the best.
        relative: whether it compares the accuracies of clients, at the last round, with those of a reference run.
    """

    about: str
    title: str
    less_is_better: bool = False
    relative: bool = False

    @property
    def sign(self) -> int:
        """By which numbers are multiplied, so that the best one is the largest."""
        return -1 if self.less_is_better else 1


METRICS = {
    **{name: Metric(f"that of {whose}", name.replace("_", " ")) for name, whose in ACCURACIES.items()},
    "ipr": Metric(
        "share of the clients, in percent, whose accuracy on their own test data is above that in the reference run, strictly",
        "IPR",
        relative=True,
    ),
    "rsd": Metric(
        "std over the clients (population) of the gain in accuracy on their own test data over the reference run, in points; "
        "less is better",
        "RSD",
        less_is_better=True,
        relative=True,
    ),
}
"""What tables show: accuracies of runs, and comparisons with the clients of another run."""


def compare_clients(metric: str, own: Sequence[float], reference: Sequence[float]) -> float:
    """A relative metric of one run, as a share or in units of accuracy.

    IPR and RSD are those of Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.

    Args:
        own, reference: [clients], accuracy of each client on its own test data in [0, 1], of the run and of its reference.
    """
    gains = np.subtract(own, reference)
    return float({"ipr": (gains > _ROUNDING).mean, "rsd": gains.std}[metric]())


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
