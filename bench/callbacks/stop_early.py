"""Stop early: the run ends when a metric has not become better for some evaluations."""

from dataclasses import dataclass

from algorithms import at_least
from bench.callbacks import Callback, Noted, registered_callback


@registered_callback("stop-early")
@dataclass(frozen=True)
class StopEarly(Callback):
    """Ends a run when a metric has not become better for some rounds; the run is done, and its record says why.

    Attributes:
        metric: an accuracy, "loss", "method/<name>", or "<callback>/<name>" of a callback that is named before this one.
            What it chooses by test accuracy is chosen on test data; the split `validation` has others.
        patience: rounds with the metric that may pass without a better value.
        less_is_better: whether smaller values are better, as of a loss.
    """

    metric: str = "accuracy"
    patience: int = 10
    less_is_better: bool = False

    def __post_init__(self):
        at_least("patience", self.patience, 1)

    def after_round(self, outcome, own):
        value = outcome.metrics.get(self.metric)
        if value is None:
            if outcome.is_evaluated and self.metric not in outcome.metrics:
                known = ", ".join(outcome.metrics)
                raise ValueError(f"no round has the metric {self.metric}; this one has {known}")
            return own, {}
        merit = -value if self.less_is_better else value
        if not own or merit > own["best"]:
            return {"best": merit, "waited": 0}, {}
        own = {**own, "waited": own["waited"] + 1}
        best = -own["best"] if self.less_is_better else own["best"]
        reason = f"stopped early: no better {self.metric} than {best:.4g} for {self.patience} round{'s' * (self.patience > 1)}"
        return Noted(own, stop=reason if own["waited"] >= self.patience else "")
