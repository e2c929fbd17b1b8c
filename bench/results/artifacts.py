"""A folder of files that torch writes: on this machine's disk, or in an object store that fsspec reaches (s3://, gs://)."""

import contextlib
import errno
import os
import posixpath
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from bench.errors import StoreError
from bench.files import replacing

# As torch says it when the file is not to blame.
_NO_ROOM = re.compile("allocate memory|out of memory|CUDA|CUBLAS|CUDNN|HIP error", re.IGNORECASE)
_COSTS = {"bytes_down", "bytes_up", "examples"}  # what states count


class DamagedState(ValueError):
    """A file that does not hold the tensors that it should; one sentence. It holds none of torch's words: these advise to load
    the file whatever code is in it."""


class Folder:
    """A folder; it is made when something is written. Its methods raise `StoreError` where it cannot be reached.

    Attributes:
        uri: a path, or what fsspec calls one.
    """

    def __init__(self, uri: Path | str):
        """
        Raises:
            ValueError: if fsspec does not know the protocol, what it needs for it is not installed, or a URI has "::".
        """
        self.uri = str(uri)
        self._fs: Any
        try:
            # fsspec takes what is before "::" for a place of its own, where `remove` would find files of others.
            if "://" not in self.uri:
                self._fs, self._path = LocalFileSystem(), str(Path(self.uri).absolute())
            elif "::" in self.uri:
                raise ValueError("it has ::, which chains file systems; leave that out")
            else:
                self._fs, self._path = fsspec.url_to_fs(self.uri)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{self.uri} is no place to write to: {error}") from error
        self._local = isinstance(self._fs, LocalFileSystem)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(posixpath.join(self.uri, name))

    def save(self, name: str, content: Any) -> int:
        """Replaces a file in one step; `torch.load(weights_only=True)` reads it.

        Args:
            content: nested dicts and lists of tensors, numbers and texts.

        Returns:
            Its size in bytes.
        """
        with self._reached("write to"):
            self._fs.makedirs(self._path, exist_ok=True)
        try:
            if self._local:
                with replacing(Path(self._file(name))) as partial:
                    return _write(partial, content)
            # In an object store a file appears when it is complete; the first copy is made on this machine.
            with tempfile.TemporaryDirectory() as workspace:
                size = _write(Path(workspace, name), content)
                with self._reached("write to"):
                    self._fs.put_file(posixpath.join(workspace, name), self._file(name))
            return size
        except OSError as error:
            raise self._trouble("write to", error) from error

    def load(self, name: str, device: torch.device) -> Any:
        """The content that `save` wrote; tensors of a GPU come to this device.

        Raises:
            FileNotFoundError: if there is no such file.
            torch.OutOfMemoryError, MemoryError: if the device, or this machine, has no room.
            DamagedState: if the file is damaged, or holds anything but tensors, numbers and texts.
        """

        def placed(storage: Any, location: str) -> Any:
            return storage if location == "cpu" else storage.to(device=device)

        with contextlib.nullcontext() if self._local else tempfile.TemporaryDirectory() as workspace:
            path = self._file(name)
            if workspace:
                path = posixpath.join(workspace, name)
                with self._reached("read from"):
                    self._fs.get_file(self._file(name), path)
            try:
                return _renamed(torch.load(path, weights_only=True, map_location=placed))
            except (FileNotFoundError, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                # Where the end of a file is missing, torch looks for it before its beginning.
                if isinstance(error, OSError) and error.errno != errno.EINVAL:
                    raise self._trouble("read from", error) from error
                if isinstance(error, RuntimeError) and _NO_ROOM.search(str(error)):
                    raise
                raise DamagedState(f"{posixpath.join(self.uri, name)} is damaged and cannot be read.") from None

    def names(self) -> list[str]:
        """Names of the files in it; [] if there is no such folder. Hidden ones are of an interrupted `save`."""
        with self._reached("read from"):
            self._fs.invalidate_cache()
            if not self._fs.isdir(self._path):
                return []
            return sorted(posixpath.basename(path) for path in self._fs.find(self._path, maxdepth=1))

    def folders(self) -> list[str]:
        """Names of the folders in it; [] if there is no such folder."""
        with self._reached("read from"):
            self._fs.invalidate_cache()
            if not self._fs.isdir(self._path):
                return []
            listed = self._fs.ls(self._path, detail=True)
            return sorted(posixpath.basename(one["name"]) for one in listed if one["type"] == "directory")

    def remove(self, names: Iterable[str] | None = None) -> None:
        """Removes files, or the folder with everything in it."""
        with self._reached("remove from"):
            if names is not None:
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        self._fs.rm_file(self._file(name))
            elif self._fs.exists(self._path):
                self._fs.rm(self._path, recursive=True)

    def copy_to(self, folder: Path) -> None:
        """Copies its files into a folder on this machine, each in one step that survives a power cut."""
        for name in (name for name in self.names() if not name.startswith(".")):
            with replacing(folder / name) as partial:
                with self._reached("read from"):
                    self._fs.get_file(self._file(name), str(partial))
                with open(partial, "rb") as file:
                    os.fsync(file.fileno())

    def copy_from(self, folder: Path, names: Iterable[str]) -> None:
        """Copies files of a folder on this machine; those that are not there are left out."""
        with self._reached("write to"):
            self._fs.makedirs(self._path, exist_ok=True)
            for name in names:
                if (folder / name).exists():
                    self._fs.put_file(str(folder / name), self._file(name))

    def _file(self, name: str) -> str:
        return posixpath.join(self._path, name)

    @contextlib.contextmanager
    def _reached(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # every file system has errors of its own
            raise self._trouble(doing, error) from error

    def _trouble(self, doing: str, error: Exception) -> StoreError:
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        return StoreError(f"Cannot {doing} {self.uri}: {why}. {GO_ON}")


GO_ON = "Finished runs are kept; mend this, and the same command continues."


def _write(path: Path, content: Any) -> int:
    """Writes a new file, which survives a power failure from then on; returns its size in bytes."""
    with open(path, "xb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _renamed(content: Any) -> Any:
    """The content of a file with today's name of what a run has cost, in each state: an earlier one called it "spent"."""
    if not isinstance(content, dict):
        return content
    spent = content.get("spent")
    is_earlier = "round" in content and isinstance(spent, dict) and spent.keys() == _COSTS and "costs" not in content
    return {"costs" if is_earlier and name == "spent" else name: _renamed(part) for name, part in content.items()}
