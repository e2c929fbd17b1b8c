"""When a measured mean counts as a reproduction of a published one: one rule per paper.

The papers give no such rule. Each band here is a proposal, made from the spread that the paper prints; all
numbers are in percent, all bands in percentage points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from bench.errors import unknown
from reports.published.lookup import Published

Band = Callable[[Published, float | None, int], float | None]


@dataclass(frozen=True)
class Rule:
    """How far from the published mean a measured mean may lie.

    Attributes:
        band: (published number, measured std over seeds or None, number of seeds) -> largest difference that
            is "inside", or None where the rule says nothing.
        text: the band in words, for a footnote.
        near: up to this multiple of the band a difference is called "near".
    """

    band: Band
    text: str
    near: float = 1.0

    def verdict(self, published: Published, mean: float, std: float | None, seeds: int) -> str | None:
        """ "inside", "near" or "outside"; None where the rule says nothing about this number.

        Args:
            published: the published number.
            mean: measured mean over seeds.
            std: measured std over seeds, None below two seeds.
            seeds: number of seeds behind the measured mean.
        """
        band = self.band(published, std, seeds)
        if band is None:
            return None
        distance = abs(mean - float(published.mean)) - 1e-9  # 54.6 - 53.6 is 1.0 to its reader, not to a float
        return "inside" if distance <= band else "near" if distance <= self.near * band else "outside"


def rule(name: str) -> Rule:
    """The rule of a paper.

    Raises:
        ValueError: if there is none of this name.
    """
    if name not in RULES:
        raise ValueError(unknown("verdict rule", name, RULES))
    return RULES[name]


def _fedconcat(published: Published, std: float | None, seeds: int) -> float | None:
    """Section 15 of the paper's digest."""
    if published.table in ("2", "13"):
        return 3.0
    if published.table in ("3", "12"):
        return max(2.0, 3 * published.spread)
    if published.spread is None or std is None or seeds != 3:
        return None
    return max(1.0, 3 * sqrt((published.spread**2 + std**2) / 3))


def _ccvr(published: Published, std: float | None, seeds: int) -> float | None:
    """Section 14.1 of the paper's digest; the paper averages three trials."""
    if std is None or seeds != 3:
        return None
    return max(1.0, 2 * sqrt((published.spread**2 + std**2) / 3))


def _fedcat(published: Published, std: float | None, seeds: int) -> float | None:
    """Section 6 of the paper's digest; the paper prints no spread, so only the dataset matters."""
    return {"mnist": 0.3, "femnist": 1.5, "cifar10": 2.0, "cifar100-coarse": 2.0}[published.dataset]


def _fedcollab(published: Published, std: float | None, seeds: int) -> float | None:
    """Section 13 of the paper's digest: 1.5 std cover 95 % of the differences of two five-seed means."""
    if published.spread is None or seeds != 5:
        return None
    # Without any spread: one client of 20, in one of five seeds, is one point of the share improved.
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
    "fedcat": Rule(_fedcat, "at most 0.3 points on mnist, 1.5 on femnist, 2 on cifar10 and cifar100-coarse"),
    "fedcollab": Rule(
        _fedcollab,
        "at most max(0.5, 1.5 s_published) points for means of 5 seeds (share improved: at least 1 point)",
    ),
}
