"""Progress on the console: a bar on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bench.execution.job import CONTINUES, Job
from bench.results.ids import is_metric_name
from bench.results.records import RunRecord
from bench.results.time_left import duration_in_words

_SELDOM, _OFTEN = 60.0, 5.0  # seconds between lines, at most and at least


class Display:
    """Counts the jobs of one grid and prints a line for each that ends.

    Attributes:
        ended_by: status -> number of jobs.
    """

    def __init__(self, console: Console, jobs: dict[str, tuple[str, int]]):
        """
        Args:
            jobs: run id -> (name, examples it trains on); progress is measured in examples.
        """
        self._console, self._jobs = console, jobs
        self._running: dict[str, float] = {}  # run id -> examples that it has trained on
        self._continued: set[str] = set()  # of which no round has been reported yet
        self._reasons: dict[str, str] = {}  # for which runs have failed -> name of the first
        self.ended_by = {"done": 0, "diverged": 0, "failed": 0}
        self._bar = _bar(console)
        self._task = self._bar.add_task("", total=sum(examples for _, examples in jobs.values()))
        self._lines = Lines(self._bar, self.on_message)

    @contextmanager
    def shown(self) -> Iterator["Display"]:
        """A context in which the bar is on the screen."""
        self._update()
        with self._bar, self._lines:
            yield self

    def on_message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_postponed(self, job: Job) -> None:
        self._advance(job, 0)
        self._running.pop(job.id, None)
        self._update()

    def on_start(self, job: Job) -> None:
        self._advance(job, 0)  # a run that starts again reports all its rounds once more
        self._lines.begin()
        self._update()

    def on_note(self, job: Job, note: str) -> None:
        self.on_message(f"{self._jobs[job.id][0]} {note}")
        if CONTINUES in note:
            self._continued.add(job.id)

    def on_progress(self, job: Job, examples: float) -> None:
        examples = min(examples, self._jobs[job.id][1])
        if job.id in self._continued:
            self._continued.remove(job.id)
            self._lines.leave_out(examples - self._running.get(job.id, 0))
        self._advance(job, examples)

    def on_end(self, job: Job, record: RunRecord) -> None:
        self._advance(job, self._jobs[job.id][1])
        self._running.pop(job.id, None)
        self.ended_by[record["status"]] += 1
        position = f"[{sum(self.ended_by.values())}/{len(self._jobs)}]"
        name, how = self._jobs[job.id][0], outcome(record)
        if record["status"] == "failed" and (first := self._reasons.setdefault(record["reason"], name)) != name:
            how = f"failed for the same reason as {first}"
        self.on_message(f"{position} {name}: {how}")
        self._update()

    def _advance(self, job: Job, examples: float) -> None:
        self._bar.advance(self._task, examples - self._running.get(job.id, 0))
        self._running[job.id] = examples

    def _update(self) -> None:
        ended = sum(self.ended_by.values())
        text = f"{ended}/{len(self._jobs)} done, {len(self._running)} running, {self.ended_by['failed']} failed"
        self._bar.update(self._task, description=text)


class RoundsBar:
    """Rounds that the configurations of searches have trained; a context in which the bar is on the screen."""

    def __init__(self, console: Console, configurations: int, rounds: int):
        """
        Args:
            configurations: to try, at most.
            rounds: of all of them and all their seeds together.
        """
        self._bar = _bar(console)
        self._trained: dict[str, int] = {}
        self._task = self._bar.add_task(f"{configurations} configurations", total=rounds)
        self._lines = Lines(self._bar, lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True))

    def __enter__(self) -> None:
        self._bar.start()
        self._lines.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lines.__exit__()
        self._bar.stop()

    def update(self, configuration: str, rounds: int) -> None:
        """Sets the rounds of a configuration that are trained, or that it does not need any more."""
        self._lines.begin()
        self._trained[configuration] = rounds
        self._bar.update(self._task, completed=sum(self._trained.values()))


class Lines:
    """What a bar would show, as lines where there is no terminal: one when a further tenth is done, and at least one a minute;
    a context in which they come."""

    def __init__(self, bar: Progress, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        """
        Args:
            bar: with one task; nothing is said where it is on the screen itself.
            clock: seconds since some time.
        """
        self._bar, self._say, self._clock = bar, say, clock
        self._left_out = 0.0
        self._begin: float | None = None
        self._last = clock()
        self._tenths = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)  # a round may last longer than a minute

    def __enter__(self) -> None:
        if self._bar.disable:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self) -> None:
        """Training begins; the time before says nothing about speed."""
        self._begin = self._clock() if self._begin is None else self._begin

    def leave_out(self, amount: float) -> None:
        """So much of what is done was so before, and says nothing about speed."""
        self._left_out += amount

    def look(self) -> None:
        """Says how far it is if there is a reason."""
        task, now = self._bar.tasks[0], self._clock()
        share = task.completed / task.total if task.total else 0.0
        waited, tenths = now - self._last, int(10 * share + 1e-9)
        if waited < _OFTEN or (waited < _SELDOM and tenths <= self._tenths) or share > 1 - 1e-9:
            return
        self._last, self._tenths = now, tenths
        own = task.completed - self._left_out
        elapsed = None if self._begin is None else now - self._begin
        seconds = elapsed * (task.total - task.completed) / own if elapsed and task.total and own > 0 else None
        left = "time left not known yet" if seconds is None else f"about {duration_in_words(seconds)} left"
        self._say(f"{100 * share:.0f} % trained ({task.description}), {left}")

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.look()


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )


def outcome(record: Mapping[str, Any]) -> str:
    """How a run ended, in a few words."""
    if record["status"] != "done":
        return f"{record['status']}: {record['reason']}"
    last = record["summary"]["last"]
    named = {name.replace("_", " "): last[name] for name in last if not is_metric_name(name)}
    scores = ", ".join(f"{name} {100 * value:.1f} %" for name, value in named.items())
    why = f"; {record['reason']}" if record.get("reason") else ""
    return f"{scores} ({record['seconds']:.1f} s{why})"
