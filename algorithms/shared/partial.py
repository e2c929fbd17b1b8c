"""Partial sharing: client and server exchange one part of the model, the body or the head, and the other part stays."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

import algorithms
from algorithms.shared import tree
from algorithms.shared.base import Average, Deployed, State, average_buffers
from algorithms.shared.checks import at_least, one_of
from algorithms.shared.local_sgd import LocalResult, descend
from algorithms.shared.rounds import RoundBased
from algorithms.shared.tree import Tree
from algorithms.shared.types import (
    Batch,
    BatchPlan,
    ClientData,
    ClientOutputs,
    ClientView,
    Cohort,
    Loss,
    Settings,
    Task,
)
from algorithms.shared.weighting import Weighs
from bench.models.base import Model
from bench.models.concat import SideBySide, encoder_part

Part = Literal["body", "head"]
FitPrivate = Literal["absent", "all", "none"]


@dataclass(frozen=True)
class PartlyShared(RoundBased):
    """FedAvg of those params and buffers that `shared` picks. The server's others are the initial ones, which it neither sends
    nor receives."""

    def shared(self, model: Tree) -> Tree:
        """What is shared of a model: of its "params" and "buffers"."""
        raise NotImplementedError

    def private(self, model: Tree) -> Tree:
        """All the rest of it."""
        shared = self.shared(model)
        return {
            key: {name: leaf for name, leaf in leaves.items() if name not in shared[key]}
            for key, leaves in model.items()
        }

    def client_weights(self, cohort: Cohort) -> Tensor:
        """By which the server weighs the clients' parts [K]."""
        return cohort.weights

    # On one client

    def trained(self, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        """A client's model after local training: all of it at once.

        Args:
            model: "params" and "buffers" that the client starts from, the shared ones as received.
        """
        return descend_on(layers_of(view.params), self.local_loss, model, data, plan, view)

    def kept(self, model: Tree) -> Tree:
        """What a client keeps of its model until it takes part again."""
        return {}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        model = self.trained(whole(view), data, plan, view)
        return LocalResult({"delta": self.sent(model, view)}, self.kept(model))

    def sent(self, model: Tree, view: ClientView) -> Tree:
        """The change of the shared params of a trained model. Its shared buffers, and no others, are left for the server."""
        sent, received = self.shared(model), self.shared({"params": view.params, "buffers": view.buffers})
        view.model.buffers.clear()
        view.model.buffers.update(sent["buffers"])
        return tree.subtract(sent["params"], received["params"])

    # On the server

    def downloads(self, state: State) -> Tree:
        return self.shared({key: state[key] for key in ("params", "buffers")})

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        return {"delta": Average(updates["delta"], self.client_weights(cohort))}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return {**params, **_moved(params, update["delta"])}, server

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return {**buffers, **average_buffers(trained, self.client_weights(cohort))}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        size = len(tree.leaves(outputs)[0])
        start = {
            key: tree.map(lambda leaf: leaf.expand(size, *leaf.shape), state[key]) for key in ("params", "buffers")
        }
        moved, kept = _moved(state["params"], outputs.result.update["delta"]), outputs.result.client
        return {
            "params": {**start["params"], **moved, **kept.get("params", {})},
            "buffers": {**start["buffers"], **outputs.buffers, **kept.get("buffers", {})},
        }

    def result_template(self, state: State) -> Tree:
        return {"shared": self.downloads(state), "client": state["clients"]["fresh"]}


@dataclass(frozen=True)
class KeepsPrivate(PartlyShared):
    """Partial sharing in which each client goes on training its own private part, and deploys that with the shared one."""

    personal = True

    def init_client(self, task: Task, params: Tree) -> Tree:
        return self.kept({"params": params, "buffers": task.initial_buffers()})

    def kept(self, model: Tree) -> Tree:
        return self.private(model)

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return whole(view)


@dataclass(frozen=True)
class PartialSharing(Weighs, PartlyShared):
    """FedAvg of one part of the model. The head is the last layers, at least the classifier; the body is all others.

    A batch normalisation and its running statistics belong to the layer whose outputs it normalises.

    Attributes:
        head_layers: number of convolutions and linear layers that make up the head, counted from the last one, >= 0.
        weighting: mean of the cohort's parts by number of "examples", or "uniform".
        shared_part: which part is shared.
        needs_body: whether there is nothing to train if all layers are in the head.
    """

    head_layers: int = 1

    shared_part: ClassVar[Part] = "body"
    needs_body: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("head_layers", self.head_layers, 0)

    def shared(self, model: Tree) -> Tree:
        layers = self.shared_layers(model["params"])
        return {key: pick(leaves, layers) for key, leaves in model.items()}

    def shared_layers(self, params: Iterable[str]) -> list[str]:
        """Names of the layers that are shared, of a model with these params."""
        layers = layers_of(params)
        first = len(layers) - self.head_layers
        return layers[:first] if self.shared_part == "body" else layers[first:]

    def private_layers(self, params: Iterable[str]) -> list[str]:
        """Names of all other layers."""
        shared = self.shared_layers(params)
        return [layer for layer in layers_of(params) if layer not in shared]

    def init(self, task: Task) -> State:
        name, kind, layers = algorithms.name_of(self), type(task.model).__name__, len(task.model.layers())
        check_classifier(task.model, f"{name} shares a part of the model")
        if isinstance(task.model, SideBySide) and 1 < self.head_layers < layers:
            raise ValueError(
                f"head_layers must be at most 1 for {name} and {kind}, which has {task.model.count} encoders side by side, so "
                f"that its last layers would be those of the last encoder, but got {self.head_layers}."
            )
        most = layers - self.needs_body
        if self.head_layers > most:
            raise ValueError(
                f"head_layers must be at most {most} for {name} and {kind}, which has {layers} layers, but got "
                f"{self.head_layers}."
            )
        return super().init(task)


@dataclass(frozen=True)
class FitsPrivate(RoundBased):
    """A method in which each client deploys a private part of the model of its own with the shared one.

    A client that has not yet taken part has an untrained private part, which does not fit the shared one. By default it
    trains the private part before it deploys a model, the shared one frozen, on the batches of one more round; this changes
    no state, but counts in the seconds of a run, and in the examples of deploying. A client that trains for one more round
    before it is scored (`Scored`) trains both parts in it, and fits nothing before.

    Attributes:
        fit_private: which clients train their private part before they deploy: those that have been "absent" from all rounds,
            "all", or "none".
    """

    fit_private: FitPrivate = "absent"

    personal = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("fit_private", self.fit_private, get_args(FitPrivate))

    def fitted_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        """What a client deploys after it has trained its private part, the shared one frozen; as `personal_model`."""
        raise NotImplementedError

    def to_fit(self, state: State, client_ids: Tensor) -> list[int]:
        """Positions of the clients that train their private part before they deploy."""
        absent = [client not in state["clients"]["rows"] for client in client_ids.tolist()]
        wanted = {"absent": absent, "all": [True] * len(absent), "none": [False] * len(absent)}[self.fit_private]
        return [position for position, fits in enumerate(wanted) if fits]

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        deployed = super().deploy(task, state, client_ids)
        positions = torch.tensor(self.to_fit(state, client_ids), dtype=torch.long)
        if not len(positions):
            return deployed
        cohort = task.cohort(client_ids[positions])
        found = self.map_clients(task, self.fitted_model, cohort, state).result
        where = positions.to(task.device)
        params, buffers = (
            tree.map(lambda rows, new: rows.index_copy(0, where, new), old, found[key])
            for key, old in (("params", deployed.params), ("buffers", deployed.buffers))
        )
        visited = sum(self.fit_visits(task.settings, size) for size in task.sizes(cohort.ids))
        return deployed._replace(params=params, buffers=buffers, examples=deployed.examples + visited)

    def fit_visits(self, settings: Settings, num_examples: int) -> int:
        """Examples of which a client with so many computes gradients in `fitted_model`."""
        return settings.num_visited(num_examples, self.smallest_batch)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        absent = (1 - settings.participation) ** self.num_rounds(settings)
        share = {"absent": absent, "all": 1, "none": 0}[self.fit_private]
        own = round(share * self.fit_visits(settings, num_examples))
        return super().deploy_workload(settings, num_examples) + own


@dataclass(frozen=True)
class PersonalPart(FitsPrivate, KeepsPrivate, PartialSharing):
    """Partial sharing in which each client goes on training its own private part, and deploys that with the shared one."""

    def fitted(self, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        """A client's model with its private part trained, the shared one frozen."""
        return descend_on(self.private_layers(view.params), self.local_loss, model, data, plan, view)

    def fitted_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return self.fitted(whole(view), data, plan, view)

    def fit_visits(self, settings: Settings, num_examples: int) -> int:
        all_shared = self.shared_part == "body" and not self.head_layers
        return 0 if all_shared else super().fit_visits(settings, num_examples)


@dataclass(frozen=True)
class OwnClassifier(FitsPrivate, KeepsPrivate):
    """All is shared but the classifier, of which each client has its own."""

    def init(self, task: Task) -> State:
        check_classifier(task.model, f"{algorithms.name_of(self)} shares a part of the model")
        return super().init(task)

    def shared(self, model: Tree) -> Tree:
        return {key: encoder_part(leaves) for key, leaves in model.items()}


# Parts of a model


def layers_of(leaves: Iterable[str]) -> list[str]:
    """The layers of a model with params (or buffers) of these names, in order."""
    return list(dict.fromkeys(map(_layer, leaves)))


def pick(leaves: Tree, layers: Collection[str]) -> Tree:
    """Those params or buffers that belong to some layers."""
    return {name: leaf for name, leaf in leaves.items() if _layer(name) in layers}


def descend_on(
    layers: Collection[str], loss: Loss, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView
) -> Tree:
    """Local SGD on some layers of a model, with momentum that starts anew. Everything else stays as it is: a frozen layer has
    no gradient, no velocity and no weight decay, and its running statistics do not move.

    Args:
        layers: names of the layers that are trained.
        loss: (params of the whole model, batch, view) -> scalar.
        model: "params" and "buffers" to start from.
        data, plan, view: of the client.

    Returns:
        The trained model, "params" and "buffers".
    """
    moving = pick(model["params"], layers)
    if not moving:
        return model
    own = replace(view, model=view.model.copy(model["buffers"], training=True))

    def on_layers(params: Tree, batch: Batch, view: ClientView) -> Tensor:
        return loss({**model["params"], **params}, batch, view)

    params = descend(on_layers, moving, data, plan, own).params
    return {
        "params": {**model["params"], **params},
        "buffers": {**model["buffers"], **pick(own.model.buffers, layers)},
    }


def check_classifier(model: Model, does: str) -> None:
    """Raises ValueError unless a model has a classifier as its last layer. `does` is the beginning of the sentence."""
    if [*model.layers()][-1:] != ["classifier"]:
        raise ValueError(f"{does}, but {type(model).__name__} has no classifier as its last layer; use another model.")


def whole(view: ClientView) -> Tree:
    """The model that a client starts from: what it received, and what it kept."""
    received = {"params": view.params, "buffers": view.buffers}
    return {key: {**leaves, **view.client.get(key, {})} for key, leaves in received.items()}


def _layer(name: str) -> str:
    """The layer of a param or buffer."""
    return name.rpartition(".")[0].removesuffix(".norm")


def _moved(params: Tree, delta: Tree) -> Tree:
    """Those params that a change is of, after it."""
    return tree.add({name: params[name] for name in delta}, delta)
