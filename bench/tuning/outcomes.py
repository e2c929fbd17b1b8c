"""What the validation runs in the store have reached, and the configurations they belong to."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from bench.config.stale import Changes, changes
from bench.experiments.spec import VALIDATION
from bench.results.records import FINISHED
from bench.results.store import Store
from bench.tuning.search import Search

ENDED = (*FINISHED, "stopped")  # how a run ends that has not failed


class Outcome(NamedTuple):
    """What one configuration reached.

    Attributes:
        params: hyper-parameter -> value.
        runs: their ids, a run per seed.
        scores: of the runs in their last round, in [0, 1], 0 for one that diverged; of stopped ones in the last that all have.
        rounds: that all of them have trained, the rest of those that diverged included.
        trained: rounds of all runs together.
        saved: rounds that those of them lack which were stopped.
        complete: whether all runs were trained to the end.
        diverged: number of runs that diverged.
        from_others: whether other searches have trained it.
    """

    params: dict[str, Any]
    runs: tuple[str, ...]
    scores: tuple[float, ...]
    rounds: int
    trained: int
    saved: int
    complete: bool
    diverged: int = 0
    from_others: bool = False

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    def is_like(self, other: "Outcome") -> bool:
        """Whether both can be chosen, and their means are printed alike."""
        return self.is_choice and other.is_choice and f"{self.mean:.3f}" == f"{other.mean:.3f}"

    @property
    def is_choice(self) -> bool:
        """Whether it can be chosen: it was trained to the end, and diverged with none of its seeds."""
        return self.complete and not self.diverged


class ValidationRun(NamedTuple):
    """A validation run of the store that has ended, and not failed.

    Attributes:
        curve: round -> metric, of the rounds in which it was evaluated.
        status: of its record.
        rounds: that it has trained.
    """

    curve: dict[int, float]
    status: str
    rounds: int

    @property
    def complete(self) -> bool:
        """Whether it was trained to its end."""
        return self.status != "stopped"

    def at(self, stop: int) -> float:
        """Its value after a round: the last metric by then; 0 before the first, and once it has diverged."""
        if self.status == "diverged" and stop >= self.rounds:
            return 0.0
        return latest(self.curve, stop)


def latest(curve: Mapping[int, float], stop: int) -> float:
    """The last metric up to a round, 0 without any."""
    rounds = [number for number in curve if number <= stop]
    return curve[max(rounds)] if rounds else 0.0


def is_score(value: Any) -> TypeGuard[float]:
    """Whether a round has a metric that can be compared."""
    return isinstance(value, int | float) and math.isfinite(value)


Problem = tuple[str, ...]  # dataset, partition and method, which no search changes
Listed = dict[Problem, dict[str, int]]  # run id -> seed, by problem


def list_runs(store: Store) -> Listed:
    """The validation runs of a store that have ended. It reads thousands of files, so all searches of a grid share one list."""
    found: Listed = {}
    for run in store.records():
        config = store.config(run) or {}
        if config.get("split") == VALIDATION:
            found.setdefault(_problem(config), {})[run] = config["seed"]
    return found


def listed_for(search: Search, listed: Listed) -> list[str]:
    """Ids of the runs of a search's setting, method and seeds."""
    of_problem = listed.get(_problem(search.template.canonical()), {})
    return [run for run, seed in of_problem.items() if seed in search.configs]


def validation_runs(
    search: Search, store: Store, runs: Iterable[str], keep_stale: bool = False
) -> dict[str, ValidationRun]:
    """Run id -> validation run, of those that have ended and not failed. What earlier code has trained is left out, so that no
    search compares scores of two codes, unless `keep_stale`."""
    found: dict[str, ValidationRun] = {}
    for run in runs:
        record = store.record(run)
        if record and record["status"] in ENDED and (keep_stale or not stale(store, run)):
            rows = store.rows(run)
            curve = {row["round"]: score for row in rows if is_score(score := row.get(search.metric))}
            found[run] = ValidationRun(curve, record["status"], record.get("rounds", len(rows)))
    return found


def ranked(
    search: Search,
    configurations: Iterable[dict[str, Any]],
    ended: Mapping[str, ValidationRun],
    elsewhere: Collection[dict[str, Any]] = (),
) -> list[Outcome]:
    """What those configurations have reached whose runs have all ended, sorted.

    The best first, of equal ones the earliest, of a grid's in its order; behind them those that diverged with a seed; last
    those that were stopped.

    Args:
        elsewhere: those of them that other searches have trained.
    """
    found = {}
    if search.searcher == "grid":  # it first proposes points whose runs other searches have finished before
        configurations = sorted(configurations, key=search.place_in_grid)
    for params in configurations:
        runs = tuple(search.runs(params))
        if all(run in ended for run in runs):
            of_runs = [ended[run] for run in runs]
            found[runs] = _outcome(search, params, runs, of_runs, params in elsewhere)
    return sorted(found.values(), key=_place)


def _outcome(
    search: Search, params: dict[str, Any], runs: tuple[str, ...], ended: list[ValidationRun], from_others: bool
) -> Outcome:
    """What a configuration has reached whose runs have all ended."""
    last = search.template.rounds
    stopped = [one.rounds for one in ended if not one.complete]
    rounds = min(stopped, default=last)
    return Outcome(
        params=params,
        runs=runs,
        scores=tuple(one.at(rounds) for one in ended),
        rounds=rounds,
        trained=sum(one.rounds for one in ended),
        saved=sum(last - rounds for rounds in stopped),
        complete=not stopped,
        diverged=sum(one.status == "diverged" for one in ended),
        from_others=from_others,
    )


def _place(one: Outcome) -> tuple[float, ...]:
    """What outcomes are sorted by: those that went furthest come first, the complete ones; of equally long ones, those that
    diverged come last."""
    return -one.rounds, one.diverged > 0, -one.mean


def stale(store: Store, run: str) -> Changes:
    """What has changed since a run of the store; empty if it is current, or is not there."""
    record, config = store.record(run), store.config(run)
    return changes(record, config, store) if record and config else ()


def _problem(config: Mapping[str, Any]) -> Problem:
    return config["dataset"], config["partition"], config["algorithm"]["name"]
