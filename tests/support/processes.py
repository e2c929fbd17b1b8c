"""Drivers in processes of their own or in this one, and which processes a process has started."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from unittest import mock

from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
OTHER = 54321  # a second user: the kernel needs no account of that number, and no account is left behind


def family(pid: int) -> dict[int, str]:
    """A process and all that descend from it: id -> command."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    processes = [line.split(maxsplit=2) for line in listed.splitlines()[1:]]
    found = {pid}
    while more := {int(child) for child, parent, _ in processes if int(parent) in found} - found:
        found |= more
    return {int(child): command for child, _, command in processes if int(child) in found}


def as_other(*command: object) -> subprocess.CompletedProcess:
    """A command of another user."""
    words = [str(word) for word in command]
    return subprocess.run(words, user=OTHER, group=OTHER, extra_groups=[], cwd="/", capture_output=True, text=True)


class Driver(subprocess.Popen):
    """`python -m bench run`, or another command, in a process of its own; what it prints can be read at any time."""

    running: ClassVar[list["Driver"]] = []

    def __init__(self, *arguments: object, command: str = "run", root: Path = ROOT, before: str = ""):
        """
        Args:
            root: the checkout whose code runs.
            before: statements that run first.
        """
        self.started = time.time()
        self._printed = tempfile.NamedTemporaryFile(prefix="driver-", suffix=".log")
        program = ["-c", f"{before}\nfrom bench.cli.app import app\napp()"] if before else ["-m", "bench"]
        super().__init__(
            [sys.executable, *program, command, *map(str, arguments)],
            cwd=root,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_hear_interrupts,
        )
        self.running.append(self)

    def printed(self) -> str:
        return Path(self._printed.name).read_text()

    def ended(self) -> str:
        """What it has printed when it has ended."""
        self.wait(timeout=400)
        return self.printed()


def call_bench(*words: object, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command that nothing interrupts, in this process, which has imported what it needs before; an
    error for which the command has no sentence is raised.

    Args:
        variables: of the environment.
    """
    from bench.cli.app import app

    arguments = [*map(str, words)]
    argv = mock.patch.object(sys, "argv", ["bench", *arguments])  # which it prints as what to do next
    with argv, mock.patch.dict(os.environ):  # it sets what its workers inherit
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"} | variables)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def imported_by(*words: object) -> set[str]:
    """The modules that a command imports, in a process of its own."""
    call = f"app({[*map(str, words)]!r})"
    return imported_after(f"from bench.cli.app import app\ntry: {call}\nexcept SystemExit: pass")


def imported_after(code: str) -> set[str]:
    """The modules that a process has imported which has run this code."""
    script = f"import sys\n{code}\nprint('MODULES', *sys.modules)"
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {*output.rpartition("MODULES")[2].split()}


def _hear_interrupts() -> None:
    """Tests that run in the background of a script inherit that Ctrl-C is ignored; drivers of these tests must hear it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(true: Callable[[], bool], driver: Driver) -> None:
    deadline = time.monotonic() + 400
    while not true():
        assert driver.poll() is None, driver.printed()
        assert time.monotonic() < deadline
        time.sleep(0.05)
