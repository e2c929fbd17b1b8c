"""States in files: that of an unfinished run, written every so often and read when the run continues, and those that are kept.

    <folder>/checkpoint.pt      everything but client rows, and the names of the files that hold these
             row-<name>.pt      one client's row; a row that did not change is not written again

`checkpoint.pt` is replaced in one step after the rows that it names were written, so whenever a process dies a complete
checkpoint is there: the newest, or the one before. `torch.load(weights_only=True)` reads every file.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from algorithms.shared import client_states as rows
from algorithms.shared import tree
from algorithms.shared.row_files import free_pages
from bench.results.artifacts import DamagedState, Folder

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
            of: what a checkpoint must agree in with the run that reads it (its id, images, engine, device, code).
        """
        self._folder, self._of = folder, {"format": FORMAT} | of
        self._names = WeakTensorKeyDictionary()  # first tensor of a row -> the file that holds the row
        self._token, self._count = secrets.token_hex(4), 0  # no file of an earlier checkpoint is written again
        self._files: set[str] = set()  # of rows that this process knows: another one may still be at work, on its own
        self.seconds, self.written_bytes = seconds, 0
        self._next = time.monotonic() + seconds

    @property
    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return time.monotonic() >= self._next

    def save(self, content: dict[str, Any]) -> None:
        """Replaces the checkpoint.

        Args:
            content: nested dicts and lists of tensors, numbers and texts. Of client rows in it, only those are written
                that are not the same objects as last time (see `algorithms.shared.client_states`).

        Raises:
            bench.errors.StoreError: if it cannot be written; the one before stays.
        """
        begin = time.monotonic()
        self.written_bytes, named = 0, set()

        def name_of(row: Any) -> Any:
            first = next(iter(tree.leaves(row)), None)
            if first is None:
                return row
            if first not in self._names:
                name = f"row-{self._token}-{self._count}.pt"
                self._count += 1
                self._files.add(name)
                self.written_bytes += self._folder.save(name, row)
                self._names[first] = name
                free_pages(tree.num_bytes(row))
            named.add(self._names[first])
            return self._names[first]

        main = {"of": self._of, "content": walk(content, compact, name_of)}
        self.written_bytes += self._folder.save(_MAIN, main)
        self._folder.remove(self._files - named)  # what an interrupted `save` has left goes with the folder
        self._files &= named
        spent = time.monotonic() - begin
        self._next = time.monotonic() + (max(self.seconds, spent / LARGEST_SHARE) if self.seconds else 0)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The content of the checkpoint, or None if there is none; tensors of a GPU come to this device.

        Raises:
            UnusableCheckpoint: if it belongs to another run, or is damaged. It stays until the next `save`.
            bench.errors.StoreError: if the folder cannot be reached.
        """
        try:
            if _MAIN not in self._folder.names():
                return None
            main = self._folder.load(_MAIN, device)
            of = dict(main["of"])
            if differing := [key for key in self._of if of.get(key) != self._of[key]]:
                differences = ", ".join(f"{key} {of.get(key)!r} instead of {self._of[key]!r}" for key in differing)
                raise UnusableCheckpoint(f"its checkpoint was written with {differences}")
            content: dict[str, Any] = walk(main["content"], lambda leaf: leaf, self._row_of)
            return content
        except UnusableCheckpoint:
            raise
        except DamagedState as error:
            raise UnusableCheckpoint(f"of its checkpoint, {error}") from error
        except (FileNotFoundError, LookupError, TypeError, ValueError, AttributeError) as error:
            # A client row is gone, or the file is another one.
            raise UnusableCheckpoint("its checkpoint is not complete") from error

    def _row_of(self, name: Any) -> Any:
        if not isinstance(name, str):
            return name
        row = rows.own(self._folder.load(name, torch.device("cpu")))
        self._names[tree.leaves(row)[0]] = name
        self._files.add(name)
        return row


def on_host(state: Any) -> Any:
    """A state whose tensors are on the host and take no more room in a file than their own numbers."""
    return walk(state, lambda leaf: compact(leaf.cpu()))


def on_device(state: Any, device: torch.device) -> Any:
    """A state with its tensors on a device, but for client rows, which stay on the host: `on_host` undone."""
    return walk(state, lambda leaf: leaf.to(device))


def walk(state: Any, on_tensor: Callable, on_row: Callable | None = None) -> Any:
    """A state with tensors replaced by what `on_tensor` makes of them, client rows by what `on_row` makes of each.

    By default the rows stay as they are: they are on the host already, and perhaps larger than memory.
    """
    if isinstance(state, dict):
        if rows.are_client_rows(state):
            own = state["rows"] if on_row is None else {client: on_row(row) for client, row in state["rows"].items()}
            return {"fresh": walk(state["fresh"], on_tensor, on_row), "rows": own}
        return {key: walk(part, on_tensor, on_row) for key, part in state.items()}
    if isinstance(state, list):
        return [walk(part, on_tensor, on_row) for part in state]
    return on_tensor(state) if isinstance(state, torch.Tensor) else state


def compact(leaf: torch.Tensor) -> torch.Tensor:
    """A tensor that shares its memory with no larger one: a view would take along all that it is a view of."""
    return leaf if leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size() else leaf.clone()
