"""FedDBE: each client adds a vector of its own to the features, whose mean is kept near that of all clients.

Zhang, Hua, Cao, Wang, Song, Xue, Ma and Guan, Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS
2023. https://arxiv.org/abs/2311.14975
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import algorithms
from algorithms import LocalResult, State, above, at_least, between, cross_entropy, descend, registered, tree
from algorithms.shared.accounting import add_costs
from algorithms.shared.checks import linear_classifier
from algorithms.shared.scored import Scored
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Settings, Task

_SHIFT = "shift"  # name of z among the params while they train


@registered("feddbe", title="FedDBE")
@dataclass(frozen=True)
class FedDBE(Scored):
    """FedAvg with the domain bias eliminator (DBE): a trained vector z per client, and a mean regulariser.

    With the features f = b(x) of a batch, clients minimise CE(h(f + z), y) + kappa mean_d 1/2 (r - g)^2, where the running mean
    r = (1 - mu) r + mu mean_B(f) starts at 0 in every round, and its past is a constant. One gradient moves the model as in
    FedAvg, and z by a plain step with the same learning rate, without momentum and decay. z starts at 0 and stays with its
    client, which deploys h(b(x) + z): W z is part of the bias of its classifier. g is a constant. Before the first round, the
    first cohort trains for a round from the initial model without z and g; g is the mean of its r by examples, and the models
    are discarded. That round counts in the costs, one vector up and one down; a client that comes later receives g, too, which
    is not counted.

    mu 1 takes the current batch alone. A smaller one pulls r to 0, by (1 - mu)^k after k steps, unless `debias`. With mu below
    1 a second pass forward finds the mean of each batch. A kappa is good for one scale and one number of features.

    Differs from the authors' code: g is that of the first cohort, and not of all clients, where a cohort is not everyone; no
    client is left out of it, as none drops its examples.
    The paper's body was not at hand: both constants, 1/2 and 1/d, are those of the authors' code.

    Attributes:
        kappa: weight of the regulariser, >= 0; 0 is without, and without the round before the first one.
        mu: momentum of the running mean, in (0, 1].
        debias: whether r is divided by 1 - (1 - mu)^k.
        train_shift: whether clients train z; without it and with kappa 0 it is FedAvg.
        scored: when clients' models are scored; "before" is the authors' code.
    """

    kappa: float = 50.0
    mu: float = 1.0
    debias: bool = False
    train_shift: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("kappa", self.kappa, 0)
        above("mu", self.mu, 0)
        between("mu", self.mu, 0, 1)

    def init(self, task: Task) -> State:
        linear_classifier(algorithms.name_of(self), "moves what is read by", task.model, task.initial_params())
        return super().init(task)

    # On one client

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {_SHIFT: self._blank(task)}

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        """On params with z; `view.server` has r before the batch and how it is weighed, see `_walk`."""
        features = view.model.features(params, batch.x)
        shift = params.get(_SHIFT, view.client[_SHIFT])
        loss = cross_entropy(view.model.head(params, features + shift), batch)
        if not self.kappa or "past" not in view.server:
            return loss
        running = (view.server["past"] + self.mu * _mean(features, batch)) * view.server["scale"]
        return loss + self.kappa * 0.5 * (running - view.server["mean"]).square().mean()

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        start = view.params | (view.client if self.train_shift else {})
        trained, _ = self._walk(start, data, plan, view, regularised=True)
        shift = trained.pop(_SHIFT, view.client[_SHIFT])
        delta = tree.subtract(trained, view.params)
        return LocalResult({"delta": delta}, {_SHIFT: shift}, {"shift_norm": tree.norm(shift)})

    def _walk(
        self, params: Tree, data: ClientData, plan: BatchPlan, view: ClientView, regularised: bool
    ) -> tuple[Tree, Tensor]:
        """Params after local training, and the running mean of the features at its end."""
        velocity, running = tree.zeros_like(params), torch.zeros_like(view.server["mean"])
        plain, count = [name for name in params if name == _SHIFT], torch.zeros_like(view.num_examples)
        for step, index in enumerate(plan):
            scale = 1 / (1 - (1 - self.mu) ** (step + 1)) if self.debias else 1.0
            past = {"past": (1 - self.mu) * running, "scale": torch.full_like(view.num_examples, scale)}
            own = replace(view, server=view.server | (past if regularised else {}))
            needs_mean = not regularised or (self.kappa and self.mu < 1)
            if needs_mean:
                batch = data.take(index)
                with torch.no_grad():
                    moved = past["past"] + self.mu * _mean(view.model.twin().features(params, batch.x), batch)
                is_real = torch.ones_like(count) if index.mask is None else index.mask.any().to(count.dtype)
                running, count = torch.where(is_real > 0, moved, running), count + is_real
            params, velocity = descend(self.local_loss, params, data, [index], own, velocity=velocity, plain=plain)
        if self.debias:
            running = running / (1 - (1 - self.mu) ** count)
        return params, running

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return {"params": _folded(view.params, view.client[_SHIFT]), "buffers": view.buffers}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models = super().local_models(state, outputs)
        return {**models, "params": _folded(models["params"], outputs.result.client[_SHIFT])}

    # Before the first round

    def init_server(self, task: Task, params: Tree) -> Tree:
        return {"mean": self._blank(task), "known": torch.zeros((), dtype=torch.bool, device=task.device)}

    def received(self, state: State) -> dict[str, Tree]:
        return {**super().received(state), "server": {"mean": state["server"]["mean"]}}

    def run_round(self, task: Task, state: State) -> State:
        cohort = self.sample(task, state)
        if self.kappa and len(cohort.ids) and not state["server"]["known"]:
            state = self._with_mean(task, state, cohort)
        return super().run_round(task, state)

    def _with_mean(self, task: Task, state: State, cohort: Cohort) -> State:
        def mean_of(data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
            return {"mean": self._walk(view.params, data, plan, view, regularised=False)[1]}

        means = self.map_clients(task, mean_of, cohort, state).result
        mean = tree.weighted_mean(means, cohort.weights)["mean"]
        server = {"mean": mean, "known": torch.ones_like(state["server"]["known"])}
        sent = tree.num_bytes(means)
        costs = add_costs(state["costs"], bytes_down=sent, bytes_up=sent, examples=task.num_trained(cohort))
        return {**state, "server": server, "costs": costs}

    def _blank(self, task: Task) -> Tensor:
        return torch.zeros(task.model.feature_dim, dtype=task.dtype, device=task.device)

    def traffic(self, task: Task) -> int:
        mean = 2 * tree.num_bytes(self._blank(task)) if self.kappa else 0
        return super().traffic(task) + round(task.cohort_share * mean)

    def workload(self, settings: Settings, num_examples: int) -> int:
        rounds = settings.rounds + (self.kappa > 0)
        return super().workload(replace(settings, rounds=rounds), num_examples)


def _mean(features: Tensor, batch: Batch) -> Tensor:
    """Mean of features [B, d] over the real rows [d]."""
    if batch.mask is None:
        return features.mean(0)
    return torch.where(batch.mask[:, None], features, 0).sum(0) / batch.mask.sum().clamp(min=1)


def _folded(params: Tree, shift: Tensor) -> Tree:
    """Params, leaves [*p] or [K, *p], that give the logits of h(f + z) without z."""
    moved = (params["classifier.weight"] @ shift[..., None])[..., 0]
    return {**params, "classifier.bias": params["classifier.bias"] + moved}
