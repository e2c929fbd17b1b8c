"""The coalitions with the lowest objective of FedCollab for every C of a range, from the divergences that a run has found."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.coalitions import objective, solve

_RESTARTS = 20  # of the search at each C: what it misses at one, it finds at another, or as a merger
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
    """The best coalitions for each C.

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
    found = task.derived("coalitions-by-capacity", key, compute, lambda found: _are_intervals(found, len(coalitions)))
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
    """The coalitions with the lowest objective, for each C of a range.

    The objective of given coalitions is linear in C, so that each is best in one interval. Those that are best at the ends are
    searched first, then those that are best where the lines of two neighbours cross, until nothing better is found there
    (Eisner and Severance, Mathematical Techniques for Efficient Record Segmentation in Large Shared Databases, JACM 1976).

    A search that moves one client at a time may miss that two coalitions had better be one: whatever is best somewhere is also
    tried with any two of its coalitions merged.

    Args:
        divergences: as in `algorithms.coalitions.solve`.
        num_examples: [N], float64.
        ends: of the range of C.
        search: the best coalitions [N] for a C, as far as it can tell, numbered in the order of their first clients.
        known: coalitions that may be best somewhere, numbered likewise.

    Returns:
        As `coalitions_of`, as tensors.
    """
    clipped = divergences.clamp(min=0)
    lines: dict[Coalitions, Line] = {}

    def add(candidates: list[Coalitions]) -> None:
        if new := [candidate for candidate in candidates if candidate not in lines]:
            at_zero, at_one = (objective(torch.tensor(new), clipped, num_examples, capacity) for capacity in (0.0, 1.0))
            lines.update(zip(new, map(Line, (at_one - at_zero).tolist(), at_zero.tolist()), strict=True))

    add([known])
    merged: set[Coalitions] = set()
    searched: set[tuple[Coalitions, Coalitions]] = set()
    wanted = [*ends]
    while wanted:
        add([tuple(search(capacity).tolist()) for capacity in wanted])
        borders, best = _envelope(lines, *ends)
        while unmerged := [one for one in best if one not in merged]:
            for one in unmerged:
                add(list(_merged(one)))
            merged.update(unmerged)
            borders, best = _envelope(lines, *ends)
        neighbours = dict(zip(itertools.pairwise(best), borders[1:-1], strict=True))
        wanted = [end for pair, end in neighbours.items() if pair not in searched]
        searched |= neighbours.keys()
    return {"ends": torch.tensor(borders, dtype=torch.float64), "coalitions": torch.tensor(best)}


def _merged(coalitions: Coalitions) -> Iterator[Coalitions]:
    """The same with any two coalitions in one; the numbers stay in the order of first clients."""
    for first, second in itertools.combinations(range(max(coalitions) + 1), 2):
        yield tuple(first if own == second else own - (own > second) for own in coalitions)


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
