"""FedBN: every client keeps its own batch normalisations, and all else is averaged.

Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
https://arxiv.org/abs/2102.07623
"""

from collections.abc import Iterable
from dataclasses import dataclass

from algorithms import Task, Tree, registered
from algorithms.shared.partial import KeepsPrivate
from algorithms.shared.scored import Scored
from algorithms.shared.weighting import Weighs

_STATISTIC = "running_mean"  # who has one is a batch normalisation, whatever its name
_PARTS = ("weight", "bias", _STATISTIC, "running_var", "num_batches_tracked")


@registered("fedbn")
@dataclass(frozen=True)
class FedBN(Scored, Weighs, KeepsPrivate):
    """FedAvg of w without batch normalisations: theta <- sum_i p_i theta_i; scale, shift, running statistics and the counter of
    batches of each one stay with the client, which deploys them with the new theta.

    A client that has not yet taken part has the initial ones, which fit no trained body: it predicts about as chance does.
    A model without batch normalisation makes it FedAvg, of which a footnote tells. Made for clients whose images differ; where
    their labels do, statistics are those of few classes.

    Differs from the authors' code: it finds batch normalisations by "bn" in their names, which misses those of shortcuts; here
    they are those modules that have running statistics. It averages uniformly (`weighting`).
    The paper's body was not at hand: what is said of it is from its abstract and the authors' code.

    Attributes:
        weighting: mean of the cohort's params by number of "examples", or "uniform".
        scored: when clients' models are scored; "before" is the authors' code.
    """

    def shared(self, model: Tree) -> Tree:
        own = batch_norm_leaves(model["buffers"])
        return {key: {name: leaf for name, leaf in leaves.items() if name not in own} for key, leaves in model.items()}

    def caveats(self, task: Task) -> list[str]:
        if batch_norm_leaves(task.initial_buffers()):
            return super().caveats(task)
        return [*super().caveats(task), f"fedbn: {type(task.model).__name__} has no batch normalisation: it is FedAvg."]


def batch_norm_leaves(buffers: Iterable[str]) -> set[str]:
    """Names of all params and buffers of the batch normalisations of a model with these buffers."""
    norms = [name.removesuffix(_STATISTIC) for name in buffers if name.endswith(_STATISTIC)]
    return {f"{norm}{part}" for norm in norms for part in _PARTS}
