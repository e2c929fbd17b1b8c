"""How the program speaks: its two streams, and its mistakes in one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console, ConsoleDimensions

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
_UNLIMITED = 1_000_000  # columns


class Output(Console):
    """The output of the program. A file or a pipe has no width: there nothing is cut, wrapped or filled up with blanks."""

    @property
    def size(self) -> ConsoleDimensions:
        return super().size if self._has_width else ConsoleDimensions(_UNLIMITED, super().size.height)

    def print(self, *objects: Any, **options: Any) -> None:
        if self._has_width:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        try:
            self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
            self.file.flush()
        except BrokenPipeError:
            self.on_broken_pipe()

    @property
    def _has_width(self) -> bool:
        return self.file.isatty()


console = Output()
errors = Console(stderr=True, soft_wrap=True, highlight=False)


def warn(line: str) -> None:
    """A line beside the results; brackets in it mean nothing."""
    errors.print(line, markup=False)


@contextmanager
def explained() -> Iterator[None]:
    """A mistake of the user, and a file system that refuses, ends with its sentence and exit code 2, not with a traceback."""
    from bench.store import StoreError
    from datasets import DataError

    try:
        yield
    except (ValueError, DataError, StoreError) as error:
        sentence = str(error)
    except OSError as error:
        sentence = f"Cannot use {error.filename}: {error.strerror}." if error.filename else f"{error}."
    else:
        return
    warn(f"error: {sentence}")
    raise typer.Exit(2)
