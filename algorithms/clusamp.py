"""CluSamp: each client of a cohort is drawn from a distribution of its own, over clients with similar updates.

Fraboni, Vidal, Kameni and Lorenzi, Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection in
Federated Learning, ICML 2021. https://arxiv.org/abs/2105.05883
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from algorithms import Average, LocalResult, RoundBased, State, Tree, descend, one_of, registered, tree
from algorithms.shared.base import average_buffers
from algorithms.shared.types import BatchPlan, ClientData, ClientView, Cohort, Task

Similarity = Literal["arccos", "l1", "l2"]

_STACKED = 2**20  # numbers of all clients' updates that are compared at once: they fit into a cache


@registered("clusamp")
@dataclass(frozen=True)
class CluSamp(RoundBased):
    """Algorithm 2 of the paper: the server clusters the clients by their last updates in every round, and draws the m clients
    of a cohort from m distributions, of which the probabilities of client i sum to m p_i, its share of all examples times m.

    Clusters are the maximal subtrees, of a share of at most 1/m, of Ward's tree. As in the reference code, its observations
    are the rows of the matrix of similarities. Each of the m heaviest clusters begins a distribution; the clients of all
    others fill these up, and may be divided between several of them.

    A client may be drawn several times; drawn twice, it trains twice and counts twice. The new model is the plain mean of the
    cohort's: the examples are in the distributions. The server keeps the updates, and clients know nothing of it: a round
    exchanges what one of FedAvg does. Cohorts hold large clients more often: with clients of unequal size, a round trains on
    more examples.

    The time for a tree grows with the third power of the number of clients, the server state with its square.

    Differs from the paper: both trainings of a client that is drawn twice see the same batches, and give the same model.
    Differs from the paper, which needs p_i <= 1/m: a larger client fills as many distributions as it can alone, and the rest
    of its share is that of an ordinary client. It is then in every cohort; expected weights are p_i as for all others.
    Differs from the reference code: probabilities are integers over the number of all examples, and thus exact.
    Differs from the paper: it does not mention buffers; they are averaged like the params.

    Attributes:
        similarity: of two updates: "arccos" is the angle between them, "l1" the sum of absolute differences, "l2" the sum of
            squared differences; the update of a client that has not taken part is 0, and so is its angle to all others.
    """

    similarity: Similarity = "arccos"

    cohorts_of_one_size = True  # of the m that the distributions are made for

    def __post_init__(self) -> None:
        one_of("similarity", self.similarity, get_args(Similarity))

    def caveats(self, task: Task) -> list[str]:
        sizes, size = _sizes(task), _cohort_size(task)
        large = sum(own * size > sum(sizes) for own in sizes)
        said = (
            f"clusamp: clients with more than 1/{size} of all examples are in every cohort of {size}: {large} of "
            f"{len(sizes)}; the paper's method is for smaller ones."
        )
        return [said] if large else []

    # On a client

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"update": tree.zeros_like(params)}

    def cohort_states(self, task: Task, cohort: Cohort, state: State) -> Tree:
        """Nothing: it is the server that keeps the updates."""
        return {}

    def local_update(self, data: ClientData, plan: BatchPlan, view: ClientView) -> LocalResult:
        trained = descend(self.local_loss, view.params, data, plan, view).params
        delta = tree.subtract(trained, view.params)
        return LocalResult({"delta": delta}, {"update": delta})

    # Which clients take part

    def sample(self, task: Task, state: State) -> Cohort:
        shares = self.distributions(task, state)
        draws = task.generator_for("selection", state["round"])
        points = torch.randint(int(shares[0].sum()), (len(shares), 1), generator=draws)
        drawn = torch.searchsorted(shares.cumsum(1), points, right=True).flatten()
        return task.cohort(drawn.sort().values)

    def distributions(self, task: Task, state: State) -> Tensor:
        """The distributions of the round that follows a state [m, N], as in `fill`."""
        alike = similarities(state["server"]["products"].cpu(), self.similarity)
        order = torch.randperm(task.population, generator=task.generator_for("order", state["round"]))
        return fill(_sizes(task), _cohort_size(task), merges(alike), order.tolist())

    # On the server

    def init_server(self, task: Task, params: Tree) -> Tree:
        clients = task.population
        return {"products": torch.zeros(clients, clients, dtype=torch.double, device=task.device)}

    def weighted_means(self, updates: Tree, cohort: Cohort) -> dict[str, Average]:
        return {"delta": Average(updates["delta"], torch.ones_like(cohort.num_examples))}

    def aggregate_buffers(self, buffers: Tree, trained: Tree, updates: Tree, cohort: Cohort) -> Tree:
        return average_buffers(trained, torch.ones_like(cohort.num_examples))

    def run_round(self, task: Task, state: State) -> State:
        after = super().run_round(task, state)
        before, rows = state["clients"]["rows"], after["clients"]["rows"]
        changed = [client for client, row in rows.items() if row is not before.get(client)]
        products = with_products(state["server"]["products"], rows, changed, self.similarity)
        return {**after, "server": {"products": products}}


# Similarities of updates. All three are functions of products <u, v> of updates, of which the server keeps a matrix, so that
# a round compares the updates of its cohort only. For "arccos" and "l2" these are inner products; for "l1"
# (|u| + |v| - |u - v|) / 2 with the norm L1, which is 0 as well where u or v is, and the norm of u where u = v.


def similarities(products: Tensor, kind: Similarity) -> Tensor:
    """How far the updates of clients are apart [N, N], from their products [N, N]."""
    own = products.diagonal()
    if kind != "arccos":
        return own[:, None] + own - 2 * products
    norms = own.sqrt()[:, None] * own.sqrt()
    angles = torch.where(norms > 0, (products / norms).clamp(-1, 1).acos(), 0.0)
    return angles.fill_diagonal_(0)  # where rounding leaves a small angle


def with_products(products: Tensor, rows: dict[int, Tree], changed: list[int], kind: Similarity) -> Tensor:
    """The products of updates [N, N] after some clients have sent new ones.

    Args:
        products: [N, N], before; 0 for clients that have not taken part.
        rows: client -> its update, of all that have taken part.
        changed: those whose update is new.
    """
    clients = [*rows]
    positions = [clients.index(client) for client in changed]
    new = torch.zeros(len(changed), len(clients), dtype=products.dtype, device=products.device)
    # Piece by piece of the params: all updates together may be larger than the memory.
    width = max(1, _STACKED // len(clients))
    for leaves in zip(*map(tree.leaves, rows.values()), strict=True):
        flat = [leaf.flatten() for leaf in leaves]
        for start in range(0, len(flat[0]), width):
            stacked = torch.stack([leaf[start : start + width] for leaf in flat]).to(products.device, products.dtype)
            new += _products(stacked[positions], stacked, kind)
    result, one, other = products.clone(), torch.tensor(changed), torch.tensor(clients)
    result[one[:, None], other] = new
    result[other[:, None], one] = new.T
    return (result + result.T) / 2  # of two new updates there are two products, which rounding may tell apart


def _products(new: Tensor, all_: Tensor, kind: Similarity) -> Tensor:
    """Products [k, n] of updates [k, d] and [n, d]."""
    if kind != "l1":
        return new @ all_.T
    return (new.abs().sum(1)[:, None] + all_.abs().sum(1) - torch.cdist(new, all_, p=1)) / 2


# From similarities to distributions


def merges(observations: Tensor) -> list[list[int]]:
    """Ward's tree over observations [N, d]: which two subtrees each merge joins, in order; merge t makes subtree N + t."""
    if len(observations) == 1:
        return []
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import pdist

    # linkage would compute the same distances, and warn that the observations look like distances.
    return linkage(pdist(observations.numpy()), "ward")[:, :2].astype(int).tolist()


def subtrees(joined: Sequence[Sequence[int]], weights: list[int], limit: int) -> list[list[int]]:
    """The maximal subtrees, of a weight of at most limit, of a tree over clients; a heavier client is one by itself.

    Args:
        joined: as from `merges`.
        weights: of each client, >= 0.
    """
    weights, found = list(weights), {client: [client] for client in range(len(weights))}
    for step, (one, other) in enumerate(joined):
        weights.append(weights[one] + weights[other])
        if weights[-1] <= limit:
            found[len(joined) + 1 + step] = found.pop(one) + found.pop(other)
    return list(found.values())


def fill(sizes: list[int], count: int, joined: Sequence[Sequence[int]], order: list[int]) -> Tensor:
    """The distributions over clients, in units of 1 / sum of sizes [count, N]: rows sum to that, columns to count * size.

    Args:
        sizes: examples of each client.
        count: m, the number of distributions.
        joined: as from `merges`.
        order: the place of each client among those of its cluster, where these fill up what others have begun.
    """
    total = sum(sizes)
    alone = [max(0, count * size - 1) // total for size in sizes]  # distributions that a large client fills
    rests = [count * size - times * total for size, times in zip(sizes, alone, strict=True)]
    filled = [{client: total} for client, times in enumerate(alone) for _ in range(times)]
    clusters = sorted(subtrees(joined, rests, total), key=lambda cluster: sum(rests[client] for client in cluster))
    number = count - len(filled)
    begun = [{client: rests[client] for client in cluster} for cluster in clusters[-number:]]
    place = 0
    for client in (client for cluster in clusters[:-number] for client in sorted(cluster, key=order.__getitem__)):
        while rests[client]:
            poured = min(rests[client], total - sum(begun[place].values()))
            begun[place][client] = poured
            rests[client] -= poured
            place += bool(rests[client])
    shares = torch.zeros(count, len(sizes), dtype=torch.long)
    for row, distribution in zip(shares, filled + begun, strict=True):
        row[[*distribution]] = torch.tensor([*distribution.values()])
    return shares


def _sizes(task: Task) -> list[int]:
    """Examples of each client [N]."""
    return task.sizes(torch.arange(task.population))


def _cohort_size(task: Task) -> int:
    """m."""
    return task.settings.cohort_size(task.population)
