"""FedSAM: clients minimise the loss at the worst params nearby, sharpness-aware, to end in flat minima.

fedasam: FedASAM: FedSAM with a neighbourhood that is as large, at each weight, as the weight.
mofedsam: MoFedSAM: FedSAM whose local steps also follow the last mean update.

Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022 (FedSAM, MoFedSAM).
https://arxiv.org/abs/2206.02618
Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022 (FedSAM,
FedASAM, averages of server models). https://arxiv.org/abs/2203.11834
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import algorithms
from algorithms import Deployed, LocalResult, above, at_least, between, registered, tree
from algorithms.shared.base import State
from algorithms.shared.clipping import Clipped
from algorithms.shared.last_update import FollowsLastUpdate
from algorithms.shared.sharpness import LEAST_NORM, two_gradients
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Loss, RunConfig, Settings, Task


@dataclass(frozen=True)
class SharpnessAware(Clipped):
    """FedAvg with steps of sharpness-aware minimisation.

    The gradient on a batch is taken at params + e, where e, of length rho, points up the gradient on that batch at params.
    Weight decay (at params) and momentum act on the second gradient, as in FedAvg. Only the first pass moves running
    statistics, and both draw the same dropout masks.

    Attributes:
        rho: length of e, over all parameters together, >= 0; 0 is FedAvg, at twice its cost.
        clip: largest norm of the second gradient, > 0; None does not clip.
        swa: whether the mean of several server models is deployed (stochastic weight averaging); training goes on from the
            last one. Refused for models with running statistics, which would not fit the mean.
        swa_start: share of the rounds, in [0, 1], after which the first server model is taken; until then, the last one
            is deployed.
        swa_every: rounds from one server model that is taken to the next, c, >= 1.
        swa_last_lr: the clients' learning rate in a round whose server model is taken, > 0, with swa and c > 1: after the first
            model, in round j of each c the rate is (1 - j/c) lr + (j/c) swa_last_lr. None leaves it at lr.
    """

    rho: float = 0.1
    clip: float | None = None
    swa: bool = False
    swa_start: float = 0.75
    swa_every: int = 10
    swa_last_lr: float | None = None

    weighs_clients = True  # `run_round` only counts

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("rho", self.rho, 0)
        between("swa_start", self.swa_start, 0, 1)
        at_least("swa_every", self.swa_every, 1)
        if self.swa_last_lr is not None:
            above("swa_last_lr", self.swa_last_lr, 0)

    def validate(self, config: RunConfig) -> list[str]:
        rate = self.swa_last_lr
        if rate is None:
            return []
        if config.lr_decay < 1:
            return [
                "swa_last_lr and lr_decay both lower the learning rate from round to round: leave out one of them, but got "
                f"swa_last_lr {rate:g} and lr_decay {config.lr_decay:g}."
            ]
        if self.swa and self.swa_every > 1 and rate <= config.lr:
            return []
        return [
            f"swa_last_lr is the rate to which lr ({config.lr:g}) falls while server models are averaged: it needs swa=true, "
            f"swa_every of at least 2 and a value up to lr, but got swa_last_lr {rate:g}, swa {self.swa}, swa_every "
            f"{self.swa_every}."
        ]

    def caveats(self, task: Task) -> list[str]:
        last, rounds = self._first_taken(task.settings), task.settings.rounds
        if not self.swa or last + self.swa_every <= rounds:
            return []
        return [
            f"{algorithms.name_of(self)}: the mean of server models is that of one, of round {last} of {rounds}: the next "
            f"would be taken {_rounds(self.swa_every)} later."
        ]

    # On one client

    @property
    def passes_per_example(self) -> int:
        return 2

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        view = replace(view, settings=replace(view.settings, lr=self._lr(view.settings, view.round)))
        return self.update_with(self._sharp_gradient, data, plan, view)

    def _sharp_gradient(self, loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
        """The gradient on a batch at params + e."""
        return two_gradients(loss, params, batch, view, lambda slope: self._ascent(params, slope))[1]

    def _ascent(self, params: Tree, slope: Tree) -> Tree:
        """e, from the gradient at params; 0 where that is 0."""
        return tree.scale(slope, self.rho / (tree.norm(slope) + LEAST_NORM))

    def _lr(self, settings: Settings, round: int) -> float:
        """The learning rate in a round."""
        since = round + 1 - self._first_taken(settings)
        if not self.swa or self.swa_last_lr is None or self.swa_every == 1 or since < 1:
            return settings.lr
        share = ((since - 1) % self.swa_every + 1) / self.swa_every
        return (1 - share) * settings.lr + share * self.swa_last_lr

    # Average of server models

    def init(self, task: Task) -> State:
        if self.swa and task.model.init_buffers():
            raise ValueError(
                f"swa averages weights of server models, for which {type(task.model).__name__} would need new running "
                "statistics: choose a model without batch normalisation, or set swa=false."
            )
        return super().init(task)

    def init_server(self, task: Task, params: Tree) -> Tree:
        if not self.swa:
            return {}
        none = torch.zeros((), dtype=torch.long, device=task.device)
        return {"average": tree.zeros_like(params), "rounds": none, "taken": none}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, server = super().server_step(task, params, server, update, cohort)
        return new, self._counted(task, new, server)

    def run_round(self, task: Task, state: State) -> State:
        after = super().run_round(task, state)
        idle = after is state  # of a few clients, as in a cluster, none may be sampled; the round counts all the same
        return {**state, "server": self._counted(task, state["params"], state["server"])} if idle else after

    def _first_taken(self, settings: Settings) -> int:
        """The round, from 1, whose server model is the first of the average."""
        return max(1, math.ceil(self.swa_start * settings.rounds - 1e-9))  # 0.7 * 10 is 7, but for rounding

    def _counted(self, task: Task, params: Tree, server: Tree) -> Tree:
        """The server state with one more round, and with these params in its average if the round is one of those taken."""
        if not self.swa:
            return server
        first = self._first_taken(task.settings)
        rounds = server["rounds"] + 1
        takes = (rounds >= first) & ((rounds - first) % self.swa_every == 0)
        taken = server["taken"] + takes
        average = tree.map(
            lambda mean, leaf: mean + takes * (leaf - mean) / taken.clamp(min=1), server["average"], params
        )
        return {**server, "average": average, "rounds": rounds, "taken": taken}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        if self.swa:
            taken = state["server"]["taken"] > 0
            state = {**state, "params": tree.where(taken, state["server"]["average"], state["params"])}
        return super().deploy(task, state, client_ids)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


@registered("fedsam")
@dataclass(frozen=True)
class FedSAM(SharpnessAware):
    """e = rho g / |g|, with the gradient g on a batch.

    Differs from the paper of Caldarola et al.: with swa, the learning rate cycles only where `swa_last_lr` is set (1e-4 in
    their code). It is then the lowest in the rounds whose models are taken; in their code cycles are counted from the first
    round of the run, whichever rounds these are, and the first model is taken a cycle later.

    Attributes:
        rho, clip, swa, swa_start, swa_every, swa_last_lr: see `SharpnessAware`.
    """


@registered("fedasam", title="FedASAM")
@dataclass(frozen=True)
class FedASAM(SharpnessAware):
    """e = rho T^2 g / |T g|, where T is |w| + eta at each weight w and 1 at biases.

    Differs from the paper: with swa, the learning rate cycles only where `swa_last_lr` is set; see `FedSAM`.

    Attributes:
        rho, clip, swa, swa_start, swa_every, swa_last_lr: see `SharpnessAware`; rho is the length of e / T.
        eta: added to sizes of weights, >= 0.
    """

    rho: float = 0.7
    eta: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("eta", self.eta, 0)

    def _ascent(self, params: Tree, slope: Tree) -> Tree:
        sizes = {
            name: leaf.abs() + self.eta if name.endswith("weight") else torch.ones_like(leaf)
            for name, leaf in params.items()
        }
        scaled = tree.map(torch.mul, sizes, slope)
        return tree.map(torch.mul, sizes, super()._ascent(params, scaled))


@registered("mofedsam", title="MoFedSAM")
@dataclass(frozen=True)
class MoFedSAM(FollowsLastUpdate, SharpnessAware):
    """FedSAM with steps along alpha g' + (1 - alpha) D, with the gradient g' of FedSAM; D = -(last mean update) / (K lr).

    K is the number of steps of the client itself: with any K, the second part moves it by (1 - alpha) times the last mean
    update, which all clients of a cohort receive. D is 0 in the first round, and not sent.

    Differs from the paper, which has no momentum: momentum acts on alpha g' alone, because D within it would move a client
    by several times the last update, and more in every round. Weight decay is not multiplied by alpha. With a falling rate
    lr is that of the round, as in `fedcm`.

    Attributes:
        rho, clip, swa, swa_start, swa_every, swa_last_lr: see `SharpnessAware`; clip acts on g'.
        alpha: weight of the gradient, in [0, 1]; 1 is FedSAM.
    """

    clip: float | None = 10.0
