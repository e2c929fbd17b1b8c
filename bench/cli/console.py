"""How the program speaks: its two streams, and its mistakes in one sentence."""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleDimensions

from bench.errors import exit_code_when_stopped, terminate

if TYPE_CHECKING:
    from bench.results.store import Store

_UNLIMITED = 1_000_000  # columns


class Output(Console):
    """The output of the program. A file or a pipe has no width: there nothing is cut, wrapped or filled up with blanks."""

    @property
    def size(self) -> ConsoleDimensions:
        return super().size if self.is_terminal else ConsoleDimensions(_UNLIMITED, super().size.height)

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        try:
            self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
            self.file.flush()
        except BrokenPipeError:
            self.on_broken_pipe()


console = Output(emoji=False)
errors = Output(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def say(line: str) -> None:
    """A line among the results; brackets in it mean nothing."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def say_json(content: Any) -> None:
    """Results for a program."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def warn(line: str) -> None:
    """A line beside the results, of progress for example; brackets in it mean nothing."""
    errors.print(line, markup=False)


def counted(count: int, one: str, several: str = "") -> str:
    """How many there are of something: "1 run", "2 runs"; what does not end in s in the plural has a form of its own."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def say_stale(found: Mapping[str, list[str]]) -> None:
    """A line for each set of changes of `bench.config.stale.stale_runs`."""
    for changed, runs in found.items():
        are, them = ("is", "it") if len(runs) == 1 else ("are", "them")
        say(
            f"{counted(len(runs), 'finished run')} {are} stale, because the code has changed since ({changed}); a command that "
            f"needs {them} repeats {them}."
        )


def use_plugins(named: Sequence[Path]) -> None:
    """Uses the folders of labs that the command line names, and says of all that are used what they hold.

    Raises:
        ConfigError: with all that is wrong in them.
    """
    from bench import plugins, registry

    plugins.use(named)
    for folder in plugins.folders():
        held = registry.held_by(folder)
        without = [] if held else [line for kind in registry.KINDS for line in registry.undecorated(kind, folder)]
        warn(" ".join([f"Uses {folder}: {', '.join(held) or 'nothing yet'}.", *without]))


def name_damaged(
    store: "Store", looked: bool = False, named: Collection[Path] = (), grids: Collection[str] | None = None
) -> set[Path]:
    """Names every file of a results directory that cannot be used, all in one message.

    Args:
        looked: whether the directory has just been looked through.
        named: files that have been named before.
        grids: names of the stored grids that are looked through; None for the whole directory.

    Returns:
        The files that have been named now or before.
    """
    if not looked:
        store.validate_all(grids)
    damaged = {path: what for path, what in sorted(store.damaged.items()) if path not in named}
    if damaged:
        lines = [f"{path.relative_to(store.folder)} {what}" for path, what in damaged.items()]
        count = counted(len(lines), "entry", "entries")
        so = "counts as if it were" if len(lines) == 1 else "count as if they were"
        shown = "\n".join(f"  {_one_line(line)}" for line in lines)
        warn(f"warning: {count} of {store.folder} cannot be used and {so} not there:\n{shown}")
    return {*named, *damaged}


def meant_grids(store: "Store", grid: str | None, budget: str | None) -> list[str]:
    """The stored grids, as `<grid>@<budget>`, that a name and a budget mean, all without; what is damaged of them is named."""
    meant = store.labels_of(grid, budget)
    name_damaged(store, grids=meant if grid or budget else None)
    return [*filter(store.grid, meant)]


def require_grids(store: "Store", grid: str | None, budget: str | None) -> list[str]:
    """The same; raises ValueError if there is none."""
    if labels := meant_grids(store, grid, budget):
        return labels
    raise ValueError(no_results(store, grid, budget))


def no_results(store: "Store", grid: str | None, budget: str | None) -> str:
    """The sentence for a results directory that does not hold what is asked for.

    Raises:
        StoreError: if it is no results directory at all.
    """
    from bench.errors import suggestion

    store.check_exists()
    held = store.grids()
    if not held:
        return f"{store.folder} holds no results of a grid yet."
    wanted = "@".join(part for part in (grid, budget) if part)
    held = [label for label in held if label.partition("@")[0] == grid] or held
    longer = [label for label in held if label.startswith(f"{wanted}+")][:3]
    near = f" Did you mean {' or '.join(map(repr, longer))}?" if longer else suggestion(wanted, held)
    return f"{store.folder} holds no results of {wanted}, only: {', '.join(held)}.{near}"


def edited_files(store: "Store", labels: list[str]) -> set[str]:
    """The users' files of stored grids that were written after their last run; only these need to be read."""
    found = set()
    for label in labels:
        source, path = Path((store.grid(label) or {}).get("source") or ""), store.folder / "grids" / f"{label}.json"
        if source.is_file() and source.stat().st_mtime >= path.stat().st_mtime:
            found.add(str(source))
    return found


def warn_if_changed(file: str, store: "Store", labels: list[str]) -> None:
    """Says which reports have a title and a layout that the file of their grid had at its last run, but has no more."""
    from bench.errors import ConfigError
    from bench.experiments.cells import is_laid_out_as
    from bench.experiments.grid_loading import load_grid

    try:
        grid = load_grid(file)
    except ConfigError as error:
        warn(f"{file} cannot be read, so that nobody knows whether it has changed since the runs: {error}")
        return
    of_file = {
        label: stored for label in labels if (stored := store.grid(label)) and stored.get("source") == grid.source
    }
    if changed := [label for label, stored in of_file.items() if not is_laid_out_as(grid, stored)]:
        warn(
            f"{file} has another title or layout than at the last run of {', '.join(changed)}, which is shown as it was. "
            "Repeat the command of the runs to store the new one; finished runs are not repeated."
        )


def _one_line(text: str) -> str:
    """Names of files may hold what a terminal obeys."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def stopped(sentence: str) -> typer.Exit:
    """Says that a command has been stopped; the exit that says by what."""
    warn(sentence)
    return typer.Exit(exit_code_when_stopped())


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM, which batch systems send, ends a command within the context as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # Python lets only that one hear signals
        yield
        return
    earlier = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if earlier is None else earlier)


@contextmanager
def explained() -> Iterator[None]:
    """A mistake of the user, and a file system that refuses, ends with its sentence and exit code 2, not with a traceback."""
    from bench.errors import StoreError

    try:
        yield
    except (ValueError, StoreError) as error:
        sentence = str(error)
    except BrokenPipeError:  # of `... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise stopped("Stopped.") from None
    except OSError as error:
        sentence = f"Cannot use {error.filename}: {error.strerror}." if error.filename else f"{error}."
    except Exception as error:
        from datasets import DataError  # imports numpy, which commands that read no data do without

        if not isinstance(error, DataError):
            raise
        sentence = str(error)
    else:
        return
    warn("\n".join(map(_cut, f"error: {sentence}".split("\n"))))
    raise typer.Exit(2)


def _cut(line: str, longest: int = 2000) -> str:
    """A line that quotes what somebody has written, which may be a file of megabytes, without the middle of it."""
    return line if len(line) <= longest else f"{line[: longest - 500]} [...] {line[-490:]}"
