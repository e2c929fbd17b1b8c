"""A bundle: results in one file, small enough to attach to a paper.

A zip file holds a results directory as it is (`runs/<id>/record.json` and so on, see `bench.results.store`), without states and
event files, and beside it

    manifest.json    what this is: who, when, which grids, code, versions; the sha256 of every other file in it
    CITATION         what to cite

Equal results give equal bytes. It may come from anybody: what is unpacked has only names that a results directory has, is no
link, has the digest that the manifest says, and is then checked like any other results directory. It is unpacked piece by
piece, and not at all if it holds more than a bundle of its size can.
"""

import hashlib
import json
import mmap
import re
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bench.errors import StoreError
from bench.files import MIB, UnusableFile, open_foreign, replacing
from bench.results.authors import FILE as AUTHORS
from bench.results.ids import is_name
from bench.results.json_files import Damaged, parse
from bench.results.json_schema import is_integer, mismatch
from bench.results.store import Store

MANIFEST, CITATION = "manifest.json", "CITATION"
FORMAT = 1
_LARGEST = 256 * MIB  # of the zip file, and of one file in it
_LARGEST_TOGETHER = 2048 * MIB
_LARGEST_RATIO = 100  # of what a bundle holds to its size; 3 in those of this repository, 31 for a single grid
_MOST = 100_000  # files; a run has three
_MANIFEST_OF_A_FILE = 256  # bytes that the manifest may have for each file, beside the first MiB
_PIECE = MIB  # bytes that are unpacked at once
_RUN_FILE = r"runs/[0-9a-f]{16}/(config\.json|record\.json|rounds\.jsonl|probe-[^/]+\.json)"
_NAMES = re.compile(
    rf"{_RUN_FILE}|(grids|searches)/[^/]+\.json|code/[0-9a-f]{{16}}\.json|partitions/[^/]+\.npz|{AUTHORS}"
)
_MANIFEST = {"format": is_integer, "files": dict}
_ENTRY = re.compile(rb"PK\x01\x02")  # begins what the end of a zip file says of one file in it


def write(path: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any], citation: str) -> None:
    """Writes a bundle.

    Args:
        files: name in the results directory -> content.
        manifest: what it says beside the digests of the files.

    Raises:
        StoreError: if it would be larger than a bundle may be, or two names differ in capitals only.
        OSError: if the file cannot be written.
    """
    if alike := _alike(files):
        raise StoreError(
            f"A bundle cannot hold both {' and '.join(alike)}: on some disks they are one file. Choose one by --grid."
        )
    content = {**files, CITATION: citation.encode()}
    digests = {name: hashlib.sha256(content[name]).hexdigest() for name in sorted(content)}
    head = json.dumps({"format": FORMAT, **manifest, "files": digests}, indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as partial:
        with zipfile.ZipFile(partial, "x") as packed:
            for name in (MANIFEST, *digests):
                part = zipfile.ZipInfo(name)  # of 1980, whenever it is written
                part.compress_type, part.create_system, part.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
                packed.writestr(part, head.encode() if name == MANIFEST else content[name], compresslevel=9)
        _require_readable(partial, packed.infolist())


def _require_readable(path: Path, parts: list[zipfile.ZipInfo]) -> None:
    """Raises StoreError if a new bundle would be refused by `unpack`."""
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise _NoBundle(f"has {size:,} bytes, but at most {_LARGEST:,} are allowed")
        if len(parts) > _MOST:
            raise _NoBundle(f"holds {len(parts):,} files, but at most {_MOST:,} are allowed")
        _check(parts, size)
        _check_manifest(parts[0], len(parts) - 1)
    except _NoBundle as error:
        raise StoreError(f"A bundle of these runs {error}, so nobody could open it. Choose fewer by --grid.") from error


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
        StoreError: if it is none, holds what no bundle does, or a file in it does not fit its digest. What was unpacked until
            then stays in the folder, and is nothing to read.
    """
    try:
        with open_foreign(path, _LARGEST, within=Path("/")) as file:
            return _unpack(file, folder)
    except UnusableFile as error:
        raise StoreError(f"{path} {error.what}.") from error
    except _NoBundle as error:
        kind = ChangedBundle if isinstance(error, _Changed) else StoreError
        raise kind(f"{path} {error}; ask its author for another one.") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be unpacked: {error.strerror or error}.") from error
    except _OF_A_DAMAGED_ZIP as error:
        raise StoreError(f"{path} is no bundle, or a damaged one; ask its author for another one.") from error


class ChangedBundle(StoreError):
    """A file of a bundle is not what the manifest says."""


class _NoBundle(Exception):
    """What is wrong with a zip file; continues a sentence that begins with its path."""


class _Changed(_NoBundle):
    """A file is not what the manifest says."""


# What the module zipfile raises; all after the first three for numbers in a file that cannot be.
_OF_A_DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, EOFError),
    *(ValueError, RuntimeError, LookupError, OverflowError, struct.error),
)


def _unpack(file: BinaryIO, folder: Path) -> dict[str, Any]:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        size = len(content)
        if sum(1 for _ in _ENTRY.finditer(content)) > _MOST:  # before zipfile makes an object of each
            raise _NoBundle(f"holds more than {_MOST:,} files")
    with zipfile.ZipFile(file) as packed:
        held = [part for part in packed.infolist() if not (part.is_dir() and part.file_size == 0)]  # of `zip -r`
        parts = {part.filename: part for part in held}
        if MANIFEST not in parts:  # said first, as what else is in it follows from that
            raise _NoBundle(
                "has no manifest (if somebody zipped a results directory by hand, unpack it and name the folder)"
            )
        _check(held, size)
        manifest = _manifest_of(packed, parts.pop(MANIFEST), len(parts))
        digests = manifest["files"]
        _report_changed(parts.keys() ^ digests.keys())
        (folder / "grids").mkdir()
        (folder / "runs").mkdir()
        changed = []
        for name, part in parts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            found = hashlib.sha256()
            with packed.open(part) as source, open(folder / name, "xb") as target:
                while piece := source.read(_PIECE):
                    found.update(piece)
                    target.write(piece)
            if found.hexdigest() != digests[name]:
                changed.append(name)
    _report_changed(changed)
    return manifest


def _manifest_of(packed: zipfile.ZipFile, part: zipfile.ZipInfo, count: int) -> dict[str, Any]:
    """The manifest of a bundle of so many other files."""
    _check_manifest(part, count)
    try:
        manifest = parse(Path(MANIFEST), packed.read(part))
    except Damaged as error:
        raise _NoBundle(f"has a manifest that {error.what}") from error
    if what := mismatch(manifest, _MANIFEST):
        raise _NoBundle(f"has a manifest that is none: {what}")
    if manifest["format"] != FORMAT:
        raise _NoBundle(f"is of the format {manifest['format']}, but this version of the program knows {FORMAT}")
    return dict(manifest)


def _check_manifest(part: zipfile.ZipInfo, count: int) -> None:
    """Raises _NoBundle if the manifest is larger than that of so many other files can be."""
    if part.file_size > (most := MIB + count * _MANIFEST_OF_A_FILE):
        raise _NoBundle(
            f"has a manifest of {part.file_size:,} bytes, but for {count:,} files at most {most:,} are allowed"
        )


def _report_changed(names: Iterable[str]) -> None:
    if wrong := sorted(names):
        more = f" and {len(wrong) - 1} more are" if len(wrong) > 1 else " is"
        raise _Changed(f"was changed: {wrong[0][:100]!r}{more} not what its manifest says")


def _check(parts: list[zipfile.ZipInfo], size: int) -> None:
    """Raises _NoBundle unless a zip file of that many bytes holds only what a bundle may."""
    for part in parts:
        _check_part(part)
    names = [part.filename for part in parts]
    if len({*names}) < len(names):
        raise _NoBundle("has two files of one name")
    if alike := _alike(names):
        raise _NoBundle(f"holds both {' and '.join(alike)}, which are one file on some disks")
    together, most = sum(part.file_size for part in parts), min(_LARGEST_TOGETHER, MIB + size * _LARGEST_RATIO)
    if together > most:
        raise _NoBundle(f"unpacks to {together:,} bytes, but from {size:,} at most {most:,} are allowed")


def _alike(names: Iterable[str]) -> list[str]:
    """Two names that are one on disks that do not tell capitals from small letters; [] if there are none."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(unicodedata.normalize("NFC", name).casefold(), name)) != name:
            return [other, name]
    return []


def _check_part(part: zipfile.ZipInfo) -> None:
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
