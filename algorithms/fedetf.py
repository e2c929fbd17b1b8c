"""FedETF: the classifier is a fixed simplex; clients train a projection onto it with a balanced softmax.

Li, Shang, He, Lin and Wu, No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
Classifier, ICCV 2023. https://arxiv.org/abs/2303.10058
"""

import math
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from algorithms import Deployed, RoundBased, State, Tree, above, at_least, cross_entropy, registered
from algorithms.shared.balanced_softmax import balanced
from algorithms.shared.etf import etf_of
from algorithms.shared.types import Batch, ClientOutputs, ClientView, Task
from bench.models.base import uniform_init
from bench.models.concat import encoder_part


@registered("fedetf")
@dataclass(frozen=True)
class FedETF(RoundBased):
    """FedAvg on encoder, projection and scale; with features f, counts n_c and the fixed matrix M, clients minimise the
    cross-entropy of s M^T p / |p| + log max(n_c, 1), where p is the projection of f, a linear layer with a bias.

    M follows from the seed, is part of the state and is never sent, as every client can draw it. The scale s is averaged and
    decays like all params. The deployed model predicts as M^T p / |p| does: projection and M are merged into its one linear
    classifier, of logits M^T p. If s turned negative, training would fit -M and the deployed model prefer the wrong classes:
    `diagnostics` has s.

    Differs from the paper: no personal models, for which its code fine-tunes all, and then M and the projection in turn;
    `finetune` goes on from the deployed model. Its code also carries each client's momentum across rounds, and sends a linear
    classifier that nothing uses.

    Attributes:
        width: d' of the paper, dimensions of the projection, at least the number of classes; None for just as many, which are
            the 10 of the authors' LeNet on CIFAR-10. With their other network they take 64.
        scale: initial s, > 0; the authors take 1 with a width of 10, and 10 with a width of 64.
    """

    width: int | None = None
    scale: float = 1.0

    seeded = ("etf",)
    classifier = "replaced"

    def __post_init__(self) -> None:
        if self.width is not None:
            at_least("width", self.width, 2)
        above("scale", self.scale, 0)

    def init(self, task: Task) -> State:
        state = super().init(task)
        shape = (state["server"]["etf"].shape[0], task.model.feature_dim)
        drawn = uniform_init("projection", shape, task.generator_for("projection", task.initial_model))
        own = task.place(drawn | {"scale": state["server"]["etf"].new_tensor(self.scale)})
        return {**state, "params": encoder_part(state["params"]) | own}

    def init_server(self, task: Task, params: Tree) -> Tree:
        width = task.model.num_classes if self.width is None else self.width
        return {"etf": etf_of(self, task, params, width=width, source="width")}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        projected = F.linear(
            view.model.features(params, batch.x), params["projection.weight"], params["projection.bias"]
        )
        logits = params["scale"] * (F.normalize(projected, dim=1) @ view.server["etf"])
        return cross_entropy(balanced(logits, view.label_counts, vacant="clamp"), batch)

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models = super().local_models(state, outputs)
        return {**models, "params": _merged(models["params"], state["server"]["etf"])}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        deployed = super().deploy(task, state, client_ids)
        return deployed._replace(params=_merged(state["params"], state["server"]["etf"]))

    def diagnostics(self, state: State) -> dict[str, Any]:
        scale = float(state["params"]["scale"])
        return {"scale": scale if math.isfinite(scale) else None}


def _merged(params: Tree, etf: Tensor) -> Tree:
    """Params of the task's model with the same predictions, from those that are trained, leaves [*p] or [K, *p].

    Without the length of the projection and the scale, which change no order of logits where the scale is positive, projection
    and ETF are one layer.
    """
    kept = {name: leaf for name, leaf in params.items() if not name.startswith("projection.") and name != "scale"}
    weight = etf.T @ params["projection.weight"]
    return {**kept, "classifier.weight": weight, "classifier.bias": params["projection.bias"] @ etf}
