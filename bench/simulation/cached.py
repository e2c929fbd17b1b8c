"""Costly facts of a task, on disk: computed by the first run that asks, and read by all others."""

import contextlib
import fcntl
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algorithms.shared.tree import Tree
from bench.files import replacing
from bench.imports import hash_of

_DIGEST = hashlib.sha256().digest_size


def kept(folder: Path, name: str, compute: Callable[[], Tree], is_valid: Callable[[Any], bool]) -> Tree:
    """What compute returns, from the file of that name in a folder if it is there, whole and valid.

    A file is complete or absent, and begins with a checksum: one that is damaged, or not what it should be, is replaced. Others
    may write to the folder: what lies there is not followed if it is a link, not waited for if it is a pipe, and never run. Of
    several processes one computes, and the others wait for it. Where the folder cannot be written, nothing is kept.

    Args:
        compute: returns nested dicts of tensors.
        is_valid: whether something that was read, of any type, may be what compute returns; an error means that it is not.
    """
    path = folder / name
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder / f".{name}.lock"))
        if (known := _read(path, is_valid)) is not None:
            return known
        found = compute()
        with contextlib.suppress(OSError):
            _write(path, found)
        return found


def digest_of(task, purpose: str, key: tuple, module: str) -> str:
    """Hash of all on which a fact depends: data and partition, seed, precision, kind of device, key, code and PyTorch.

    Args:
        module: which computes the fact; its code counts, that of the task, and that of all which these import.
    """
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
        hash_of((module, "bench.simulation.task")),
        torch.__version__,
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


def _open_itself(path: str, flags: int) -> int:
    """Opens a file that may be somebody's trap: no link is followed, and no pipe waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until no other process is inside; the system opens the lock of a process that dies."""
    with open(path, "a+b", opener=_open_itself) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path, is_valid: Callable[[Any], bool]) -> Tree | None:
    """What a file holds; None if it is absent, damaged or not valid."""
    try:
        with open(path, "rb", opener=_open_itself) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            content = file.read()
    except OSError:
        return None
    checksum, stored = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(stored).digest() != checksum:
        return None
    try:
        found = torch.load(io.BytesIO(stored), weights_only=True)
        return found if is_valid(found) else None
    except Exception:  # a right checksum says nothing about the rest, in which anything may go wrong
        return None


def _write(path: Path, found: Tree) -> None:
    buffer = io.BytesIO()
    torch.save(found, buffer)
    stored = buffer.getvalue()
    with replacing(path) as partial, open(partial, "xb") as file:
        file.write(hashlib.sha256(stored).digest() + stored)
