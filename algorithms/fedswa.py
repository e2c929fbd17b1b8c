"""FedSWA: clients lower their learning rate within each round, and the server steps beyond the mean of their models.

fedmoswa: FedMoSWA: FedSWA with control variates of the clients and a momentum of the server that corrects them.

Liu, Liu, Shang, Liu, Liu and Feng, Improving Generalization in Federated Learning with Highly Heterogeneous Data via
Momentum-Based Stochastic Controlled Weight Averaging, ICML 2025. https://arxiv.org/abs/2507.20016
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from algorithms import LocalResult, Weighting, above, between, descend, one_of, registered, tree
from algorithms.shared.clipping import Clipped
from algorithms.shared.control_variates import KeepsControls
from algorithms.shared.local_sgd import GradientOf
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Cohort, Task
from algorithms.shared.weighting import Weighed

Divisor = Literal["sum", "reference"]


@registered("fedswa", title="FedSWA")
@dataclass(frozen=True)
class FedSWA(Clipped, Weighed):
    """FedAvg, by default with a uniform mean, whose clients take step k = 0..K-1 of each round at the rate
    lr (1 - k/K) + (k/K) rho lr, and whose server moves by alpha times the mean delta.

    K is the number of steps of the client itself; the first step has lr, and rho lr is never reached. Buffers are averaged. The
    momentum buffer of a client goes through a round as without the schedule. With rho = alpha = 1,
    weighting "examples" and no clip it is FedAvg.

    The paper's body was not at hand: formulas are those of the code of 2025 and of notes of others. The code of 2026 has this
    name for something else: an lr that is doubled, rho 0 and alpha 1.
    Differs from the code of 2025: alpha acts on params alone, and not on running statistics.

    Attributes:
        weighting: mean of the cohort's models and their buffers, "uniform", or by number of "examples".
        rho: to which part of lr the rate falls in a round, in [0, 1].
        alpha: step size of the server, > 0.
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    weighting: Weighting = "uniform"
    rho: float = 0.1
    alpha: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        between("rho", self.rho, 0, 1)
        above("alpha", self.alpha, 0)

    def update_with(self, gradient_of: GradientOf, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        if self.rho == 1:
            return super().update_with(gradient_of, data, plan, view)
        how, offset = self.steps_along(gradient_of), self.step_offset(view)
        params, velocity = view.params, None
        for step, index in enumerate(plan):
            whole = descend(
                self.local_loss, params, data, [index], view, velocity=velocity, gradient_of=how, step_offset=offset
            )
            share = 1 - (1 - self.rho) * step / view.num_steps  # of lr
            params = tree.map(lambda old, new, share=share: old + share * (new - old), params, whole.params)
            velocity = whole.velocity
        return LocalResult({"delta": tree.subtract(params, view.params)}, view.client)

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return tree.add(params, tree.scale(update["delta"], self.alpha)), server


@registered("fedmoswa", title="FedMoSWA")
@dataclass(frozen=True)
class FedMoSWA(KeepsControls, FedSWA):
    """FedSWA whose steps follow g - c_i + m, with the client's control variate c_i and the server's momentum m, 0 at first.

    After a round, c_i+ = c_i - m - d_i / (sum of the rates), with the client's delta d_i; then m moves by gamma times the
    cohort's mean of c_i+ - m, with the m that was sent. Clients receive m and send c_i+ - m beside FedAvg's traffic, and keep
    c_i until they take part again. gamma takes the place of the share of clients in SCAFFOLD: m follows the last cohorts.
    The correction is no part of the clipped gradient, nor of local momentum, which would amplify it, as in `Scaffold`.

    Its first round is that of FedSWA. With rho = alpha = gamma = 1, no clip, and all clients in each round it is SCAFFOLD; with
    gamma = 0 it is not FedSWA, because c_i still corrects.

    The paper's body was not at hand, as for `FedSWA`. In the code gamma is 0.1, whatever is set, and c_i is lost between
    processes; that of 2026 trains at one rate. This is not copied.

    Attributes:
        weighting, rho, alpha, clip: see `FedSWA`; the mean of c_i+ is uniform with both.
        gamma: step size of m, in [0, 1].
        divisor: of d_i: "sum" of the rates, or K lr (1 + rho) / 2, as in the code of 2025 ("reference"), which is smaller.
    """

    gamma: float = 0.2
    divisor: Divisor = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        between("gamma", self.gamma, 0, 1)
        one_of("divisor", self.divisor, get_args(Divisor))

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        delta, offset = super().local_update(data, plan, view).update["delta"], self.control_offset(view)
        rates = view.settings.lr * self._steps(view.num_steps)
        control = tree.map(lambda o, d: -o - d / rates, offset, delta)
        change = tree.subtract(control, view.server["control"])
        return LocalResult({"delta": delta, "change": change}, {"control": control})

    def step_offset(self, view: ClientView) -> Tree:
        return self.control_offset(view)

    def _steps(self, num_steps: Tensor) -> Tensor:
        """How many steps at the whole rate those of a round are worth."""
        if self.divisor == "reference":
            return num_steps * (1 + self.rho) / 2
        return num_steps - (1 - self.rho) * (num_steps - 1) / 2

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, _ = super().server_step(task, params, server, update, cohort)
        return new, {"control": tree.add(server["control"], tree.scale(update["change"], self.gamma))}
