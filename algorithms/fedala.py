"""FedALA: clients start from a mixture of the received head and their own last one, whose weights they learn.

Zhang, Hua, Wang, Song, Xue, Ma and Guan, FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023.
https://arxiv.org/abs/2212.01197
"""

import math
import operator
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import LocalResult, State, above, at_least, between, descend, gradient, one_of, registered, tree
from algorithms.shared.client_states import read_rows
from algorithms.shared.local_sgd import unless_padding
from algorithms.shared.passes import first_pass, joined, visited_in_a_pass
from algorithms.shared.scored import Scored
from algorithms.shared.tree import Tree
from algorithms.shared.types import Batch, BatchPlan, ClientData, ClientOutputs, ClientView, Cohort, Settings, Task
from bench.seeding import keys_from, uniform_from_keys

Part = Literal["random", "block"]
_WINDOW = 10  # epochs of the first use over which losses must have become steady
_MOST_EPOCHS = 100  # of the first use
_ROUNDING = 1e-6  # 0.8 of 5 is 4


@registered("fedala")
@dataclass(frozen=True)
class FedALA(Scored):
    """FedAvg in which only the start of local training changes: adaptive local aggregation (ALA) of the last tensors.

    Of those a client keeps its own, t, and weights W, which start at 1. From its second participation on, it receives w, takes
    all other tensors from it, and learns W before it trains: for each batch of a part of its examples, in evaluation mode,
    t^ = t + (w - t) W and then W = clip(W - eta dL/dt^ (w - t), 0, 1), elementwise. It starts from w with t^ in place of its
    last tensors. At the first use it goes on for epochs, until more than 10 have run and the losses of the last batches of the
    last 10 have a standard deviation below `threshold`, at most for 100; at every later use it has one epoch, and W goes on
    from the last one. The epochs count among the examples trained on; those before models are scored, among those of deploying.

    Clients that are absent keep t and W. A weight of 1 is exactly w. The epochs' augmentations are those of the round.

    Differs from the authors' code: there the part is a block of neighbours (`part`), W is learnt in training mode, "has never
    trained" is found by a comparison of tensors, ALA runs for all clients in every round, first uses may never end, and 0.8 of
    one example is none.
    The paper's body was not at hand: formulas and order are those of the authors' code.

    Attributes:
        eta: step size of W, >= 0; 0 leaves W at 1 without an epoch, and is FedAvg.
        adaptive_tensors: p, weights and biases counted from the last one, >= 0: 2 are those of the classifier, 0 is FedAvg; a
            number above those of the model is all of them, which the code calls 0.
        share: s / 100, of a client's examples, those that W learns from, in (0, 1], at least one example.
        part: whether they are drawn at "random" in each round, or are a "block" of neighbours, as in the authors' code.
        threshold: > 0.
        scored: when clients' models are scored; "before" is the authors' code, after ALA.
    """

    version = 2  # 1 did not count the examples of ALA

    eta: float = 1.0
    adaptive_tensors: int = 2
    share: float = 0.8
    part: Part = "random"
    threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("eta", self.eta, 0)
        at_least("adaptive_tensors", self.adaptive_tensors, 0)
        above("share", self.share, 0)
        between("share", self.share, 0, 1)
        one_of("part", self.part, get_args(Part))
        above("threshold", self.threshold, 0)

    # What a client keeps, and what it starts from

    def init_client(self, task: Task, params: Tree) -> Tree:
        own = self._adaptive(params)
        epochs = torch.zeros((), dtype=task.dtype, device=task.device)  # of the last round
        return {"own": own, "weights": tree.map(torch.ones_like, own), "epochs": epochs}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """With ALA done: "start" instead of "own", and how many "epochs" it took. Of a client that has never trained, whose
        weights are 1, whatever it receives is the start."""
        kept = read_rows(state["clients"], cohort.ids)
        rows, received = state["clients"]["rows"], self._adaptive(state["params"])
        ids = cohort.ids.tolist()
        trained = [position for position, client in enumerate(ids) if client in rows and self.eta and received]
        first = [position for position in trained if not rows[ids[position]]["epochs"]]
        weights, epochs = kept["weights"], torch.zeros_like(kept["epochs"])
        losses: dict[int, list[float]] = {position: [] for position in first}
        due = trained
        for _ in range(_MOST_EPOCHS):
            if not due:
                break
            where = torch.tensor(due, device=task.device)
            given = {"own": tree.row(kept["own"], where), "weights": tree.row(weights, where)}
            learnt = self._learn(task, state, task.cohort(cohort.ids[due]), given)
            weights = tree.map(lambda old, new, at=where: old.index_copy(0, at, new), weights, learnt["weights"])
            epochs = epochs.index_add(0, where, torch.ones_like(epochs[where]))
            found = dict(zip(due, learnt["loss"].tolist(), strict=True))
            for position, seen in losses.items():
                seen += [found[position]] if position in found else []
            due = [position for position in due if position in losses and not self._is_steady(losses[position])]
        return {"start": tree.map(_mixed, received, kept["own"], weights), "weights": weights, "epochs": epochs}

    def _is_steady(self, losses: list[float]) -> bool:
        """Whether a first use is over, after epochs whose last batches had these losses."""
        if len(losses) <= _WINDOW:
            return False
        spread = statistics.pstdev(losses[-_WINDOW:]) if all(map(math.isfinite, losses)) else 0.0
        return spread < self.threshold

    def _learn(self, task: Task, state: State, cohort: Cohort, kept: Tree) -> Tree:
        """The "weights" of a cohort after one epoch, and the "loss" of each one's last batch [K]."""
        return task.map_clients(self._epoch, cohort, round=state["round"], **self.received(state), client=kept).result

    def _epoch(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        model = view.model.copy()  # in evaluation mode
        own, received = replace(view, model=model), self._adaptive(view.params)
        weights, loss = view.client["weights"], view.num_examples.new_zeros(())

        def at_start(start: Tree, batch: Batch, view: ClientView) -> Tensor:
            return self.local_loss({**view.params, **start}, batch, view)

        for index in self._batches(plan, view):
            batch = data.take(index)
            start = tree.map(_mixed, received, view.client["own"], weights)
            slope = gradient(at_start, start, batch, own)
            with torch.no_grad():
                found = at_start(start, batch, own)
            moved = tree.map(
                lambda share, g, w, t: (share - self.eta * g * (w - t)).clamp(0, 1),
                weights,
                slope,
                received,
                view.client["own"],
            )
            new = unless_padding(index, {"weights": moved, "loss": found}, {"weights": weights, "loss": loss})
            weights, loss = new["weights"], new["loss"]
        return {"weights": weights, "loss": loss}

    def _batches(self, plan: BatchPlan, view: ClientView) -> BatchPlan:
        """Batches of the part of a client's examples from which W learns."""
        whole, size = joined(first_pass(plan, view)), view.settings.batch_size
        count = len(whole.rows)
        mask = torch.ones_like(whole.rows, dtype=torch.bool) if whole.mask is None else whole.mask
        num_rows = mask.sum()
        taken = torch.ceil(self.share * num_rows.double() - _ROUNDING).clamp(min=1)
        assert whole.key is not None
        stream = keys_from(whole.key, 1)[0]  # of its own
        if self.part == "block":
            place = torch.where(mask, whole.rows, whole.rows.max() + 1)
            drawn = uniform_from_keys(stream[None], 1)[0, 0]
            first = (drawn * (num_rows - taken + 1)).floor().long()
        else:
            keys = keys_from(stream, count)[mask.cumsum(0).sub(1).clamp(min=0)]  # by examples, without padding
            place = torch.where(mask, uniform_from_keys(keys, 1)[:, 0], 2.0)
            first = torch.zeros_like(num_rows)
        order = place.argsort(stable=True)[(first + torch.arange(count, device=mask.device)).clamp(max=count - 1)]
        if whole.mask is None:
            order = order[: int(taken)]
        inside = torch.arange(len(order), device=mask.device) < taken
        return [
            whole._replace(
                rows=whole.rows[at],
                mask=None if whole.mask is None else inside[start : start + size],
                draws={name: leaf[at] for name, leaf in whole.draws.items()},
                least=len(at) if whole.mask is None else 0,
            )
            for start, at in zip(range(0, len(order), size), order.split(size), strict=True)
        ]

    def _adaptive(self, params: Tree) -> Tree:
        """The last tensors, of which W has elements."""
        names = [*params][-self.adaptive_tensors :] if self.adaptive_tensors else []
        return {name: params[name] for name in names}

    # In a round

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        start = {**view.params, **view.client["start"]}
        trained = descend(self.local_loss, start, data, plan, view).params
        kept = {"own": self._adaptive(trained), "weights": view.client["weights"], "epochs": view.client["epochs"]}
        return LocalResult({"delta": tree.subtract(trained, view.params)}, kept, self._measured(view))

    def _measured(self, view: ClientView) -> dict[str, Tensor]:
        weights = tree.leaves(view.client["weights"])
        if not weights:
            return {}
        mean = torch.cat([leaf.flatten() for leaf in weights]).mean()
        return {"ala_weight": mean, "ala_epochs": view.client["epochs"]}

    def personal_model(self, data: ClientData, plan: BatchPlan, view: ClientView) -> Tree:
        params = {**view.params, **view.client["start"]}
        return {"params": params, "buffers": view.buffers, "epochs": view.client["epochs"]}

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        models = super().local_models(state, outputs)
        return {**models, "params": {**models["params"], **outputs.result.client["own"]}}

    # What it costs

    def visited(self, task: Task, cohort: Cohort, after: State) -> int:
        epochs = [after["clients"]["rows"][client]["epochs"] for client in cohort.ids.tolist()]
        return super().visited(task, cohort, after) + self._learnt_from(task, cohort, epochs)

    def deploy_visited(self, task: Task, cohort: Cohort, models: Tree) -> int:
        return self._learnt_from(task, cohort, models["epochs"])

    def _learnt_from(self, task: Task, cohort: Cohort, epochs: Iterable[Tensor]) -> int:
        """Examples in so many epochs of each client of a cohort."""
        sizes = [self._num_taken(task.settings, size) for size in task.sizes(cohort.ids)]
        return sum(map(operator.mul, map(int, epochs), sizes))

    def workload(self, settings: Settings, num_examples: int) -> int:
        # Each client learns for long when it comes again, of which there are few rounds where few take part.
        later = settings.rounds - 1
        most = min(math.ceil(_MOST_EPOCHS / settings.participation) + later - 1, _MOST_EPOCHS * later)
        epochs = most if self._learns and later else 0
        return super().workload(settings, num_examples) + epochs * self._num_taken(settings, num_examples)

    def deploy_workload(self, settings: Settings, num_examples: int) -> int:
        began = settings.rounds > 1 and settings.participation == 1
        epochs = (1 if began else _MOST_EPOCHS) if self._learns else 0
        return super().deploy_workload(settings, num_examples) + epochs * self._num_taken(settings, num_examples)

    @property
    def _learns(self) -> bool:
        return self.eta > 0 and self.adaptive_tensors > 0

    @property
    def workload_is_bound(self) -> bool:
        return True

    def _num_taken(self, settings: Settings, num_examples: int) -> int:
        """Examples of an epoch of ALA, as `_batches` has them."""
        return max(1, math.ceil(self.share * visited_in_a_pass(settings, num_examples) - _ROUNDING))


def _mixed(received: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """t + (w - t) W, and exactly w where W is 1."""
    return torch.where(weights == 1, received, own + (received - own) * weights)
