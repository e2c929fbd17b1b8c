"""How the program speaks: its two streams, and its mistakes in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it

console = Console()
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
