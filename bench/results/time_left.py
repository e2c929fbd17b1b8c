"""How long the runs that are left take, from those that have ended, else from the rounds so far."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.results.records import Config, methods_in
from bench.results.snapshot import RunState

_LEFT = ("running", "waiting", "interrupted")


@dataclass
class _Speed:
    """What runs of one sort have taken: their number and seconds, and of those whose examples are known also these."""

    runs: int = 0
    seconds: float = 0.0
    planned_seconds: float = 0.0
    examples: int = 0

    def add(self, seconds: float, examples: int) -> None:
        self.runs += 1
        self.seconds += seconds
        if examples:
            self.planned_seconds += seconds
            self.examples += examples

    def seconds_for(self, examples: int) -> float:
        """What a run takes that trains on so many examples; 0 if their number is not known."""
        if examples and self.examples:
            return self.planned_seconds * examples / self.examples
        return self.seconds / self.runs


def time_left(
    configs: Mapping[str, Config], states: Mapping[str, RunState], trials: int, planned: Mapping[str, int]
) -> float | None:
    """Seconds until all of some runs have ended that are running, interrupted or not begun; failed runs do not count.

    A run takes as long as those of the same settings with other seeds, else as those of the same dataset, model and method,
    else as all of them, in proportion to the examples to train on, where these are known. Of a run that has begun the part is
    left that its examples leave, or its rounds where they are not known. While no run is done, those that have begun say how
    fast they are.

    Args:
        configs: run id -> config of each run.
        states: of those that have begun.
        trials: that run at the same time; no run ends earlier for that.
        planned: run id -> examples to train on, where that is known.

    Returns:
        None if runs are left, and none has a round from which that could be known.
    """
    left = [run for run in configs if run not in states or states[run].status in _LEFT]
    if not left:
        return 0.0
    durations = _durations(configs, states, planned, ("done",)) or _durations(configs, states, planned, _LEFT)
    if not durations:
        return None
    speeds = defaultdict[str, _Speed](_Speed)
    for run, seconds in durations.items():
        for sort in _sorts(configs[run]):
            speeds[sort].add(seconds, planned.get(run, 0))
    lasting = []
    for run in left:
        speed = next(
            speeds[sort] for sort in _sorts(configs[run]) if sort in speeds
        )  # the last sort is that of all runs
        examples = planned.get(run, 0)
        share = max(0.0, 1 - _part_done(states.get(run), configs[run], examples))
        lasting.append(share * speed.seconds_for(examples))
    longest = max(sum(lasting) / trials, *lasting)
    # Of records of others any number may be one.
    return longest if all(map(math.isfinite, [longest, *lasting])) else None


def _durations(
    configs: Mapping[str, Config],
    states: Mapping[str, RunState],
    planned: Mapping[str, int],
    statuses: tuple[str, ...],
) -> dict[str, float]:
    """Seconds that runs with some of these statuses have taken, or will at the speed of their rounds, where that is known."""
    found = {}
    for run, config in configs.items():
        state = states.get(run)
        if state is None or state.status not in statuses or state.seconds is None:
            continue
        part = 1.0 if state.status == "done" else min(1.0, _part_done(state, config, planned.get(run, 0)))
        if part:
            found[run] = state.seconds / part
    return found


def _part_done(state: RunState | None, config: Config, planned: int) -> float:
    """Which part of its training a run has behind it, as far as its rows say."""
    if state is None:
        return 0.0
    if planned and state.examples:
        return state.examples / planned
    return float(state.rounds / max(1, config["rounds"]))


def _sorts(config: Config) -> Iterator[str]:
    """Names of what a run is like, the narrowest first."""
    yield json.dumps({key: config[key] for key in config if key not in ("seed", "versions")}, sort_keys=True)
    yield " ".join([config["dataset"], config["model"], *methods_in(config["algorithm"])])
    yield ""


def duration_in_words(seconds: float) -> str:
    """ "40 s", "12 min", "2 h 10 min" or "3 d 4 h"."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
