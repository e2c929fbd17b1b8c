"""The best coalitions that a search finds for every C of FedCollab in a range, from the divergences that a run has found."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algorithms.shared.coalitions import descend, objective, solve

_RESTARTS = 100  # of the search at each C, as many as a run has unless it is told otherwise
_SEARCHED = 30  # values of C with which the search begins
_TOLERANCE = 1e-9  # slopes and values that differ by less are equal

Coalitions = tuple[int, ...]


class Line(NamedTuple):
    """The objective of a partition into coalitions, as a function of C.

    Attributes:
        slope: sum over clients of 1 / sqrt(M), with M examples in the coalition of a client.
        intercept: sum over clients of their mean divergence from their coalition.
    """

    slope: float
    intercept: float

    def at(self, capacity: float) -> float:
        return self.intercept + self.slope * capacity


def coalitions_of(
    task: Any, divergences: list[list[float]], coalitions: list[int], smallest: float, largest: float
) -> dict[str, list]:
    """The best coalitions that are found for each C.

    Args:
        task: of a run of FedCollab.
        divergences, coalitions: as it has reported them, [N, N] and [N].
        smallest, largest: ends of the range of C.

    Returns:
        "ends": [S + 1], of the intervals within which the best coalitions are the same, ascending.
        "coalitions": [S, N], of each client in each interval.
    """
    num_examples = torch.tensor(task.sizes(torch.arange(task.population))).double()
    of_clients = torch.tensor(divergences, dtype=torch.float64)

    def search(capacity: float) -> Tensor:
        return solve(of_clients, num_examples, capacity, _RESTARTS, task.generator_for("coalitions"))[0]

    def compute() -> dict[str, Tensor]:
        return best_coalitions(of_clients, num_examples, (smallest, largest), search, tuple(coalitions))

    key = (_RESTARTS, smallest, largest, str(divergences), str(coalitions))
    found = task.cached("coalitions-by-capacity", key, compute, lambda found: _are_intervals(found, len(coalitions)))
    return {name: of.tolist() for name, of in found.items()}


def _are_intervals(found: Any, clients: int) -> bool:
    """Whether something of any type may be what `best_coalitions` finds for so many clients."""
    if not isinstance(found, dict) or found.keys() != {"ends", "coalitions"}:
        return False
    ends, coalitions = found["ends"], found["coalitions"]
    if any(not isinstance(of, Tensor) or not of.dim() for of in (ends, coalitions)):
        return False
    if (ends.dtype, coalitions.dtype) != (torch.float64, torch.int64) or coalitions.shape != (len(ends) - 1, clients):
        return False
    ascending = ends.isfinite().all() and (ends.diff() >= 0).all()
    return bool(ascending and ((coalitions >= 0) & (coalitions < clients)).all())


def best_coalitions(
    divergences: Tensor,
    num_examples: Tensor,
    ends: tuple[float, float],
    search: Callable[[float], Tensor],
    known: Coalitions,
) -> dict[str, Tensor]:
    """The coalitions with the lowest objective among those that are found, for each C of a range.

    The objective of given coalitions is linear in C, so that each is best in one interval. It is searched at some C, and where
    the lines of two neighbours cross, until nothing better is found there (Eisner and Severance, Mathematical Techniques for
    Efficient Record Segmentation in Large Shared Databases, JACM 1976); what is best in an interval is improved at its ends.
    There may be better ones: only a search of all partitions could exclude that.

    Args:
        divergences, num_examples: as in `algorithms.shared.coalitions.solve`.
        ends: of the range of C.
        search: good coalitions [N] for a C, numbered in the order of their first clients.
        known: coalitions, numbered likewise, that count only where they are better than all that are found.

    Returns:
        As `coalitions_of`, as tensors.
    """
    divergences = divergences.clamp(min=0)
    lines: dict[Coalitions, Line] = {}

    def add(candidate: Tensor) -> None:
        if (name := tuple(candidate.tolist())) not in lines:
            at_zero, at_one = (objective(candidate[None], divergences, num_examples, of).item() for of in (0.0, 1.0))
            lines[name] = Line(at_one - at_zero, at_zero)

    tried: set[tuple[Coalitions, float]] = set()
    wanted = np.geomspace(*ends, _SEARCHED).tolist()
    searched = {*wanted}
    while wanted:
        for capacity in wanted:
            add(search(capacity))
        borders, best = _envelope(lines, *ends)
        while untried := [*_at_ends(borders, best) - tried]:
            for coalitions, capacity in sorted(untried):
                add(improved(torch.tensor(coalitions), divergences, num_examples, capacity))
            tried.update(untried)
            borders, best = _envelope(lines, *ends)
        wanted = [border for border in borders if border not in searched]
        searched.update(wanted)
    lowest = [lines[one] for one in (*best, best[-1])]
    add(torch.tensor(known))
    # The lowest lines are concave in C together: another one is below them somewhere only if it is so at a border.
    if any(
        lines[known].at(border) < line.at(border) - _TOLERANCE for border, line in zip(borders, lowest, strict=True)
    ):
        borders, best = _envelope(lines, *ends)
    return {"ends": torch.tensor(borders, dtype=torch.float64), "coalitions": torch.tensor(best)}


def _at_ends(borders: list[float], best: list[Coalitions]) -> set[tuple[Coalitions, float]]:
    """The best coalitions of each interval with its two ends."""
    return {*zip(best, borders[:-1], strict=True), *zip(best, borders[1:], strict=True)}


def improved(coalitions: Tensor, divergences: Tensor, num_examples: Tensor, capacity: float) -> Tensor:
    """Coalitions [N] of which no client had better move, and no two had better be one: found from given ones, step by step.

    A search that moves one client at a time misses that two coalitions had better be one.

    Args:
        divergences, num_examples, capacity: as in `algorithms.shared.coalitions.objective`.
    """
    order = torch.arange(len(coalitions))[None]
    while True:
        found = descend(lambda: order, divergences, num_examples, capacity, coalitions[None]).coalitions[0]
        pair = _best_merger(found, divergences, num_examples, capacity)
        if pair is None:
            return found
        coalitions = torch.where(found == pair[1], pair[0], found)


def _best_merger(
    coalitions: Tensor, divergences: Tensor, num_examples: Tensor, capacity: float
) -> tuple[int, int] | None:
    """The two coalitions that had best be one; None if no merger makes the objective lower."""
    members = (coalitions[:, None] == torch.arange(int(coalitions.max()) + 1)).double()  # [N, K]
    clients, examples = members.sum(0), num_examples @ members
    between = members.T @ (num_examples[:, None] * divergences) @ members

    def cost(clients: Tensor, examples: Tensor, divergence: Tensor) -> Tensor:
        return clients * capacity * examples.rsqrt() + divergence / examples

    within = between.diagonal()
    together = (of[:, None] + of for of in (clients, examples, within))
    apart = cost(clients, examples, within)
    clients, examples, divergence = together
    rise = cost(clients, examples, divergence + between + between.T) - apart[:, None] - apart
    rise.fill_diagonal_(0)
    first, second = divmod(int(rise.argmin()), len(rise))
    return (first, second) if rise[first, second] < -_TOLERANCE else None


def _envelope(lines: dict[Coalitions, Line], smallest: float, largest: float) -> tuple[list[float], list[Coalitions]]:
    """Ends of the intervals in which one line is the lowest, and whose it is."""
    lowest = min(line.at(smallest) for line in lines.values()) + _TOLERANCE
    current = min((one for one, line in lines.items() if line.at(smallest) <= lowest), key=lambda one: lines[one].slope)
    ends, best = [smallest], [current]
    while True:
        own = lines[current]
        flatter = {
            (line.intercept - own.intercept) / (own.slope - line.slope): one
            for one, line in sorted(lines.items(), key=lambda item: -item[1].slope)  # of equals the flattest
            if line.slope < own.slope - _TOLERANCE
        }
        crossing = min(flatter, default=largest)
        if crossing >= largest:
            return [*ends, largest], best
        current = flatter[crossing]
        ends.append(crossing)
        best.append(current)
