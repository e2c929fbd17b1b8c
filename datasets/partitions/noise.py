"""Clients see images with more or less noise."""

from dataclasses import dataclass
from typing import ClassVar

from bench.registry import registered_partition
from datasets.partitions.iid import Iid


@registered_partition("noise", title="Gau({})", latex=r"$\hat{x} \sim Gau(%s)$", symbols={"sigma": "s"})
@dataclass(frozen=True)
class Noise(Iid):
    """Split as iid; client i of N has Gaussian pixel noise of standard deviation s i/(N-1).

    Attributes:
        sigma: s, >= 0, in units of the [0, 1] pixel range.
    """

    parameter: ClassVar[str] = "a number s of at least 0"
    sigma: float

    @property
    def noise(self):
        return self.sigma

    @property
    def also(self):
        return "adds noise to images" if self.sigma else ""

    def version_with(self, first_clients):
        # The one before gave the first clients the noise of a population of their number.
        return self.version + (first_clients is not None)

    @staticmethod
    def accepts(value: float) -> bool:
        return 0 <= value < float("inf")
