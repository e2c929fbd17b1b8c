"""APFL: each client deploys a mixture of a model of its own and the shared one.

Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020. https://arxiv.org/abs/2003.13461
"""

import functools
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

import algorithms
from algorithms import LocalResult, between, cross_entropy, descend, gradient, one_of, registered, tree
from algorithms.shared.checks import linear_classifier
from algorithms.shared.scored import Scored
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Loss, Task
from bench.models.base import Model
from bench.models.concat import concatenate, encoder_part, with_prefix

Mix = Literal["weights", "logits"]
_SHARED = "shared."  # prefix of w's params beside those of v


@registered("apfl")
@dataclass(frozen=True)
class APFL(Scored):
    """FedAvg, beside which each client trains a model v of its own as a part of the mixture alpha v + (1 - alpha) w.

    On each batch, with "weights": u = alpha v + (1 - alpha) w; w steps on the gradient of its own loss f(w), and v on
    alpha grad f(u), all from the values before the step. If adaptive, the first step of a round ends with
    alpha = clip(alpha - lr <v - w, grad f(u)>, 0, 1), with v and w as before it. With "logits", as in the authors' code, w
    steps first; then v steps on the loss of the logits alpha v(x) + (1 - alpha) w(x); and alpha = clip(alpha - lr g, 0, 1) with
    g = <v - w, alpha g_v + (1 - alpha) g_w> + 0.02 alpha, where v and w are as after the step, and g_v, g_w are the
    gradients of that loss. v has the settings of w, and a momentum buffer of its own. The shared model is FedAvg's.

    v begins as the initial model; v and alpha stay while a client is absent; one that has not yet taken part deploys w alone.
    With batch normalisation, a client keeps the running statistics of its passes with u, or with v if logits are mixed. With
    "weights" it deploys alpha of them and 1 - alpha of w's.

    Differs from the authors' code: it mixes logits (`mix`), and users have asked which of the two is meant.
    The paper's body was not at hand: the factor alpha of v's gradient is from a third party's account of its formulas, in whose
    code it is missing.

    Attributes:
        alpha: in [0, 1]; at the start, if adaptive. 0 deploys FedAvg's model, 1 local training.
        adaptive: whether alpha moves once in a round. Its learning rate is that of the params, so that it may soon be 0 or 1:
            the metric `alpha` is its mean over the cohort.
        mix: what is mixed, "weights" or "logits".
        scored: clients deploy the mixture with the new w, "before" local training; or with the w that they had themselves after
            their last one ("after"), as in the authors' code.
    """

    version = 2  # 1 drew other masks of dropout for w, and deployed the client's own running statistics at alpha 0

    alpha: float = 0.5
    adaptive: bool = False
    mix: Mix = "weights"

    keeps_trained = True

    def __post_init__(self) -> None:
        super().__post_init__()
        between("alpha", self.alpha, 0, 1)
        one_of("mix", self.mix, get_args(Mix))

    @property
    def passes_per_example(self) -> int:
        return 2

    # On one client

    def init_client(self, task: Task, params: Tree) -> Tree:
        if self.mix == "logits":
            linear_classifier(algorithms.name_of(self), "mixes the logits of", task.model, params)
        buffers, scalar = task.initial_buffers(), torch.zeros((), dtype=task.dtype, device=task.device)
        state = {"own": params, "buffers": buffers, "alpha": scalar + self.alpha, "seen": scalar.bool()}
        return state | ({"shared": {"params": params, "buffers": buffers}} if self.scored == "after" else {})

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        # A twin draws the masks of dropout that w draws, and leaves those of w as they are.
        own = replace(view, model=view.model.twin().copy(view.client["buffers"], training=True))
        alpha, v, w = view.client["alpha"], view.client["own"], view.params
        v_speed, w_speed = tree.zeros_like(v), tree.zeros_like(w)
        for step, index in enumerate(plan):
            moves = self.adaptive and step == 0
            stepped, w_speed = descend(self.local_loss, w, data, [index], view, velocity=w_speed)
            found: list[Tree] = []
            beside = w if self.mix == "weights" else stepped
            of_mixture = functools.partial(self._slope, beside, alpha, view, moves, found)
            risen, v_speed = descend(self.local_loss, v, data, [index], own, velocity=v_speed, gradient_of=of_mixture)
            if moves and self.mix == "weights":
                slope = _product(tree.subtract(v, w), found[0])
            elif moves:
                slope = _product(tree.subtract(risen, stepped), found[0]) + 0.02 * alpha
            alpha = (alpha - view.settings.lr * slope).clamp(0, 1) if moves else alpha
            v, w = risen, stepped
        kept = {"own": v, "buffers": own.model.buffers, "alpha": alpha, "seen": torch.ones_like(view.client["seen"])}
        if self.scored == "after":
            kept["shared"] = {"params": w, "buffers": dict(view.model.buffers)}
        return LocalResult({"delta": tree.subtract(w, view.params)}, kept, {"alpha": alpha})

    def _slope(
        self,
        w: Tree,
        alpha: Tensor,
        shared: ClientView,
        moves: bool,
        found: list[Tree],
        loss: Loss,
        v: Tree,
        batch: Batch,
        own: ClientView,
    ) -> Tree:
        """Gradient of the mixture's loss with respect to v; `found` gets that along which alpha moves, if it does."""
        if self.mix == "weights":
            slope = gradient(loss, tree.map(functools.partial(_mixed, alpha), v, w), batch, own)
            found.append(slope)
            return tree.scale(slope, alpha)
        beside = shared.model.twin()

        def of_logits(params: Tree, batch: Batch, view: ClientView) -> Tensor:
            of_w = {name: params.get(_SHARED + name, leaf) for name, leaf in w.items()}
            logits = alpha * view.model(params, batch.x) + (1 - alpha) * beside(of_w, batch.x)
            return cross_entropy(logits, batch)

        both = v | {_SHARED + name: leaf for name, leaf in w.items()} if moves else v
        slopes = gradient(of_logits, both, batch, own)
        of_v = {name: slopes[name] for name in v}
        if moves:
            found.append({name: alpha * of_v[name] + (1 - alpha) * slopes[_SHARED + name] for name in v})
        return of_v

    # What is deployed

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        received = {"params": view.params, "buffers": view.buffers}
        w = view.client["shared"] if self.scored == "after" else received
        seen = view.client["seen"]
        alpha = torch.where(seen, view.client["alpha"], 0)
        w = tree.where(seen, w, received)
        if self.mix == "weights":
            own = {"params": view.client["own"], "buffers": view.client["buffers"]}
            return tree.map(functools.partial(_mixed, alpha), own, w)
        parts = [view.client["own"], w["params"]]
        first, second = ({name: leaf[f"classifier.{name}"] for name in ("weight", "bias")} for leaf in parts)
        weight = torch.cat([alpha * first["weight"], (1 - alpha) * second["weight"]], 1)
        head = {"classifier.weight": weight, "classifier.bias": alpha * first["bias"] + (1 - alpha) * second["bias"]}
        encoders = [with_prefix(k, encoder_part(part)) for k, part in enumerate(parts)]
        return {
            "params": {**encoders[0], **encoders[1], **head},
            "buffers": {**with_prefix(0, view.client["buffers"]), **with_prefix(1, w["buffers"])},
        }

    def deployed_model(self, task: Task) -> Model:
        return task.model if self.mix == "weights" else concatenate([task.model] * 2)


def _mixed(alpha: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    return (alpha * own + (1 - alpha) * shared).to(own.dtype)  # counters are integers


def _product(a: Tree, b: Tree) -> Tensor:
    """The inner product over all leaves. Scalar."""
    return torch.stack([(x * y).sum() for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)]).sum()
