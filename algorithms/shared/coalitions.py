"""Which clients should train together: FedCollab's objective, and the greedy search for coalitions that minimise it.

Bao et al., Optimizing the Collaboration Structure in Cross-Silo Federated Learning, ICML 2023.
https://arxiv.org/abs/2306.06508
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_TOLERANCE = 1e-12  # differences of objectives below it are rounding
_MOST_SWEEPS = 100


class Descended(NamedTuple):
    """Where runs of the greedy search have ended.

    Attributes:
        coalitions: [R, N], of each client, numbered in the order of their first clients.
        sweeps: [R], including the last one, in which nobody moved.
    """

    coalitions: Tensor
    sweeps: Tensor


def objective(coalitions: Tensor, divergences: Tensor, num_examples: Tensor, capacity: float) -> Tensor:
    """L of the paper [R], a sum over clients i:

        C / sqrt(m) sqrt(sum_j a_ij^2 / beta_j) + sum_j a_ij D_ij,

    with m examples in total, of which the share beta_j is at client j, and a_ij = beta_j / (sum of beta in the coalition of i)
    inside that coalition, else 0. In a coalition with M examples, the first term is C / sqrt(M).

    Args:
        coalitions: [R, N], of each client, in 0..N-1.
        divergences: D of the paper [N, N], float64, symmetric, >= 0 (not clipped here), with a diagonal of zeros.
        num_examples: [N], float64.
        capacity: C of the paper.
    """
    return _cost(_sums(_members(coalitions), divergences, num_examples), capacity).sum(1)


class Bound(NamedTuple):
    """The bound of Theorem 3.3 on how much the expected risk of each client's model exceeds the least possible one, in parts.

    Attributes:
        quantity: [N], 2 phi: falls with the examples of a client's coalition.
        divergence: [N], 2 sum over j != i of alpha_ij D_ij: rises with how much their data differ.
    """

    quantity: Tensor
    divergence: Tensor

    @property
    def excess(self) -> Tensor:
        """[N], the sum. The theorem: for a client whose coalition is given, and the minimiser h_alpha_i of its empirical risk,
        eps_i(h_alpha_i) - eps_i(h_i*) is not larger with probability 1 - 2 delta."""
        return self.quantity + self.divergence


def bound(coalitions: Tensor, divergences: Tensor, num_examples: Tensor, delta: float, dimension: int) -> Bound:
    """Theorem 3.3 of the paper for given coalitions, with

        phi = sqrt((sum_j alpha_ij^2 / beta_j) (2 d log(2 m + 2) + log(4 / delta)) / m),

    where m, beta and alpha (a) are those of `objective`. Since the first sum is m / M in a coalition with M examples, it is the
    objective's part of a client, twice, at C = sqrt(2 d log(2 m + 2) + log(4 / delta)).

    Differs from the paper: D is the largest difference of risks that a hypothesis can make; here it is its estimate by
    discriminators, by which coalitions are chosen, too, so that this is an estimate of the bound. The authors' poster has no
    alpha_ij before D; their page has it.

    Args:
        coalitions: [N], of each client.
        divergences: as in `solve`: those below 0 count as 0.
        num_examples: as in `objective`.
        delta: in (0, 0.5).
        dimension: d, VC dimension of the hypotheses, >= 1.
    """
    total = num_examples.sum()
    shares = num_examples / total  # beta
    together = coalitions[:, None] == coalitions
    alpha = torch.where(together, shares, 0)
    alpha = alpha / alpha.sum(1, keepdim=True)
    spread = (alpha.square() / shares).sum(1)
    phi = (spread * (2.0 * dimension * torch.log(2 * total + 2) + math.log(4) - math.log(delta)) / total).sqrt()
    return Bound(2 * phi, 2 * (alpha * divergences.clamp(min=0)).sum(1))


def solve(
    divergences: Tensor, num_examples: Tensor, capacity: float, restarts: int, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The best of several greedy searches, each of which visits clients in random orders of its own.

    Args:
        divergences: as in `objective`, but they may be negative: they are clipped at 0.
        restarts: number of searches, >= 1; they take memory for restarts * N^2 numbers.
        draws: of the orders.

    Returns:
        The coalition of each client [N], numbered in the order of their first clients, and the objective, a scalar.
    """
    divergences, clients = divergences.clamp(min=0), len(num_examples)

    def orders() -> Tensor:
        return torch.rand(restarts, clients, generator=draws, dtype=torch.float64).argsort(1)

    found = descend(orders, divergences, num_examples, capacity).coalitions
    values = objective(found, divergences, num_examples, capacity)
    best = int(values.argmin())
    return found[best], values[best]


def descend(
    orders: Callable[[], Tensor],
    divergences: Tensor,
    num_examples: Tensor,
    capacity: float,
    start: Tensor | None = None,
) -> Descended:
    """Greedy searches side by side.

    In a sweep every client in turn moves to the coalition, perhaps an empty one, with which the objective is lowest, if that is
    strictly lower; of equals to the first. A search ends with a sweep in which nobody moves.

    Args:
        orders: a new order of the clients for each search, [R, N], at each call.
        divergences, num_examples, capacity: as in `objective`.
        start: coalitions from which the searches start, [R, N]; None for clients that are all alone.
    """
    order = orders()
    members = _members(torch.arange(order.shape[1]).expand(order.shape) if start is None else start)
    sweeps = torch.zeros(len(order), dtype=torch.long)
    going = torch.ones(len(order), dtype=torch.bool)
    for _ in range(_MOST_SWEEPS):
        sweeps[going] += 1
        going = _sweep(members, order, divergences, num_examples, capacity)
        if not going.any():
            break
        order = orders()
    return Descended(torch.stack([_numbered(one) for one in members.argmax(2)]), sweeps)


class _Sums(NamedTuple):
    """Of each coalition, [R, K]: clients, examples M, and the sum over pairs i, j of its clients of m_j D_ij."""

    clients: Tensor
    examples: Tensor
    divergence: Tensor


def _members(coalitions: Tensor) -> Tensor:
    """Whether each client belongs to each coalition, [R, N, K = N], 0 or 1."""
    return (coalitions[..., None] == torch.arange(coalitions.shape[1])).double()


def _sums(members: Tensor, divergences: Tensor, num_examples: Tensor) -> _Sums:
    mixed = (members * (divergences @ (num_examples[:, None] * members))).sum(1)
    return _Sums(members.sum(1), num_examples @ members, mixed)


def _cost(sums: _Sums, capacity: float) -> Tensor:
    """The part of each coalition in the objective, [R, K]."""
    examples = sums.examples.clamp(min=1)  # an empty coalition costs nothing
    return sums.clients * capacity * examples.rsqrt() + sums.divergence / examples


def _sweep(members: Tensor, order: Tensor, divergences: Tensor, num_examples: Tensor, capacity: float) -> Tensor:
    """Every client moves once; changes members. Returns in which searches a client has moved [R]."""
    sums = _sums(members, divergences, num_examples)  # anew in each sweep, so that rounding does not add up
    searches, moved = torch.arange(len(order)), torch.zeros(len(order), dtype=torch.bool)
    for client in order.T:
        current = members[searches, client].argmax(1)
        members[searches, client, current] = 0
        own, distances = num_examples[client, None], divergences[client]
        towards = torch.stack([distances, distances * num_examples], 1) @ members  # [R, 2, K]
        entry = _Sums(torch.ones_like(own), own, own * towards[:, 0] + towards[:, 1])
        sums = _without(sums, entry, searches, current)
        joined = _Sums(*(of + more for of, more in zip(sums, entry, strict=True)))
        rise = _cost(joined, capacity) - _cost(sums, capacity)
        least = rise.min(1, keepdim=True).values + _TOLERANCE
        first = (rise <= least).int().argmax(1)
        target = torch.where(rise[searches, current] <= least[:, 0], current, first)
        members[searches, client, target] = 1
        moved |= target != current
        entered = torch.zeros_like(rise)
        entered[searches, target] = 1
        sums = _Sums(*(torch.where(entered > 0, after, of) for of, after in zip(sums, joined, strict=True)))
    return moved


def _without(sums: _Sums, entry: _Sums, searches: Tensor, current: Tensor) -> _Sums:
    """The sums when a client has left its coalition in each search."""
    left = torch.zeros_like(sums.clients)
    left[searches, current] = 1
    clients = sums.clients - left
    # Exactly 0 where nobody is left, or one client without others to differ from: no remains of rounding.
    return _Sums(
        clients,
        torch.where(clients > 0, sums.examples - left * entry.examples, 0),
        torch.where(clients > 1, sums.divergence - left * entry.divergence, 0),
    )


def _numbered(coalitions: Tensor) -> Tensor:
    """The same coalitions [N], numbered in the order of their first clients."""
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(label, len(numbers)) for label in coalitions.tolist()])
