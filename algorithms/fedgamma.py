"""FedGAMMA: clients take FedSAM's sharpness-aware steps, which SCAFFOLD's control variates correct.

Dai, Yang, Sun, Shen, Tian, Wang and Zhang, FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization, IEEE
TNNLS 2023. https://doi.org/10.1109/TNNLS.2023.3304453
"""

import functools
from dataclasses import dataclass

from algorithms import LocalResult, at_least, registered
from algorithms.shared.control_variates import ClippedControlVariates
from algorithms.shared.sharpness import one_class_caveats, sharp_gradient
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Task


@registered("fedgamma")
@dataclass(frozen=True)
class FedGAMMA(ClippedControlVariates):
    """SCAFFOLD with the gradient g(x + e), where e = rho g(x) / |g(x)| from the client's own gradient, without correction.

    A step follows g(x + e) + c - c_i. Then c_i+ = c_i - c - d_i / (K lr), with the client's delta d_i and its K steps. After
    all clients of the round, c moves by the mean of c_i+ - c_i times the cohort's share of the clients, and the server's model
    by server_lr times the mean delta. Weight decay, at x, is a part of what c_i records. Only the pass at x moves running
    statistics. How momentum goes with the correction is `momentum_mode`, as in `Scaffold`.

    Without clip, it is SCAFFOLD with rho = 0, and its first round is that of FedSAM with weighting "examples".

    The paper's body was not at hand: rules and defaults are those of FL-Simulator, the code of one of its authors.
    Differs from FL-Simulator: 1e-12 instead of 1e-7 is added to |g(x)|, and each client has its own K.

    Attributes:
        server_lr, weighting, momentum_mode, clip: see `ClippedControlVariates`.
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
        return self.update_with(functools.partial(sharp_gradient, rho=self.rho), data, plan, view)
