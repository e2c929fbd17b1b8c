"""FedCluster: a cluster of clients is cut in two where its mean update is small, but those of clients are not.

Sattler, Mueller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints, IEEE Transactions on Neural Networks and Learning Systems 2020. https://arxiv.org/abs/1910.01991
The name is that of the baseline of Bao et al., ICML 2023, whose settings are not published. https://arxiv.org/abs/2306.06508
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import Cohort, State, Task, Tree, above, at_least, registered, tree
from algorithms.shared.client_states import no_rows, read_rows, write_rows
from algorithms.shared.clustered import RegroupedRounds
from algorithms.shared.clustering import bipartition, inner_products
from algorithms.shared.streaming import RunningMean


@registered("fedcluster")
@dataclass(frozen=True)
class FedCluster(RegroupedRounds):
    """FedAvg in every cluster; a cluster is cut in two when |mean update| < eps1 and the largest |update| > eps2.

    An update is trained - received params, the mean one weights clients by their number of examples. The cut is the one whose
    most similar pair of clients across it has the lowest cosine similarity of updates (an update of length 0 has similarity 0
    to all). Both parts start from the model of the cluster, and average their own clients' models in that very round.

    Of a client that does not take part in a round, its last update since its cluster came to be counts. A cluster whose
    clients have not all sent one is not cut.

    Differs from the paper: eps1 and eps2 are in units of the longest mean update of a round that the cluster, or one that it
    was cut from, has had; as lengths they would depend on model, learning rate and number of steps. The paper recommends a
    tenth of that length for eps1, and one to ten times eps1 for eps2.
    Differs from the paper: the number of clusters is bounded, and so is the memory of the server; and the distance of
    local gradients from those of the client's distribution, which nobody knows, is not checked before a cut.

    Attributes:
        num_clusters: clusters are cut until there are so many, >= 1; 1 is FedAvg.
        eps1: how short a mean update must be (eps_1 of the paper), > 0; above 1 always.
        eps2: how long the longest update must be (eps_2 of the paper), >= 0; 0 always, unless all updates are 0.
    """

    eps1: float = 0.1
    eps2: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        above("eps1", self.eps1, 0)
        at_least("eps2", self.eps2, 0)

    def init_client(self, task: Task, params: Tree) -> Tree:
        return {"update": tree.zeros_like(params)}

    def init_server(self, task: Task, params: Tree) -> Tree:
        # Whose update is one since the cluster came to be, how long it is, and the longest mean update of each client's
        # cluster so far.
        sent = torch.zeros(task.population, dtype=torch.bool, device=task.device)
        length = torch.zeros(task.population, dtype=torch.double, device=task.device)
        return {**super().init_server(task, params), "sent": sent, "length": length, "longest_mean": length.clone()}

    def regroup(self, task: Task, state: State, cohort: Cohort, updates: Tree) -> State:
        if self._complete(state):
            return state
        server = tree.map(Tensor.clone, state["server"])
        server["sent"][cohort.ids], server["length"][cohort.ids] = True, lengths(updates)
        state = {**state, "server": server, "clients": write_rows(state["clients"], cohort.ids, {"update": updates})}
        own = server["clusters"][cohort.ids]
        for cluster in own.unique().tolist():
            mean, members = RunningMean(), (server["clusters"] == cluster).nonzero().flatten().cpu()
            mean.add(updates, cohort.num_examples * (own == cluster))
            server["longest_mean"][members] = server["longest_mean"][members].clamp(min=_length(mean))
            if not self._complete(state) and self._is_cut(task, state, cohort, members, mean):
                state = self._cut(state, cluster, members)
                server = state["server"]
        return {**state, "clients": no_rows(state["clients"]["fresh"])} if self._complete(state) else state

    def _complete(self, state: State) -> bool:
        """Whether there are as many clusters as there may be, so that no update is needed any more."""
        return int(state["server"]["clusters"].max()) + 1 == self.num_clusters

    def _is_cut(self, task: Task, state: State, cohort: Cohort, members: Tensor, mean: RunningMean) -> bool:
        """Whether a cluster is to be cut; to the mean update of its clients in the cohort, those of its others are added."""
        server = state["server"]
        unit = server["longest_mean"][members[0]]
        if len(members) < 2 or not server["sent"][members].all():
            return False
        if not server["length"][members].max() > self.eps2 * unit:
            return False
        for ids in members[~torch.isin(members, cohort.ids)].split(1):  # one after another, in little memory
            mean.add(read_rows(state["clients"], ids)["update"], task.cohort(ids).num_examples)
        return bool(_length(mean) < self.eps1 * unit)

    def _cut(self, state: State, cluster: int, members: Tensor) -> State:
        """The state in which a cluster is two; its new half is the next free cluster."""
        server, new = tree.map(Tensor.clone, state["server"]), int(state["server"]["clusters"].max()) + 1
        products = inner_products(read_rows(state["clients"], members)["update"])
        parts = torch.from_numpy(bipartition(cosines(products).cpu().numpy()))
        server["clusters"][members[parts == 1]] = new
        server["sent"][members] = False
        order = torch.arange(self.num_clusters)
        order[new] = cluster
        return {**state, "server": server} | {key: tree.row(state[key], order) for key in ("params", "buffers")}


def lengths(updates: Tree) -> Tensor:
    """Euclidean length over all leaves of each of n updates, leaves [n, ...]: [n], double."""
    parts = [torch.linalg.vector_norm(leaf.flatten(1), dim=1, dtype=torch.double) for leaf in tree.leaves(updates)]
    return torch.linalg.vector_norm(torch.stack(parts), dim=0)


def cosines(products: Tensor) -> Tensor:
    """Cosine similarities [n, n] of vectors with these inner products [n, n]; those of a vector of length 0 are 0."""
    norms = products.diagonal().sqrt()
    lengths = norms[:, None] * norms
    return torch.where(lengths > 0, products / lengths, 0.0)


def _length(mean: RunningMean) -> Tensor:
    return lengths(tree.map(lambda leaf: leaf[None], mean.mean()))[0]
