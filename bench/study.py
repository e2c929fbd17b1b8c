"""A search on disk: its Optuna study, which proposes configurations, knows what they reached, and survives a kill.

searches/<name>.json       what is searched: settings, space, seeds, metric
         <name>.journal    the study; `optuna-dashboard searches/<name>.journal` shows it
"""

import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bench.config import RunConfig, run_id, with_options
from bench.names import file_name
from bench.seeds import seed_for
from bench.store import Store, write_file
from search_spaces import Parameter, Space

VALIDATION = "validation"
SEARCHERS = ("grid", "random", "optuna")
SCHEDULERS = ("none", "asha")
REDUCTION = 3  # one configuration in so many goes on from a rung, and the next rung is after so many times more rounds
_RUNGS = 2  # before the last round
_MOST_DRAWS = 100  # for a configuration that was not tried yet
_STATUS = ("done", "diverged", "stopped")


@dataclass(frozen=True)
class Search:
    """What is searched, and how.

    Attributes:
        configs: for each seed, the config on the split "validation", with the method's usual hyper-parameters.
        space: where they are searched.
        searcher: "grid", "random" or "optuna" (TPE).
        scheduler: "none", or "asha", which stops what does badly.
        metric: the validation accuracy that counts.
        samples: configurations that are tried, at most; None for all of a grid.
        warm_start: whether configurations count that other searches have finished, and those beyond `samples` that a longer
            one has tried.
    """

    configs: Mapping[int, RunConfig]
    space: Space
    searcher: str
    scheduler: str
    metric: str
    samples: int | None
    warm_start: bool = True

    @property
    def template(self) -> RunConfig:
        """The config of the first seed."""
        return next(iter(self.configs.values()))

    @property
    def name(self) -> str:
        """Of its files: another one for whatever makes its numbers not comparable; more samples continue a search."""
        config = self.template
        parts = [config.algorithm["name"], config.dataset, config.partition, run_id(self._key())[:8]]
        return file_name("-".join(parts))

    def runs(self, params: Mapping[str, Any]) -> dict[str, RunConfig]:
        """Run id -> config of one configuration, a run per seed."""
        configs = [with_options(config, params) for config in self.configs.values()]
        return {run_id(config): config for config in configs}

    @property
    def wanted(self) -> int:
        """Configurations to try, at most: a space may have fewer than are asked for."""
        there = math.prod(parameter.size(self.searcher) for parameter in self.space.values())
        return int(there if self.samples is None else min(self.samples, there))

    def points(self) -> Iterator[dict[str, Any]]:
        """Of the grid, in its order."""
        for values in itertools.product(*(parameter.grid for parameter in self.space.values())):
            yield dict(zip(self.space, values, strict=True))

    def describe(self) -> dict[str, Any]:
        """As JSON values."""
        space = {key: parameter.model_dump() for key, parameter in self.space.items()}
        how = {key: getattr(self, key) for key in ("searcher", "scheduler", "metric", "samples", "warm_start")}
        configs = {str(seed): config.canonical() for seed, config in self.configs.items()}
        return {"configs": configs, "space": space, **how}

    def _key(self) -> dict[str, Any]:
        """What makes numbers comparable: not the values that are replaced, nor the words about them."""
        described = self.describe()
        space = {
            key: {part: value for part, value in where.items() if part != "source"}
            for key, where in described["space"].items()
        }
        first = {key: parameter.grid[0] for key, parameter in self.space.items()}
        return {
            "runs": [*self.runs(first)],
            "space": space,
            **{key: described[key] for key in ("searcher", "scheduler", "metric", "warm_start")},
        }


class Outcome(NamedTuple):
    """What one configuration reached.

    Attributes:
        params: hyper-parameter -> value.
        runs: their ids, a run per seed.
        scores: of the runs in their last round, in [0, 1], 0 for one that diverged; of stopped ones in the last that all have.
        rounds: that all of them have played.
        whole: whether they were trained to the end.
    """

    params: dict[str, Any]
    runs: tuple[str, ...]
    scores: tuple[float, ...]
    rounds: int
    whole: bool

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)


class Study:
    """What a search has tried, and what it tries next.

    The store and the list of what was proposed are the truth; the journal is made of them anew whenever the search is opened,
    so that no kill can leave it at odds with the runs.

    Attributes:
        search, store: what is searched, and where its runs are.
        optuna: `optuna.Study`, for its searchers, its figures and its dashboard.
    """

    def __init__(self, search: Search, store: Store):
        """Opens it, or begins; what was being tried when a driver was killed, or has failed, is tried again first.

        The store must be locked.
        """
        self.search, self.store = search, store
        self._folder = store.folder / "searches"
        self._folder.mkdir(exist_ok=True)
        self._path = self._folder / f"{search.name}.json"
        self._proposed: list[dict] = json.loads(self._path.read_text())["proposed"] if self._path.exists() else []
        self._distributions = {key: _distribution(parameter, search) for key, parameter in search.space.items()}
        self._runs = validation_runs(search, store)
        self.optuna = self._new_journal()
        self._waiting = [params for params in self._proposed if not self._add(params)]
        self._tried = {self._key(params) for params in self._proposed}
        self._write()
        if search.searcher == "optuna" and search.warm_start:
            for params in self._found_elsewhere():
                self._add(params, found=True)

    @property
    def left(self) -> int:
        """Configurations that are still to be tried, at most."""
        return len(self._waiting) + max(self.search.wanted - len(self._proposed), 0)

    @property
    def ended_runs(self) -> dict[str, dict[int, float]]:
        """Run id -> round -> metric, of the validation runs in the store that have ended, and need not be played."""
        return {run: scores for run, (scores, whole) in self._runs.items() if whole}

    def propose(self) -> optuna.trial.Trial | None:
        """The next configuration; None if there is no other one. What is proposed is on disk before it is tried."""
        if self._waiting:
            return self._ask(self._waiting.pop(0))
        if len(self._proposed) >= self.search.wanted:
            return None
        if self.search.searcher == "grid":
            found = next((params for params in self.search.points() if self._key(params) not in self._tried), None)
            trial = found and self._ask(found)
        else:
            trial = self._ask_for_a_new_one()
        if trial:
            self._tried.add(self._key(trial.params))
            self._proposed.append(dict(trial.params))
            self._write()
        return trial

    def close(self, trial: optuna.trial.Trial, value: float | None, whole: bool) -> None:
        """A configuration has ended.

        Args:
            value: mean over seeds; None if it failed.
            whole: whether it was trained to the end.
        """
        state = TrialState.FAIL if value is None else TrialState.COMPLETE if whole else TrialState.PRUNED
        self.optuna.tell(trial, value if state == TrialState.COMPLETE else None, state=state)

    def outcomes(self) -> list[Outcome]:
        """Every configuration that was tried, or found in the store, and has not failed: the best first, of equal ones that
        with the smaller values; those that were stopped come last."""
        self._runs = validation_runs(self.search, self.store)
        found = {}
        counting = (
            [*self._proposed, *self._found_elsewhere()]
            if self.search.warm_start
            else self._proposed[: self.search.wanted]
        )
        for params in counting:
            runs = self.search.runs(params)
            if self._runs.keys() >= runs.keys():
                curves = [self._runs[run][0] for run in runs]
                rounds = min(max(curve, default=0) for curve in curves)
                whole = all(self._runs[run][1] for run in runs)
                scores = tuple(
                    _at_end(self._runs[run]) if whole else curve.get(rounds, 0.0)
                    for run, curve in zip(runs, curves, strict=True)
                )
                found[tuple(runs)] = Outcome(params, tuple(runs), scores, rounds, whole)
        return sorted(
            found.values(),
            key=lambda one: (not one.whole, -one.rounds * (not one.whole), -one.mean, _order(one.params)),
        )

    def _new_journal(self) -> optuna.Study:
        journal = self._folder / f"{self.search.name}.journal"
        for path in (journal, journal.with_name(journal.name + ".lock")):
            path.unlink(missing_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        sampler = _sampler(self.search, len(self._proposed))
        return optuna.create_study(study_name=self.search.name, storage=storage, sampler=sampler, direction="maximize")

    def _add(self, params: dict, found: bool = False) -> bool:
        """Tells Optuna what a configuration has reached; False if its runs have not all ended."""
        runs = [self._runs.get(run) for run in self.search.runs(params)]
        whole = all(runs) and all(one[1] for one in runs)
        if not all(runs) or not (whole or self.search.scheduler != "none"):  # another search may have stopped them
            return False
        reached = {
            stop: sum(curve[stop] for curve, _ in runs) / len(runs)
            for stop in stops(self.search)
            if all(stop in curve for curve, _ in runs)
        }
        self.optuna.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=self._distributions,
                value=sum(map(_at_end, runs)) / len(runs) if whole else None,
                state=TrialState.COMPLETE if whole else TrialState.PRUNED,
                intermediate_values=reached,
                user_attrs={"runs": [*self.search.runs(params)], "found": found},
            )
        )
        return True

    def _found_elsewhere(self) -> list[dict]:
        """Points of the space that this search has not proposed, and all of whose runs other searches have finished."""
        candidates: dict[str, dict] = {}
        for run in self._runs:
            params = {key: _value_in(self.store.config(run), key) for key in self.search.space}
            if all(map(_holds, self.search.space.values(), params.values())):
                candidates.setdefault(self._key(params), params)
        return [
            params
            for key, params in candidates.items()
            if key not in self._tried and all(self._runs.get(run, ({}, False))[1] for run in self.search.runs(params))
        ]

    def _ask(self, params: dict) -> optuna.trial.Trial:
        self.optuna.enqueue_trial(params)
        return self.optuna.ask(self._distributions)

    def _ask_for_a_new_one(self) -> optuna.trial.Trial | None:
        """What the searcher proposes, unless it is known; None where it finds nothing new any more."""
        for _ in range(_MOST_DRAWS):
            trial = self.optuna.ask(self._distributions)
            if self._key(trial.params) not in self._tried:
                return trial
            self.optuna.tell(trial, state=TrialState.FAIL)
        return None

    def _key(self, params: Mapping[str, Any]) -> str:
        """The same for configurations with the same runs: 1 and 1.0 are one value."""
        return " ".join(self.search.runs(params))

    def _write(self) -> None:
        write_file(self._path, json.dumps(self.search.describe() | {"proposed": self._proposed}, indent=1) + "\n")


def validation_runs(search: Search, store: Store) -> dict[str, tuple[dict[int, float], bool]]:
    """Run id -> (round -> metric, whether it was trained to the end), of the validation runs that have not failed."""
    found, problem = {}, _problem(search.template.canonical())
    for run, record in store.records().items():
        config = store.config(run) or {}
        if config.get("split") != VALIDATION or _problem(config) != problem:
            continue
        if config["seed"] in search.configs and record["status"] in _STATUS:
            rows = store.rows(run)
            curve = {row["round"]: row[search.metric] for row in rows if search.metric in row}
            if record["status"] == "diverged":
                curve[config["rounds"]] = 0.0
            found[run] = (curve, record["status"] != "stopped")
    return found


def _problem(config: Mapping) -> tuple:
    """What no search changes, of which most runs of a store have another one: their rounds need not be read."""
    return config["dataset"], config["partition"], config["algorithm"]["name"]


def _at_end(run: tuple[dict[int, float], bool]) -> float:
    curve, _ = run
    return curve[max(curve)] if curve else 0.0


def _order(params: Mapping[str, Any]) -> tuple:
    """Numbers by size, before texts."""
    return tuple(
        (isinstance(value, str), value if isinstance(value, str) else float(value)) for value in params.values()
    )


def stops(search: Search) -> list[int]:
    """Rounds after which configurations are compared; the first is the least that each gets, the last the end."""
    return stops_of(search.template.rounds, search.scheduler)


def stops_of(rounds: int, scheduler: str) -> list[int]:
    """`stops` of runs with so many rounds; without a scheduler only the end."""
    first = max(1, rounds // REDUCTION**_RUNGS)
    rungs = (first * REDUCTION**rung for rung in range(_RUNGS + 1)) if scheduler != "none" else ()
    return [*(stop for stop in rungs if 2 * stop <= rounds), rounds]  # shortly before the end nothing would be saved


def text_of(params: Mapping[str, Any]) -> str:
    """ "mu=0.01, tau=0.5", as people read it."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in params.items()
    )


def _value_in(config: Mapping, key: str) -> Any:
    """A setting, or an option of the method or of one inside; None if there is none of that name."""
    if key in config:
        return config[key]
    method = config["algorithm"]
    while isinstance(method, Mapping):
        if key in method:
            return method[key]
        method = method.get("base")
    return None


def _holds(parameter: Parameter, value: Any) -> bool:
    """Whether a searcher could have proposed the value."""
    if parameter.low is None:
        return value in parameter.grid
    return isinstance(value, int | float) and parameter.low <= value <= parameter.high


def _distribution(parameter: Parameter, search: Search) -> BaseDistribution:
    if search.searcher == "grid" or parameter.low is None:
        return CategoricalDistribution(parameter.grid)
    if parameter.is_whole:
        return IntDistribution(parameter.low, parameter.high, log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _sampler(search: Search, tried: int) -> BaseSampler:
    """A grid's points wait in the study, so that nothing is left to a sampler.

    Args:
        tried: trials of the study; a search that goes on must not draw again what it drew first.
    """
    seed = seed_for(min(search.configs), "search", tried) % 2**32
    if search.searcher != "optuna":
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Configurations that are tried at the same time keep away from each other.
        return TPESampler(seed=seed, constant_liar=True)
