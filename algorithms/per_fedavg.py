"""Per-FedAvg: the shared model is a start from which one step on a client's data leads to a good model of its own.

Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020. https://arxiv.org/abs/2002.07948
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algorithms import LocalResult, RoundBased, Tree, at_least, descend, gradient, registered, task_loss, tree
from algorithms.shared.local_sgd import clipped
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, RunConfig, Settings


@registered("per-fedavg")
@dataclass(frozen=True)
class PerFedAvg(RoundBased):
    """Algorithm 1 of the paper, in its first-order form (FO).

    Each mini-batch is cut in two: a step of plain SGD on the first half (of size alpha) leads to adapted params; the gradient
    of the loss on the second half there is that of a step (of size beta, the setting lr) from where the first step began.
    A client deploys the shared model after one step of size alpha on the first mini-batch of a pass over its data.

    Differs from the paper: halves of one mini-batch instead of separate ones, batches of fewer than four examples are skipped,
    and the server weights clients by their number of examples, as FedCollab (Bao et al., ICML 2023) does.
    Differs from the paper: it does not mention buffers. In training they stay what they are, as in the code of FedCollab; the
    step before deployment updates those of the deployed model.

    Attributes:
        inner_lr: alpha of the paper, >= 0; the setting lr if None. At 0 it is FedAvg on the second halves of batches.
    """

    inner_lr: float | None = None

    version = 2  # 1 counted skipped batches among the examples trained on
    personal = True
    smallest_batch = 4  # two halves of two examples, of which batch normalisation can take statistics

    def __post_init__(self) -> None:
        at_least("inner_lr", self.inner_lr or 0, 0)

    def validate(self, config: RunConfig) -> list[str]:
        if config.batch_size >= self.smallest_batch:
            return []
        return [
            f"per-fedavg skips batches of fewer than {self.smallest_batch} examples: batch_size must be at least "
            f"{self.smallest_batch}, but got {config.batch_size}."
        ]

    def adapted(self, params: Tree, batch: Batch, view: ClientView) -> Tree:
        """Params after one step of size alpha on a batch; as a function of params, its derivative is taken to be 1."""
        step = view.settings.lr if self.inner_lr is None else self.inner_lr
        slope = clipped(gradient(task_loss, params, batch, view), view.settings.max_gradient_norm)
        return tree.map(lambda p, g: torch.sub(p, g, alpha=step), params, slope)

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        first, second = batch.halves()
        # Each on a copy of the model, so that running statistics stay.
        apart = replace(view, model=view.model.copy(training=True))
        return task_loss(self.adapted(params, first, apart), second, apart)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view, smallest_batch=self.smallest_batch).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return {"params": self.adapted(view.params, data.take(plan[0]), view), "buffers": view.model.buffers}

    def deploy_visits(self, settings: Settings, num_examples: int) -> int:
        return settings.passes(num_examples)[0][0]
