"""Local SGD whose gradients are clipped."""

from dataclasses import dataclass

from algorithms.shared import tree
from algorithms.shared.checks import above
from algorithms.shared.local_sgd import LocalResult, clipped, descend, gradient
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Loss


@dataclass(frozen=True)
class Clipped(RoundBased):
    """FedAvg whose clients clip the gradient of each batch, before weight decay and momentum; shorter ones keep their bits.

    Attributes:
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    clip: float | None = 10.0

    def __post_init__(self) -> None:
        if self.clip is not None:
            above("clip", self.clip, 0)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=self.clipped_gradient).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def clipped_gradient(self, loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
        """The gradient of a loss on a batch, as `gradient`, clipped."""
        return clipped(gradient(loss, params, batch, view), self.clip)
