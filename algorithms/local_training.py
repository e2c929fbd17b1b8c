"""Local: every client trains alone, and nothing is sent.

The reference that collaboration has to beat; FedCollab (Bao et al., ICML 2023) measures every method against it.
"""

from dataclasses import dataclass, replace

from algorithms import LocalResult, RoundBased, descend, registered


@registered("local")
@dataclass(frozen=True)
class LocalTraining(RoundBased):
    """FedAvg in federations of one client: each model goes on from its own last round, where momentum starts anew."""

    personal = True

    def init_client(self, task, params):
        return {"params": params, "buffers": task.initial_buffers()}

    def local_update(self, data, plan, view):
        own = replace(view, model=view.model.copy(view.client["buffers"], training=True))
        trained = descend(self.local_loss, view.client["params"], data, plan, own).params
        return LocalResult({}, {"params": trained, "buffers": own.model.buffers})

    def weighted_means(self, updates, cohort):
        return {}

    def server_step(self, task, params, server, update, cohort):
        return params, server

    def local_models(self, state, outputs):
        return outputs.result.client

    def personal_model(self, data, plan, view):
        return view.client

    def downloads(self, state):
        return {}

    def uploads(self, update, buffers):
        return {}
