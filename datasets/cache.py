"""Decoded datasets on disk: written once, memory-mapped by every process of a machine.

An entry is a folder named by a hash of its source, so changed files have another entry. It is written under a temporary
name and renamed, so it is complete or absent, also after interruptions and with concurrent writers.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np

from datasets.base import DataError, Decoded, Source
from datasets.image_size import ImageSize
from datasets.info import remedy

VERSION = 2  # raised when decoding changes, or refuses what it read before
_ARRAYS = Decoded._fields[:4]
_GROUPS = ("train_groups", "test_groups")  # of datasets that name the writers


def default_dir() -> Path:
    """$SKEWBENCH_CACHE, or ~/.cache/skewbench."""
    return Path(os.environ.get("SKEWBENCH_CACHE") or Path.home() / ".cache" / "skewbench")


def load(dataset: str, source: Source, image_size: ImageSize | None, cache_dir: Path | None = None) -> Decoded:
    """The decoded source, memory-mapped read-only; decodes it if there is no valid entry.

    Raises:
        DataError: the source cannot be decoded, or the cache cannot be written.
    """
    cache_dir = cache_dir or default_dir()
    entry = cache_dir / f"{dataset.split(':')[0]}-{_key(dataset, source, image_size)}"
    if (decoded := _open(entry)) is not None:
        return decoded
    fresh = source.decode(image_size)
    _check_labels(dataset, source, fresh)
    for _ in range(3):  # a process that replaces the same damaged entry may move ours away
        try:
            _write(entry, fresh)
        except OSError as error:
            raise DataError(
                f"Cannot write decoded images to {cache_dir} ({error.strerror}); make room there, or set "
                "SKEWBENCH_CACHE to a folder that can be written."
            ) from error
        if (decoded := _open(entry)) is not None:
            return decoded
    raise DataError(f"Decoded images in {entry} change while they are written; remove that folder and try again.")


def _key(dataset: str, source: Source, image_size: ImageSize | None) -> str:
    digest = hashlib.sha256(repr((VERSION, dataset, source.description, image_size)).encode())
    for file in source.files:
        try:
            status = os.stat(file)
        except FileNotFoundError as error:
            raise DataError(f"{file} is missing; {remedy(dataset)}.") from error
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _check_labels(dataset: str, source: Source, decoded: Decoded) -> None:
    for labels in (decoded.train_labels, decoded.test_labels):
        if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(decoded.classes):
            raise DataError(
                f"Both splits of the {source.description} must hold examples, with labels "
                f"0..{len(decoded.classes) - 1} only, but one does not; {remedy(dataset)}."
            )


def _open(entry: Path) -> Decoded | None:
    """The entry, or None if it is absent or damaged."""
    try:
        meta = json.loads((entry / "meta.json").read_text())
        names = (*_ARRAYS, *_GROUPS)[: max(len(_ARRAYS), len(meta["checksums"]))]
        arrays = [np.load(entry / f"{name}.npy", mmap_mode="r") for name in names]
        if [_checksum(array) for array in arrays] != meta["checksums"]:
            return None
        digest = zlib.crc32(json.dumps(meta["checksums"]).encode())
        return Decoded(*arrays[:4], tuple(meta["classes"]), f"{digest:08x}", *arrays[4:])
    except Exception:  # NumPy reads the header of an array as Python, which raises almost anything
        return None


def _write(entry: Path, decoded: Decoded) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=entry.parent) as workspace:
        fresh = Path(workspace) / "fresh"
        fresh.mkdir()
        names = _ARRAYS if decoded.train_groups is None else (*_ARRAYS, *_GROUPS)
        arrays = [np.ascontiguousarray(getattr(decoded, name)) for name in names]
        for name, array in zip(names, arrays, strict=True):
            np.save(fresh / f"{name}.npy", array)
        meta = {"classes": decoded.classes, "checksums": [_checksum(array) for array in arrays]}
        (fresh / "meta.json").write_text(json.dumps(meta))
        if entry.exists() and _open(entry) is None:
            with contextlib.suppress(FileNotFoundError):
                os.rename(entry, Path(workspace) / "damaged")
        try:
            os.rename(fresh, entry)
        except OSError:
            if not entry.exists():
                raise
            # another process has written the same entry


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8))
