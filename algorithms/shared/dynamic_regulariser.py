"""FedDyn's dynamic regulariser: a linear and a quadratic term in the loss of clients, whose memories the server adds up."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from algorithms.shared import tree
from algorithms.shared.base import Average, State, Weighting
from algorithms.shared.checks import above, at_least, one_of
from algorithms.shared.clipping import Clipped
from algorithms.shared.local_sgd import GradientOf, LocalResult, clipped
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Task

Mean = Literal["uniform", "examples"]
ClipOrder = Literal["centred", "reference"]


@dataclass(frozen=True)
class DynamicRegulariser(Clipped):
    """Clients minimise loss + alpha_i <u_i, x> + alpha_i/2 |x - w|^2 from the model w received, where u_i is the sum of a
    client's deltas d_i.

    The new model is w + mean of the cohort's d_i + u, with the mean u of all clients' memories u_i.

    Attributes:
        alpha: weight of both terms, > 0; near 0 clients train as in FedAvg, and the server does not.
        weighting: "examples": alpha_i = alpha (mean n) / n_i, with n_i examples at a client; rounds lead to the minimum
            of the mean loss over examples. "uniform": alpha_i = alpha, for the minimum of the mean loss over clients.
        mean: "uniform" mean of the cohort's d_i, as in the paper, or by number of "examples". The mean memory is uniform
            with both, and where rounds lead is the same: there all d_i are 0.
    """

    alpha: float = 0.01
    weighting: Weighting = "examples"
    mean: Mean = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        above("alpha", self.alpha, 0)
        one_of("weighting", self.weighting, get_args(Weighting))
        one_of("mean", self.mean, get_args(Mean))

    @property
    def weighs_clients(self) -> bool:
        return self.mean == "examples"

    @property
    def sends_memory(self) -> bool:
        """Whether clients send d_i + u_i, of which the new model takes one mean, and the server keeps no u."""
        return False

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {**super().init_client(task, params), "memory": tree.zeros_like(params)}

    def init_server(self, task: Task, params: Tree) -> Tree:
        server = super().init_server(task, params)
        return server if self.sends_memory else {**server, "memory": tree.zeros_like(params)}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """Memory and alpha_i of each client. Traffic leaves out the mean of n, a number that the server sends once."""
        alpha = torch.full_like(cohort.num_examples, self.alpha)
        if self.weighting == "examples":
            mean = sum(task.sizes(torch.arange(task.population))) / task.population
            alpha = self.alpha * mean / cohort.num_examples
        return {**super().cohort_states(task, cohort, state), "alpha": alpha}

    def update_with(self, gradient_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self.with_memory(super().update_with(gradient_of, data, plan, view).update["delta"], view)

    def with_memory(self, delta: Tree, view: ClientView) -> LocalResult:
        """What a client sends and keeps after it has moved by d_i."""
        memory = tree.add(view.client["memory"], delta)
        return LocalResult({"delta": tree.add(delta, memory) if self.sends_memory else delta}, {"memory": memory})

    def step_gradient(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        return clipped(self.with_terms(slope, params, view), self.clip)

    def with_terms(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        """The gradient of what a client minimises at params, from that of the loss."""
        alpha, memory = view.client["alpha"], view.client["memory"]
        return tree.map(lambda g, u, x, w: g + alpha * (u + (x - w)), slope, memory, params, view.params)

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        equal = torch.ones_like(cohort.num_examples)
        means = {"delta": Average(updates["delta"], cohort.weights if self.mean == "examples" else equal)}
        return means if self.sends_memory else {**means, "remembered": Average(updates["delta"], equal)}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        if self.sends_memory:
            return tree.add(params, update["delta"]), {}
        share = len(cohort.ids) / cohort.population
        memory = tree.map(lambda u, d: u + share * d, server["memory"], update["remembered"])
        return tree.add(params, tree.add(update["delta"], memory)), {"memory": memory}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models = super().local_models(state, outputs)
        if not self.sends_memory:
            return models
        return {**models, "params": tree.subtract(models["params"], outputs.result.client["memory"])}


@dataclass(frozen=True)
class SharpDynamicRegulariser(DynamicRegulariser):
    """FedDyn as FL-Simulator has it, the code of FedSpeed's authors, for methods that take gradients at params + e.

    Attributes:
        alpha: weight of both terms of FedDyn, taken at params, > 0.
        weighting: alpha_i = alpha ("uniform"), or by number of "examples", as in FedDyn.
        mean: of the cohort's models, as in FedDyn.
        clip_order: what is clipped: "centred" is the whole gradient of a step, g + alpha (u_i + x - w). "reference" is
            g + alpha (u_i - w), to which alpha x comes later, as in FL-Simulator: where alpha |w| is above clip, that pulls
            x to 0 instead of w.
        rho: length of e, over all parameters together, >= 0.
    """

    alpha: float = 0.1
    weighting: Weighting = "uniform"
    clip_order: ClipOrder = "centred"
    rho: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("clip_order", self.clip_order, get_args(ClipOrder))
        at_least("rho", self.rho, 0)

    def step_gradient(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        if self.clip_order == "centred":
            return super().step_gradient(slope, params, view)
        alpha, memory = view.client["alpha"], view.client["memory"]
        slope = tree.map(lambda g, u, w: g + alpha * (u - w), slope, memory, view.params)
        return tree.map(lambda g, x: g + alpha * x, clipped(slope, self.clip), params)
