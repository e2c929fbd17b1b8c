"""FedLESAM: sharpness-aware clients ascend against the last change of the global model, which costs no second pass.

fedlesam-s: FedLESAM-S: FedLESAM with the control variates of SCAFFOLD.
fedlesam-d: FedLESAM-D: FedLESAM with the dynamic regulariser of FedDyn.

Fan, Hu, Yao, Niu, Zhang, Sugiyama and Wang, Locally Estimated Global Perturbations are Better than Local Perturbations for
Federated Sharpness-aware Minimization, ICML 2024. https://arxiv.org/abs/2405.18890
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

from torch import Tensor

import algorithms
from algorithms import (
    LocalResult,
    RoundBased,
    State,
    Weighting,
    at_least,
    gradient,
    one_of,
    registered,
    tree,
)
from algorithms.shared.clipping import Clipped
from algorithms.shared.control_variates import ClippedControlVariates
from algorithms.shared.dynamic_regulariser import SharpDynamicRegulariser
from algorithms.shared.local_sgd import GradientOf
from algorithms.shared.sharpness import LEAST_NORM, ascent, one_class_caveats
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Cohort, Task
from algorithms.shared.weighting import Weighed

Estimate = Literal["last_active", "last_round"]
Norm = Literal["all", "sum"]


@dataclass(frozen=True)
class LocallyEstimated(RoundBased):
    """Gradients at x + e, with the params x that train, and one e for all steps of a round: e = rho (v - w) / |v - w|, with the
    model w received and an older global model v. There is one pass over each batch, at x + e, which also moves running
    statistics. e is 0 where v = w, so at a client that takes part for the first time, and for all in the first round.

    Differs from the authors' code, which does not run as it is stored: there e has wrong directions, because the update, one
    long vector, is read with the numbers of tensors; this is not copied. By default |v - w| is one norm over all parameters, as
    in FedSWA's port; see `norm`.
    The paper's body was not at hand: formulas are those of its abstract and of the code.

    Attributes:
        rho: length of e, over all parameters together, >= 0.
        estimate: which older model v: the model that the client received when it last took part ("last_active", as in the
            paper), or the global model before the last round, for all clients ("last_round", as in the code); that one
            is sent beside the model w. Both are the same if all clients take part in every round.
        norm: |v - w| is the norm over "all" parameters together, or the "sum" of the norms of the tensors, as in the code,
            which makes e shorter.
    """

    rho: float = 0.1
    estimate: Estimate = "last_active"
    norm: Norm = "all"

    update_with: ClassVar[Callable[..., LocalResult]]  # of the class beside it, which says how a client trains

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("rho", self.rho, 0)
        one_of("estimate", self.estimate, get_args(Estimate))
        one_of("norm", self.norm, get_args(Norm))

    def caveats(self, task: Task) -> list[str]:
        times = task.cohort_share * task.settings.rounds
        said = (
            f"{algorithms.name_of(self)}: a client takes part {times:.2g} times on average, and the first time e is 0, so that "
            "many gradients are those of the method without ascents."
        )
        return [said] if self.rho and self.estimate == "last_active" and times < 2 else []

    def init_client(self, task: Task, params: Tree) -> Tree:
        kept = super().init_client(task, params)
        return {**kept, "received": params} if self.estimate == "last_active" else kept

    def init_server(self, task: Task, params: Tree) -> Tree:
        server = super().init_server(task, params)
        return {**server, "previous": params} if self.estimate == "last_round" else server

    @property
    def broadcast(self) -> tuple[str, ...]:  # type: ignore[override]
        older = ("previous",) if self.estimate == "last_round" else ()
        return (*super().broadcast, *older)

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """As kept; a client that comes for the first time has no older model than w."""
        if self.estimate == "last_active":
            clients = state["clients"]
            fresh = {**clients["fresh"], "received": state["params"]}
            state = {**state, "clients": {**clients, "fresh": fresh}}
        return super().cohort_states(task, cohort, state)

    def _shifted(self, view: ClientView) -> GradientOf:
        """How gradients of a round are taken: at x + e."""
        if not self.rho:
            return gradient
        older = view.client["received"] if self.estimate == "last_active" else view.server["previous"]
        change = tree.subtract(older, view.params)
        e = ascent(change, self.rho)
        if self.norm == "sum":
            norms = cast(Tensor, sum(map(tree.norm, tree.leaves(change))))
            e = tree.scale(e, tree.norm(change) / norms.clamp(min=LEAST_NORM))
        return lambda loss, params, batch, view: gradient(loss, tree.add(params, e), batch, view)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        result = self.update_with(self._shifted(view), data, plan, view)
        kept = {"received": view.params} if self.estimate == "last_active" else {}  # for the client's next e
        return result._replace(client={**result.client, **kept})

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, server = super().server_step(task, params, server, update, cohort)
        return new, {**server, "previous": params} if self.estimate == "last_round" else server


@registered("fedlesam")
@dataclass(frozen=True)
class FedLESAM(LocallyEstimated, Clipped, Weighed):
    """FedAvg, by default with a uniform mean, with gradients at x + e; see `LocallyEstimated`. With rho = 0, weighting
    "examples" and no clip it is FedAvg.

    Attributes:
        rho, estimate, norm: see `LocallyEstimated`.
        weighting: mean of the cohort's models and their buffers, "uniform", as in the code, or by number of "examples".
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    weighting: Weighting = "uniform"


@registered("fedlesam-s", title="FedLESAM-S")
@dataclass(frozen=True)
class FedLESAMS(LocallyEstimated, ClippedControlVariates):  # type: ignore[misc]  # broadcast is a property in the first
    """SCAFFOLD with gradients at x + e: a step follows g(x + e) + c - c_i; see `LocallyEstimated` and `Scaffold`, also for how
    momentum goes with the correction. With rho = 0, and in the first round, it is SCAFFOLD, but for clipping.

    Differs from the authors' code, which multiplies c - c_i by 0.1 in the steps: `correction`.

    Attributes:
        rho, estimate, norm: see `LocallyEstimated`; the authors have a rho of 0.5 for FedLESAM-S.
        server_lr, weighting, momentum_mode, clip: see `ClippedControlVariates`.
        correction: by what c - c_i is multiplied in steps, >= 0; in c_i+ it is whole. With 0 it is FedLESAM, if
            all other options are the defaults.
    """

    correction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("correction", self.correction, 0)

    def caveats(self, task: Task) -> list[str]:
        return super().caveats(task) + one_class_caveats("fedlesam-s", task, self.rho)

    def step_offset(self, view: ClientView) -> Tree:
        return tree.scale(super().step_offset(view), self.correction)


@registered("fedlesam-d", title="FedLESAM-D")
@dataclass(frozen=True)
class FedLESAMD(LocallyEstimated, SharpDynamicRegulariser):
    """FedDyn with gradients at x + e: a step follows g(x + e) + alpha (u_i + x - w), whose proximal term is at x; see
    `LocallyEstimated` and `FedDyn`. Momentum acts on all terms: with it, alpha should be smaller. With rho = 0, and in the
    first round, it is FedDyn, if `clip_order` is "centred".

    Attributes:
        rho, estimate, norm: see `LocallyEstimated`.
        alpha, weighting, clip, mean, clip_order: see `SharpDynamicRegulariser`.
    """

    def caveats(self, task: Task) -> list[str]:
        return super().caveats(task) + one_class_caveats("fedlesam-d", task, self.rho)
