"""MOON: a contrastive term pulls local features to the global model's and away from the client's previous ones.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021.
https://arxiv.org/abs/2103.16257
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import (
    LocalResult,
    RoundBased,
    RunConfig,
    Tree,
    above,
    at_least,
    cross_entropy,
    descend,
    one_of,
    registered,
    tree,
)
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Task

Mode = Literal["train", "eval"]

# Of which batch normalisation can take statistics. Skipped batches count as trained on: the attribute `smallest_batch` would
# leave them out, so that counts of examples would move.
_SMALLEST_BATCH = 2


@registered("moon")
@dataclass(frozen=True)
class Moon(RoundBased):
    """FedAvg with a model-contrastive local objective (Eq. 3 of the paper).

    The features are those that the classifier reads. A client's previous model is its local model at the end of its last
    participation; for a client that has not taken part it is the initial model, and in the first round the term is 0.
    Batches of one example are skipped, but counted among the examples trained on.

    Differs from the paper: no projection head is added to a model that has none, as in NIID-Bench; `moon-cnn` has one.
    By default the received model runs in training mode, also as in NIID-Bench; in the code of MOON's authors it is in
    evaluation mode. A client that comes new in a later round contrasts with the initial model, as in NIID-Bench; in the code
    of MOON's authors its term is 0.

    Attributes:
        mu: weight of the contrastive term, >= 0; 0 is FedAvg (but for skipped batches).
        temperature: tau of the paper, > 0.
        global_model_mode: of the received model: "train", with the statistics of each batch, or "eval", with the running
            statistics that came with it. A model without batch normalisation and dropout gives the same in both.
    """

    mu: float = 1.0
    temperature: float = 0.5
    global_model_mode: Mode = "train"

    def __post_init__(self) -> None:
        at_least("mu", self.mu, 0)
        above("temperature", self.temperature, 0)
        one_of("global_model_mode", self.global_model_mode, get_args(Mode))

    def validate(self, config: RunConfig) -> list[str]:
        if config.batch_size >= _SMALLEST_BATCH:
            return []
        return [
            f"moon skips batches of one example: batch_size must be at least {_SMALLEST_BATCH}, but got {config.batch_size}."
        ]

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"previous": params, "buffers": task.initial_buffers()}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        features = view.model.features(params, batch.x)
        loss = cross_entropy(view.model.head(params, features), batch)
        if view.round == 0:
            return loss
        with torch.no_grad():
            as_received = view.model.copy(view.buffers, training=self.global_model_mode == "train")
            received = as_received.features(view.params, batch.x)
            previous = view.model.copy(view.client["buffers"]).features(view.client["previous"], batch.x)
        to_received = F.cosine_similarity(features, received)
        to_previous = F.cosine_similarity(features, previous)
        # -log(e^a / (e^a + e^b)) = softplus(b - a)
        return loss + self.mu * batch.mean(F.softplus((to_previous - to_received) / self.temperature))

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view, smallest_batch=_SMALLEST_BATCH).params
        client = {"previous": trained, "buffers": view.model.buffers}
        return LocalResult({"delta": tree.subtract(trained, view.params)}, client)
