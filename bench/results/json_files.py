"""JSON files that may be damaged: read without following links, and sealed with a digest of their content.

A results directory may come from anybody, and a file in it may be cut off. Records, grids, searches and probes are sealed:
their first key holds a SHA-256 digest of the rest. Files in `code` are named after theirs. Files of
earlier versions have no seal.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.files import MIB, UnusableFile, read_foreign

SEAL = "sha256"  # the key of the digest
_SEALED = re.compile(rb'\{"%s": "([0-9a-f]{64})",' % SEAL.encode())
_OF_THE_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENOTDIR, errno.EACCES, errno.EIO)
# Bytes of a file, by its name: a larger one was not written by this program, and may be larger than memory.
_LARGEST = {"config.json": 16 * MIB, "machine": MIB, ".id": MIB}
_LARGEST_IN = {"code": 4 * MIB}  # by the name of its folder; that of the engine has 15 KiB
_LARGEST_OTHER = 256 * MIB  # a grid of 20,000 runs has 50 MiB, a run of 5,000 rounds 2 MiB


class Damaged(Exception):
    """A file that cannot be used.

    Attributes:
        path: the file.
        what: what is wrong with it; continues a sentence that begins with the path.
    """

    def __init__(self, path: Path, what: str):
        super().__init__(f"{path} {what}")
        self.path, self.what = path, what


def read_bytes(path: Path) -> bytes | None:
    """The content of a file, None if there is none. Links are not followed: they lead out of the directory.

    Raises:
        Damaged: if it is not a regular file, cannot be read, or is larger than files of its kind are.
        OSError: if nothing can be read now.
    """
    try:
        return read_foreign(path, _largest(path))
    except FileNotFoundError:
        return None
    except UnusableFile as error:
        raise Damaged(path, error.what) from error
    except OSError as error:
        if error.errno not in _OF_THE_FILE:  # too many open files, or a disk that is away: the file may be fine
            raise
        raise Damaged(path, "is a link" if os.path.islink(path) else f"cannot be read ({error.strerror})") from error


def _largest(path: Path) -> int:
    return _LARGEST.get(path.name, _LARGEST_IN.get(path.parent.name, _LARGEST_OTHER))


def require_size(path: Path, size: int) -> None:
    """Raises Damaged if a file of that many bytes, which is going to be written, would be too large to be read again."""
    if size > (most := _largest(path)):
        raise Damaged(path, f"would have {size:,} bytes, but such a file has at most {most:,}")


def parse(path: Path, content: bytes) -> Any:
    """The JSON value of a file.

    Raises:
        Damaged: if the content is no JSON.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, "is not readable JSON") from error


def seal(content: str, *others: bytes) -> str:
    """The JSON text of a mapping with a digest inserted before its first key.

    Args:
        others: contents of other files that the digest covers as well.
    """
    return f'{{"{SEAL}": "{_digest(content[1:].encode(), others)}",{content[1:]}'


def unseal(
    path: Path, written: bytes, others: Mapping[str, bytes] = MappingProxyType({})
) -> tuple[dict[str, Any], bool]:
    """The mapping in a JSON file without its seal, and whether it had one.

    Args:
        others: name -> content of the other files that the seal covers.

    Raises:
        Damaged: if the file holds no mapping, or does not fit its seal.
    """
    content = parse(path, written)
    if not isinstance(content, dict):
        raise Damaged(path, "does not hold what it should: it is not a JSON object")
    if SEAL not in content:
        return content, False
    sealed = _SEALED.match(written)
    if not sealed or sealed[1].decode() != _digest(written[sealed.end() :], others.values()):
        changed = " or ".join(["it", *(f"{name} beside it" for name in others)])
        raise Damaged(path, f"does not fit its digest: {changed} was changed")
    del content[SEAL]
    return content, True


def _digest(content: bytes, others: Iterable[bytes]) -> str:
    digest = hashlib.sha256(content)
    for other in others:
        digest.update(hashlib.sha256(other).digest())
    return digest.hexdigest()
