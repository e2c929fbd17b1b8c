"""GPFL: a conditional valve splits features into global ones, drawn to class embeddings, and personal ones.

Zhang, Hua, Wang, Song, Xue, Ma, Cao and Guan, GPFL: Simultaneously Learning Global and Personalized Feature Information for
Personalized Federated Learning, ICCV 2023. https://arxiv.org/abs/2308.10279
"""

import functools
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import LocalResult, State, at_least, cross_entropy, descend, gradient, registered
from algorithms.shared.clipping import shortened_before
from algorithms.shared.local_sgd import GradientOf
from algorithms.shared.partial import OwnClassifier, descend_on, whole
from algorithms.shared.scored import Scored
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientOutputs, ClientView, Loss, Task
from bench.models.base import Model, uniform_init
from bench.models.calibrated import wrap
from bench.models.conditional import Valved, valve

_EMBEDDING = "gpfl.embedding"
_ROUTES = ("gamma", "beta")


@registered("gpfl", title="GPFL")
@dataclass(frozen=True)
class GPFL(Scored, OwnClassifier):
    """FedPer with class embeddings E and a conditional valve V, which are shared as the body is.

    gamma(c) = LN(ReLU(A c + a)), and beta(c) likewise with weights of its own; V(f, c) = ReLU(f (1 + gamma(c)) + beta(c)).
    With g = mean_c E_c, p = sum_c pi_c E_c and a client's label shares pi, the features f give f_P = V(f, p) and f_G = V(f, g).
    Clients minimise CE(h(f_P), y) + CE(cos(f_G, E), y) + lambda |f_G - E'_y|, a norm over the whole batch, not squared, where
    E' is E as received; g and p are constants of a round, from E'. Clients deploy h(V(b(x), p)). E starts standard normal. E
    and V have a weight decay of their own; else they train as the model does. lambda is tied to the batch size, as the
    norm grows with its root.

    Differs from the authors' code: there g and p are from the E that a client has trained itself, before it takes the received
    one (`stale_conditions`).
    The paper's body was not at hand: formulas and defaults are those of the authors' code.

    Attributes:
        distance_weight: lambda, >= 0; 0 is without. The authors take 0.01, or 0.0001 for large models.
        embedding_decay: mu, weight decay of E and V, >= 0; the authors take 0.1, or 0 for large models.
        stale_conditions: as in the authors' code; in its first participation a client has g = p = 0.
        valve: whether there is V; without it f_P and f_G are f.
        embedding_losses: whether there are the terms of E. Without them and V, it is FedPer, but for the bytes of both.
        scored: when clients' models are scored; "before" is the authors' code.
    """

    version = 2  # 1 deployed heads that were never trained

    distance_weight: float = 0.01
    embedding_decay: float = 0.1
    stale_conditions: bool = False
    valve: bool = True
    embedding_losses: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("distance_weight", self.distance_weight, 0)
        at_least("embedding_decay", self.embedding_decay, 0)

    # What there is

    def init(self, task: Task) -> State:
        state = super().init(task)
        width, generator = task.model.feature_dim, task.generator_for("gpfl", task.initial_model)
        own = {_EMBEDDING: torch.randn(task.model.num_classes, width, generator=generator)}
        for route in _ROUTES:
            own |= uniform_init(f"gpfl.{route}", (width, width), generator)
            own |= {f"gpfl.{route}.norm.weight": torch.ones(width), f"gpfl.{route}.norm.bias": torch.zeros(width)}
        return {**state, "params": state["params"] | task.place(own)}

    def init_client(self, task: Task, params: Tree) -> Tree:
        blank = torch.zeros(task.model.num_classes, task.model.feature_dim, dtype=task.dtype, device=task.device)
        stale = {"embedding": blank} if self.stale_conditions else {}  # of which g = p = 0
        return {**super().init_client(task, params), "condition": blank[0], **stale}

    # On one client

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        received, conditions = whole(view), self.conditions(view)
        own = replace(view, model=view.model.copy(received["buffers"], training=True), server=conditions)
        moving = {name: leaf for name, leaf in received["params"].items() if self._is_trained(name)}
        gradient_of, own = shortened_before(gradient, own)
        decayed = functools.partial(self._with_decay, gradient_of)
        found = descend(self.local_loss, moving, data, plan, own, gradient_of=decayed).params
        model = {"params": {**received["params"], **found}, "buffers": own.model.buffers}
        kept = {**self.private(model), "condition": conditions["p"]}
        if self.stale_conditions:
            kept["embedding"] = model["params"][_EMBEDDING]
        return LocalResult({"delta": self.sent(model, view)}, kept)

    def _is_trained(self, name: str) -> bool:
        if not name.startswith("gpfl."):
            return True
        return self.embedding_losses if name == _EMBEDDING else self.valve

    def _with_decay(self, gradient_of: GradientOf, loss: Loss, params: Tree, batch: Batch, view: ClientView) -> Tree:
        """The gradient, with the decay of E and V in place of the one that follows."""
        slope, more = gradient_of(loss, params, batch, view), self.embedding_decay - view.settings.weight_decay
        own = {name: torch.add(slope[name], params[name], alpha=more) for name in slope if name.startswith("gpfl.")}
        return {**slope, **own}

    def conditions(self, view: ClientView) -> Tree:
        """The vectors "g" and "p" of a round."""
        embedding = view.client["embedding"] if self.stale_conditions else view.params[_EMBEDDING]
        return {"g": embedding.mean(0), "p": (view.label_counts / view.num_examples) @ embedding}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        personal = self._through(params, features, view.server["p"])
        loss = cross_entropy(view.model.head(params, personal), batch)
        if not self.embedding_losses:
            return loss
        general = self._through(params, features, view.server["g"])
        cosines = F.normalize(general, dim=1) @ F.normalize(params[_EMBEDDING], dim=1).T
        loss = loss + cross_entropy(cosines, batch)
        if not self.distance_weight:
            return loss
        squares = (general - view.params[_EMBEDDING][batch.y]).square().sum(1)
        squares = squares if batch.mask is None else torch.where(batch.mask, squares, 0)
        return loss + self.distance_weight * squares.sum().sqrt()

    def _through(self, params: Tree, features: Tensor, condition: Tensor) -> Tensor:
        return valve(features, *_routes(params, condition)) if self.valve else features

    # What is deployed

    def deployed_model(self, task: Task) -> Model:
        return wrap(Valved, task.model) if self.valve else task.model

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        model = whole(view)
        return {**model, "params": self._deployed(model["params"], self.conditions(view)["p"])}

    def fitted_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        own = replace(view, server=self.conditions(view))
        model = descend_on(["classifier"], self.local_loss, whole(view), data, plan, own)
        return {**model, "params": self._deployed(model["params"], own.server["p"])}

    def local_model(self, task: Task) -> Model:
        return self.deployed_model(task)

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models = super().local_models(state, outputs)
        found = torch.func.vmap(self._deployed)(models["params"], outputs.result.client["condition"])
        return {**models, "params": found}

    def _deployed(self, params: Tree, condition: Tensor) -> Tree:
        own = dict(zip(_ROUTES, _routes(params, condition), strict=True)) if self.valve else {}
        return {name: leaf for name, leaf in params.items() if not name.startswith("gpfl.")} | own


def _routes(params: Tree, condition: Tensor) -> list[Tensor]:
    """gamma and beta of a condition [d]."""
    found = []
    for route in _ROUTES:
        linear, norm = ([params[f"gpfl.{route}.{part}{name}"] for name in ("weight", "bias")] for part in ("", "norm."))
        found.append(F.layer_norm(F.relu(F.linear(condition, *linear)), condition.shape[-1:], *norm))
    return found
