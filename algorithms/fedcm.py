"""FedCM: the steps of all clients follow the server's last mean update, too.

Xu, Wang, Wang and Yao, FedCM: Federated Learning with Client-level Momentum, 2021. https://arxiv.org/abs/2106.10874
"""

from dataclasses import dataclass, replace

from algorithms import (
    Batch,
    BatchPlan,
    ClientData,
    ClientView,
    Cohort,
    LocalResult,
    Loss,
    RoundBased,
    State,
    Task,
    Tree,
    between,
    descend,
    registered,
    tree,
)
from algorithms.shared.clipping import Clipped


@dataclass(frozen=True)
class FollowsLastUpdate(RoundBased):
    """A method whose steps are along alpha g + (1 - alpha) D, with its own g; D = -(last mean update) / (K lr).

    Attributes:
        alpha: weight of g, in [0, 1].
    """

    alpha: float = 0.1

    broadcast = ("update",)

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {**super().init_server(task, params), "update": tree.zeros_like(params)}

    def _step_offset(self, view: ClientView) -> Tree | None:
        """(1 - alpha) D, which is added to every step, outside the momentum."""
        return tree.scale(view.server["update"], (self.alpha - 1) / (view.num_steps * view.settings.lr))

    def downloads(self, state: State) -> Tree:
        received = super().downloads(state)
        return received if state["round"] else {name: received[name] for name in received if name != "update"}

    def traffic(self, task: Task) -> int:
        later = task.cohort_share * (task.settings.rounds - 1)
        return super().traffic(task) + round(later * tree.num_bytes(task.initial_params()))

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, server = super().server_step(task, params, server, update, cohort)
        return new, {**server, "update": update["delta"]}


@registered("fedcm")
@dataclass(frozen=True)
class FedCM(FollowsLastUpdate, Clipped):
    """FedAvg with steps along alpha g + (1 - alpha) D, with the gradient g on a batch; D = -(last mean update) / (K lr).

    K is the number of steps of the client itself: with any K, the second part moves it by (1 - alpha) times the last mean
    update, which all clients of a cohort receive. D is 0 in the first round, and not sent. With alpha 1 it is FedAvg, but for
    clipping; `mofedsam` with rho 0 takes the same steps at twice the cost.

    Momentum acts on alpha g alone, because D within it would move a client by several times the last update, and more in every
    round. Weight decay is not multiplied by alpha: it comes back with each update, and acts as one of weight_decay / alpha
    does in FedAvg, unless `scale_decay` is set.

    Differs from FL-Simulator (woodenchild95), which clips the whole step, and takes K of the client with the first id for all
    clients, rounded down. The paper's body was not at hand, and its authors have published no code: formulas are those of two
    ports, FL-Simulator and GHBM (RickZack).

    Attributes:
        alpha: weight of the gradient, in [0, 1]; 1 is FedAvg.
        scale_decay: whether weight decay is multiplied by alpha, so that it acts as strongly as in FedAvg.
        clip: largest norm of g, > 0; None does not clip.
    """

    scale_decay: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        between("alpha", self.alpha, 0, 1)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        if self.scale_decay:
            decay = self.alpha * view.settings.weight_decay
            view = replace(view, settings=replace(view.settings, weight_decay=decay))
        trained = descend(
            self.local_loss,
            view.params,
            data,
            plan,
            view,
            gradient_of=self._scaled_gradient,
            step_offset=self._step_offset(view),
        ).params
        return LocalResult({"delta": tree.subtract(trained, view.params)}, view.client)

    def _scaled_gradient(self, loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
        return tree.scale(self.clipped_gradient(loss, params, batch, view), self.alpha)
