"""Tolerances: how far a measured mean may lie from a published one without contradicting it, by a rule for each paper.

The papers define no such rule. The bands are this project's, derived from the std that each paper prints where it prints one.
They are wide where stds are: a number inside may still be that of a method a few points away. Numbers are in percent, bands in
percentage points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan, sqrt

from bench.errors import require_known
from bench.published.lookup import Published

Band = Callable[[Published, float | None, int], float | None]


@dataclass(frozen=True)
class Rule:
    """How far from the published mean a measured mean may lie.

    Attributes:
        band: (published number, measured std over seeds or None, number of seeds) -> largest difference that
            is "inside", or None if the rule does not apply.
        text: the band in words, for a footnote.
        near: a difference up to this multiple of the band is "near".
    """

    band: Band
    text: str
    near: float = 1.0

    def judge(self, published: Published, mean: float, std: float | None, seeds: int) -> tuple[str, float]:
        """ "inside", "near" or "outside", and the band; "" and NaN if the rule does not apply.

        Args:
            published: the published number.
            mean: measured mean over seeds.
            std: measured std over seeds, None below two seeds.
            seeds: number of seeds behind the measured mean.
        """
        band = self.band(published, std, seeds)
        if band is None:
            return "", nan
        distance = abs(mean - float(published.mean)) - 1e-9  # for rounding: in floats 54.6 - 53.6 > 1
        return ("inside" if distance <= band else "near" if distance <= self.near * band else "outside"), band


def rule(name: str) -> Rule:
    """The rule of a paper.

    Raises:
        ValueError: if there is none of this name.
    """
    require_known("verdict rule", [name], RULES)
    return RULES[name]


def _fedconcat(published: Published, std: float | None, seeds: int) -> float | None:
    """Fixed for the tables without a std of the same kind; else about 2.4 standard errors of the difference of two means, if
    the paper's stds are those of the population of three seeds, as ours beside them."""
    if published.table in ("2", "13"):
        return 3.0
    if published.table in ("3", "12"):
        return None if published.spread is None else max(2.0, 3 * published.spread)
    if published.spread is None or std is None or seeds != 3:
        return None
    return max(1.0, 3 * sqrt((published.spread**2 + std**2) / 3))


def _ccvr(published: Published, std: float | None, seeds: int) -> float | None:
    """Two standard errors of the difference of two means over three seeds; the paper does not say how many it has."""
    if published.spread is None or std is None or seeds != 3:
        return None
    return max(1.0, 2 * sqrt((published.spread**2 + std**2) / 3))


def _fedcat(published: Published, std: float | None, seeds: int) -> float | None:
    """Fixed per dataset, because the paper prints no std; it does not say how many seeds it has."""
    if seeds != 3:
        return None
    return {"mnist": 0.3, "femnist": 1.5, "cifar10": 2.0, "cifar100-coarse": 2.0}.get(published.dataset)


def _fedcollab(published: Published, std: float | None, seeds: int) -> float | None:
    """1.5 std: most of the differences of two means over five seeds, 92 % if stds of five are all that is known."""
    if published.spread is None or seeds != 5:
        return None
    # For numbers with std 0: one client of 20 in one of five seeds is one point of the share of improved clients (ipr).
    floor = {"local_accuracy": 0.5, "ipr": 1.0}.get(published.metric, 0.0)
    return max(1.5 * published.spread, floor)


RULES = {
    "fedconcat": Rule(
        _fedconcat,
        "at most max(1, 3 sqrt((s_published^2 + s_measured^2) / 3)) points for 3 seeds on both sides; "
        "3 points in Tables 2 and 13; max(2, 3 s_published) in Tables 3 and 12",
    ),
    "ccvr": Rule(
        _ccvr,
        "at most max(1, 2 sqrt((s_published^2 + s_measured^2) / 3)) points for 3 seeds on both sides, "
        "near up to twice that",
        near=2.0,
    ),
    "fedcat": Rule(
        _fedcat, "at most 0.3 points on MNIST, 1.5 on FEMNIST, 2 on CIFAR-10 and CIFAR-100 (coarse), for 3 seeds"
    ),
    "fedcollab": Rule(
        _fedcollab,
        "at most 1.5 s_published points for means of 5 seeds, and where that is less, "
        "0.5 points of accuracy and 1 point of the share improved",
    ),
}
