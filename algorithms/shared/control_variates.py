"""SCAFFOLD's control variates: the drift of each client's steps, of which the server keeps a mean that corrects them."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from algorithms.shared import tree
from algorithms.shared.base import Average, State, Weighting
from algorithms.shared.checks import above, one_of
from algorithms.shared.clipping import Clips, shortened_before
from algorithms.shared.local_sgd import GradientOf, LocalResult, clipped, descend, gradient, momentum_steps
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Loss, Task
from algorithms.shared.weighting import Weighed

MomentumMode = Literal["outside", "effective-lr", "inside", "none"]


@dataclass(frozen=True)
class KeepsControls(RoundBased):
    """Clients keep c_i, and the server sends c; both start at 0. The server reads the uniform mean of the cohort's "change"."""

    broadcast = ("control",)

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {**super().init_server(task, params), "control": tree.zeros_like(params)}

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {**super().init_client(task, params), "control": tree.zeros_like(params)}

    def result_template(self, state: State) -> Tree:
        return {**super().result_template(state), "change": state["server"]["control"]}

    def control_offset(self, view: ClientView) -> Tree:
        """c - c_i."""
        return tree.subtract(view.server["control"], view.client["control"])

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        change = Average(updates["change"], torch.ones_like(cohort.num_examples))
        return {**super().weighted_means(updates, cohort), "change": change}


@dataclass(frozen=True)
class ControlVariates(KeepsControls, Weighed):
    """A step follows g + c - c_i; then c_i+ = c_i - c - delta / (steps lr), and c moves by the mean change of c_i.

    Attributes:
        server_lr: global step size (eta_g), > 0.
        weighting: "uniform" mean of the cohort's models and their buffers, as in the paper, or by number of "examples".
        momentum_mode: "outside": momentum acts on the gradient alone and the correction is added to the step
            (NIID-Bench); "effective-lr": the correction is part of the gradient, and the variate is divided by the
            effective step size under momentum; "inside": the same, but divided by lr as without momentum, so that c_i keeps
            up to -m / (1 - m) times its error at each visit, with momentum m, and diverges above 0.5; "none": local SGD
            without momentum.
    """

    server_lr: float = 1.0
    weighting: Weighting = "uniform"
    momentum_mode: MomentumMode = "outside"

    def __post_init__(self) -> None:
        super().__post_init__()
        above("server_lr", self.server_lr, 0)
        one_of("momentum_mode", self.momentum_mode, get_args(MomentumMode))

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self.update_with(gradient, data, plan, view)

    def update_with(self, gradient_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        """`local_update`, with gradients of the loss as gradient_of gives them."""
        offset, followed = self.control_offset(view), self.step_offset(view)
        how = {"step_offset": followed} if self.momentum_mode == "outside" else {"gradient_offset": followed}
        if self.momentum_mode == "none":
            how["momentum"] = 0.0
        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=gradient_of, **how).params
        delta = tree.subtract(trained, view.params)
        steps = view.num_steps
        if self.momentum_mode == "effective-lr":
            steps = momentum_steps(steps, view.settings.momentum)
        # Option II: c_i+ = c_i - c + (start - trained) / (steps lr)
        control = tree.map(lambda o, d: -o - d / (steps * view.settings.lr), offset, delta)
        change = tree.subtract(control, view.client["control"])
        return LocalResult({"delta": delta, "change": change}, {"control": control})

    def step_offset(self, view: ClientView) -> Tree:
        """What steps follow beside the gradient: c - c_i."""
        return self.control_offset(view)

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        step = tree.scale(update["delta"], self.server_lr)
        change = tree.scale(update["change"], len(cohort.ids) / cohort.population)
        return tree.add(params, step), {"control": tree.add(server["control"], change)}


@dataclass(frozen=True)
class ClippedControlVariates(ControlVariates, Clips):
    """SCAFFOLD whose gradients are clipped together with their correction.

    Attributes:
        clip: largest norm of a gradient plus c - c_i, > 0; None does not clip. A clipped path is what c_i then records. With
            momentum on the gradient alone (`momentum_mode` "outside"), of the gradient alone: momentum would amplify what is
            taken from the correction.
    """

    def update_with(self, gradient_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        if self.clip is None:
            return super().update_with(gradient_of, data, plan, view)
        most, alone = self.clip, self.momentum_mode == "outside" and view.settings.momentum > 0
        offset = self.step_offset(view)
        gradient_of, view = shortened_before(gradient_of, view)

        def shortened(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
            slope = gradient_of(loss, params, batch, view)
            if alone:
                return clipped(slope, most)
            # The correction comes later: what is returned is f (g + offset) - offset. Where nothing is clipped, f is exactly
            # 1, and g keeps its bits.
            factor = most / tree.norm(tree.add(slope, offset)).clamp(min=most)
            return tree.map(lambda g, o: factor * g + (factor - 1) * o, slope, offset)

        return super().update_with(shortened, data, plan, view)
