"""FedAS: a received body is first aligned to the client's old features, and bodies are averaged by Fisher information.

Yang, Huang and Ye, FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024, pp. 11986-11995.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from algorithms import Average, LocalResult, State, at_least, descend, gradient, one_of, registered, tree
from algorithms.shared.local_sgd import unless_padding
from algorithms.shared.partial import OwnClassifier, descend_on, layers_of
from algorithms.shared.passes import class_means, first_pass, visited_in_a_pass
from algorithms.shared.scored import Scored, When
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientView, Cohort, Settings, Task
from bench.models.concat import classifier_part, encoder_part

Weights = Literal["fisher", "examples"]


@registered("fedas", title="FedAS")
@dataclass(frozen=True)
class FedAS(Scored, OwnClassifier):
    """FedPer with two changes: an alignment of the received body, and weights F_i of the clients' bodies on the server.

    A client keeps its whole last model. When it receives a body, it takes the class means mu_c of its old body's features, and
    trains the received one for an epoch of plain SGD on sum_{c in B} MSE(f_B,c, mu_c), a mean over the features of a class's
    examples in the batch. Then body and head train together as in FedPer, with momentum that starts anew. After that,
    F_i = sum over the batches of a pass of |gradient of the mean cross-entropy|^2, of all params, in evaluation mode; the
    server's body is the mean by F_i, or by examples if all F_i are 0. Both passes count among the examples trained on. In the
    first participation the old body is the initial one. Running statistics stay with the client; class means are in training
    mode, as the alignment is. A client that fits its head before it deploys has the received body, and moves its
    running statistics.

    F_i grows with the number of batches, and is near 0 where a client fits its data, as one does at once that holds a single
    class: then those count that are not yet trained. The metric `effective_clients` is exp of the entropy of the weights.

    Differs from the authors' code: it aligns the server's own body, so that each client receives one that others have moved;
    here, as in PFLlib since, each gets a copy.
    The paper's body was not at hand: formulas and order are those of the authors' code.

    Attributes:
        alignment_lr: learning rate of the alignment, >= 0; 0 is without.
        weighting: of bodies on the server, by "fisher" or by number of "examples". Without alignment and by examples, it is
            FedPer, but for running statistics.
        scored: clients deploy what their last local training has left ("after"), as in the authors' code, or the received body,
            aligned, with their head ("before").
    """

    version = 2  # 1 deployed heads that were never trained

    alignment_lr: float = 0.01
    weighting: Weights = "fisher"
    scored: When = "after"

    keeps_trained = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("alignment_lr", self.alignment_lr, 0)
        one_of("weighting", self.weighting, get_args(Weights))

    def visits(self, settings: Settings, num_examples: int) -> int:
        extra = (self.alignment_lr > 0) + (self.weighting == "fisher")
        return super().visits(settings, num_examples) + extra * visited_in_a_pass(settings, num_examples)

    def caveats(self, task: Task) -> list[str]:
        counts = task.cohort(torch.arange(task.population)).label_counts
        single = int(((counts > 0).sum(1) == 1).sum())
        if self.weighting != "fisher" or not single:
            return super().caveats(task)
        said = f"fedas: {single} of {task.population} clients hold one class, which they fit at once: their weights are near 0."
        return [*super().caveats(task), said]

    # On one client

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"params": params, "buffers": task.initial_buffers()}

    def shared(self, model: Tree) -> Tree:
        return {"params": encoder_part(model["params"]), "buffers": {}}

    def received_model(self, view: ClientView) -> Tree:
        """The received body with a client's own head and running statistics."""
        kept = view.client
        return {"params": view.params | classifier_part(kept["params"]), "buffers": kept["buffers"]}

    def aligned(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        """That model after its body has been aligned to the old one."""
        model, one_pass = self.received_model(view), first_pass(plan, view)
        if not self.alignment_lr:
            return model
        means = class_means(view.client["params"], data, one_pass, view).means
        plain = replace(view.settings, lr=self.alignment_lr, momentum=0.0, weight_decay=0.0)
        *body, _ = layers_of(view.params)
        own = replace(view, settings=plain, server={"means": means})
        return descend_on(body, alignment_loss, model, data, one_pass, own)

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        model = self.trained(self.aligned(data, plan, view), data, plan, view)
        sent = {"delta": self.sent(model, view)}
        if self.weighting == "fisher":
            sent["fisher"] = self.fisher(model, data, plan, view)
        return LocalResult(sent, model)

    def fisher(self, model: Tree, data: ClientData, plan: BatchPlan, view: ClientView) -> Tensor:
        """F_i of a trained model. Scalar."""
        own = replace(view, model=view.model.copy(model["buffers"]))
        total = torch.zeros_like(view.num_examples)
        for index in first_pass(plan, view):
            slope = gradient(self.local_loss, model["params"], data.take(index), own)
            squares = torch.stack([leaf.square().sum() for leaf in tree.leaves(slope)]).sum()
            total = unless_padding(index, total + squares, total)
        return total

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        return view.client if self.scored == "after" else self.aligned(data, plan, view)

    def fitted_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        model = self.received_model(view) if self.scored == "after" else self.aligned(data, plan, view)
        # Running statistics are private, too: they move with the head.
        own = replace(view, model=view.model.copy(model["buffers"], training=True))
        body, head = encoder_part(model["params"]), classifier_part(model["params"])

        def of_head(head: Tree, batch: Batch, view: ClientView) -> Tensor:
            return self.local_loss(body | head, batch, view)

        trained = descend(of_head, head, data, plan, own).params
        return {"params": model["params"] | trained, "buffers": own.model.buffers}

    def deploy_visits(self, settings: Settings, num_examples: int) -> int:
        aligns = self.scored == "before" and self.alignment_lr > 0
        return visited_in_a_pass(settings, num_examples) if aligns else 0

    def fit_visits(self, settings: Settings, num_examples: int) -> int:
        return super().fit_visits(settings, num_examples) + self.deploy_visits(settings, num_examples)

    def result_template(self, state: State) -> Tree:
        fisher = {"fisher": tree.leaves(state["params"])[0].flatten()[0]} if self.weighting == "fisher" else {}
        return {**super().result_template(state), **fisher}

    # On the server

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        weights = _weights(updates, cohort) if self.weighting == "fisher" else cohort.weights
        return {"delta": Average(updates["delta"], weights)}

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return buffers

    def downloads(self, state: State) -> Tree:
        return self.shared(state)

    def round_metrics(self, task: Task, before: State, after: State, update: Tree, cohort: Cohort) -> dict[str, Any]:
        if self.weighting != "fisher":
            return {}
        weights = _weights(update, cohort)
        shares = weights / weights.sum()
        return {"effective_clients": torch.special.entr(shares).sum().exp()}


def _weights(updates: Tree, cohort: Cohort) -> Tensor:
    """By which bodies are averaged [K]: their F_i, which are far above the other term unless all of them are 0."""
    return updates["fisher"].double() + 1e-30 * cohort.weights.double()


def alignment_loss(params: Tree, batch: Batch, view: ClientView) -> Tensor:
    """Sum over the classes of a batch of the mean squared difference of their features and their means in `view.server`."""
    means = view.server["means"]
    distances = (view.model.features(params, batch.x) - means[batch.y]).square().mean(1)
    chosen = (batch.y[:, None] == torch.arange(len(means), device=means.device)).to(distances.dtype)
    real = chosen if batch.mask is None else chosen * batch.mask[:, None].to(distances.dtype)
    counts = chosen @ real.sum(0)  # of each example's class in the batch
    return (real.sum(1) * distances / counts.clamp(min=1)).sum()
