"""Size of a cohort."""

import math


def cohort_size(population: int, participation: float) -> int:
    """Number of clients of a round: floor(population * participation), at least one."""
    return max(1, math.floor(population * participation + 1e-9))
