"""Which reports still follow from what they were made of, so that they need not be made again.

A note says of a set of files the digest of their inputs and of each file. It lies in the user's cache, not beside the files:
who hands on a results directory could else vouch for a page of his own. Without a note, a report is made anew.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import plugins
from bench.files import MIB, UnusableFile, read_foreign, write_file
from bench.results.json_schema import mismatch
from datasets.cache import default_dir

_CODE = (".py", ".txt", ".csv", ".jinja", ".js", ".css", ".yaml")
_PACKAGES = ("algorithms", "reports", "bench", "datasets", "search_spaces")
_LIBRARIES = ("numpy", "pandas", "scipy", "matplotlib", "tabulate", "jinja2", "vl-convert-python")
_NOTE = {"inputs": str, "files": {str: str}, "sentences": [str]}
_LARGEST = 256 * MIB  # of a file that a report writes


class Written:
    """The files of one call of a report.

    Attributes:
        inputs: digest of all that they follow from.
    """

    def __init__(self, place: Sequence[str], inputs: Sequence[str]):
        """
        Args:
            place: what tells the call from others: its folder and its options.
            inputs: what its files follow from, besides the place and the code.
        """
        name = _digest(place)
        self.inputs = _digest([name, code_digest(), *inputs])
        self._note = default_dir() / "reports" / f"{name[:32]}.json"

    def unchanged(self) -> tuple[list[Path], list[str]] | None:
        """The files and the sentences that `note` was given; None if inputs or a file have changed since, or are gone."""
        try:
            found: Any = json.loads(read_foreign(self._note, MIB))
            if mismatch(found, _NOTE) or found["inputs"] != self.inputs:
                return None
            for path, digest in found["files"].items():
                if hashlib.sha256(read_foreign(path, _LARGEST)).hexdigest() != digest:
                    return None
        except (OSError, UnusableFile, ValueError, RecursionError):
            return None
        return [*map(Path, found["files"])], found["sentences"]

    def note(self, paths: Iterable[Path], sentences: Sequence[str] = ()) -> None:
        """Notes files that have just been written. Where the cache cannot be written to, they are made again next time."""
        with suppress(OSError):
            files = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
            self._note.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._note, json.dumps({"inputs": self.inputs, "files": files, "sentences": [*sentences]}))


@functools.cache  # this process has read its code
def code_digest() -> str:
    """A digest of the code of this project and of labs, with templates and published values, and of the libraries that reports
    use."""
    found = (
        folder for name in _PACKAGES if (spec := find_spec(name)) for folder in spec.submodule_search_locations or ()
    )
    folders = [*map(Path, found), *(lab / part for lab in plugins.folders() for part in plugins.PARTS)]
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in _CODE)
    return _digest(
        [*(f"{path}:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths), *map(_version, _LIBRARIES)]
    )


def _version(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return library


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps([*parts]).encode()).hexdigest()
