"""Trials of Ray Tune, and how the scheduler and reports bear thousands of them; not measured where Ray is not installed."""

import os

from bench.speed.clock import EXAMPLES
from bench.speed.rows import Row, not_measured
from bench.speed.workload import Setting


def trials(setting: Setting) -> list[Row]:
    """One and two trials of Ray Tune, and what Tune costs per trial once its workers are warm."""
    from bench.speed import overhead

    rows = [_warm(overhead)]
    if os.cpu_count() < 2:
        return [*rows, not_measured("two trials", "one core")]
    one, two = (overhead.side_by_side(setting.folder, count) for count in (1, 2))
    together, alone = (sum(trial.rate for trial in trials) for trials in (two, one))
    case, memory = "memory that a second trial adds (unique set size)", two[-1].unique_memory_mb
    return [
        *rows,
        Row("one trial, one core", alone, EXAMPLES),
        Row("two trials, two cores", together, EXAMPLES, f"{together / alone:.2f} of one trial"),
        not_measured(case, "needs /proc") if memory is None else Row(case, memory, "MB"),
    ]


def scheduler(
    setting: Setting, count: int = 1000, growth: tuple[int, int] = (200, 2000), seeds: int = 100
) -> list[Row]:
    """A thousand trivial runs, the driver's memory over two thousand, and a Markdown report over 2,500."""
    from bench.speed import overhead

    wall = overhead.wall_of_many(count)
    grown = overhead.memory_per_trial(*growth)
    case = f"driver's memory per trial, from {growth[0]:,} to {growth[1]:,}"
    num_runs, seconds = overhead.report_seconds(seeds)
    return [
        _warm(overhead),
        Row(f"{count:,} trivial runs", wall, "s", f"{1000 * wall / count:.0f} ms per run; target on 2 cores: 90 s"),
        not_measured(case, "needs /proc") if grown is None else Row(case, grown / 1000, "kB", "target: 50 kB"),
        Row(f"Markdown report over {num_runs:,} stored runs", seconds, "s", "target: 3 s"),
    ]


def _warm(overhead) -> Row:
    return Row("scheduler overhead, warm workers", overhead.seconds_per_trial(), "s per trial", "target: 0.05 s")
