"""What a person sees while a grid runs: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bench.execution.job import Job


class Display:
    """Counts the jobs of one grid and prints a line for each that ends.

    Attributes:
        ended_by: status -> number of jobs.
    """

    def __init__(self, console: Console, jobs: dict[str, tuple[str, int]]):
        """
        Args:
            jobs: run id -> (what to call it, examples it trains on); the time left is measured in examples.
        """
        self._console, self._jobs = console, jobs
        self._running: dict[str, float] = {}
        self.ended_by = {"done": 0, "diverged": 0, "failed": 0}
        self._bar = _bar(console)
        self._task = self._bar.add_task("", total=sum(examples for _, examples in jobs.values()))

    @contextmanager
    def shown(self) -> Iterator["Display"]:
        """The bar is on the screen meanwhile."""
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
        self._advance(job, 0.0)  # a run that is tried again reports all its rounds once more
        self._update()

    def on_note(self, job: Job, note: str) -> None:
        self._console.print(f"{self._jobs[job.id][0]} {note}", highlight=False, markup=False, soft_wrap=True)

    def on_progress(self, job: Job, rounds: int) -> None:
        self._advance(job, min(1.0, rounds / job.config.rounds))

    def on_end(self, job: Job, record: dict) -> None:
        self._advance(job, 1.0)
        self._running.pop(job.id, None)
        self.ended_by[record["status"]] += 1
        position = f"[{sum(self.ended_by.values())}/{len(self._jobs)}]"
        self._console.print(
            f"{position} {self._jobs[job.id][0]}: {outcome(record)}", highlight=False, markup=False, soft_wrap=True
        )
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
    """How far the configurations of a search are; a context in which it is on the screen."""

    def __init__(self, console: Console, rounds: int, count: int):
        """
        Args:
            rounds: of one configuration, all seeds together.
            count: configurations to try, at most.
        """
        self._bar, self._rounds, self._played = _bar(console), rounds, {}
        self._task = self._bar.add_task(f"{count} configurations", total=rounds * count)

    def __enter__(self):
        self._bar.start()

    def __exit__(self, *error):
        self._bar.stop()

    def advance(self, configuration: str, rounds: int | None) -> None:
        """A configuration has played so many rounds, None if it has ended."""
        self._played[configuration] = self._rounds if rounds is None else rounds
        self._bar.update(self._task, completed=sum(self._played.values()))


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )


def outcome(record: dict) -> str:
    """How a run ended, in a few words."""
    if record["status"] != "done":
        return f"{record['status']}: {record['reason']}"
    last = record["summary"]["last"]
    scores = ", ".join(f"{name.replace('_', ' ')} {100 * value:.1f} %" for name, value in last.items())
    return f"{scores} ({record['seconds']:.1f} s)"
