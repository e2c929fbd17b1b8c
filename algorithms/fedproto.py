"""FedProto: clients train models of their own, and exchange class prototypes instead of params.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.
https://arxiv.org/abs/2105.00243
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from algorithms import LocalResult, RoundBased, Weighting, at_least, cross_entropy, descend, one_of, registered, tree
from algorithms.shared.base import Average, Deployed, State
from algorithms.shared.moments import ClassSums
from algorithms.shared.passes import add_batch, batches_of_a_pass, first_pass, sums_over
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Task
from bench.models.base import Model
from bench.models.calibrated import NearestPrototype, wrap

Collect = Literal["after", "last_epoch"]
Predict = Literal["argmax", "nearest"]


@registered("fedproto")
@dataclass(frozen=True)
class FedProto(RoundBased):
    """Local training with a term that pulls the features of a class, those that the classifier reads, to its prototype.

    A client's prototype of a class is its mean feature of the class; the server's is the mean of those of the cohort's
    clients that hold the class. The term is the mean squared difference over all examples and dimensions of a batch;
    examples of a class without prototype add 0. All clients begin with the same initial model, and each goes on from
    its own last round.

    Differs from the paper: clients count alike, as in the authors' code, and not by their examples of the class. The
    code takes prototypes in the last epoch, while params move, and forgets those of classes that are absent in a round.
    The paper predicts the class of the nearest prototype. The pass "after" training sees images as augmented.

    Attributes:
        prototype_weight: lambda of the paper, >= 0; 0 is local training.
        collect: prototypes are taken "after" training, in a pass over the training examples in evaluation mode, or in
            the "last_epoch", from the features that each step trains; of images as augmented for training. Examples
            that `last_batch` drops in that pass are left out. With `local_steps`, the first or the last steps are such a
            pass, as many as it has, or all if there are fewer.
        weighting: the server's prototype of a class is a "uniform" mean over clients, or by their "examples" of it.
        carry: a class that no client of a cohort holds keeps its prototype.
        predict: clients deploy their own classifiers ("argmax"), or predict the class of the "nearest" prototype of the
            server, as in the paper.
    """

    prototype_weight: float = 1.0
    collect: Collect = "after"
    weighting: Weighting = "uniform"
    carry: bool = True
    predict: Predict = "argmax"

    personal = True
    broadcast = ("prototypes", "known")

    def __post_init__(self) -> None:
        at_least("prototype_weight", self.prototype_weight, 0)
        one_of("collect", self.collect, get_args(Collect))
        one_of("weighting", self.weighting, get_args(Weighting))
        one_of("predict", self.predict, get_args(Predict))

    # On one client

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"params": params, "buffers": task.initial_buffers()}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        loss = cross_entropy(view.model.head(params, features), batch)
        if not self.prototype_weight:
            return loss
        known, prototypes = (view.server[name][batch.y] for name in ("known", "prototypes"))
        distances = (features - prototypes).square().mean(1)
        return loss + self.prototype_weight * batch.mean(torch.where(known, distances, 0))

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        own = replace(view, model=view.model.copy(view.client["buffers"], training=True))
        train = self._train_and_collect if self.collect == "last_epoch" else self._train_then_collect
        params, sums = train(data, plan, own)
        prototypes = sums.totals / sums.counts.clamp(min=1)[:, None]
        weights = sums.counts if self.weighting == "examples" else (sums.counts > 0).to(sums.counts.dtype)
        sent = {"prototypes": prototypes, "weights": weights}
        return LocalResult(sent, {"params": params, "buffers": own.model.buffers})

    def _train_then_collect(self, data: ClientData, plan: BatchPlan, own: ClientView) -> tuple[Tree, ClassSums]:
        """Trained params, and sums of their features over one pass."""
        params = descend(self.local_loss, own.client["params"], data, plan, own).params
        features_of = functools.partial(own.model.copy().features, params)
        return params, sums_over(first_pass(plan, own), _none(own), features_of, data)

    def _train_and_collect(self, data: ClientData, plan: BatchPlan, own: ClientView) -> tuple[Tree, ClassSums]:
        """Trained params, and sums of the features that the steps of the last pass train."""
        params, velocity, sums = own.client["params"], tree.zeros_like(own.client["params"]), _none(own)
        for step, index in enumerate(plan):
            last = step >= own.num_steps - batches_of_a_pass(own)
            features_of = functools.partial(own.model.twin().features, params)
            sums = tree.where(last, add_batch(sums, features_of, data.take(index)), sums)
            params, velocity = descend(self.local_loss, params, data, [index], own, velocity=velocity)
        return params, sums

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return view.client

    # On the server

    def init_server(self, task: Task, params: Tree) -> Tree:
        none = torch.zeros(task.model.num_classes, dtype=torch.bool, device=task.device)
        blank = torch.zeros(task.model.num_classes, task.model.feature_dim, dtype=task.dtype, device=task.device)
        return {"prototypes": blank, "known": none, "updated": none}

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        weights = updates["weights"]
        values = {"totals": weights[..., None] * updates["prototypes"], "weights": weights}
        return {"classes": Average(values, cohort.num_examples.new_ones(len(cohort.ids)))}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        totals, weights = update["classes"]["totals"], update["classes"]["weights"]
        updated = weights > 0
        fresh = totals / torch.where(updated, weights, 1)[:, None]
        if not self.carry:
            return params, {"prototypes": fresh, "known": updated, "updated": updated}
        prototypes = torch.where(updated[:, None], fresh, server["prototypes"])
        return params, {"prototypes": prototypes, "known": server["known"] | updated, "updated": updated}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        return outputs.result.client

    def result_template(self, state: State) -> Tree:
        prototypes = state["server"]["prototypes"]
        sent = {"prototypes": prototypes, "weights": prototypes[:, 0]}
        return sent | {"buffers": state["buffers"], "client": state["clients"]["fresh"]}

    # What is deployed

    def deployed_model(self, task: Task) -> Model:
        return wrap(NearestPrototype, task.model) if self.predict == "nearest" else task.model

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        deployed = super().deploy(task, state, client_ids)
        if self.predict == "argmax":
            return deployed
        shared = {name: state["server"][name] for name in self.broadcast}
        shared = tree.map(lambda leaf: leaf.expand(len(client_ids), *leaf.shape), shared)
        return deployed._replace(params=deployed.params | shared)

    # What it costs: prototypes alone are exchanged, of no more classes than there are

    def downloads(self, state: State) -> Tree:
        return {"prototypes": state["server"]["prototypes"][state["server"]["known"]]}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        held = update["weights"] > 0
        counts = {"counts": update["weights"][held]} if self.weighting == "examples" else {}
        return {"prototypes": update["prototypes"][held], **counts}

    def deploy_traffic(self, task: Task, model: Model) -> dict[str, int]:
        last = _size(task) * task.population if self.predict == "nearest" else 0
        return {"bytes_down": last, "bytes_up": 0}

    def traffic(self, task: Task) -> int:
        # There are no prototypes before the first round; with "examples", a count goes with each that is sent.
        rounds = task.cohort_share * (2 * task.settings.rounds - 1) * _size(task)
        if self.weighting == "examples":
            rounds += task.cohort_share * task.settings.rounds * _size(task) / task.model.feature_dim
        return round(rounds) + sum(self.deploy_traffic(task, task.model).values()) // task.population

    @property
    def traffic_is_bound(self) -> bool:
        return True

    def diagnostics(self, state: State) -> dict[str, Any]:
        """How many classes have prototypes, and how many of these are older than the last round."""
        known, updated = state["server"]["known"], state["server"]["updated"]
        return {"prototypes": int(known.sum()), "carried_prototypes": int((known & ~updated).sum())}


def _none(view: ClientView) -> ClassSums:
    """Sums of no features."""
    prototypes = view.server["prototypes"]
    return ClassSums(torch.zeros_like(prototypes), torch.zeros_like(prototypes[:, 0]))


def _size(task: Task) -> int:
    """Bytes of the prototypes of all classes."""
    return task.model.num_classes * task.model.feature_dim * task.dtype.itemsize
