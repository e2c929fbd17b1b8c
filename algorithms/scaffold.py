"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.
https://arxiv.org/abs/1910.06378
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from algorithms import (
    Average,
    LocalResult,
    State,
    Weighting,
    above,
    descend,
    gradient,
    one_of,
    registered,
    tree,
)
from algorithms.shared.local_sgd import GradientOf, momentum_steps
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Cohort, Task
from algorithms.shared.weighting import Weighed

MomentumMode = Literal["outside", "effective-lr", "none"]


@registered("scaffold")
@dataclass(frozen=True)
class Scaffold(Weighed):
    """Algorithm 1 of the paper, with Option II for the client's control variate.

    Differs from the paper, which has no momentum: inside the momentum buffer the correction is amplified until the control
    variates diverge, unless one of the rules of `momentum_mode` is followed. All three are the paper at momentum 0.

    Attributes:
        server_lr: global step size (eta_g), > 0.
        weighting: "uniform" mean of the cohort's models and their buffers, as in the paper, or by number of "examples".
        momentum_mode: "outside": momentum acts on the gradient alone and the correction is added to the step
            (NIID-Bench); "effective-lr": the correction is part of the gradient, and the variate is divided by the
            effective step size under momentum; "none": local SGD without momentum.
    """

    server_lr: float = 1.0
    weighting: Weighting = "uniform"
    momentum_mode: MomentumMode = "outside"

    broadcast = ("control",)

    def __post_init__(self) -> None:
        super().__post_init__()
        above("server_lr", self.server_lr, 0)
        one_of("momentum_mode", self.momentum_mode, get_args(MomentumMode))

    def version_with(self, buffers: bool) -> int:
        # 1 averaged the buffers by number of examples, whatever the weighting.
        return 2 if buffers and self.weighting == "uniform" else super().version_with(buffers)

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"control": tree.zeros_like(params)}

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"control": tree.zeros_like(params)}

    def result_template(self, state: State) -> Tree:
        return {**super().result_template(state), "change": state["server"]["control"]}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self._update(gradient, data, plan, view)

    def _update(
        self, slope_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView, correction: float = 1.0
    ) -> LocalResult:
        """`local_update`, with gradients of the loss as slope_of gives them, and steps that follow a multiple of c - c_i."""
        offset = tree.subtract(view.server["control"], view.client["control"])
        followed = tree.scale(offset, correction)
        how = {"step_offset": followed} if self.momentum_mode == "outside" else {"gradient_offset": followed}
        if self.momentum_mode == "none":
            how["momentum"] = 0.0
        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=slope_of, **how).params
        delta = tree.subtract(trained, view.params)
        steps = view.num_steps
        if self.momentum_mode == "effective-lr":
            steps = momentum_steps(steps, view.settings.momentum)
        # Option II: c_i+ = c_i - c + (start - trained) / (steps lr)
        control = tree.map(lambda o, d: -o - d / (steps * view.settings.lr), offset, delta)
        change = tree.subtract(control, view.client["control"])
        return LocalResult({"delta": delta, "change": change}, {"control": control})

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        change = Average(updates["change"], torch.ones_like(cohort.num_examples))
        return {**super().weighted_means(updates, cohort), "change": change}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        step = tree.scale(update["delta"], self.server_lr)
        change = tree.scale(update["change"], len(cohort.ids) / cohort.population)
        return tree.add(params, step), {"control": tree.add(server["control"], change)}
