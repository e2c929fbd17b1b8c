"""A folder of files that torch writes: on this machine's disk, or anywhere that fsspec reaches (s3://, gs://, ...)."""

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from algorithms import rows


class Unwritable(RuntimeError):
    """Nothing can be written to a folder; one sentence."""


class Folder:
    """A folder; it is made when something is written.

    Attributes:
        uri: a path, or what fsspec calls one.
    """

    def __init__(self, uri: Path | str):
        """
        Raises:
            ValueError: if fsspec does not know the kind of place, or what it needs for it is not installed.
        """
        self.uri = str(uri)
        try:
            self._fs, self._path = fsspec.url_to_fs(self.uri)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{self.uri} is no place to write to: {error}") from error
        self._local = isinstance(self._fs, LocalFileSystem)  # elsewhere a file appears when it is complete

    def __truediv__(self, name: str) -> "Folder":
        return Folder(posixpath.join(self.uri, name))

    def save(self, name: str, content: Any) -> int:
        """Replaces a file in one step that survives a power cut; `torch.load(weights_only=True)` reads it.

        Args:
            content: nested dicts and lists of tensors, numbers and texts.

        Returns:
            Its size in bytes.

        Raises:
            Unwritable: if it cannot be written; an earlier file of that name stands.
        """
        path = posixpath.join(self._path, name)
        partial = posixpath.join(self._path, f".{name}.partial") if self._local else path
        try:
            self._fs.makedirs(self._path, exist_ok=True)
            with self._fs.open(partial, "wb") as file:
                torch.save(content, file)
                size = file.tell()
                if self._local:
                    file.flush()
                    os.fsync(file.fileno())
            if self._local:
                os.replace(partial, path)
        except Exception as error:  # every file system has errors of its own
            with contextlib.suppress(Exception):
                self._fs.rm(partial)
            raise Unwritable(f"Cannot write to {self.uri}: {_why(error)}.") from error
        return size

    def load(self, name: str, device: torch.device) -> Any:
        """What `save` was given; tensors of a GPU come to this device.

        Raises:
            Exception: of many kinds, if the file is not there or damaged.
        """
        with self._fs.open(posixpath.join(self._path, name), "rb") as file:
            return torch.load(file, weights_only=True, map_location=lambda leaf, place: _placed(leaf, place, device))

    def names(self) -> list[str]:
        """Names of the files in it, those of an interrupted `save` included; [] if there is no such folder."""
        self._fs.invalidate_cache()
        if not self._fs.isdir(self._path):
            return []
        return sorted(posixpath.basename(path) for path in self._fs.find(self._path, maxdepth=1))

    def remove(self, names: Iterable[str] | None = None) -> None:
        """Removes files, or the folder with everything in it."""
        if names is not None:
            for name in names:
                self._fs.rm(posixpath.join(self._path, name))
        elif self._fs.exists(self._path):
            self._fs.rm(self._path, recursive=True)

    def copy_to(self, folder: Path) -> None:
        """Copies its files into a folder on this machine, each in one step."""
        for name in self.names():
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as workspace:
                self._fs.get(posixpath.join(self._path, name), f"{workspace}/{name}")
                os.replace(f"{workspace}/{name}", folder / name)


def on_host(state: Any) -> Any:
    """A state whose tensors are on the host and take no more room in a file than their own numbers.

    A view would take along everything that it is a view of.
    """
    if isinstance(state, dict):
        if rows.are_client_rows(state):  # on the host already, and perhaps larger than memory
            return {"fresh": on_host(state["fresh"]), "rows": state["rows"]}
        return {key: on_host(part) for key, part in state.items()}
    return compact(state.cpu()) if isinstance(state, torch.Tensor) else state


def compact(leaf: torch.Tensor) -> torch.Tensor:
    """A tensor that shares its memory with no larger one."""
    return leaf if leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size() else leaf.clone()


def _placed(storage, place: str, device: torch.device):
    return storage if place == "cpu" else storage.to(device)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
