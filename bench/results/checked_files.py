"""Files that are checked when they are read, and read again only if they have changed."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bench.results.json_files import Damaged, read_bytes

T = TypeVar("T")


class CheckedFiles:
    """What has been read.

    Attributes:
        damaged: files that cannot be used, of those that were read -> what is wrong with them.
    """

    def __init__(self) -> None:
        self.damaged: dict[Path, str] = {}
        # File, or folder of several ones -> how these were when they were read, their content.
        self._known: dict[Path, tuple[tuple[tuple[int, ...] | None, ...], Any]] = {}

    def content(self, path: Path, check: Callable[[Path, bytes], T]) -> T | None:
        """What `check` makes of the bytes of a file; None if that is not there, or is damaged."""

        def read(path: Path) -> T | None:
            written = read_bytes(path)
            return None if written is None else check(path, written)

        return self.read(path, [str(path)], read)

    def read(self, path: Path, files: list[str], read: Callable[[Path], T | None]) -> T | None:
        """What `read` makes of a path, None if that is damaged; read again only if one of its files has changed."""
        state = tuple(map(_state_of, files))
        if path not in self._known or self._known[path][0] != state:
            for old in [old for old in self.damaged if str(old) in files]:
                del self.damaged[old]
            try:
                self._known[path] = state, read(path)
            except Damaged as error:
                self._known[path] = state, error
        found: T | Damaged | None = self._known[path][1]
        if isinstance(found, Damaged):
            self.damaged[found.path] = found.what
            return None
        return found

    def forget(self, path: Path) -> None:
        """The path is read again, changed or not."""
        self._known.pop(path, None)


def _state_of(path: str) -> tuple[int, ...] | None:
    """What tells that a file has changed: its kind, inode, size and time; of a folder only the first two."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mode, found.st_ino, *((found.st_size, found.st_mtime_ns) if not stat.S_ISDIR(found.st_mode) else ())
