"""Quadratic programs on the simplex."""

import torch
from torch import Tensor

_RIDGE = 1e-12  # of the mean eigenvalue: makes the minimum unique


def minimum_on_simplex(matrix: Tensor) -> Tensor:
    """The point a of the simplex (a >= 0, sum a = 1) where a' P a is least, for P positive semidefinite: [n], double.

    If y >= 0 is where y' P y / 2 - sum y is least, then a = y / sum y; y is found by the active sets of Lawson and Hanson.

    Args:
        matrix: P [n, n], finite.
    """
    matrix = matrix.double()
    size, scale = len(matrix), matrix.diagonal().mean()
    if not bool(scale > 0):
        return torch.full_like(matrix[0], 1 / size)
    matrix = matrix / scale + _RIDGE * torch.eye(size, dtype=torch.double, device=matrix.device)
    found, free = torch.zeros_like(matrix[0]), torch.zeros_like(matrix[0], dtype=torch.bool)
    for _ in range(3 * size):
        slope = torch.where(free, -torch.inf, 1 - matrix @ found)
        if bool(free.all()) or slope.max() <= 1e-10:
            break
        free[slope.argmax()] = True
        while True:
            best = torch.zeros_like(found)
            inside = matrix[free][:, free]
            best[free] = torch.linalg.solve(inside, torch.ones_like(inside[0]))
            if bool((best[free] > 0).all()):
                found = best
                break
            falls = free & (best <= 0)
            steps = torch.where(falls, found / (found - best).clamp(min=1e-300), torch.inf)
            found = (found + steps.min() * (best - found)).clamp(min=0)
            free = free & (steps > steps.min()) & ~(falls & (found == 0))
            found = torch.where(free, found, 0)
    return found / found.sum()
