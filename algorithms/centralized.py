"""Centralized: one model trained on all data in one place, as if there were no clients.

The usual upper reference of federated learning; the last row of Table 1 of FedConcat (Diao, Li and He, AAAI 2024).
"""

from dataclasses import dataclass

from algorithms import LocalResult, RoundBased, State, Tree, descend, registered, tree
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Task


@registered("centralized")
@dataclass(frozen=True)
class Centralized(RoundBased):
    """FedAvg with a single client that holds everything (the partition `none`) and keeps its momentum between rounds.

    With one local epoch per round, the number of rounds is the number of epochs.
    """

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"velocity": tree.zeros_like(params)}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view, velocity=view.client["velocity"])
        return LocalResult({"delta": tree.subtract(trained.params, view.params)}, {"velocity": trained.velocity})

    def downloads(self, state: State) -> Tree:
        return {}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        return {}
