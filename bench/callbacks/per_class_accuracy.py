"""Per-class accuracy: which classes the deployed model knows."""

from dataclasses import dataclass

from bench.callbacks import Callback, registered_callback
from bench.simulation.evaluation import correctness


@registered_callback("per-class-accuracy", percent=("*",), more_is_better=("*",))
@dataclass(frozen=True)
class PerClassAccuracy(Callback):
    """Accuracy on the test examples of each class, of evaluated rounds.

    The metrics are "0", "1", ...: numbers of classes. Where clients deploy models of their own, each is the mean over these.
    """

    def after_round(self, outcome, own):
        if not outcome.is_evaluated:
            return own, {}
        correct, labels = correctness(outcome.task, outcome.deployed), outcome.task.federation.test_labels
        return own, {str(label): correct[:, labels == label].double().mean() for label in labels.unique().tolist()}
