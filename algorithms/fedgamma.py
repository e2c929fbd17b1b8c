"""FedGAMMA: clients take FedSAM's sharpness-aware steps, which SCAFFOLD's control variates correct.

Dai, Yang, Sun, Shen, Tian, Wang and Zhang, FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization, IEEE
TNNLS 2023. https://doi.org/10.1109/TNNLS.2023.3304453
"""

import functools
from dataclasses import dataclass

from algorithms import LocalResult, above, at_least, registered, tree
from algorithms.scaffold import Scaffold
from algorithms.shared.local_sgd import GradientOf, clipped
from algorithms.shared.sharpness import one_class_caveats, sharp_gradient
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Loss, Task


@dataclass(frozen=True)
class ClippedScaffold(Scaffold):
    """SCAFFOLD whose gradients are clipped together with their correction.

    Attributes:
        server_lr, weighting, momentum_mode: see `Scaffold`.
        clip: largest norm of a gradient plus c - c_i, > 0; None does not clip. A clipped path is what c_i then records. With
            momentum on the gradient alone (`momentum_mode` "outside"), of the gradient alone: momentum would amplify what is
            taken from the correction.
    """

    clip: float | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            above("clip", self.clip, 0)

    def _update(
        self, slope_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView, correction: float = 1.0
    ) -> LocalResult:
        if self.clip is None:
            return super()._update(slope_of, data, plan, view, correction)
        most, alone = self.clip, self.momentum_mode == "outside" and view.settings.momentum > 0
        offset = tree.scale(tree.subtract(view.server["control"], view.client["control"]), correction)

        def shortened(loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
            slope = slope_of(loss, params, batch, view)
            if alone:
                return clipped(slope, most)
            # The correction comes later: what is returned is f (g + offset) - offset. Where nothing is clipped, f is exactly
            # 1, and g keeps its bits.
            factor = most / tree.norm(tree.add(slope, offset)).clamp(min=most)
            return tree.map(lambda g, o: factor * g + (factor - 1) * o, slope, offset)

        return super()._update(shortened, data, plan, view, correction)


@registered("fedgamma")
@dataclass(frozen=True)
class FedGAMMA(ClippedScaffold):
    """SCAFFOLD with the gradient g(x + e), where e = rho g(x) / |g(x)| from the client's own gradient, without correction.

    A step follows g(x + e) + c - c_i. Then c_i+ = c_i - c - d_i / (K lr), with the client's delta d_i and its K steps. After
    all clients of the round, c moves by the mean of c_i+ - c_i times the cohort's share of the clients, and the server's model
    by server_lr times the mean delta. Weight decay, at x, is a part of what c_i records. Only the pass at x moves running
    statistics. How momentum goes with the correction is `momentum_mode`, as in `Scaffold`.

    With rho = 0 it is SCAFFOLD; its first round is that of FedSAM with uniform weights.

    The paper's body was not at hand: rules and defaults are those of FL-Simulator, the code of one of its authors.
    Differs from FL-Simulator: 1e-12 instead of 1e-7 is added to |g(x)|, and each client has its own K.

    Attributes:
        server_lr, weighting, momentum_mode, clip: see `ClippedScaffold`.
        rho: length of e, over all parameters together, >= 0.
    """

    rho: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("rho", self.rho, 0)

    def caveats(self, task: Task) -> list[str]:
        return one_class_caveats("fedgamma", task, self.rho)

    @property
    def passes_per_example(self) -> int:
        return 2 if self.rho else 1

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        return self._update(functools.partial(sharp_gradient, rho=self.rho), data, plan, view)
