"""FedAMP: the server makes a model for each client from those of all clients, weighing similar ones more.

Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021.
https://arxiv.org/abs/2007.03797
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Deployed, LocalResult, State, above, at_least, between, descend, one_of, registered, tree
from algorithms.shared.client_states import read_rows
from algorithms.shared.scored import Scored, When
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Task

Similarity = Literal["relative", "fixed", "cosine"]
Start = Literal["own", "cloud"]


@registered("fedamp", title="FedAMP")
@dataclass(frozen=True)
class FedAMP(Scored):
    """No shared model: client i has w_i and gets u_i = sum_j xi_ij w_j, where xi_ii = 1 - sum_{j != i} xi_ij.

    It trains on its loss + proximal_weight / 2 |w - u_i|^2, u_i fixed, and sends w_i. The models mixed are the last ones of
    all clients that have taken part, counted alike, and the client's own; at first that is the initial model alone. With
    d = |w_i - w_j|^2 and m models, xi_ij is, for j != i,

    - "relative": c / (m - 1) exp(-d / sigma), where sigma is a multiple of the median distance of those that have taken part;
    - "fixed": alpha / sigma exp(-d / sigma), the paper's alpha_k A'(d) of A(t) = 1 - exp(-t / sigma). If alpha is too large for
      sigma, weights of own models turn negative: the metric `self_weight` is their mean over a cohort;
    - "cosine": c exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h)), HeurFedAMP.

    A model that is far away in the units of sigma has no weight, and FedAMP is local training. Running statistics stay with the
    client. The server needs m^2 products of models in a round, and keeps all m.

    Differs from the paper: by default sigma and alpha are relative to the distances found, so that they fit any model, and
    the proximal weight, lambda / alpha_k there, is a number of its own.
    Differs from PFLlib's code: its proximal term is the norm, not squared, and it mixes the models of the last cohort alone.
    The paper's body and its constants were not at hand, and there is no code of the authors: formulas are those of other
    programs.

    Attributes:
        similarity: how models are weighed: "relative", "fixed" or "cosine".
        sigma: > 0; a multiple of the median distance ("relative"), the paper's sigma ("fixed"), or a factor of the cosine.
        others: c, the largest joint weight of other models, in [0, 1] ("relative"), their joint weight ("cosine"), or alpha
            ("fixed", >= 0). With 0 clients train alone.
        proximal_weight: >= 0.
        start: local training goes on from a client's "own" model, or starts from u_i ("cloud").
        scored: clients deploy the models that their last local training has left ("after"), or u_i ("before").
    """

    similarity: Similarity = "relative"
    sigma: float = 1.0
    others: float = 0.9
    proximal_weight: float = 0.1
    start: Start = "own"
    scored: When = "after"

    keeps_trained = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("similarity", self.similarity, get_args(Similarity))
        above("sigma", self.sigma, 0)
        if self.similarity == "fixed":
            at_least("others", self.others, 0)
        else:
            between("others", self.others, 0, 1)
        at_least("proximal_weight", self.proximal_weight, 0)
        one_of("start", self.start, get_args(Start))

    # On the server

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"params": params, "buffers": task.initial_buffers()}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """With "cloud", the models u_i, and the "self_weight" of each."""
        cloud, self_weights = self._clouds(state, cohort.ids)
        return {**read_rows(state["clients"], cohort.ids), "cloud": cloud, "self_weight": self_weights}

    def _clouds(self, state: State, ids: Tensor) -> tuple[Tree, Tensor]:
        """u_i of some clients, leaves [K, ...], and the weights of their own models in them [K]."""
        seen = torch.tensor([*state["clients"]["rows"]], dtype=torch.long)
        own = read_rows(state["clients"], ids)["params"]
        if not len(seen):
            return own, torch.ones(len(ids), dtype=torch.double, device=tree.leaves(own)[0].device)
        models = read_rows(state["clients"], seen)["params"]
        is_other = (ids[:, None] != seen).to(tree.leaves(own)[0].device)
        weights = self.coefficients(own, models, is_other)
        self_weights = 1 - weights.sum(1)

        def mixed(w: Tensor, leaves: Tensor) -> Tensor:
            shares = weights.to(leaves.dtype)
            return _spread(self_weights.to(leaves.dtype), w) * w + torch.tensordot(shares, leaves, dims=1)

        return tree.map(mixed, own, models), self_weights

    def coefficients(self, own: Tree, models: Tree, is_other: Tensor) -> Tensor:
        """xi_ij for clients i and the models j of others, 0 where j is no other: [K, m], double.

        Args:
            own: models of clients, leaves [K, ...].
            models: those of all clients that have taken part, leaves [m, ...].
            is_other: [K, m].
        """
        count = is_other.double().sum(1, keepdim=True).clamp(min=1)
        if self.similarity == "cosine":
            lengths = [_pairs(one, one, _squares).sqrt() for one in (own, models)]
            cosines = _pairs(own, models, _products) / (lengths[0][:, None] * lengths[1]).clamp(min=1e-300)
            logits = torch.where(is_other, self.sigma * cosines, -torch.inf)
            found = torch.where(is_other.any(1, keepdim=True), torch.softmax(logits, 1), 0)
            return self.others * found
        distances = _pairs(own, models, _squared_distances)
        if self.similarity == "fixed":
            found = self.others / self.sigma * torch.exp(-distances / self.sigma)
        else:
            found = self.others / count * torch.exp(-distances / (self.sigma * _typical(models)))
        return torch.where(is_other, found, 0)

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        return params, server

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return buffers

    # On one client

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        kept, cloud, weight = view.client, view.client["cloud"], self.proximal_weight
        # The gradient of the proximal term is decay, and an offset; see Ditto.
        settings = replace(view.settings, weight_decay=view.settings.weight_decay + weight)
        own = replace(view, model=view.model.copy(kept["buffers"], training=True), settings=settings)
        start = kept["params"] if self.start == "own" else cloud
        offset = tree.scale(cloud, -weight) if weight else None
        trained = descend(self.local_loss, start, data, plan, own, gradient_offset=offset).params
        view.model.buffers.clear()  # they stay here
        # What is sent is as large as the model.
        delta, measured = tree.subtract(trained, start), {"self_weight": kept["self_weight"]}
        return LocalResult({"delta": delta}, {"params": trained, "buffers": own.model.buffers}, measured)

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        return outputs.result.client

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return {"params": view.client["cloud"], "buffers": view.client["buffers"]}

    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed:
        if self.scored == "before":
            return super().deploy(task, state, client_ids)
        own = read_rows(state["clients"], client_ids)
        return Deployed(self.deployed_model(task), own["params"], own["buffers"], True)

    def downloads(self, state: State) -> Tree:
        return {"params": state["params"]}


# Pairs of models


def _pairs(rows: Tree, columns: Tree, of_leaves: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Sum over leaves of what a function makes of matrices [K, n] and [m, n], double."""
    pairs = zip(tree.leaves(rows), tree.leaves(columns), strict=True)
    return torch.stack([of_leaves(_rows(a), _rows(b)) for a, b in pairs]).sum(0)


def _rows(leaf: Tensor) -> Tensor:
    return leaf.reshape(len(leaf), -1).double()


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    return rows @ columns.T


def _squares(rows: Tensor, same: Tensor) -> Tensor:
    return rows.square().sum(1)


def _squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    # Without a difference of large squares: models that have hardly moved are near each other.
    return torch.stack([(columns - row).square().sum(1) for row in rows])


def _typical(models: Tree) -> Tensor:
    """The median squared distance of two models, leaves [m, ...]; 1 if all are the same, or there is one."""
    distances = _pairs(models, models, _squared_distances)
    upper = torch.triu_indices(len(distances), len(distances), 1, device=distances.device)
    between = distances[upper[0], upper[1]]
    if not len(between):
        return distances.new_ones(())
    middle = between.quantile(0.5)  # the mean of both where two are in the middle
    return torch.where(middle > 0, middle, 1)


def _spread(weights: Tensor, leaf: Tensor) -> Tensor:
    """Weights [K] for leaves [K, ...]."""
    return weights.view(-1, *[1] * (leaf.dim() - 1))
