"""FedDyn: a linear and a quadratic term, with a memory per client, make the clients' optima agree with the server's.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.
https://arxiv.org/abs/2111.04263
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from algorithms import Average, LocalResult, RoundBased, Weighting, above, descend, gradient, one_of, registered, tree
from algorithms.shared.base import State
from algorithms.shared.local_sgd import GradientOf, clipped
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Loss, Task

Mean = Literal["uniform", "examples"]


@registered("feddyn")
@dataclass(frozen=True)
class FedDyn(RoundBased):
    """A client minimises loss - <g_i, x> + alpha_i/2 |x - w|^2 from the model w received; the server adds a memory.

    The gradient of a step is grad loss - g_i + alpha_i (x - w). The memory u_i of a client is the sum of its deltas
    d_i = trained - w, that of the server, u, is their mean over all clients: those of the paper in another unit,
    g_i = -alpha_i u_i and h = -alpha u, in which they suit clients with different alpha_i. The new model is
    w + mean of the cohort's d_i + u, with the new u; all these means are uniform, unless `mean` says otherwise. Clients
    outside of the cohort keep their memories. Running statistics are averaged as in FedAvg.

    Differs from the paper, and follows its code: alpha_i depends on the client's size, and gradients are clipped.
    Differs from the paper's code: the norm that is clipped is that of the whole gradient of a step. There, alpha_i x is
    weight decay, added after clipping, and a clipped -alpha_i w no longer balances it where alpha_i is large.
    Momentum acts on all terms: with it, alpha should be smaller.

    No alpha makes it FedAvg. As alpha goes to 0 clients train as in FedAvg, but the server still adds the mean of the memories,
    which does not depend on alpha: if all clients take part, the first round leads to w + 2 mean of d_i.

    Attributes:
        alpha: weight of both terms, > 0; near 0 clients train as in FedAvg, and the server does not.
        weighting: "examples": alpha_i = alpha (mean n) / n_i, with n_i examples at a client; rounds lead to the minimum
            of the mean loss over examples. "uniform": alpha_i = alpha, for the minimum of the mean loss over clients.
        clip: largest norm of a gradient, > 0; None does not clip.
        mean: "uniform" mean of the cohort's d_i, as in the paper, or by number of "examples". The mean memory is uniform
            with both, and where rounds lead is the same: there all d_i are 0.
    """

    alpha: float = 0.01
    weighting: Weighting = "examples"
    clip: float | None = 10.0
    mean: Mean = "uniform"

    def __post_init__(self) -> None:
        above("alpha", self.alpha, 0)
        one_of("weighting", self.weighting, get_args(Weighting))
        one_of("mean", self.mean, get_args(Mean))
        if self.clip is not None:
            above("clip", self.clip, 0)

    @property
    def weighs_clients(self) -> bool:
        return self.mean == "examples"

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"memory": tree.zeros_like(params)}

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"memory": tree.zeros_like(params)}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """Memory and alpha_i of each client. Traffic leaves out the mean of n, a number that the server sends once."""
        alpha = torch.full_like(cohort.num_examples, self.alpha)
        if self.weighting == "examples":
            mean = sum(task.sizes(torch.arange(task.population))) / task.population
            alpha = self.alpha * mean / cohort.num_examples
        return {**super().cohort_states(task, cohort, state), "alpha": alpha}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self._update(gradient, data, plan, view)

    def _update(self, slope_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        """`local_update`, with gradients of the loss as slope_of gives them."""

        def regularised(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
            return self._regularised(slope_of(loss, params, batch, view), params, view)

        trained = descend(self.local_loss, view.params, data, plan, view, gradient_of=regularised).params
        delta = tree.subtract(trained, view.params)
        return LocalResult({"delta": delta}, {"memory": tree.add(view.client["memory"], delta)})

    def _regularised(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        """The gradient of a step at params, from that of the loss."""
        return clipped(self.with_terms(slope, params, view), self.clip)

    def with_terms(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        """The gradient of loss - <g_i, x> + alpha_i/2 |x - w|^2 at params, from that of the loss."""
        alpha, memory = view.client["alpha"], view.client["memory"]
        return tree.map(lambda g, u, x, w: g + alpha * (u + (x - w)), slope, memory, params, view.params)

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        equal = torch.ones_like(cohort.num_examples)
        weights = cohort.weights if self.mean == "examples" else equal
        return {"delta": Average(updates["delta"], weights), "remembered": Average(updates["delta"], equal)}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        share = len(cohort.ids) / cohort.population
        memory = tree.map(lambda u, d: u + share * d, server["memory"], update["remembered"])
        return tree.add(params, tree.add(update["delta"], memory)), {"memory": memory}
