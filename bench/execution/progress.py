"""Progress on the console: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bench.execution.job import Job
from bench.results.records import RunRecord


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
        self._running: dict[str, float] = {}
        self.ended_by = {"done": 0, "diverged": 0, "failed": 0}
        self._bar = _bar(console)
        self._task = self._bar.add_task("", total=sum(examples for _, examples in jobs.values()))

    @contextmanager
    def shown(self) -> Iterator["Display"]:
        """A context in which the bar is on the screen."""
        self._update()
        with self._bar:
            yield self

    def on_message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_postponed(self, job: Job) -> None:
        self._advance(job, 0.0)
        self._running.pop(job.id, None)
        self._update()

    def on_start(self, job: Job) -> None:
        self._advance(job, 0.0)  # a run that starts again reports all its rounds once more
        self._update()

    def on_note(self, job: Job, note: str) -> None:
        self.on_message(f"{self._jobs[job.id][0]} {note}")

    def on_progress(self, job: Job, rounds: int) -> None:
        self._advance(job, min(1.0, rounds / job.config.rounds))

    def on_end(self, job: Job, record: RunRecord) -> None:
        self._advance(job, 1.0)
        self._running.pop(job.id, None)
        self.ended_by[record["status"]] += 1
        position = f"[{sum(self.ended_by.values())}/{len(self._jobs)}]"
        self.on_message(f"{position} {self._jobs[job.id][0]}: {outcome(record)}")
        self._update()

    def _advance(self, job: Job, share: float) -> None:
        examples = self._jobs[job.id][1]
        self._bar.advance(self._task, (share - self._running.get(job.id, 0.0)) * examples)
        self._running[job.id] = share

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

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, configuration: str, rounds: int) -> None:
        """Sets the rounds of a configuration that are trained, or that it does not need any more."""
        self._trained[configuration] = rounds
        self._bar.update(self._task, completed=sum(self._trained.values()))


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
    scores = ", ".join(f"{name.replace('_', ' ')} {100 * value:.1f} %" for name, value in last.items())
    return f"{scores} ({record['seconds']:.1f} s)"
