"""How long the runs that are left of a grid take, from those that have ended, else from the rounds so far."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.results.records import StoredCell, StoredGrid, methods_in
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


def time_left(grid: StoredGrid, cells: list[StoredCell], states: Mapping[str, RunState], at_once: int) -> float | None:
    """Seconds until the runs of a grid have ended that are running, interrupted or not begun; failed runs do not count.

    A run takes as long as those of the same settings with other seeds, else as those of the same dataset, model and method,
    else as all of the grid, in proportion to the examples to train on, where the grid says how many these are. Of a run that
    has begun the part is left that its examples leave, or its rounds where they are not known. While no run is done, those that
    have begun say how fast they are.

    Args:
        cells: of the grid, those that count.
        states: of its runs that have begun.
        at_once: trials that run at the same time; no run ends earlier for that.

    Returns:
        None if runs are left, and none has a round from which that could be known.
    """
    planned = grid.get("planned_examples", {})
    runs = {cell["run"]: cell for cell in cells if cell["run"]}
    left = {run: cell for run, cell in runs.items() if run not in states or states[run].status in _LEFT}
    if not left:
        return 0.0
    durations = _durations(runs, states, planned, ("done",)) or _durations(runs, states, planned, _LEFT)
    if not durations:
        return None
    speeds = defaultdict[str, _Speed](_Speed)
    for run, seconds in durations.items():
        for sort in _sorts(runs[run]):
            speeds[sort].add(seconds, planned.get(run, 0))
    lasting = []
    for run, cell in left.items():
        speed = next(speeds[sort] for sort in _sorts(cell) if sort in speeds)  # the last sort is that of all runs
        examples = planned.get(run, 0)
        share = max(0.0, 1 - _part_done(states.get(run), cell, examples))
        lasting.append(share * speed.seconds_for(examples))
    longest = max(sum(lasting) / at_once, *lasting)
    return (
        longest if all(map(math.isfinite, [longest, *lasting])) else None
    )  # of records of others any number may be one


def _durations(
    runs: Mapping[str, StoredCell],
    states: Mapping[str, RunState],
    planned: Mapping[str, int],
    statuses: tuple[str, ...],
) -> dict[str, float]:
    """Seconds that runs with some of these statuses have taken, or will at the speed of their rounds, where that is known."""
    found = {}
    for run, cell in runs.items():
        state = states.get(run)
        if state is None or state.status not in statuses or state.seconds is None:
            continue
        part = 1.0 if state.status == "done" else min(1.0, _part_done(state, cell, planned.get(run, 0)))
        if part:
            found[run] = state.seconds / part
    return found


def _part_done(state: RunState | None, cell: StoredCell, planned: int) -> float:
    """Which part of its training a run has behind it, as far as its rows say."""
    if state is None:
        return 0.0
    if planned and state.examples:
        return state.examples / planned
    return float(state.rounds / max(1, cell["config"]["rounds"]))


def _sorts(cell: StoredCell) -> Iterator[str]:
    """Names of what a run is like, the narrowest first."""
    config = cell["config"]
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
