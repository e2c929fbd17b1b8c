"""FedNH: clients train before a classifier of class prototypes, which the server moves to their class means.

Dai, Chen, Li, Heinecke, Sun and Xu, Tackling Data Heterogeneity in Federated Learning with Class Prototypes, AAAI 2023.
https://arxiv.org/abs/2212.02758
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import (
    Average,
    Batch,
    BatchPlan,
    ClientData,
    ClientOutputs,
    ClientView,
    Cohort,
    Deployed,
    LocalResult,
    State,
    Task,
    Tree,
    above,
    between,
    cross_entropy,
    registered,
    tree,
)
from algorithms.shared.clipping import Clipped
from algorithms.shared.etf import basis_of
from algorithms.shared.moments import ClassSums
from algorithms.shared.passes import first_pass, sums_over
from algorithms.shared.weighting import Weighed
from bench.models.base import BoundModel
from bench.models.concat import encoder_part


@registered("fednh")
@dataclass(frozen=True)
class FedNH(Clipped, Weighed):
    """FedAvg on encoder and scale s; with features f of length 1, clients minimise the cross-entropy of s W f.

    The rows of W, one for each class, have length 1; they start orthonormal, and are sent in place of the classifier. After
    training, a client takes the mean of f over its examples of each class, in evaluation mode on images as augmented for
    training, scales it to length 1, and sends it with the count. The server scales their sum, weighted by counts, to length 1
    as A_c, and takes W_c = rho W_c + (1 - rho) A_c, scaled to length 1. A class that no client of the cohort holds keeps W_c.

    Images of which a round has no step, because of `local_steps` or `last_batch`, are counted, but not in the means.

    s is averaged and decays like all params. Deployed is the linear classifier of logits W f, whose order neither s nor the
    length of f changes; if s turned negative, it would prefer the wrong classes: `diagnostics` has s. With rho 1, W stays as
    it was drawn. No setting is FedAvg. The pass after training has no gradient, and is not counted as one.

    Differs from the authors' code (Yutong-Dai/FedNH): the mean of the encoders is by number of examples, and s starts at 1
    whatever the network; there it starts at 20 in a ResNet. Their variant "adv" is left out. The paper's body was not at hand:
    formulas are those of the code.

    Attributes:
        rho: weight of the old prototypes, in [0, 1].
        scale: initial s, > 0; with 1, logits stay in [-1, 1] until s grows.
        weighting: the mean of encoders and scales is by number of "examples", or "uniform" as in the authors' code.
        clip: largest norm of a gradient, > 0; None does not clip.
    """

    rho: float = 0.9
    scale: float = 1.0

    broadcast = ("prototypes",)
    classifier = "replaced"

    def __post_init__(self) -> None:
        super().__post_init__()
        between("rho", self.rho, 0, 1)
        above("scale", self.scale, 0)

    def init(self, task: Task) -> State:
        state = super().init(task)
        scale = task.place({"scale": torch.tensor(self.scale)})
        return {**state, "params": encoder_part(state["params"]) | scale}

    def init_server(self, task: Task, params: Tree) -> Tree:
        source = f"the number of features of {type(task.model).__name__}"
        basis = basis_of(self, task, params, width=task.model.feature_dim, source=source)
        return task.place({"prototypes": basis.T.contiguous()})

    # On one client

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        cosines = _directions(view.model, params, batch.x) @ view.server["prototypes"].T
        return cross_entropy(params["scale"] * cosines, batch)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        update, client, _ = super().local_update(data, plan, view)
        trained, blank = tree.add(view.params, update["delta"]), torch.zeros_like(view.server["prototypes"])
        features_of = functools.partial(_directions, view.model.copy(), trained)
        sums = sums_over(first_pass(plan, view), ClassSums(blank, blank[:, 0]), features_of, data)
        return LocalResult({**update, "means": F.normalize(sums.totals, dim=1), "counts": view.label_counts}, client)

    # On the server

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        totals = updates["counts"][..., None] * updates["means"]
        return {
            **super().weighted_means(updates, cohort),
            "totals": Average(totals, torch.ones_like(cohort.num_examples)),
        }

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, server = super().server_step(task, params, server, update, cohort)
        return new, {**server, "prototypes": self.moved(server["prototypes"], update["totals"])}

    def moved(self, prototypes: Tensor, totals: Tensor) -> Tensor:
        """The new W, from sums of class means weighted by counts [num_classes, d], up to a factor; 0 for what nobody holds."""
        if self.rho == 1:
            return prototypes
        mixed = F.normalize(self.rho * prototypes + (1 - self.rho) * F.normalize(totals, dim=1), dim=1)
        return torch.where(totals.any(1, keepdim=True), mixed, prototypes)

    # What is deployed

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models, prototypes = super().local_models(state, outputs), state["server"]["prototypes"]
        count = len(models["params"]["scale"])
        return {**models, "params": _with_classifier(models["params"], prototypes.expand(count, *prototypes.shape))}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        deployed = super().deploy(task, state, client_ids)
        return deployed._replace(params=_with_classifier(state["params"], state["server"]["prototypes"]))

    def diagnostics(self, state: State) -> dict[str, Any]:
        scale = float(state["params"]["scale"])
        return {"scale": scale if math.isfinite(scale) else None}

    def result_template(self, state: State) -> Tree:
        prototypes = state["server"]["prototypes"]
        return {**super().result_template(state), "means": prototypes, "counts": prototypes[:, 0]}


def _directions(model: BoundModel, params: Tree, x: Tensor) -> Tensor:
    """Features of length 1 [B, d]; 0 where a feature is 0."""
    return F.normalize(model.features(params, x), dim=1)


def _with_classifier(params: Tree, prototypes: Tensor) -> Tree:
    """Params of the task's model with the logits W f, from those that are trained, leaves [*p] or [K, *p]."""
    encoder = {name: leaf for name, leaf in params.items() if name != "scale"}
    return encoder | {"classifier.weight": prototypes, "classifier.bias": torch.zeros_like(prototypes[..., 0])}
