"""Ditto: beside the shared model, each client trains one of its own that stays near it.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.
https://arxiv.org/abs/2012.04221
"""

from dataclasses import dataclass, replace

from algorithms import LocalResult, RoundBased, State, Tree, at_least, descend, registered, tree
from algorithms.shared.client_states import read_models
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Cohort, Task


@registered("ditto")
@dataclass(frozen=True)
class Ditto(RoundBased):
    """Algorithm 1 of the paper: FedAvg, whose shared model does not depend on the clients' own ones.

    In its rounds a client trains the shared model, and then its own one, v, on the same mini-batches, with a proximal term to
    the shared model as it was received. v goes on from the client's last participation, with momentum that starts anew; at the
    first one it is the model received, which is also what a client deploys before.

    The paper leaves open how long v is trained and what it starts from: here, as in FedCollab (Bao et al., ICML 2023), as long
    as the shared model, and from the model received.

    Differs from the paper's code as FedCollab's authors wrote it: there the data are shuffled again before v trains, which then
    sees other mini-batches than the shared model. In the code of Ditto's authors both see the same, as here.

    Attributes:
        proximal_weight: lambda of the paper, >= 0; 0 is local training beside FedAvg.
    """

    proximal_weight: float = 1.0

    personal = True

    def __post_init__(self) -> None:
        at_least("proximal_weight", self.proximal_weight, 0)

    @property
    def passes_per_example(self) -> int:
        return 2

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"params": params, "buffers": task.initial_buffers()}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        return read_models(state, cohort.ids)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view).params
        # The gradient lambda (v - w) of the proximal term to the model w received is decay by lambda v, and an offset.
        nearby = replace(view.settings, weight_decay=view.settings.weight_decay + self.proximal_weight)
        offset = tree.scale(view.params, -self.proximal_weight)
        own = replace(view, model=view.model.copy(view.client["buffers"], training=True), settings=nearby)
        personal = descend(self.local_loss, view.client["params"], data, plan, own, gradient_offset=offset).params
        delta = tree.subtract(trained, view.params)
        return LocalResult({"delta": delta}, {"params": personal, "buffers": own.model.buffers})

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return view.client
