"""What validation runs of the store have reached, and configurations by them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench.experiments.spec import VALIDATION
from bench.results.store import Store
from bench.tuning.search import Search

_STATUS = ("done", "diverged", "stopped")


class Outcome(NamedTuple):
    """What one configuration reached.

    Attributes:
        params: hyper-parameter -> value.
        runs: their ids, a run per seed.
        scores: of the runs in their last round, in [0, 1], 0 for one that diverged; of stopped ones in the last that all have.
        rounds: that all of them have played, the rest of those that diverged included.
        whole: whether they were trained to the end.
        diverged: number of runs that did.
        found: whether other searches have played it.
    """

    params: dict[str, Any]
    runs: tuple[str, ...]
    scores: tuple[float, ...]
    rounds: int
    whole: bool
    diverged: int = 0
    found: bool = False

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    def is_like(self, other: "Outcome") -> bool:
        """Whether its mean prints like that of another one."""
        return self.whole and other.whole and f"{self.mean:.3f}" == f"{other.mean:.3f}"

    @property
    def is_choice(self) -> bool:
        """Whether it can be chosen: it was trained to the end, and not all of it diverged."""
        return self.whole and self.diverged < len(self.runs)


class Played(NamedTuple):
    """A validation run of the store that has not failed.

    Attributes:
        curve: round -> metric, of the rounds in which it was evaluated.
        status: of its record.
        rounds: that it has played.
    """

    curve: dict[int, float]
    status: str
    rounds: int

    @property
    def whole(self) -> bool:
        """Whether it need not be trained any further."""
        return self.status != "stopped"

    def at(self, stop: int) -> float:
        """What it is worth after a round: its last metric by then; 0 before the first, and once it has diverged."""
        if self.status == "diverged" and stop >= self.rounds:
            return 0.0
        return latest(self.curve, stop)


def latest(curve: Mapping[int, float], stop: int) -> float:
    """The last metric up to a round, 0 without any."""
    rounds = [number for number in curve if number <= stop]
    return curve[max(rounds)] if rounds else 0.0


def is_score(value: Any) -> bool:
    """Whether a round has a metric that can be compared."""
    return isinstance(value, int | float) and math.isfinite(value)


Listed = dict[tuple, dict[str, int]]  # what no search changes -> run id -> seed


def list_runs(store: Store) -> Listed:
    """The validation runs of a store that have ended, by what no search changes of them: all searches of a grid are looked up
    in one list, which thousands of files are read for."""
    found: Listed = {}
    for run in store.records():
        config = store.config(run) or {}
        if config.get("split") == VALIDATION:
            found.setdefault(_problem(config), {})[run] = config["seed"]
    return found


def listed_for(search: Search, listed: Listed) -> list[str]:
    """Runs of a search's setting, method and seeds."""
    of_problem = listed.get(_problem(search.template.canonical()), {})
    return [run for run, seed in of_problem.items() if seed in search.configs]


def played_of(search: Search, store: Store, runs: Iterable[str]) -> dict[str, Played]:
    """Run id -> what is known of it, of those that have ended and not failed."""
    found = {}
    for run in runs:
        record = store.record(run)
        if record and record["status"] in _STATUS:
            rows = store.rows(run)
            curve = {row["round"]: row[search.metric] for row in rows if is_score(row.get(search.metric))}
            found[run] = Played(curve, record["status"], record.get("rounds", len(rows)))
    return found


def _problem(config: Mapping) -> tuple:
    return config["dataset"], config["partition"], config["algorithm"]["name"]
