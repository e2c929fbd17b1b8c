"""Server EMA: the exponential moving average of the shared model, evaluated beside it."""

from dataclasses import dataclass

import torch

import algorithms
from algorithms import above, tree
from bench.callbacks import Callback, registered_callback
from bench.simulation.evaluation import evaluate


@registered_callback("server-ema", percent=("*accuracy",), more_is_better=("*accuracy",), less_is_better=("loss",))
@dataclass(frozen=True)
class ServerEma(Callback):
    """Accuracy and loss of the moving average of what the server deploys after each round.

    The average is over all rounds, and evaluated when the model is. Running statistics are those of the last round.

    Attributes:
        decay: share of the average that stays in a round, in (0, 1).
    """

    decay: float = 0.99

    def __post_init__(self):
        above("decay", self.decay, 0)
        if self.decay >= 1:
            raise ValueError(f"decay must be less than 1, but got {self.decay:g}.")

    def validate(self, config, algorithm):
        if not algorithm.personal:
            return []
        name = algorithms.name_of(algorithm)
        return [f"server-ema averages one shared model, but {name} deploys one model per client; leave server-ema out."]

    def after_round(self, outcome, own):
        task = outcome.task
        deployed = outcome.deployed or outcome.algorithm.deploy(task, outcome.after, torch.arange(task.population))
        if deployed is None:
            return own, {}
        new = deployed.params
        own = tree.map(lambda ema, leaf: self.decay * ema + (1 - self.decay) * leaf, own, new) if own else new
        if not outcome.is_evaluated:
            return own, {}
        return own, evaluate(task, deployed._replace(params=own, test_features=None))
