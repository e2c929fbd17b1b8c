"""FedACG: clients start from where the server's momentum will lead, and stay near that point.

Kim, Kim and Han, Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024.
https://arxiv.org/abs/2201.03172
"""

from dataclasses import dataclass

from torch import Tensor

from algorithms import (
    Batch,
    ClientView,
    Cohort,
    State,
    Task,
    Tree,
    at_least,
    registered,
    task_loss,
    tree,
)
from algorithms.shared.checks import below_one
from algorithms.shared.clipping import Clipped
from algorithms.shared.types import ClientOutputs
from algorithms.shared.weighting import Weighed


@registered("fedacg")
@dataclass(frozen=True)
class FedACG(Clipped, Weighed):
    """Clients receive b = w + lambda m instead of the server model w, and minimise loss + beta/2 |x - b|^2 from there.

    The server then takes m = lambda m + D, with the mean D of trained - b, and w = b + D, which is the old w + the new m. The
    server keeps m, which starts at 0, and sends b alone; w is deployed. Running statistics are averaged as in FedAvg. A round
    without clients leaves m as it is.

    With lambda 0 it is FedProx, with beta 0 beside it FedAvg, both without clipping; so is the first round. While clients
    agree, m is 1 / (1 - lambda) times their mean delta: with a large lambda, the clients' learning rate should be small.

    Differs from the authors' code: the mean is by number of examples, and the term has the factor 1/2, so that their 0.001 is
    our 0.002. Their learning rate falls from round to round (the setting `lr_decay`, 0.995 for CIFAR-100), and within a round
    from epoch to epoch; here it is constant within a round.
    The paper's body was not at hand: formulas are those of the code (geehokim/FedACG).

    Attributes:
        server_momentum: lambda of the paper, in [0, 1); 0 is FedProx.
        beta: weight of the proximal term, >= 0.
        weighting: the mean is by number of "examples", or "uniform" as in the authors' code.
        clip: largest norm of a gradient, of the proximal term too, > 0; None does not clip.
    """

    server_momentum: float = 0.85
    beta: float = 0.002

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one("server_momentum", self.server_momentum)
        at_least("beta", self.beta, 0)

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"momentum": tree.zeros_like(params)}

    def received(self, state: State) -> dict[str, Tree]:
        return {**super().received(state), "params": self._ahead(state["params"], state["server"])}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        return task_loss(params, batch, view) + 0.5 * self.beta * tree.squared_distance(params, view.params)

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        momentum = tree.map(lambda m, d: self.server_momentum * m + d, server["momentum"], update["delta"])
        return tree.add(self._ahead(params, server), update["delta"]), {"momentum": momentum}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        return super().local_models({**state, **self.received(state)}, outputs)

    def _ahead(self, params: Tree, server: Tree) -> Tree:
        """b."""
        return tree.map(lambda w, m: w + self.server_momentum * m, params, server["momentum"])
