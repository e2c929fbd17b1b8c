"""FedPAC: features of a class are pulled to a common mean, and each client's head is a mixture of all clients' heads.

Xu, Tong and Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023.
https://arxiv.org/abs/2306.11867
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from algorithms import LocalResult, State, above, at_least, cross_entropy, registered, tree
from algorithms.shared.partial import OwnClassifier, descend_on, layers_of, whole
from algorithms.shared.passes import class_means, first_pass, visited_in_a_pass
from algorithms.shared.scored import Scored
from algorithms.shared.simplex import minimum_on_simplex
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Settings, Task
from bench.models.concat import encoder_part

_LEAST = 1e-3  # of a weight that is not taken for 0


@registered("fedpac", title="FedPAC")
@dataclass(frozen=True)
class FedPAC(Scored, OwnClassifier):
    """FedRep with an alignment of features and a collaboration of heads. The body is shared; every client has a head.

    With the received body, in training mode, a client takes its class means mu_c of the features, H_c = pi_c mu_c with its
    label shares pi, and V = (mean |f|^2 - sum_c |H_c|^2) / n. It trains its head for one epoch, the body frozen, and then its
    body for the epochs of a round on CE + lambda MSE(f, G_y), the head frozen; G_c are the server's prototypes, or mu_c of a
    class without one; before there are any, lambda is 0. Then it takes its class means again, and sends body, head, V, H and
    these prototypes. G_c is their mean by examples of the class, in the last cohort. Body: as FedAvg.

    A new head of client i is sum_j a_ij h_j over its cohort, where a_i on the simplex minimises a' P a with
    P_jk = [j = k] V_j + sum_c <H_i[c] - H_j[c], H_i[c] - H_k[c]>; weights below 1e-3 are 0, and the others are normalised. H
    and V are from before training, heads from after it. A client with one example has V = 0, and keeps its own head. Clients
    that are absent keep theirs. The epoch of the head counts among the examples trained on. A client that fits its head before
    it deploys has that epoch alone.

    Differs from the authors' code: P is the sum of a Gram matrix and of variances, so that no eigenvalue need be raised; a
    class that the last cohort does not hold ends no run.
    The paper's body was not at hand: formulas and order are those of the authors' code.

    Attributes:
        alignment_weight: lambda, >= 0; 0 is without.
        head_lr: learning rate of heads, > 0; the authors take 0.1, beside 0.01 and 0.02 of bodies.
        combine_heads: whether heads are mixed. Without it, and lambda 0, it is FedRep with one epoch of the head.
        scored: when clients' models are scored; the authors note both, "before" with the new body and the mixed head.
    """

    version = 2  # 1 deployed heads that were never trained

    alignment_weight: float = 1.0
    head_lr: float = 0.1
    combine_heads: bool = True

    broadcast = ("prototypes", "known")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("alignment_weight", self.alignment_weight, 0)
        above("head_lr", self.head_lr, 0)

    def visits(self, settings: Settings, num_examples: int) -> int:
        return super().visits(settings, num_examples) + visited_in_a_pass(settings, num_examples)

    # On one client

    def local_loss(self, params: Tree, batch: Batch, view: ClientView) -> Tensor:
        """With alignment where `view.server` has targets [num_classes, d]: in the phase of the body."""
        features = view.model.features(params, batch.x)
        loss = cross_entropy(view.model.head(params, features), batch)
        if "targets" not in view.server or not self.alignment_weight:
            return loss
        distances = (features - view.server["targets"][batch.y]).square().mean(1)
        weight = self.alignment_weight * view.server["known"].any()  # of no prototypes: none
        return loss + weight * batch.mean(distances)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        model, one_pass = whole(view), first_pass(plan, view)
        before = class_means(model["params"], data, one_pass, view)
        shares = before.counts / before.counts.sum()
        means = shares[:, None] * before.means
        variance = ((before.squares / before.counts.sum() - means.square().sum()) / before.counts.sum()).clamp(min=0)

        model = self.fitted(model, data, one_pass, view)
        prototypes, known = (view.server[name] for name in self.broadcast)
        targets = {"targets": torch.where(known[:, None], prototypes, before.means), "known": known}
        *body, _ = layers_of(view.params)
        model = descend_on(body, self.local_loss, model, data, plan, replace(view, server=targets))

        after = class_means(model["params"], data, one_pass, view)
        sent = {
            "delta": self.sent(model, view),
            "head": self.private(model)["params"],
            "means": means,
            "variance": variance,
            "prototypes": after.means,
            "counts": after.counts,
        }
        return LocalResult(sent, self.kept(model))

    def fitted(self, model: Tree, data: ClientData, one_pass: BatchPlan, view: ClientView) -> Tree:
        """A client's model after the phase of its head."""
        *_, head = layers_of(view.params)
        of_head = replace(view, settings=replace(view.settings, lr=self.head_lr), server={})
        return descend_on([head], self.local_loss, model, data, one_pass, of_head)

    def fitted_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return self.fitted(whole(view), data, first_pass(plan, view), view)

    def fit_visits(self, settings: Settings, num_examples: int) -> int:
        return visited_in_a_pass(settings, num_examples)

    # On the server

    def init_server(self, task: Task, params: Tree) -> Tree:
        classes, width = task.model.num_classes, task.model.feature_dim
        blank = torch.zeros(classes, width, dtype=task.dtype, device=task.device)
        none = torch.zeros(classes, dtype=torch.bool, device=task.device)
        return {"prototypes": blank, "known": none, "own_weight": blank[0, 0]}

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, _ = super().server_step(task, params, server, update, cohort)
        counts = update["counts"].sum(0)
        totals = (update["counts"][..., None] * update["prototypes"]).sum(0)
        return new, {**server, "prototypes": totals / counts.clamp(min=1)[:, None], "known": counts > 0}

    def finish_round(self, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
        if not self.combine_heads:
            return super().finish_round(task, state, cohort, outputs)
        update, client, measured = outputs.result
        weights = head_weights(update["means"], update["variance"])
        heads = tree.map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, dims=1), update["head"])
        mixed = {**client, "params": {**client["params"], **heads}}
        after = super().finish_round(
            task, state, cohort, ClientOutputs(LocalResult(update, mixed, measured), outputs.buffers)
        )
        own = weights.diagonal().mean().to(task.dtype)
        return {**after, "server": {**after["server"], "own_weight": own}}

    def round_metrics(self, task: Task, before: State, after: State, update: Tree, cohort: Cohort) -> dict[str, Any]:
        return {"own_weight": after["server"]["own_weight"]} if self.combine_heads else {}

    # What it costs: no prototypes of classes that nobody has are sent

    def downloads(self, state: State) -> Tree:
        known, prototypes = state["server"]["known"], state["server"]["prototypes"]
        params = state["params"] if self.combine_heads else encoder_part(state["params"])
        return {"params": params, "buffers": state["buffers"], "prototypes": prototypes[known]}

    def uploads(self, update: Tree, buffers: Tree) -> Tree:
        parts = ("delta", "head", "means", "variance") if self.combine_heads else ("delta",)
        held = update["counts"] > 0
        sent = {name: update[name] for name in parts}
        return {**sent, "prototypes": update["prototypes"][held], "buffers": buffers}

    def result_template(self, state: State) -> Tree:
        prototypes = state["server"]["prototypes"]
        return {**super().result_template(state), "sent": {"means": prototypes, "prototypes": prototypes}}

    @property
    def traffic_is_bound(self) -> bool:
        return True

    def traffic(self, task: Task) -> int:
        # One batch does not have all classes. Prototypes of all go both ways, but none down before the first round.
        size = task.model.num_classes * task.model.feature_dim * task.dtype.itemsize
        params, buffers = task.initial_params(), task.initial_buffers()
        body, head = tree.num_bytes(encoder_part(params)), tree.num_bytes(params) - tree.num_bytes(encoder_part(params))
        up = body + tree.num_bytes(buffers) + size
        down = body + tree.num_bytes(buffers)
        if self.combine_heads:
            up, down = up + head + size + task.dtype.itemsize, down + head
        rounds = task.settings.rounds
        return round(task.cohort_share * (rounds * (up + down) + (rounds - 1) * size))


def head_weights(means: Tensor, variances: Tensor) -> Tensor:
    """a_ij of a cohort: [K, K], double, rows on the simplex.

    Args:
        means: H [K, num_classes, d].
        variances: V [K].
    """
    rows = []
    for position in range(len(means)):
        problem = head_problem(means, variances, position)
        alone = torch.eye(len(means), dtype=torch.double)[position]
        weights = minimum_on_simplex(problem) if tree.all_finite(problem) else alone
        kept = torch.where(weights < _LEAST, 0, weights)
        rows.append(kept / kept.sum())
    return torch.stack(rows).to(means.device)


def head_problem(means: Tensor, variances: Tensor, position: int) -> Tensor:
    """P of one client of the cohort: [K, K], double, on the host."""
    flat = means.flatten(1).double().cpu()
    apart = flat[position] - flat
    return torch.diag(variances.double().cpu()) + apart @ apart.T
