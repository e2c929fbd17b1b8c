"""Size of a cohort."""

import math


def cohort_size(population: int, participation: float, to_nearest: bool = False) -> int:
    """Number of clients of a round, at least one: floor(population * participation), or the nearest integer (halves up)."""
    return max(1, math.floor(population * participation + (0.5 if to_nearest else 0) + 1e-9))
