"""Runs jobs as plain processes of this machine, which need neither Ray nor submitit."""

import os
import subprocess
import sys
from pathlib import Path

from bench.execution.ray_environment import python_path


def environment(threads: int) -> dict[str, str]:
    """What a process of a job has in its environment: it finds this code before what lies in its working directory."""
    path = python_path(os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(threads)}


class Process:
    """The process that trains the job of a file. It has the methods of a job of submitit that `bench.execution.submitted`
    uses."""

    def __init__(self, path: Path, threads: int):
        """Starts it. What interrupts the driver does not reach it, so that the driver ends it.

        Args:
            path: as `bench.execution.job_file.train` gets it.
            threads: of torch and of the libraries that it uses.
        """
        self._errors = path.with_suffix(".err")
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **environment(threads)},
                start_new_session=True,
            )

    @property
    def state(self) -> str:
        """In words, for the log."""
        return "is running" if not self.done() else f"ended with exit code {self._process.returncode}"

    def done(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def stderr(self) -> str:
        """What it has written for people."""
        return self._errors.read_text(errors="replace")

    def cancel(self) -> None:
        """Asks it to end."""
        self._process.terminate()
