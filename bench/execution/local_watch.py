"""Watches the processes of Ray on this machine while a command uses them."""

import threading
from collections.abc import Callable
from typing import Any

from bench.execution import ray_environment  # noqa: F401
from bench.execution.cluster import end_process

import ray  # isort: skip

_LOOK_SECONDS = 1.0
_NEEDED = ("gcs_server", "raylet")  # Ray's names of the processes without which it cannot go on


class LocalWatch(threading.Thread):
    """Ends the command with a sentence if a process dies that Ray needs: Ray itself waits, and then ends the command without a
    word. Results on disk survive that at any moment."""

    def __init__(self, before_end: Callable[[], None]):
        """
        Args:
            before_end: is called before this thread ends the process.
        """
        super().__init__(name="watch of the processes of Ray", daemon=True)
        node: Any = ray._private.worker._global_node  # there is one in the process that has started Ray
        self._processes = {name: each.process for name in _NEEDED for each in node.all_processes.get(name, ())}
        self._before_end, self._ended = before_end, threading.Event()

    def __enter__(self) -> "LocalWatch":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead and not self._ended.is_set():
                self._before_end()
                end_process(
                    f"A process of Ray on this machine ({dead[0]}) has died: it was killed, as happens where memory runs out, "
                    "or had an error.",
                    "Continue by",
                )
