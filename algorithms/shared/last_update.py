"""Local steps that follow the server's last mean update, too."""

from dataclasses import dataclass

from algorithms.shared import tree
from algorithms.shared.base import State
from algorithms.shared.checks import between
from algorithms.shared.clipping import Clipped
from algorithms.shared.local_sgd import clipped
from algorithms.shared.tree import Tree
from algorithms.shared.types import ClientView, Cohort, Task


@dataclass(frozen=True)
class FollowsLastUpdate(Clipped):
    """Steps are along alpha g + (1 - alpha) D, with the gradient g, clipped; D = -(last mean update) / (K lr).

    D is 0 in the first round, and not sent; unlike the zeros of SCAFFOLD's first round, it counts as no traffic there.

    Attributes:
        alpha: weight of g, in [0, 1].
    """

    alpha: float = 0.1

    broadcast = ("update",)

    def __post_init__(self) -> None:
        super().__post_init__()
        between("alpha", self.alpha, 0, 1)

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {**super().init_server(task, params), "update": tree.zeros_like(params)}

    def step_gradient(self, slope: Tree, params: Tree, view: ClientView) -> Tree:
        # Shortened before it is scaled: the setting, too, is about g.
        slope = clipped(super().step_gradient(slope, params, view), view.settings.max_gradient_norm)
        return tree.scale(slope, self.alpha)

    def step_offset(self, view: ClientView) -> Tree | None:
        """(1 - alpha) D."""
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
