"""FedCat: copies of the model visit chains of clients before the server averages them.

fedcat-gc: FedCat's selection of clients by groups and counts alone: the server averages after every round.
fedcat-dc: FedCat's chains of clients alone, which are drawn as in FedAvg.

Hu et al., FedCat: Towards Accurate Federated Learning via Device Concatenation, 2022. https://arxiv.org/abs/2202.12751
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

import algorithms
from algorithms import Deployed, RoundBased, State, Tree, at_least, between, one_of, registered, tree
from algorithms.shared.base import average_buffers
from algorithms.shared.types import ClientOutputs, Cohort, OnClient, RunConfig, Task

CountRule = Literal["plus_one", "limit", "bellemare"]


@registered("fedcat")
@registered("fedcat-gc", title="FedCat-GC", concatenation=False)
@registered("fedcat-dc", title="FedCat-DC", grouping=False)
@dataclass(frozen=True)
class FedCat(RoundBased):
    """Algorithms 1 to 3 of the paper. A cohort has K clients, a cycle K rounds; o is the position of a round in its cycle.

    Concatenation: when a cycle begins, the server makes K copies of the model. In every round each copy is trained by
    another client. When the cycle ends, the new model is the mean of the copies, weighted by the examples of all clients that
    a copy has visited. Until then there is no new model: rounds within a cycle have no accuracy.

    Grouping: the clients are divided at random into K groups, and one client of each group takes part in a round. Copy i visits
    group (o + i) mod K, and thus no client twice in a cycle. A group's client is drawn by M[client, o], how often
    it has taken part at position o: with weights 1 / sqrt(M) (Eqs. 4 and 5), or the client of the largest weight.

    Without concatenation this is "fedcat-gc" of Table 3, which averages every round; without grouping "fedcat-dc", whose
    cohorts are those of FedAvg, and whose copies may visit a client twice; without both it is FedAvg.

    Differs from the paper: Eq. 4 divides by zero for a client that has not yet taken part, see `count_rule`; of several
    clients of the largest weight one is drawn at random.
    Differs from the paper: it gives no values of lambda and epsilon, nor sizes of groups; the defaults are ours, and sizes of
    groups differ by one at most.
    Differs from the paper: it does not mention buffers; they travel with their copy, and are averaged like the params.

    Attributes:
        regroup_every: lambda of the paper, cycles between divisions into groups, >= 1.
        greedy_share: epsilon of the paper, probability of the client of the largest weight, in [0, 1]; 0 always draws.
        count_rule: the weight of a client: "plus_one" 1 / sqrt(M + 1); "limit" as in Eq. 4, but where clients of a group have
            M = 0, only these are drawn, equally likely; "bellemare" 1 / sqrt(M + 0.01), as Bellemare et al. (2016).
        grouping: whether clients are drawn from groups, by their counts.
        concatenation: whether copies visit chains of clients.
    """

    regroup_every: int = 1
    greedy_share: float = 0.5
    count_rule: CountRule = "plus_one"
    grouping: bool = True
    concatenation: bool = True

    cohorts_of_one_size = True

    def __post_init__(self) -> None:
        at_least("regroup_every", self.regroup_every, 1)
        between("greedy_share", self.greedy_share, 0, 1)
        one_of("count_rule", self.count_rule, get_args(CountRule))

    def validate(self, config: RunConfig) -> list[str]:
        size, rounds = config.cohort_size, config.rounds
        if not self.concatenation or rounds % size == 0:
            return []
        return [
            f"{algorithms.name_of(self)} averages its {size} copies after every {size} rounds: rounds must be a multiple of "
            f"{size}, the clients of a round, but got {rounds}; set rounds={rounds - rounds % size + size}, or a smaller "
            f"participation than {config.participation:g}."
        ]

    def has_model(self, config: RunConfig, round: int) -> bool:
        return not self.concatenation or round % config.cohort_size == 0

    # Which clients take part

    def sample(self, task: Task, state: State) -> Cohort:
        """The cohort in the order of the copies that its clients receive: copy i goes to selected client (o + i) mod K."""
        selected, position = self.selected(task, state), state["round"] % _cohort_size(task)
        return task.cohort(selected.roll(-position) if self.concatenation else selected)

    def selected(self, task: Task, state: State) -> Tensor:
        """The clients of the round that follows a state [K]: in the order of their groups; without groups in random order where
        copies travel, else ascending."""
        round, server = state["round"], state["server"]
        if self.grouping:
            counts = server["counts"].cpu()[:, round % _cohort_size(task)]
            return self.select(task, self._groups(task, state), counts, round)
        clients = task.sample_cohort(round).ids
        if not self.concatenation:
            return clients
        return clients[torch.randperm(len(clients), generator=task.generator_for("selection", round))]

    def divide(self, task: Task, round: int) -> Tensor:
        """A division of the clients into K groups at random: the group of each client [N]."""
        clients, size = task.population, _cohort_size(task)
        groups = torch.empty(clients, dtype=torch.long)
        groups[torch.randperm(clients, generator=task.generator_for("groups", round))] = (
            torch.arange(clients) * size // clients
        )
        return groups

    def select(self, task: Task, groups: Tensor, counts: Tensor, round: int) -> Tensor:
        """Algorithm 3: one client of each group, in the order of the groups [K].

        Args:
            groups: [N], group of each client.
            counts: [N], how often each client has taken part at this position of a cycle.
        """
        draws, selected = task.generator_for("selection", round), []
        for group in range(_cohort_size(task)):
            members = torch.nonzero(groups == group).flatten()
            selected.append(members[choose(weights_of(counts[members], self.count_rule), self.greedy_share, draws)])
        return torch.cat(selected)

    def _groups(self, task: Task, state: State) -> Tensor:
        """The group of each client in the round that follows a state [N], on the host."""
        if state["round"] % (self.regroup_every * _cohort_size(task)) == 0:
            return self.divide(task, state["round"])
        return state["server"]["groups"].cpu()

    # What a round does

    def init_server(self, task: Task, params: Tree) -> Tree:
        clients, size = task.population, _cohort_size(task)
        server: dict[str, Tree] = {}
        if self.grouping:
            zeros = torch.zeros(clients, size, dtype=torch.long, device=task.device)
            server |= {"groups": zeros[:, 0].clone(), "counts": zeros}
        if self.concatenation:
            copies = {"params": params, "buffers": task.initial_buffers()}
            server["copies"] = tree.map(lambda leaf: leaf.expand(size, *leaf.shape), copies)
            server["examples"] = torch.zeros(size, dtype=task.dtype, device=task.device)
        return server

    def map_clients(self, task: Task, fn: OnClient, cohort: Cohort, state: State) -> ClientOutputs:
        start = self._received(state)
        if start is state:
            return super().map_clients(task, fn, cohort, state)
        return task.map_clients(
            fn, cohort, round=state["round"], params=start["params"], buffers=start["buffers"], own_params=True
        )

    def local_models(self, state: State, outputs: ClientOutputs) -> Tree:
        params = tree.add(self._received(state)["params"], outputs.result.update["delta"])
        return {"params": params, "buffers": outputs.buffers}

    def finish_round(self, task: Task, state: State, cohort: Cohort, outputs: ClientOutputs) -> State:
        counted = self._counted(task, state, cohort)
        if not self.concatenation:
            after = super().finish_round(task, state, cohort, outputs)
            return {**after, "server": counted}
        copies, examples = self.local_models(state, outputs), cohort.num_examples
        if self._received(state) is not state:
            examples = examples + state["server"]["examples"]
        new = {"params": state["params"], "buffers": state["buffers"]}
        if (state["round"] + 1) % len(examples) == 0:
            new["params"] = tree.weighted_mean(copies["params"], examples)
            new["buffers"] = average_buffers(copies["buffers"], examples)
        bytes_up = tree.num_bytes(self.uploads(outputs.result.update, outputs.buffers))
        server = {**counted, "copies": copies, "examples": examples}
        return self._finished(task, state, cohort, **new, server=server, bytes_up=bytes_up)

    # Of methods in rounds, the only one that has no model after some of them.
    def deploy(self, task: Task, state: State, client_ids: Tensor) -> Deployed | None:  # type: ignore[override]
        return super().deploy(task, state, client_ids) if self._received(state) is state else None

    def _received(self, state: State) -> Tree:
        """What holds the "params" and "buffers" that the clients of the next round receive: the state itself where that is the
        shared model, else the copies, leaves [K, ...]."""
        if not self.concatenation or state["round"] % len(state["server"]["examples"]) == 0:
            return state
        return state["server"]["copies"]

    def _counted(self, task: Task, state: State, cohort: Cohort) -> Tree:
        """The groups and counts after a round."""
        if not self.grouping:
            return {}
        counts, position = state["server"]["counts"].clone(), state["round"] % _cohort_size(task)
        counts[cohort.ids.to(counts.device), position] += 1
        return {"groups": self._groups(task, state).to(counts.device), "counts": counts}


def weights_of(counts: Tensor, rule: CountRule) -> Tensor:
    """Eq. 4: weights of clients [n] from their counts [n], by one of the rules for counts of zero."""
    if rule == "limit" and bool((counts == 0).any()):
        return (counts == 0).double()
    return (counts.double() + {"plus_one": 1.0, "limit": 0.0, "bellemare": 0.01}[rule]).rsqrt()


def choose(weights: Tensor, greedy_share: float, draws: torch.Generator) -> Tensor:
    """Position [1] of a client: with probability greedy_share one of the largest weight, else in proportion to the weights."""
    if torch.rand((), generator=draws) <= greedy_share:
        weights = (weights == weights.max()).double()
    return torch.multinomial(weights, 1, generator=draws)


def _cohort_size(task: Task) -> int:
    """K."""
    return task.settings.cohort_size(task.population)
