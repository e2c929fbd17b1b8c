"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
https://arxiv.org/abs/1909.06335
"""

from dataclasses import dataclass
from typing import Literal, get_args

from algorithms import Cohort, RoundBased, Task, Tree, above, one_of, registered, tree
from algorithms.shared.checks import below_one

Form = Literal["plain", "damped", "nesterov"]


@registered("fedavgm")
@dataclass(frozen=True)
class FedAvgM(RoundBased):
    """FedAvg whose server step has a memory: v = beta v + mean delta; params + server_lr v.

    Attributes:
        server_momentum: beta of the paper, in [0, 1); 0 is FedAvg.
        server_lr: step size of the server, > 0.
        form: "plain" as above; "damped": v = beta v + (1 - beta) mean delta (QinbinLi/MOON); "nesterov": the step is
            mean delta + beta v with the new v.
    """

    server_momentum: float = 0.1
    server_lr: float = 1.0
    form: Form = "plain"

    def __post_init__(self) -> None:
        below_one("server_momentum", self.server_momentum)
        above("server_lr", self.server_lr, 0)
        one_of("form", self.form, get_args(Form))

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"velocity": tree.zeros_like(params)}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        beta, delta = self.server_momentum, update["delta"]
        gain = 1 - beta if self.form == "damped" else 1
        velocity = tree.map(lambda v, d: beta * v + gain * d, server["velocity"], delta)
        step = tree.map(lambda v, d: d + beta * v, velocity, delta) if self.form == "nesterov" else velocity
        return tree.add(params, tree.scale(step, self.server_lr)), {"velocity": velocity}
