"""FedSMOO: a second dynamic regulariser brings the clients' ascents of sharpness-aware minimisation together.

Sun, Shen, Chen, Ding and Tao, Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global
Consistency and Smooth Landscape, ICML 2023. https://arxiv.org/abs/2305.11584
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from algorithms import Average, LocalResult, gradient, one_of, registered, tree
from algorithms.shared.base import State
from algorithms.shared.dynamic_regulariser import SharpDynamicRegulariser
from algorithms.shared.sharpness import LEAST_NORM, ascent, one_class_caveats, two_gradients
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Loss, Task

SFrom = Literal["mu", "mu_minus_e"]


@registered("fedsmoo")
@dataclass(frozen=True)
class FedSMOO(SharpDynamicRegulariser):
    """FedDyn with gradients at x + e, where the ascents e of a client have a memory mu_i and the server has a common one, s.

    In a step: q = g(x) - mu_i - s; e = rho q / |q|; mu_i moves by e - s; x follows g(x + e) + alpha (u_i + x - w), with the
    model w received and FedDyn's memory u_i. After the round, v is the cohort's mean of mu_i, and s = rho v / |v|; the model
    is as in FedDyn. All start at 0. Clients send mu_i and receive s beside FedDyn's traffic, and keep mu_i until they take
    part again.
    Only the pass at x moves running statistics. Momentum acts on all terms of a step: with it, alpha should be smaller.

    mu_i grows over steps and rounds, and can outweigh g: the metric `mu_share` is the mean of |mu_i| / |g(x)| over steps, with
    the mu_i before the step.

    With rho = 0 and the default `clip_order` it is FedDyn; the first step of the first round is that of SAM.

    Differs from the paper, and follows the authors' code: v is a mean of mu_i, see `s_from`; gradients are clipped. The paper's
    body was not at hand: its formulas are those that the code quotes.
    Differs from the authors' code: what is clipped, see `clip_order`; 1e-12 instead of 1e-7 is added to norms; mu_i and s are
    read tensor by tensor, which the code did wrongly until October 2024, and in the published table.

    Attributes:
        alpha, weighting, clip, mean, clip_order, rho: see `SharpDynamicRegulariser`.
        s_from: the common ascent s follows the mean v of the clients' memories mu_i ("mu", as in the code), or of mu_i - e,
            with the e of the last step ("mu_minus_e", as in the paper).
    """

    s_from: SFrom = "mu"

    broadcast = ("ascent",)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("s_from", self.s_from, get_args(SFrom))

    def caveats(self, task: Task) -> list[str]:
        return one_class_caveats("fedsmoo", task, self.rho)

    @property
    def passes_per_example(self) -> int:
        return 2 if self.rho else 1

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {**super().init_client(task, params), "mu": tree.zeros_like(params)}

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {**super().init_server(task, params), "ascent": tree.zeros_like(params)}

    def result_template(self, state: State) -> Tree:
        return {**super().result_template(state), "mu": state["server"]["ascent"]}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        common, mu = view.server["ascent"], view.client["mu"]
        now = {"mu": mu, "e": tree.zeros_like(mu), "share": torch.zeros_like(view.num_steps)}

        def slope_of(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
            if not self.rho:
                return gradient(loss, params, batch, view)

            def ascend(slope: Tree) -> Tree:
                nonlocal now
                after = self._ascended(slope, common, now)
                now = after if batch.mask is None else tree.where(batch.mask.any(), after, now)
                return after["e"]

            return two_gradients(loss, params, batch, view, ascend)[1]

        result = self.update_with(slope_of, data, plan, view)
        sent = tree.subtract(now["mu"], now["e"]) if self.s_from == "mu_minus_e" else now["mu"]
        return LocalResult(
            {**result.update, "mu": sent},
            {**result.client, "mu": now["mu"]},
            {"mu_share": now["share"] / view.num_steps},
        )

    def _ascended(self, slope: Tree, common: Tree, now: Tree) -> Tree:
        """What a client knows of its ascents after one more, from the gradient at x: mu_i, the last e, and a sum of shares."""
        mu = now["mu"]
        e = ascent(tree.map(lambda g, m, s: g - m - s, slope, mu, common), self.rho)
        return {
            "mu": tree.map(lambda m, own, s: m + (own - s), mu, e, common),
            "e": e,
            "share": now["share"] + tree.norm(mu) / (tree.norm(slope) + LEAST_NORM),
        }

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        mean = Average(updates["mu"], torch.ones_like(cohort.num_examples))
        return {**super().weighted_means(updates, cohort), "mu": mean}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, server = super().server_step(task, params, server, update, cohort)
        return new, {**server, "ascent": ascent(update["mu"], self.rho)}
