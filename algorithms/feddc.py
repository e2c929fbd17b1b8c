"""FedDC: FedDyn's drift of each client, which the server adds to the mean model, with SCAFFOLD's correction of each step.

Gao, Fu, Li, Chen, Xu and Xu, FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022.
https://arxiv.org/abs/2203.11751
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import (
    Average,
    BatchPlan,
    ClientData,
    ClientView,
    Cohort,
    LocalResult,
    Loss,
    State,
    Task,
    Tree,
    descend,
    gradient,
    one_of,
    registered,
    tree,
)
from algorithms.shared.control_variates import KeepsControls
from algorithms.shared.dynamic_regulariser import DynamicRegulariser
from algorithms.shared.local_sgd import clipped
from algorithms.shared.types import Batch

Drifts = Literal["all", "cohort"]
MomentumMode = Literal["outside", "none"]


@registered("feddc")
@dataclass(frozen=True)
class FedDC(KeepsControls, DynamicRegulariser):
    """The gradient of a step is grad loss + alpha_i (x - w + h_i) + G / s_i - g_i, with the model w received.

    After training, with d_i = trained - w and K steps, h_i grows by d_i, and g_i becomes g_i - G / s_i - d_i / (K lr). Then
    the server's G grows by 1/m times the sum of s_i times the changes of g_i over the cohort, of m clients in all, and the
    new model is w + mean of the cohort's d_i + mean of all clients' h_i. The share s_i is n_i / (mean n), with n_i examples at
    a client, and alpha_i = alpha / s_i. All of h_i, g_i and G start at 0; absent clients keep theirs, and their h_i count in
    the mean. Running statistics are averaged as in FedAvg.

    h_i is the memory u_i of FedDyn (see `FedDyn`): without G and g_i it is that method. As alpha goes to 0 it is not FedAvg;
    without the h_i in the server's mean, it would be SCAFFOLD with uniform weights. Rounds lead to the minimum of the mean
    loss over examples, or over clients with `weighting` "uniform". Small clients have large alpha_i and G / s_i: steps are
    unstable where lr alpha_i is above 2, of which a caveat warns; `weighting` "uniform" has no such clients.

    Differs from the authors' code, whose K follows from the mean size of clients and is the same for all. Without momentum,
    as in their code, the whole gradient is clipped; with it, see `momentum_mode`.
    The paper's body was not at hand: formulas are those of the code (gaoliang13/FedDC).

    Attributes:
        alpha: weight of the pull to w - h_i, > 0, with the received model w and the client's drift h_i.
        weighting: "examples": s_i is the client's number of examples by the mean number; "uniform": s_i = 1 and
            alpha_i = alpha.
        clip: largest norm of a gradient, > 0; None does not clip.
        mean: "uniform" mean of the cohort's d_i, as in the authors' code, or by number of "examples".
        drifts: the server adds the uniform mean of the h_i of "all" clients, as in the authors' code, or takes the `mean` of
            d_i + h_i, which the clients of the "cohort" send.
        momentum_mode: "outside": momentum acts on all but SCAFFOLD's correction G / s_i - g_i, which is added to the step, and
            clip on what momentum acts on; "none": local SGD without momentum. Both are the same at momentum 0.
    """

    drifts: Drifts = "all"
    momentum_mode: MomentumMode = "outside"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("drifts", self.drifts, get_args(Drifts))
        one_of("momentum_mode", self.momentum_mode, get_args(MomentumMode))

    def caveats(self, task: Task) -> list[str]:
        if self.weighting == "uniform":
            return []
        sizes = task.sizes(torch.arange(task.population))
        least = min(sizes)
        factor = self.alpha * sum(sizes) / len(sizes) / least
        if task.settings.lr * factor <= 2:
            return []
        return [
            f"feddc: alpha_i of the smallest client, of {least} examples, is {factor:.3g}; steps of its term are unstable, "
            "because lr alpha_i is above 2."
        ]

    @property
    def sends_memory(self) -> bool:
        return self.drifts == "cohort"

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """As in FedDyn, with 1 / s_i."""
        inverse = torch.ones_like(cohort.num_examples)
        if self.weighting == "examples":
            inverse = sum(task.sizes(torch.arange(task.population))) / task.population / cohort.num_examples
        return {**super().cohort_states(task, cohort, state), "inverse_share": inverse}

    def control_offset(self, view: ClientView) -> Tree:
        """G / s_i - g_i."""
        inverse, control = view.client["inverse_share"], view.client["control"]
        return tree.map(lambda G, g: inverse * G - g, view.server["control"], control)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        correction = self.control_offset(view)
        outside = self.momentum_mode == "outside" and view.settings.momentum > 0

        def corrected(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
            slope = self.with_terms(gradient(loss, params, batch, view), params, view)
            return clipped(slope if outside else tree.add(slope, correction), self.clip)

        how = {"step_offset": correction} if outside else {"momentum": 0.0}
        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=corrected, **how).params
        delta = tree.subtract(trained, view.params)
        control = tree.map(lambda c, d: -c - d / (view.num_steps * view.settings.lr), correction, delta)
        sent, kept, _ = self.with_memory(delta, view)
        change = tree.subtract(control, view.client["control"])
        return LocalResult({**sent, "change": change}, {**kept, "control": control})

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        shares = cohort.num_examples if self.weighting == "examples" else torch.ones_like(cohort.num_examples)
        return {**super().weighted_means(updates, cohort), "change": Average(updates["change"], shares)}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, memory = super().server_step(task, params, server, update, cohort)
        share: float | Tensor = len(cohort.ids) / cohort.population  # of the sum of all s_i, that of the cohort
        if self.weighting == "examples":
            share = cohort.num_examples.sum() / sum(task.sizes(torch.arange(task.population)))
        control = tree.map(lambda G, c: G + share * c, server["control"], update["change"])
        return new, {**memory, "control": control}
