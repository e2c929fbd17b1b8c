"""Costly facts of a task, on disk: computed by the first run that asks, and read by all others."""

import contextlib
import fcntl
import functools
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import algorithms
import bench
import datasets
from algorithms.tree import Tree

_DIGEST = hashlib.sha256().digest_size


def kept(folder: Path, name: str, compute: Callable[[], Tree]) -> Tree:
    """What compute returns, from the file of that name in a folder if it is there and whole.

    A file is complete or absent, and begins with a checksum: a damaged one is replaced. Of several processes one computes, and
    the others wait for it. Where the folder cannot be written, nothing is kept.

    Args:
        compute: returns nested dicts of tensors.
    """
    path = folder / name
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder / f".{name}.lock"))
        if (known := _read(path)) is not None:
            return known
        found = compute()
        with contextlib.suppress(OSError):
            _write(path, found)
        return found


def digest_of(task, purpose: str, key: tuple) -> str:
    """Hash of all on which a fact depends: data and partition, seed, precision, kind of device, key, code and PyTorch."""
    data = task.federation
    digest = hashlib.blake2b(digest_size=16)
    clients = task.global_ids(torch.arange(task.population))
    words = (
        purpose,
        key,
        task.seed,
        str(task.dtype),
        task.device.type,
        data.transform.recipe,
        data.num_classes,
        _code(),
    )
    digest.update(repr((*words, clients.tolist(), tuple(data.images.shape[1:]))).encode())
    for client in clients.tolist():
        rows = data.clients[client]
        levels = [] if data.noise_levels is None else [data.noise_levels[client]]
        for part in (rows, data.images[rows.to(data.device)], data.labels[rows.to(data.device)], *levels):
            digest.update(_bytes(part))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()


@functools.cache
def _code() -> str:
    """Hash of the code of methods, models, simulation and data."""
    digest = hashlib.sha256()
    roots = [(package, Path(package.__path__[0])) for package in (algorithms, datasets, bench)]
    for package, root in roots:
        folders = [root / "models", root / "simulation"] if package is bench else [root]
        files = [file for folder in folders for file in folder.rglob("*.py")]
        files += [root / "seeding.py"] if package is bench else []
        for file in sorted(files):
            digest.update(f"{package.__name__}/{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until no other process is inside; the system opens the lock of a process that dies."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Tree | None:
    """What a file holds; None if it is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, stored = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(stored).digest() != checksum:
        return None
    return torch.load(io.BytesIO(stored), weights_only=True)


def _write(path: Path, found: Tree) -> None:
    buffer = io.BytesIO()
    torch.save(found, buffer)
    stored = buffer.getvalue()
    partial = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        partial.write_bytes(hashlib.sha256(stored).digest() + stored)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
