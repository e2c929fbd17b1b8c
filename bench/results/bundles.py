"""A bundle: results in one file, small enough to attach to a paper.

A zip file holds a results directory as it is (`runs/<id>/record.json` and so on, see `bench.results.store`), without states and
event files, and beside it

    manifest.json    what this is: who, when, which grids, code, versions; the sha256 of every other file in it
    CITATION         what to cite

Equal results give equal bytes. It may come from anybody: what is unpacked has only names that a results directory has, is no
link, has the digest that the manifest says, and is then checked like any other results directory.
"""

import hashlib
import io
import json
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bench.errors import StoreError
from bench.files import MIB, UnusableFile, open_foreign, replacing
from bench.results.authors import FILE as AUTHORS
from bench.results.ids import is_name
from bench.results.json_schema import mismatch
from bench.results.store import Store

MANIFEST, CITATION = "manifest.json", "CITATION"
FORMAT = 1
_LARGEST = 256 * MIB  # of the zip file, and of one file in it
_LARGEST_TOGETHER = 2048 * MIB
_MOST = 400_000  # files; a run has three
_RUN_FILE = r"runs/[0-9a-f]{16}/(config\.json|record\.json|rounds\.jsonl|probe-[^/]+\.json)"
_NAMES = re.compile(
    rf"{_RUN_FILE}|(grids|searches)/[^/]+\.json|code/[0-9a-f]{{16}}\.json|partitions/[^/]+\.npz|{AUTHORS}"
)
_MANIFEST = {"format": int, "files": {str: str}}


def write(path: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any], citation: str) -> None:
    """Writes a bundle.

    Args:
        files: name in the results directory -> content.
        manifest: what it says beside the digests of the files.

    Raises:
        OSError: if the file cannot be written.
    """
    content = {**files, CITATION: citation.encode()}
    digests = {name: hashlib.sha256(content[name]).hexdigest() for name in sorted(content)}
    head = json.dumps({"format": FORMAT, **manifest, "files": digests}, indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as partial, zipfile.ZipFile(partial, "x") as packed:
        for name in (MANIFEST, *digests):
            part = zipfile.ZipInfo(name)  # of 1980, whenever it is written
            part.compress_type, part.create_system, part.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
            packed.writestr(part, head.encode() if name == MANIFEST else content[name], compresslevel=9)


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """The results that a path names: a directory, or a bundle, which is unpacked for as long as the context lasts.

    Raises:
        StoreError: if a file is no bundle, or a damaged one.
    """
    if not path.is_file():
        yield Store(path)
        return
    with tempfile.TemporaryDirectory(prefix="skewbench-bundle-") as folder:
        unpack(path, Path(folder))
        yield Store(folder)


def unpack(path: Path, folder: Path) -> dict[str, Any]:
    """Unpacks a bundle into an empty folder, and returns its manifest.

    Raises:
        StoreError: if it is none, holds what no bundle does, or a file in it does not fit its digest; nothing is written then.
    """
    try:
        with open_foreign(path, _LARGEST, within=Path("/")) as file:
            found = _read(file)
        manifest = json.loads(found.pop(MANIFEST, b"null"))
        if what := mismatch(manifest, _MANIFEST):
            raise _NoBundle(f"has no manifest: {what}")
    except UnusableFile as error:
        raise StoreError(f"{path} {error.what}.") from error
    except (_NoBundle, ValueError, RecursionError) as error:
        raise StoreError(f"{path} {error}; `python -m bench export --bundle FILE.zip` writes a bundle.") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    if manifest["format"] != FORMAT:
        raise StoreError(
            f"{path} is of the format {manifest['format']}, but this version of the program knows {FORMAT}."
        )
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    if wrong := sorted(
        name for name in {*listed, *manifest["files"]} if listed.get(name) != manifest["files"].get(name)
    ):
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise StoreError(
            f"{path} was changed: {wrong[0]}{more} is not what its manifest says. Ask its author for it again."
        )
    for part in ("grids", "runs"):
        (folder / part).mkdir()
    for name, content in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return dict(manifest)


class _NoBundle(ValueError):
    """What is wrong with a zip file; continues a sentence that begins with its path."""


def _read(file: BinaryIO) -> dict[str, bytes]:
    """Name -> content of the files in a bundle, once all of them have been found to be harmless."""
    try:
        with zipfile.ZipFile(io.BytesIO(file.read())) as packed:
            parts = packed.infolist()
            for part in parts:
                _check(part)
            if len({part.filename for part in parts}) < len(parts) or len(parts) > _MOST:
                raise _NoBundle("has two files of one name, or too many")
            if sum(part.file_size for part in parts) > _LARGEST_TOGETHER:
                raise _NoBundle(f"unpacks to more than {_LARGEST_TOGETHER:,} bytes")
            found = {}
            for part in parts:
                with packed.open(part) as content:
                    found[part.filename] = content.read(part.file_size)
            return found
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _NoBundle(f"is no bundle, or a damaged one ({error})") from error


def _check(part: zipfile.ZipInfo) -> None:
    name, kind = part.filename, stat.S_IFMT(part.external_attr >> 16)
    is_known = name in (MANIFEST, CITATION) or _NAMES.fullmatch(name) and all(map(is_name, name.split("/")))
    if not is_known or part.orig_filename != name:
        raise _NoBundle(f"holds {name[:100]!r}, which is no file of a bundle")
    if kind not in (0, stat.S_IFREG):
        raise _NoBundle(f"holds a link or a special file, {name}")
    if part.file_size > _LARGEST:
        raise _NoBundle(f"holds {name}, which has {part.file_size:,} bytes, but at most {_LARGEST:,} are allowed")
    if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a bound
        raise _NoBundle(f"holds {name}, packed by method {part.compress_type}; bundles are deflated")
