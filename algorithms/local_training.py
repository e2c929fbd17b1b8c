"""Local: every client trains alone, and nothing is sent.

The reference that collaboration has to beat; FedCollab (Bao et al., ICML 2023) measures every method against it.
"""

from dataclasses import dataclass, replace

from algorithms import Average, LocalResult, RoundBased, State, Tree, descend, registered
from algorithms.shared.types import BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Task


@registered("local")
@dataclass(frozen=True)
class LocalTraining(RoundBased):
    """FedAvg in federations of one client: each model goes on from its own last round, where momentum starts anew."""

    personal = True

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"params": params, "buffers": task.initial_buffers()}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        own = replace(view, model=view.model.copy(view.client["buffers"], training=True))
        trained = descend(self.local_loss, view.client["params"], data, plan, own).params
        return LocalResult({}, {"params": trained, "buffers": own.model.buffers})

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        return {}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return params, server

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        return outputs.result.client

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return view.client

    def downloads(self, state: State) -> Tree:
        return {}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        return {}
