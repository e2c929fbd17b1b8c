"""Stop early: the run ends when a metric has not become better for some evaluations, or has reached a target."""

import itertools
import math
from dataclasses import dataclass

from algorithms import at_least
from bench.callbacks import Callback, Noted, registered_callback
from bench.errors import suggestion, unknown
from bench.results.metrics import ACCURACIES, METHOD, METRICS, accuracies_of
from datasets import partitions


@registered_callback("stop-early")
@dataclass(frozen=True)
class StopEarly(Callback):
    """Ends a run when a metric has not become better for some rounds, or has reached a target; its record says why.

    Attributes:
        metric: an accuracy, "loss", "method/<name>", or "<callback>/<name>" of a callback that is named before this one.
            What it chooses by test accuracy is chosen on test data; the split `validation` has others.
        patience: rounds with the metric that may pass without a better value.
        less_is_better: whether smaller values are better, as of a loss.
        target: the run ends in the first round whose value is at least as good; None for none. Rounds to a target need no more.
    """

    metric: str = "accuracy"
    patience: int = 10
    less_is_better: bool = False
    target: float | None = None

    def __post_init__(self):
        at_least("patience", self.patience, 1)
        if self.target is not None and not math.isfinite(self.target):  # in the JSON that names runs it would be none
            raise ValueError(f"target must be finite, but got {self.target}.")

    def validate(self, config, algorithm):
        before = itertools.takewhile("stop-early".__ne__, (spec["name"] for spec in config.callbacks))
        known, sources = [*ACCURACIES, "loss"], [METHOD, *before]
        source, slash, _ = self.metric.partition("/")
        if not (self.metric in known or (slash and source in sources)):
            others = [f"{name}/<name>" for name in sources]
            return [f"stop-early: {unknown('metric', self.metric, [*known, *others])}"]
        there = _accuracies_of(config, algorithm)
        if self.metric in ACCURACIES and self.metric not in there:
            run = f"{config.algorithm['name']} under {config.partition}"
            return [f"stop-early: runs of {run} have no {self.metric}; set another metric, such as {there[0]}."]
        less = _less_is_better(self.metric)
        if less in (None, self.less_is_better):
            return []
        better, value = ("less", "true") if less else ("more", "false")
        return [f"stop-early: {better} {self.metric} is better; set less_is_better: {value}."]

    def after_round(self, outcome, own):
        value = outcome.metrics.get(self.metric)
        if value is None:
            if self.metric not in outcome.metrics and not own and self._is_wrong(outcome):
                known = ", ".join(outcome.metrics) or "none"
                hint = suggestion(self.metric, outcome.metrics)
                raise ValueError(f"round {outcome.round} has no metric {self.metric}, but {known}.{hint}")
            return own, {}
        sign = -1 if self.less_is_better else 1
        merit = sign * value
        if self.target is not None and merit >= sign * self.target:
            return Noted(own, stop=f"stopped early: {self.metric} has reached {self.target:g}")
        if not own or merit > own["best"]:
            return {"best": merit, "waited": 0}, {}
        own = {**own, "waited": own["waited"] + 1}
        best = -own["best"] if self.less_is_better else own["best"]
        reason = f"stopped early: no better {self.metric} than {best:.4g} for {self.patience} round{'s' * (self.patience > 1)}"
        return Noted(own, stop=reason if own["waited"] >= self.patience else "")

    def _is_wrong(self, outcome):
        """Whether no round will have the metric: scores are those of every evaluation, but a method or a callback may have a
        metric in some rounds only, so that of theirs a misspelt name is known at once, and all others in the last round."""
        if "/" not in self.metric:
            return outcome.is_evaluated
        if outcome.round == outcome.algorithm.num_rounds(outcome.task.settings):
            return True
        source, _, name = self.metric.partition("/")
        found = (other.partition("/") for other in outcome.metrics)
        return bool(suggestion(name, [other for of, _, other in found if of == source]))


def _accuracies_of(config, algorithm):
    """Accuracies that a run may have; those on test data of the clients' own also where a partition file may have none."""
    together = partitions.parse(config.partition).scores_together
    of_own_tests = (False, True) if together else (True,)
    return [name for own in of_own_tests for name in accuracies_of(algorithm.personal, own, together)]


def _less_is_better(metric):
    """Whether the best values of a metric are the smallest; None where nothing says so."""
    if metric == "loss":
        return True
    return METRICS[metric].less_is_better if metric in METRICS and METRICS[metric].ranked else None
