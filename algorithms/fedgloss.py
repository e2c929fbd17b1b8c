"""FedGloSS: sharpness-aware minimisation on the server: clients start a short way back along its last update.

Caldarola, Cagnasso, Caputo and Ciccone, Beyond Local Sharpness: Communication-Efficient Global Sharpness-aware Minimization
for Federated Learning, CVPR 2025. https://arxiv.org/abs/2412.03752
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from algorithms import LocalResult, Weighting, above, at_least, between, one_of, registered, tree
from algorithms.shared.base import State
from algorithms.shared.dynamic_regulariser import DynamicRegulariser, Mean
from algorithms.shared.sharpness import ascent, one_class_caveats, sharp_gradient
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Settings, Task

Schedule = Literal["ramp", "reference"]
_FIRST_RHO = 0.001  # of the authors


@registered("fedgloss", title="FedGloSS")
@dataclass(frozen=True)
class FedGloSS(DynamicRegulariser):
    """FedDyn whose clients start at w~ = w + e, with e = -rho D / |D|, where D is the mean delta of the last round; in the
    first one e is 0. The server's step starts at w, which is deployed: the new model is w + server_lr D + u, with the mean
    memory u.

    A step of a client follows g + alpha (u_i + x - w~), where g is the gradient at x or, with rho_l > 0, at x + rho_l g / |g|,
    as in FedSAM. Its delta d_i = trained - w~ is added to its memory u_i. alpha is 1/beta of the paper, and the paper's
    sigma_k and sigma are -u_k / beta and -u / beta. Only the pass at x moves running statistics, and e moves params alone.
    Momentum acts on all terms, as in FedDyn: with it, alpha should be smaller.

    Both rho grow in the first rounds, linearly from 0.001. With rho = rho_l = 0, the default schedule and
    mean = "uniform" it is FedDyn.

    Differs from the authors' code: the mean memory is the mean over all clients, see `sigma_div_active`; rho grows from
    0.001, see `schedule`; 1e-12 instead of 1e-16 is added to norms.

    Attributes:
        alpha: 1/beta of the paper, > 0; 0.01 on CIFAR-100.
        weighting: alpha_i = alpha ("uniform"), or by number of "examples", as in FedDyn.
        clip: largest norm of a gradient, > 0; None does not clip.
        mean: of the cohort's d_i, by number of "examples" or "uniform"; the mean memory is uniform with both.
        rho: length of e, over all parameters together, >= 0; 0.01 on CIFAR-100.
        rho_l: length of the ascents of clients, >= 0; 0.2 on CIFAR-100. With 0 there is one pass over each batch.
        server_lr: step size of the server, which scales D alone, > 0.
        warm_up: share of the rounds in which both rho grow, in [0, 1]; 0.75 on CIFAR-100.
        schedule: of the server's rho: it grows as that of the clients ("ramp"), or it is about rho_l in rounds 2 to T + 1, if
            the clients' grows for T rounds, and rho from then on ("reference", as in the code).
        sigma_div_active: divides what a round adds to the mean memory also by the number of its clients, as in the code.
    """

    alpha: float = 0.1
    weighting: Weighting = "uniform"
    clip: float | None = None
    mean: Mean = "examples"
    rho: float = 0.15
    rho_l: float = 0.15
    server_lr: float = 1.0
    warm_up: float = 0.2
    schedule: Schedule = "ramp"
    sigma_div_active: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("rho", self.rho, 0)
        at_least("rho_l", self.rho_l, 0)
        above("server_lr", self.server_lr, 0)
        between("warm_up", self.warm_up, 0, 1)
        one_of("schedule", self.schedule, get_args(Schedule))

    def caveats(self, task: Task) -> list[str]:
        return one_class_caveats("fedgloss", task, self.rho_l)

    # On one client

    @property
    def passes_per_example(self) -> int:
        return 2 if self.rho_l else 1

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        rho_l = self._client_rho(view.round, view.settings)
        return self.update_with(functools.partial(sharp_gradient, rho=rho_l), data, plan, view)

    def _client_rho(self, round: int, settings: Settings) -> float:
        """rho_l in a round, counted from 0."""
        last = self._warm_up_rounds(settings)
        return _grown(self.rho_l, min(1.0, round / last) if last else 1.0)

    def _warm_up_rounds(self, settings: Settings) -> int:
        return round(self.warm_up * settings.rounds)

    # On the server

    def init_server(self, task: Task, params: Tree) -> Tree:
        # `received` and `local_models` see the state, but no settings.
        last = torch.tensor(float(self._warm_up_rounds(task.settings)), dtype=task.dtype, device=task.device)
        return {**super().init_server(task, params), "update": tree.zeros_like(params), "warm_up_rounds": last}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        divisor = len(cohort.ids) if self.sigma_div_active else 1
        step = {
            "delta": tree.scale(update["delta"], self.server_lr),
            "remembered": tree.scale(update["remembered"], 1 / divisor),
        }
        new, kept = super().server_step(task, params, server, step, cohort)
        return new, {**server, **kept, "update": update["delta"]}

    def received(self, state: State) -> dict[str, Tree]:
        return {**super().received(state), "params": self._start(state)}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        return super().local_models({**state, "params": self._start(state)}, outputs)

    def _start(self, state: State) -> Tree:
        """w~, from which the clients of the next round start."""
        rho = self._server_rho(state["round"], state["server"]["warm_up_rounds"])
        return tree.subtract(state["params"], ascent(state["server"]["update"], rho))

    def _server_rho(self, round: int, last: Tensor) -> Tensor:
        """rho in a round, counted from 0; that of the first one is not used."""
        if self.schedule == "ramp":
            return _grown(self.rho, (round / last.clamp(min=1)).clamp(max=1))
        return torch.where(round <= last, self.rho_l + (self.rho - _FIRST_RHO) / last, self.rho)


def _grown(rho: float, share: Any) -> Any:
    """rho after a share of its growth."""
    return _FIRST_RHO + (rho - _FIRST_RHO) * share if rho else rho
