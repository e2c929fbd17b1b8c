"""Digests of the files of users, computed once for as long as their sizes and times of change stay."""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from bench.files import write_file
from datasets import cache
from datasets.base import LARGEST, DataError, Source, broken, opened
from datasets.info import remedy


def digest_of(dataset: str, source: Source, words: str, names: bool) -> str:
    """Digest of the content of all files of a source, 16 hex digits: the same wherever they lie.

    It is kept in the cache, in the folder `digests`; where that cannot be written, files are read anew.

    Args:
        dataset: for messages.
        words: what else it depends on.
        names: whether the paths of the files inside the folder of the source count.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    paths = [os.path.relpath(file, source.folder) if names else "" for file in source.files]
    state = hashlib.sha256(f"{words}\0{source.folder}\n".encode(errors="surrogateescape"))
    for path, file in zip(paths, source.files, strict=True):
        try:
            status = os.stat(file)
        except OSError as error:
            raise DataError(f"{file} is missing; {remedy(dataset)}.") from error
        state.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    key = state.hexdigest()[:32]
    if found := known(key):
        return found
    digest = hashlib.sha256(f"{words}\n".encode())
    for path, file in zip(paths, source.files, strict=True):
        digest.update(f"{path}\0{_of_file(file, source, dataset)}\n".encode(errors="surrogateescape"))
    keep(key, digest.hexdigest()[:16], source.folder)
    return digest.hexdigest()[:16]


def known(key: str) -> str | None:
    """The digest that was kept under a key; None if there is none, or it is damaged."""
    try:
        found = json.loads(_entry(key).read_text())["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{16}", found) else None


def keep(key: str, digest: str, folder: Path | None) -> None:
    """Keeps the digest of what lies in a folder under a key, 32 hex digits, where the cache can be written."""
    with suppress(OSError):
        _entry(key).parent.mkdir(parents=True, exist_ok=True)
        write_file(_entry(key), json.dumps({"digest": digest, "folder": str(folder)}) + "\n")


def _entry(key: str) -> Path:
    return cache.default_dir() / "digests" / f"{key}.json"


def _of_file(file: str, source: Source, dataset: str) -> str:
    try:
        with opened(file, Path(source.folder or "."), dataset, LARGEST) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise broken(file, error.strerror, dataset) from error
