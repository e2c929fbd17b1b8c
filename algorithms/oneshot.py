"""One-shot FedAvg: every client trains alone, sends its model once, and the server averages the models.

The baseline of one-shot federated learning, such as Guha, Talwalkar and Smith, One-Shot Federated Learning, 2019.
https://arxiv.org/abs/1902.11175
"""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

import algorithms
from algorithms import Algorithm, Cohort, Deployed, PostHoc, State, Task, Tree, one_of, registered, tree
from algorithms.local_training import LocalTraining
from algorithms.shared.base import average_buffers
from algorithms.shared.checks import below_one
from algorithms.shared.client_states import read_rows
from algorithms.shared.clustering import ClusterInit
from algorithms.shared.hold_out import num_held, training_part
from algorithms.shared.types import Settings
from algorithms.shared.weighting import Weighs
from bench.models.base import Model
from bench.models.concat import with_prefix


@dataclass(frozen=True)
class OneExchange(LocalTraining):
    """Clients of one cohort train alone, and each sends its model once; a subclass says what the server makes of the models.

    With more rounds than one, clients go on training alone, and momentum starts anew in each; nothing is exchanged in between,
    so that the accuracy after round r is that of r times as many local epochs. The first round counts what is sent.

    Attributes:
        client_init: whether clients start from the "common" initial model or from "independent" ones, which their means do not
            survive, but ensembles do.
    """

    client_init: ClusterInit = "common"

    personal = False
    deploy_reads_clients = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("client_init", self.client_init, get_args(ClusterInit))

    def trained(self, task: Task, state: State) -> tuple[Cohort, Tree]:
        """The clients that have trained, and their models: "params" and "buffers", leaves [K, ...]."""
        own = self.training(task)
        cohort = self.sample(own, state)
        return cohort, self.cohort_states(own, cohort, state)

    def sample(self, task: Task, state: State) -> Cohort:
        return task.sample_cohort(0)

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        kept = read_rows(state["clients"], cohort.ids)
        if self.client_init == "common" or state["clients"]["rows"]:
            return kept
        starts = [
            replace(task, initial_model=client).initial_params() for client in task.global_ids(cohort.ids).tolist()
        ]
        return {**kept, "params": tree.stack(starts)}

    def init(self, task: Task) -> State:
        return super().init(self.training(task))

    def step(self, task: Task, state: State) -> State:
        return super().step(self.training(task), state)

    def finite_check(self, state: State) -> Tree:
        return {"params": state["params"], "clients": state["clients"]["rows"]}

    def downloads(self, state: State) -> Tree:
        return {} if state["round"] else {key: state[key] for key in ("params", "buffers")}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        return buffers

    def _finished(self, task: Task, state: State, cohort: Cohort, *, bytes_up: int, **new: Tree) -> State:
        sent = 0 if state["round"] else bytes_up + len(cohort.ids) * tree.num_bytes(state["params"])
        return super()._finished(task, state, cohort, bytes_up=sent, **new)

    def traffic(self, task: Task) -> int:
        own = self.training(task)
        return round(task.cohort_share * 2 * tree.num_bytes([own.initial_params(), own.initial_buffers()]))

    def caveats(self, task: Task) -> list[str]:
        settings = task.settings
        several = f"Clients trained alone for {settings.rounds} rounds, in each of which momentum started anew."
        return super().caveats(task) + ([several] if settings.rounds > 1 and settings.momentum else [])


@registered("oneshot", title="One-shot FedAvg")
@dataclass(frozen=True)
class OneShot(Weighs, OneExchange):
    """params = start + sum_i p_i (w_i - start), with the models w_i of the clients and their shares p_i of the examples.
    Buffers are averaged as in FedAvg. One round is FedAvg's first round, bit for bit.

    The server keeps all models: methods around this one combine them in other ways, and reuse its finished run.

    Attributes:
        weighting: p_i by number of "examples", or "uniform", as in DENSE's code.
        hold_out: share of its examples that a client does not train on, in [0, 1), for methods that choose or train something
            on them: rounded down, at least one.
    """

    hold_out: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one("hold_out", self.hold_out)

    def training(self, task: Task) -> Task:
        return training_part(task, self.hold_out)

    def step(self, task: Task, state: State) -> State:
        if self.hold_out and not state["round"]:  # fewer examples than those of which the run has looked at the batches
            self.training(task).require_batches([task.model])
        return super().step(task, state)

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        if not len(self.sample(task, state).ids):
            return super().deploy(task, state, client_ids)  # nobody of a cluster has trained
        cohort, models = self.trained(task, state)
        start = state["params"]
        deltas = tree.map(torch.sub, models["params"], start)
        weights = self.client_weights(cohort)
        params = tree.add(start, tree.weighted_mean(deltas, weights))
        return Deployed(self.deployed_model(task), params, average_buffers(models["buffers"], weights), False)

    def workload(self, settings: Settings, num_examples: int) -> int:
        return super().workload(settings, num_examples - num_held(num_examples, self.hold_out))


@dataclass(frozen=True)
class Combination(PostHoc):
    """What is made of the models of one-shot training; a finished run of that is reused.

    Attributes:
        base: `oneshot`, with its options.
    """

    does = "combines the models of"
    base: Algorithm = OneShot()

    def __post_init__(self) -> None:
        if type(self.base) is not OneShot:
            raise ValueError(
                f"{algorithms.name_of(self)} combines the models that the clients of oneshot have trained, but its base is "
                f"{algorithms.name_of(self.base)}; leave base out, or give oneshot with other options."
            )
        super().__post_init__()

    @property
    def oneshot(self) -> OneShot:
        """The base."""
        assert isinstance(self.base, OneShot)
        return self.base

    def changed(self, task: Task, deployed: Deployed, state: State, client_ids: Tensor) -> Deployed:
        cohort, models = self.oneshot.trained(task, state)
        counts = task.federation.label_counts
        of_server = self.server_examples(sum(task.sizes(torch.arange(task.population))), counts.shape[1])
        of_clients = sum(self.deploy_workload(task.settings, size) for size in task.sizes(cohort.ids))
        return self.combined(task, deployed, cohort, models)._replace(examples=of_server + of_clients)

    def combined(self, task: Task, deployed: Deployed, cohort: Cohort, models: Tree) -> Deployed:
        """What is deployed.

        Args:
            deployed: the mean of the models.
            cohort: the clients that have trained, and what they have trained on.
            models: theirs, "params" and "buffers", leaves [K, ...].
        """
        raise NotImplementedError

    def members(self, task: Task) -> tuple[Model, ...]:
        """The models of the clients."""
        return (task.model,) * num_models(task)


def side_by_side(models: Tree) -> dict[str, Tree]:
    """Params and buffers of an `Ensemble` of models with leaves [K, ...]."""
    found: dict[str, Tree] = {"params": {}, "buffers": {}}
    for key, leaves in models.items():
        for k in range(len(next(iter(models["params"].values())))):
            found[key] |= with_prefix(k, tree.row(leaves, k))
    return found


def num_models(task: Task) -> int:
    """m, clients of the one cohort."""
    return len(task.sample_cohort(0).ids)


def bytes_to_all(task: Task, model: Model) -> int:
    """Bytes of a model that all clients of the population receive."""
    return task.population * tree.num_bytes([task.place(model.init(torch.Generator())), model.init_buffers()])
