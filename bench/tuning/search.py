"""What a search is: its space, searcher and scheduler, and its runs."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench import references
from bench.config.resolve import with_options
from bench.config.schema import RunConfig, run_id
from bench.files import file_name
from bench.results.searched import value_in
from search_spaces import Space

REDUCTION = 3  # one configuration of three continues after a rung, and the next rung is at three times as many rounds
_RUNGS = 2  # before the last round
TPE: dict[str, Any] = {
    "n_startup_trials": 10,
    "n_ei_candidates": 24,
    "multivariate": True,
    "group": False,
    "constant_liar": True,
}
"""Arguments of the TPE sampler of the searcher "optuna", fixed here because defaults differ between its releases. After ten
configurations at random it models all hyper-parameters together, and keeps away from configurations that are being trained."""


@dataclass(frozen=True)
class Search:
    """One search: what is searched, and how.

    Attributes:
        configs: for each seed, the config on the split "validation", with the method's usual hyper-parameters.
        space: where they are searched.
        searcher: "grid", "random" or "optuna" (TPE).
        scheduler: "none", or "asha", which stops configurations that do badly.
        metric: the validation accuracy that is maximised.
        samples: number of configurations to try, at most; None for all of a grid.
        warm_start: whether the searcher "optuna" learns from configurations that other searches have finished; then these
            can be chosen, too.
        of_study: whether it is that of a study. Then all configurations are drawn; else the method's usual hyper-parameters are
            the first one, if the space has them.
        shares_draws: whether draws at random follow from the seeds, the data and the name of a hyper-parameter alone: then all
            methods, and all versions of one, try the same values of a common range. Earlier searches drew by their names.
    """

    configs: Mapping[int, RunConfig]
    space: Space
    searcher: str
    scheduler: str
    metric: str
    samples: int | None
    warm_start: bool = True
    of_study: bool = False
    shares_draws: bool = True

    @property
    def template(self) -> RunConfig:
        """The config of the first seed."""
        return next(iter(self.configs.values()))

    @property
    def methods(self) -> list[str]:
        """The method, behind the one that it wraps unless that is FedAvg: ["ccvr"], or ["moon", "ccvr"]."""
        found: list[str] = []
        method = self.template.canonical()["algorithm"]
        while isinstance(method, Mapping):
            found.insert(0, method["name"])
            method = method.get("base")
        return found[1:] if len(found) > 1 and found[0] == "fedavg" else found

    @property
    def name(self) -> str:
        """Name of its files. Searches whose numbers are not comparable have different names; more samples continue a search."""
        config = self.template
        data = [references.in_file_names(text) for text in (config.dataset, config.partition)]
        parts = [config.algorithm["name"], *data, run_id(self._key())[:8]]
        return file_name("-".join(parts))

    @property
    def forms(self) -> tuple["Search", ...]:
        """This search, and what it was before draws were shared: what was begun so goes on so."""
        of_before = self.searcher == "random" and not self.of_study
        return (self, *[replace(self, shares_draws=False)] * of_before)

    def runs(self, params: Mapping[str, Any]) -> dict[str, RunConfig]:
        """Run id -> config of one configuration, a run per seed."""
        configs = [with_options(config, params) for config in self.configs.values()]
        return {run_id(config): config for config in configs}

    @property
    def usual(self) -> dict[str, Any]:
        """The hyper-parameters that the method has without a search."""
        config = self.template.canonical()
        return {key: value_in(config, key) for key in self.space}

    @property
    def wanted(self) -> int:
        """Configurations to try, at most: a space may have fewer than `samples`."""
        return int(self.size if self.samples is None else min(self.samples, self.size))

    @property
    def size(self) -> float:
        """Number of configurations of the space, infinite for real numbers."""
        return math.prod(parameter.size(self.searcher) for parameter in self.space.values())

    def points(self) -> Iterator[dict[str, Any]]:
        """The configurations of the grid, in its order; of other searchers those of a finite space."""
        for values in itertools.product(*(parameter.values(self.searcher) for parameter in self.space.values())):
            yield dict(zip(self.space, values, strict=True))

    def place_in_grid(self, params: Mapping[str, Any]) -> list[int]:
        """What the configurations of `points` are sorted by."""
        return [parameter.grid.index(params[key]) for key, parameter in self.space.items()]

    def describe(self) -> dict[str, Any]:
        """The search as JSON values, without what it has proposed."""
        space = {key: parameter.model_dump() for key, parameter in self.space.items()}
        how = {key: getattr(self, key) for key in ("searcher", "scheduler", "metric", "samples", "warm_start")}
        configs = {str(seed): config.canonical() for seed, config in self.configs.items()}
        sampler = {"sampler": TPE} if self.searcher == "optuna" else {}
        return {"configs": configs, "space": space, **how, **sampler}

    def _key(self) -> dict[str, Any]:
        """What makes numbers comparable: neither the values that the search replaces, nor the sources of the space."""
        space = {key: parameter.model_dump(exclude={"source"}) for key, parameter in self.space.items()}
        first = {key: parameter.grid[0] for key, parameter in self.space.items()}
        # The first configuration.
        start = {} if self.searcher == "grid" else {"start": None if self.of_study else self.usual}
        how = {key: getattr(self, key) for key in ("searcher", "scheduler", "metric", "warm_start")}
        if self.searcher == "random" and not self.of_study and self.shares_draws:
            how["draws"] = "shared"
        return {"runs": [*self.runs(first)], "space": space, **start, **how}


def stops(search: Search) -> list[int]:
    """Rounds after which configurations are compared; each gets at least the first number of rounds, the last is the end."""
    return stops_of(search.template.rounds, search.scheduler)


def stops_of(rounds: int, scheduler: str) -> list[int]:
    """`stops` of runs with so many rounds; without a scheduler only the end."""
    first = max(1, rounds // REDUCTION**_RUNGS)
    rungs = (first * REDUCTION**rung for rung in range(_RUNGS + 1)) if scheduler != "none" else ()
    return [*(stop for stop in rungs if 2 * stop <= rounds), rounds]  # stopping shortly before the end saves little
