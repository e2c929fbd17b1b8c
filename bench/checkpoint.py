"""The state of an unfinished run on disk: written every so often, read when the run goes on.

    <folder>/checkpoint.pt      everything but client rows, and the names of the files that hold these
             row-<n>.pt         one client's row; a row that did not change is not written again

`checkpoint.pt` is replaced in one step after the rows that it names were written, so whenever a process dies a complete
checkpoint is there: the newest, or the one before. `torch.load(weights_only=True)` reads every file.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from algorithms import rows, tree
from bench.folders import Folder, compact

FORMAT = 1
LARGEST_SHARE = 0.02  # of a run's time that its checkpoints take
_MAIN = "checkpoint.pt"


class UnusableCheckpoint(ValueError):
    """A checkpoint that another kind of run has written, or that is damaged; one sentence."""


class Checkpoints:
    """The newest checkpoint of one run.

    Attributes:
        seconds: least time between two of them; where writing takes more than LARGEST_SHARE of it, they become rarer. 0
            writes one whenever it can.
        written_bytes: size of the files that the last `save` wrote.
    """

    def __init__(self, folder: Folder, of: dict[str, Any], seconds: float = 60.0):
        """
        Args:
            of: what a checkpoint must agree in with the run that reads it (its id, engine, device).
        """
        self._folder, self._of = folder, {"format": FORMAT} | of
        self._names = WeakTensorKeyDictionary()  # first tensor of a row -> the file that holds the row
        self._count = 0
        self.seconds, self.written_bytes = seconds, 0
        self._next = time.monotonic() + seconds

    @property
    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return time.monotonic() >= self._next

    def save(self, content: dict[str, Any]) -> None:
        """Replaces the checkpoint.

        Args:
            content: nested dicts and lists of tensors, numbers and texts. Of client rows (see `algorithms.rows`) in it,
                those are written that are not the same objects as last time.

        Raises:
            bench.folders.Unwritable: if it cannot be written; the one before stands.
        """
        begin = time.monotonic()
        self.written_bytes, named = 0, set()

        def name_of(row: Any) -> Any:
            first = next(iter(tree.leaves(row)), None)
            if first is None:
                return row
            if first not in self._names:
                name = f"row-{self._count}.pt"
                self._count += 1
                self.written_bytes += self._folder.save(name, row)
                self._names[first] = name
            named.add(self._names[first])
            return self._names[first]

        main = {"of": self._of, "content": _walk(content, name_of, compact)}
        self.written_bytes += self._folder.save(_MAIN, main)
        self._remove_all_but(named)
        spent = time.monotonic() - begin
        self._next = time.monotonic() + (max(self.seconds, spent / LARGEST_SHARE) if self.seconds else 0)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The content of the checkpoint, or None if there is none; tensors of a GPU come to this device.

        Raises:
            UnusableCheckpoint: if it belongs to another run, or cannot be read.
        """
        if _MAIN not in self._folder.names():
            return None
        try:
            main = self._folder.load(_MAIN, device)
            of = dict(main["of"])
        except Exception as error:  # torch raises many kinds for a damaged file
            raise UnusableCheckpoint(f"its checkpoint cannot be read ({type(error).__name__})") from error
        differing = [key for key in self._of if of.get(key) != self._of[key]]
        if differing:
            told = ", ".join(f"{key} {of.get(key)!r} instead of {self._of[key]!r}" for key in differing)
            raise UnusableCheckpoint(f"its checkpoint was written with {told}")

        def row_of(name: Any) -> Any:
            if not isinstance(name, str):
                return name
            row = rows.own(self._folder.load(name, torch.device("cpu")))
            self._names[tree.leaves(row)[0]] = name
            return row

        try:
            content = _walk(main["content"], row_of, lambda leaf: leaf)
        except Exception as error:
            raise UnusableCheckpoint(f"its checkpoint cannot be read ({type(error).__name__})") from error
        named = set(self._names.values())
        self._count = 1 + max((int(name[4:-3]) for name in named), default=-1)
        self._remove_all_but(named)
        return content

    def remove(self) -> None:
        """Deletes it."""
        self._folder.remove()

    def _remove_all_but(self, named: set[str]) -> None:
        """Removes rows that no checkpoint names any more, and what an interrupted `save` has left."""
        self._folder.remove(name for name in self._folder.names() if name not in {*named, _MAIN})


def _walk(content: Any, on_row: Callable, on_tensor: Callable) -> Any:
    """The content with client rows and other tensors replaced by what the functions make of them."""
    if isinstance(content, dict):
        if rows.are_client_rows(content):
            fresh = _walk(content["fresh"], on_row, on_tensor)
            return {"fresh": fresh, "rows": {client: on_row(row) for client, row in content["rows"].items()}}
        return {key: _walk(part, on_row, on_tensor) for key, part in content.items()}
    if isinstance(content, list):
        return [_walk(part, on_row, on_tensor) for part in content]
    return on_tensor(content) if isinstance(content, torch.Tensor) else content
