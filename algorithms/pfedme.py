"""pFedMe: the shared model descends the Moreau envelopes of the clients' losses; each client deploys its proximal point.

T. Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.
https://arxiv.org/abs/2006.08848
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algorithms import LocalResult, RoundBased, State, Tree, above, at_least, gradient, registered, tree
from algorithms.shared.client_states import read_models
from algorithms.shared.local_sgd import clipped, unless_padding
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Task


@registered("pfedme")
@dataclass(frozen=True)
class PFedMe(RoundBased):
    """Algorithm 1 of the paper, with server step beta = 1.

    On each mini-batch the personal model theta starts at the local model w and takes K steps towards the minimum of
    loss + lambda/2 |theta - w|^2; then w moves by lr lambda (theta - w). Clients send w, and deploy the theta of their last
    mini-batch, with the running statistics of that moment; before its first participation a client deploys the shared model.
    There is no momentum, whatever the setting; weight decay is part of the loss.

    Differs from the paper: a round is `local_epochs` or `local_steps` instead of R steps on random mini-batches, and the server
    weights clients by their number of examples, as FedCollab (Bao et al., ICML 2023) does.
    Differs from the paper: it does not mention buffers. As in the code of FedCollab, running statistics are part of w and of
    theta: theta starts at those of w, its passes update them, w moves towards them, and the server averages those of w.

    Attributes:
        proximal_weight: lambda of the paper, >= 0; at 0 the shared model does not move.
        inner_steps: K of the paper, >= 1. With one step pFedMe is FedAvg without momentum and with the learning rate
            lr lambda personal_lr.
        personal_lr: learning rate of theta, > 0. Steps diverge where personal_lr lambda is greater than 2.
    """

    proximal_weight: float = 1.0
    inner_steps: int = 5
    personal_lr: float = 0.1

    version = 2  # 1 had running statistics that no step took back to those of w
    personal = True

    def __post_init__(self) -> None:
        at_least("proximal_weight", self.proximal_weight, 0)
        at_least("inner_steps", self.inner_steps, 1)
        above("personal_lr", self.personal_lr, 0)

    @property
    def passes_per_example(self) -> int:
        return self.inner_steps

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"params": params, "buffers": task.initial_buffers()}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        return read_models(state, cohort.ids)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        now = {"local": {"params": view.params, "buffers": view.model.buffers}, "theta": view.client}
        rate = view.settings.lr * self.proximal_weight
        for index in plan:
            theta = self.proximal_point(now["local"], data.take(index), view)
            moved = tree.map(lambda w, t: _towards(w, t, rate), now["local"], theta)
            now = unless_padding(index, {"local": moved, "theta": theta}, now)
        view.model.buffers.update(now["local"]["buffers"])
        return LocalResult({"delta": tree.subtract(now["local"]["params"], view.params)}, now["theta"])

    def proximal_point(self, local: Tree, batch: Batch, view: ClientView) -> Tree:
        """theta after K steps on a batch from w, the local model: "params" and "buffers"."""
        own = replace(view, model=view.model.copy(local["buffers"], training=True))
        decay, theta = view.settings.weight_decay, local["params"]
        for _ in range(self.inner_steps):
            slope = clipped(gradient(self.local_loss, theta, batch, own), view.settings.max_gradient_norm)
            if decay:
                slope = tree.map(lambda g, t: torch.add(g, t, alpha=decay), slope, theta)
            slope = tree.map(
                lambda g, t, w: torch.add(g, t - w, alpha=self.proximal_weight), slope, theta, local["params"]
            )
            theta = tree.map(lambda t, g: torch.sub(t, g, alpha=self.personal_lr), theta, slope)
        return {"params": theta, "buffers": own.model.buffers}

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return view.client


def _towards(local: Tensor, theta: Tensor, rate: float) -> Tensor:
    """w - rate (w - theta); the counter of batches, an integer, stays as no step is long enough."""
    return torch.sub(local, local - theta, alpha=rate) if local.is_floating_point() else local
