"""What runs report, and the summary of a run's rows."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from bench.errors import unknown
from bench.registry import Registry
from bench.results.ids import is_metric_name
from bench.results.records import Summary

METHOD = "method"  # before the slash in the name of a metric of the method itself
_CALLBACKS = Registry("callback")
LAST_ROUNDS = 10  # over how many of the last evaluated rounds "last10" is the mean
_ROUNDING = 1e-9  # of an accuracy, at most: devices divide by the number of examples in different ways

ACCURACIES = {
    "accuracy": "the shared model",
    "global_accuracy": "each client's own model on the whole split, mean over clients",
    "local_accuracy": "each client's own model, classes weighted by the client's training label shares, mean "
    "over clients",
    "own_accuracy": "the model that each client uses on the client's own test data, mean over clients",
    "weighted_accuracy": "the model that each client uses on the client's own test data, weighted by their number of examples",
}
"""What runs report, and curves show: accuracy -> whose it is."""


def accuracies_of(personal: bool, own_tests: bool, together: bool) -> list[str]:
    """The accuracies that a run reports, by the first of which it is usually judged; see `bench.simulation.evaluation`.

    Args:
        personal: whether each client has a model of its own.
        own_tests: whether clients have test data of their own; `together`: on all of which models are scored as well.
    """
    usual = ["local_accuracy", "global_accuracy"] if personal else ["accuracy"]
    return (["own_accuracy", "weighted_accuracy", usual[-1]] if together else ["own_accuracy"]) if own_tests else usual


@dataclass(frozen=True)
class Metric:
    """What a table may show of runs.

    Attributes:
        about: what it is, as a footnote ends; "" of a method's own, of which only the method knows more than the name.
        title: as a heading of a column.
        less_is_better: whether the smallest is the best.
        relative: whether it compares the accuracies of clients, at the last round, with those of a reference run.
        cost: what it counts of a run, "rounds", "mb" (per client), "minutes", "core_minutes" or "passes"; "" for a share, which
            tables show in percent.
        target: accuracy in (0, 1) until which a cost is counted; None for the whole run.
        percent: whether it is a share, which tables show in percent; costs never are.
        ranked: whether tables mark the best.
    """

    about: str
    title: str
    less_is_better: bool = False
    relative: bool = False
    cost: str = ""
    target: float | None = None
    percent: bool = True
    ranked: bool = True

    @property
    def is_share(self) -> bool:
        """Whether tables show it in percent."""
        return self.percent and not self.cost

    @property
    def scale(self) -> int:
        """By which values are multiplied for tables."""
        return 100 if self.is_share else 1

    @property
    def sign(self) -> int:
        """By which numbers are multiplied, so that the best one is the largest."""
        return -1 if self.less_is_better else 1


class _Metrics(dict[str, Metric]):
    """Metrics by name; those of any target, "rounds_to_0.8" or "mb_to_0.8", and those of methods and callbacks, "method/drift",
    are there though not listed."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or is_metric_name(name) or _until(name) is not None

    def __missing__(self, name: str) -> Metric:
        found = _of_round(name) if is_metric_name(name) else _until(name)
        if found is None:
            raise KeyError(name)
        return found


_UNTIL = {
    "rounds": ("rounds", "the first evaluated round"),
    "mb": (
        "MB",
        "sent and received per client, in MB (10^6 bytes), mean over all clients, until the first evaluated round",
    ),
}


def _until(name: object) -> Metric | None:
    """The metric of a cost until a target, None for another name."""
    match = re.fullmatch(r"(rounds|mb)_to_(0?\.\d+)", name) if isinstance(name, str) else None
    if match is None or float(match[2]) == 0:
        return None
    (unit, what), target = _UNTIL[match[1]], float(match[2])
    about = (
        f"{what} with an accuracy of at least {100 * target:g} % (of the shared model; where clients have test data of their "
        'own, the mean on these); mean over the seeds that reach it. "2 of 3 seeds" says how many do: the cell in which more '
        "do ranks higher; of equal counts, less is better"
    )
    return Metric(about, f"{unit} to {100 * target:g} %", less_is_better=True, cost=match[1], target=target)


def _of_round(name: str) -> Metric:
    """A metric of a method or a callback: what the decorator of the callback says of it, read without importing its file."""
    source, _, own = name.partition("/")
    callback = _CALLBACKS.get(source)

    def said(what: str) -> bool:
        return callback is not None and any(fnmatchcase(own, pattern) for pattern in callback.given.get(what, ()))

    less, percent = said("less_is_better"), said("percent")
    notes = [
        *([f"of the callback {source}"] if source != METHOD else []),
        *(["in percent"] if percent else []),
        *(["less is better"] if less else []),
    ]
    return Metric(
        "; ".join(notes),
        name,  # as grids, exports and curves have it
        less_is_better=less,
        percent=percent,
        ranked=less or said("more_is_better"),
    )


METRICS = _Metrics(
    **{name: Metric(f"that of {whose}", name.replace("_", " ")) for name, whose in ACCURACIES.items()},
    ipr=Metric(
        "share of the clients, in percent, whose accuracy on their own test data is above that in the reference run, strictly",
        "IPR",
        relative=True,
    ),
    rsd=Metric(
        "std over the clients (population) of the gain in accuracy on their own test data over the reference run, in points; "
        "less is better",
        "RSD",
        less_is_better=True,
        relative=True,
    ),
    minutes=Metric(
        "training and evaluation of a whole run, on the machine that ran it and beside what else ran there; where a method "
        "starts from the finished run of its base, those of both; not ranked, because machines and their load differ",
        "minutes",
        less_is_better=True,
        cost="minutes",
        ranked=False,
    ),
    core_minutes=Metric(
        "process time of training and evaluation in a whole run, all cores together, without what else ran on the machine; "
        "where a method starts from the finished run of its base, that of both; not ranked, because cores differ",
        "core-minutes",
        less_is_better=True,
        cost="core_minutes",
        ranked=False,
    ),
    gradient_passes=Metric(
        "gradients of single examples that all clients compute in a whole run and in order to deploy, and the server where it "
        "trains on images, in millions; less is better",
        "M gradient passes",
        less_is_better=True,
        cost="passes",
    ),
    mb=Metric(
        "sent and received per client in a whole run, in MB (10^6 bytes), mean over all clients; less is better",
        "MB per client",
        less_is_better=True,
        cost="mb",
    ),
)
"""What tables show: accuracies of runs, comparisons with the clients of another run, and costs."""

_EXAMPLES = ("rounds_to_0.8", "mb_to_0.8")


def unknown_metric(name: str) -> str:
    """The sentence about a name that is no metric."""
    return unknown("metric", name, [*METRICS, *_EXAMPLES])


def check_sources(names: Iterable[str], callbacks: Collection[str]) -> list[str]:
    """One sentence for each metric of a callback that no run has.

    Args:
        callbacks: names of those that runs have.
    """
    sentences = []
    for name in filter(is_metric_name, names):
        source = name.partition("/")[0]
        if source in (METHOD, *callbacks):
            continue
        sentences.append(
            f"The metric {name} is of the callback {source}, which no run has: add {source} to callbacks in the settings."
            if source in _CALLBACKS
            else f"The metric {name}: {unknown('callback', source, [METHOD, *_CALLBACKS])}"
        )
    return sentences


def is_of_rounds(metric: str) -> bool:
    """Whether a metric is known round by round: accuracies, and those of methods and callbacks."""
    return metric in ACCURACIES or is_metric_name(metric)


def reaches(accuracy: float, target: float) -> bool:
    """Whether an accuracy is at least the target, however a device divides."""
    return accuracy >= target - _ROUNDING


def compare_clients(metric: str, own: Sequence[float], reference: Sequence[float]) -> float:
    """A relative metric of one run, as a share or in units of accuracy.

    IPR and RSD are those of Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.

    Args:
        own, reference: [clients], accuracy of each client on its own test data in [0, 1], of the run and of its reference.
    """
    gains = np.subtract(own, reference)
    return float({"ipr": (gains > _ROUNDING).mean, "rsd": gains.std}[metric]())


def summarise(rows: Sequence[Mapping[str, Any]]) -> Summary:
    """Last, best and mean of the last ten evaluated rounds, and the population std of these ten, of every accuracy; of a metric
    of a method or a callback, of the rounds that have it.

    There is no std of a single round.
    """
    evaluated = [row for row in rows if row.keys() & ACCURACIES]
    keys = [key for key in evaluated[-1] if key in ACCURACIES] if evaluated else []
    values = {key: [row[key] for row in evaluated] for key in keys}
    for row in rows:
        for name, value in row.get("metrics", {}).items():
            if value is not None:
                values.setdefault(name, []).append(value)
    recent = {key: found[-LAST_ROUNDS:] for key, found in values.items()}
    return {
        "last": {key: found[-1] for key, found in values.items()},
        "best": {key: (min if METRICS[key].less_is_better else max)(found) for key, found in values.items()},
        "last10": {key: sum(found) / len(found) for key, found in recent.items()},
        "last10_std": {key: float(np.std(found)) for key, found in recent.items() if len(found) > 1},
    }
