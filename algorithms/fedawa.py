"""FedAWA: the server learns the weights of the clients' models from their deltas.

Shi, Zhao, Zhang, Zhou, Guo and Chang, FedAWA: Adaptive Optimization of Aggregation Weights in Federated Learning Using Client
Vectors, CVPR 2025. https://arxiv.org/abs/2503.15842
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Cohort, RoundBased, State, Task, Tree, above, at_least, one_of, registered, tree
from algorithms.shared.types import ClientOutputs

Start = Literal["shares", "log_shares"]
Use = Literal["before", "after"]
Optimizer = Literal["adam", "sgd"]


@registered("fedawa")
@dataclass(frozen=True)
class FedAWA(RoundBased):
    """FedAvg with the weights q = softmax(T) over the cohort, of a number T_k that the server keeps for each client.

    The server knows the model w that clients received, their models w_k and deltas D_k. In each round it takes a few steps on T
    to reduce sum q_k (1 - cos(w, w_k)) + sum q_k |D_k - sum q_j D_j|, over all params; the optimizer starts anew. The new model
    is gamma sum q_k w_k. Running statistics are averaged with the same weights. The server needs each client's model: it
    cannot be used with secure aggregation.

    By default, as in the authors' code, T_k starts at the client's share of all examples, and not at its logarithm. All weights
    are nearly equal then: small clients weigh more than in FedAvg, and most of the difference from it is this, so show FedAvg
    with uniform weights beside it (`feddisco` with a large b). A step of Adam moves each T by no more than `server_lr`. With
    `start` "log_shares" and without steps it is FedAvg.

    Differs from the authors' code: each T belongs to a client; there, those of the last cohort are taken by position if not
    all clients take part. Their clients' momentum goes on from round to round. The paper's body was not at hand: formulas are
    those of the code (ChanglongShi/FedAWA), without the paper's variant for layers.

    Attributes:
        server_steps: steps on T in a round, >= 0.
        server_lr: their learning rate, > 0.
        optimizer: "adam", with betas 0.5 and 0.999, or "sgd", with momentum 0.9 and weight decay 5e-4, for which the authors
            take a server_lr of 0.01.
        start: T_k is at first the "shares" or the "log_shares" of client k among all examples.
        use: the weights are those "before" the last step, as in the authors' code, or "after" it. With one step, "before" are
            those of the round before.
        gamma: factor of the new model, > 0.
    """

    server_steps: int = 1
    server_lr: float = 0.001
    optimizer: Optimizer = "adam"
    start: Start = "shares"
    use: Use = "before"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        at_least("server_steps", self.server_steps, 0)
        above("server_lr", self.server_lr, 0)
        one_of("optimizer", self.optimizer, get_args(Optimizer))
        one_of("start", self.start, get_args(Start))
        one_of("use", self.use, get_args(Use))
        above("gamma", self.gamma, 0)

    def caveats(self, task: Task) -> list[str]:
        sizes = task.sizes(torch.arange(task.population))
        if self.start == "log_shares" or max(sizes) == min(sizes):
            return []
        return [
            f"fedawa: at first clients of {min(sizes)} and of {max(sizes)} examples weigh nearly alike; compare with FedAvg "
            "with uniform weights."
        ]

    def init_server(self, task: Task, params: Tree) -> Tree:
        sizes = torch.tensor(task.sizes(torch.arange(task.population)), dtype=torch.float64, device=task.device)
        shares = sizes / sizes.sum()
        return {"scores": shares.log() if self.start == "log_shares" else shares}

    def finish_round(self, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
        rows, known = cohort.ids.to(task.device), state["server"]["scores"]
        weights, scores = self.weighed(state["params"], outputs.result.update["delta"], known[rows])
        after = super().finish_round(task, state, replace(cohort, weights=weights), outputs)
        return {**after, "server": {"scores": known.index_copy(0, rows, scores)}}

    def weighed(self, params: Tree, deltas: Tree, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The weights q [K] of a cohort, and its T after the round's steps [K], from w, stacked D_k and T."""
        received = torch.cat([leaf.flatten() for leaf in tree.leaves(params)])
        moved = torch.cat([leaf.flatten(1) for leaf in tree.leaves(deltas)], 1)
        apart = 1 - torch.cosine_similarity(received, received + moved, dim=1)
        scores = scores.clone().requires_grad_()
        optimizer = self._optimizer(scores)
        weights = scores.detach().softmax(0)
        with torch.enable_grad():
            for _ in range(self.server_steps):
                q = scores.softmax(0)
                weights, shares = q.detach(), q.to(moved.dtype)
                loss = (shares * apart).sum() + (shares * (moved - shares @ moved).norm(dim=1)).sum()
                (scores.grad,) = torch.autograd.grad(loss, scores)
                optimizer.step()
        scores = scores.detach()
        return weights if self.use == "before" else scores.softmax(0), scores

    def _optimizer(self, scores: Tensor) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return torch.optim.Adam([scores], lr=self.server_lr, betas=(0.5, 0.999), eps=1e-8)
        return torch.optim.SGD([scores], lr=self.server_lr, momentum=0.9, weight_decay=5e-4)

    def server_step(self, task: Task, params: Tree, server: Tree, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        new, server = super().server_step(task, params, server, update, cohort)
        return tree.scale(new, self.gamma), server
