"""FedSpeed: a dynamic regulariser corrects the proximal term of clients, whose gradients are sharpness-aware.

Sun, Shen, Huang, Ding and Tao, FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy, ICLR 2023. https://arxiv.org/abs/2302.10429
"""

from dataclasses import dataclass
from typing import Literal, get_args

from algorithms import LocalResult, between, gradient, one_of, registered, tree
from algorithms.shared.dynamic_regulariser import SharpDynamicRegulariser
from algorithms.shared.sharpness import ascent, one_class_caveats, two_gradients
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Loss, Task

Server = Literal["mean_memory", "corrected_upload"]


@registered("fedspeed")
@dataclass(frozen=True)
class FedSpeed(SharpDynamicRegulariser):
    """FedDyn with the gradient (1 - a) g(x) + a g(x + e) of the loss, where e = rho g(x) / |g(x)|, both on one batch.

    The gradient of a step is that + alpha (u_i + x - w), with the model w received and the memory u_i, the sum of the
    client's deltas d_i. By default the server does as that of FedDyn: the new model is the mean of the cohort's models + u,
    the mean memory of all clients. alpha is 1/lambda of the paper, and u_i is -lambda times its correction.
    Only the pass at x moves running statistics. Momentum acts on all terms, as in FedDyn: with it, alpha should be smaller.

    With rho or a of 0 it is FedDyn; with a = 1, FedSAM's gradient in FedDyn; both with the default `server` and `clip_order`.

    Differs from the paper, and follows its code: a is 1, the server adds the mean memory of all clients, and gradients are
    clipped. The paper's body was not at hand: that its server takes the mean of w_i + u_i is known from other sources.
    Differs from the authors' code: what is clipped, see `clip_order`; 1e-12 instead of 1e-7 is added to |g(x)|.

    Attributes:
        alpha, weighting, clip, mean, clip_order, rho: see `SharpDynamicRegulariser`.
        sharp_weight: a, in [0, 1]; 1 in the code, and below 1 in the paper, which mixes.
        server: the new model is the cohort's mean of w_i plus the mean u of all clients ("mean_memory", FedDyn's), or the
            cohort's mean of w_i + u_i, which clients send ("corrected_upload"). Both are the same if all clients take part
            in every round.
    """

    sharp_weight: float = 1.0
    server: Server = "mean_memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        between("sharp_weight", self.sharp_weight, 0, 1)
        one_of("server", self.server, get_args(Server))

    def caveats(self, task: Task) -> list[str]:
        return one_class_caveats("fedspeed", task, self.rho * self.sharp_weight)

    @property
    def passes_per_example(self) -> int:
        return 2 if self.rho and self.sharp_weight else 1

    @property
    def sends_memory(self) -> bool:
        return self.server == "corrected_upload"

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self.update_with(self._mixed, data, plan, view)

    def _mixed(self, loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
        """The gradient of the loss that a step follows."""
        if self.passes_per_example == 1:
            return gradient(loss, params, batch, view)
        here, there = two_gradients(loss, params, batch, view, lambda slope: ascent(slope, self.rho))
        share = self.sharp_weight
        return there if share == 1 else tree.map(lambda g, up: (1 - share) * g + share * up, here, there)
