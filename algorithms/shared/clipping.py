"""Local SGD whose gradients are clipped."""

from dataclasses import dataclass, replace

from algorithms.shared import tree
from algorithms.shared.checks import above
from algorithms.shared.local_sgd import GradientOf, LocalResult, clipped, descend, gradient
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Loss


def shortened_before(gradient_of: GradientOf, view: ClientView) -> tuple[GradientOf, ClientView]:
    """For methods that add to gradients what the setting max_gradient_norm is not about: gradient_of with gradients that are
    shortened as the setting says, and a view for `descend` whose settings shorten none."""
    most = view.settings.max_gradient_norm
    settings = replace(view.settings, max_gradient_norm=None)
    return lambda *given: clipped(gradient_of(*given), most), replace(view, settings=settings)


@dataclass(frozen=True)
class Clips(RoundBased):
    """Gradients that are longer than `clip` are shortened to that length; which gradients, says the method.

    Attributes:
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    clip: float | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            above("clip", self.clip, 0)


@dataclass(frozen=True)
class Clipped(Clips):
    """FedAvg whose clients clip the gradient of each batch, before weight decay and momentum; shorter ones keep their bits."""

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self.update_with(gradient, data, plan, view)

    def update_with(self, gradient_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        """`local_update`, with gradients of the loss as gradient_of gives them."""
        how, offset = self.steps_along(gradient_of), self.step_offset(view)
        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=how, step_offset=offset).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def steps_along(self, gradient_of: GradientOf) -> GradientOf:
        """How steps take their gradient, if gradient_of is how that of the loss is taken."""

        def followed(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
            return self.step_gradient(gradient_of(loss, params, batch, view), params, view)

        return followed

    def step_gradient(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        """What a step takes for the gradient, from that of the loss at params."""
        return clipped(slope, self.clip)

    def step_offset(self, view: ClientView) -> Tree | None:
        """What is added to every step of a round, outside the momentum."""
        return None
