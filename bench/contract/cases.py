"""A method as the contract takes it: with the settings of its toy tasks, and what is special about it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

from algorithms.centralized import Centralized
from algorithms.shared.base import Algorithm
from bench.contract.toy import SIZES
from bench.participation import cohort_size


@dataclass(frozen=True)
class Special:
    """What the contract does otherwise for a method; nothing for most.

    Attributes:
        alone: it is defined for one client that holds everything.
        in_cycles: it has cycles of as many rounds as a cohort has clients, and no new model within them.
        everyone_begins: all clients train in the first round, whatever the participation.
        smallest_client: examples that every client needs.
        templates_are_bounds: a state may be smaller than its template, by what is known only when the run has begun.
        exchanges_less: what a run is known to exchange is a bound, which toy tasks may not reach.
        gradients_of_its_own: it may compute gradients by other means than `gradient`, which the contract cannot count.
        rates: options that are learning rates of clients instead of the setting `lr`, as that of an Adam.
    """

    alone: bool = False
    in_cycles: bool = False
    everyone_begins: bool = False
    smallest_client: int = 1
    templates_are_bounds: bool = False
    exchanges_less: bool = False
    gradients_of_its_own: bool = False
    rates: tuple[str, ...] = ()

    def settings(self, participation: float | None = None) -> dict[str, Any]:
        """Settings of a toy task on which the method can be trained; a run with cycles has two of them."""
        share = {} if participation is None else {"participation": participation}
        if self.in_cycles:
            share = share or {"participation": 0.4}
            return share | {"rounds": 2 * cohort_size(len(SIZES), **share)}
        return share | ({"sizes": (sum(SIZES),)} if self.alone else {})


def said_by(method: Algorithm) -> Special:
    """What is special about a method, as far as the method itself says so."""
    pair = SimpleNamespace(cohort_size=2)
    has_model = [method.has_model(pair, round) for round in (1, 2, 3, 4)]
    return Special(
        alone=isinstance(method, Centralized),
        in_cycles=has_model == [False, True, False, True],
        exchanges_less=method.traffic_is_bound,
        gradients_of_its_own=True,
        rates=tuple(field.name for field in fields(method) if field.name.endswith("_lr")),
    )


@dataclass(frozen=True)
class Case:
    """A method to be checked.

    Attributes:
        name: in the registry.
        method: with the options that it is checked with.
        special: what the contract does otherwise for it.
        chosen: settings of all toy tasks, which win over those of a check.
        no_effect: options that need not change what is deployed after a toy task.
        reports_idle: whether other options without an effect are reported by `checks.every_option_has_an_effect` and not
            refused.
    """

    name: str
    method: Algorithm
    special: Special = Special()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    no_effect: Collection[str] = ()
    reports_idle: bool = False

    def settings(self, participation: float | None = None, **own: Any) -> dict[str, Any]:
        """Settings of a toy task: those of a check, then what the method needs, then the chosen ones."""
        return {**own, **self.special.settings(participation), **self.chosen}
