"""The file `.driver` of a results directory: by it others know whether a driver is at work, since when, and on which runs."""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bench.results.ids import is_run_id
from bench.results.locks import holder, lock_within, open_regular

_LARGEST = 16 * 2**20  # bytes: a million runs
_PATIENCE = 2.0  # seconds for which a driver waits for those who ask whether one is at work


class Driver(NamedTuple):
    """What the file says of the last driver.

    Attributes:
        is_at_work: False of one that has left its mark without ending by itself: it was killed, or its machine stopped.
        since: when it began, in seconds since the epoch, by the clock of its machine.
        runs: ids of the runs that it has begun.
    """

    is_at_work: bool
    since: float
    runs: frozenset[str]


class DriverMark:
    """The file: locked while a driver is at work, and empty once one has ended by itself."""

    def __init__(self, path: Path):
        self._path = path
        self._file: BinaryIO | None = None  # while this process is the driver

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_file": None}  # Ray pickles what holds a store; an open file stays where it is

    def read(self) -> Driver | None:
        """The driver that is at work, or the last one if that was killed; None if no driver is at work, and the last one has
        ended by itself. Writes nothing, and turns no driver away."""
        try:
            file = open_regular(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_at_work = False
            except OSError as error:  # another one is of a file system that locks no files, where no driver works
                is_at_work = isinstance(error, BlockingIOError)
            first, *others = file.read(_LARGEST).decode(errors="replace").split("\n")
            if not first and not is_at_work:
                return None
            # Not the time of the file: it is that of the run that was begun last.
            since = float(first) if re.fullmatch(r"\d{1,11}(\.\d{1,9})?", first) else os.fstat(file.fileno()).st_mtime
        return Driver(is_at_work, since, frozenset(filter(is_run_id, others)))

    @contextmanager
    def at_work(self, on_message: Callable[[str], None]) -> Iterator[None]:
        """A context for which `read` says that this process is at work.

        Args:
            on_message: gets a line where the driver before was killed, and where another program has locked the file.
        """
        if (earlier := self.read()) and not earlier.is_at_work:
            on_message(
                f"The last command that wrote to {self._path.parent}, begun at {_clock(earlier.since)}, did not end by itself: "
                "it was killed, as happens where memory runs out, or its machine stopped; finished runs are kept, and the "
                "others continue from their checkpoints."
            )
        with open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            # Not the lock that keeps other drivers out: who asks holds this one for a moment, for which a driver can wait.
            if not lock_within(file, _PATIENCE):
                on_message(
                    f"Another program has locked {self._path}{holder(file.fileno())}: the run goes on, but `status` may not "
                    "say that it is at work. End that program if it is none of yours."
                )
            file.truncate(0)
            file.write(f"{time.time()}\n".encode())
            file.flush()
            self._file = file
            try:
                yield
            finally:
                self.remove()
                self._file = None

    def add(self, run_id: str) -> None:
        """Says that the driver of this process, if it is one, has begun a run."""
        if self._file:
            self._file.write(f"{run_id}\n".encode())
            self._file.flush()

    def remove(self) -> None:
        """From now on the driver of this process has ended by itself, whatever ends it."""
        if self._file:
            self._file.truncate(0)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
