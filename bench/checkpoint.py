"""The state of an unfinished run on disk: written every so often, read when the run goes on.

    <folder>/checkpoint.pt      everything but client rows, and the names of the files that hold these
             row-<n>.pt         one client's row; a row that did not change is not written again

`checkpoint.pt` is replaced in one step after the rows that it names were written, so whenever a process dies a complete
checkpoint is there: the newest, or the one before. `torch.load(weights_only=True)` reads every file.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem
from torch.utils.weak import WeakTensorKeyDictionary

from algorithms import rows, tree

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

    def __init__(self, folder: str, of: dict[str, Any], seconds: float = 60.0):
        """
        Args:
            folder: a path, or a URI that fsspec knows.
            of: what a checkpoint must agree in with the run that reads it (its id, engine, device).
        """
        self._fs, self._folder = fsspec.url_to_fs(str(folder))
        self._of = {"format": FORMAT} | of
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
            OSError: if it cannot be written; the one before stands.
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
                self._write(name, row)
                self._names[first] = name
            named.add(self._names[first])
            return self._names[first]

        self._fs.makedirs(self._folder, exist_ok=True)
        self._write(_MAIN, {"of": self._of, "content": _walk(content, name_of, _compact)})
        self._remove_all_but(named)
        spent = time.monotonic() - begin
        self._next = time.monotonic() + (max(self.seconds, spent / LARGEST_SHARE) if self.seconds else 0)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The content of the checkpoint, or None if there is none; tensors of a GPU come to this device.

        Raises:
            UnusableCheckpoint: if it belongs to another run, or cannot be read.
        """
        if not self._fs.exists(f"{self._folder}/{_MAIN}"):
            return None
        try:
            main = self._read(_MAIN, device)
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
            row = rows.own(self._read(name, torch.device("cpu")))
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
        if self._fs.exists(self._folder):
            self._fs.rm(self._folder, recursive=True)

    def _write(self, name: str, content: Any) -> None:
        path = f"{self._folder}/{name}"
        local = isinstance(self._fs, LocalFileSystem)  # elsewhere a file appears when it is complete
        partial = f"{self._folder}/.{name}.partial" if local else path
        with self._fs.open(partial, "wb") as file:
            torch.save(content, file)
            self.written_bytes += file.tell()
            if local:
                file.flush()
                os.fsync(file.fileno())
        if local:
            os.replace(partial, path)

    def _read(self, name: str, device: torch.device) -> Any:
        with self._fs.open(f"{self._folder}/{name}", "rb") as file:
            return torch.load(file, weights_only=True, map_location=lambda leaf, place: _placed(leaf, place, device))

    def _remove_all_but(self, named: Iterable[str]) -> None:
        """Removes rows that no checkpoint names any more, and what an interrupted `save` has left."""
        for path in self._fs.ls(self._folder, detail=False):
            if os.path.basename(path) not in {*named, _MAIN}:
                self._fs.rm(path)


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


def _compact(leaf: torch.Tensor) -> torch.Tensor:
    """A tensor alone: a view would take along everything that it is a view of."""
    return leaf if leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size() else leaf.clone()


def _placed(storage, place: str, device: torch.device):
    return storage if place == "cpu" else storage.to(device)
