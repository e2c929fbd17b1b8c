"""Which runs somebody has trained again, and what came out: a file that `verify --write` writes, and boards read."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.errors import StoreError
from bench.files import write_file
from bench.results.ids import is_run_id
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.json_schema import is_integer, is_line, is_number, mismatch, one_of
from bench.results.locks import lock_within
from bench.results.run_files import RUN_FILES
from bench.results.store import Store

FILE = "verified.json"
_PATIENCE = 10.0  # seconds for which a writer waits for others, each of which takes some milliseconds
EQUAL = "equal"
WITHIN_TOLERANCE = "within tolerance"
FIRST_EQUAL = "first rounds equal"
FIRST_WITHIN = "first rounds within tolerance"
UNEVALUATED = "no accuracy compared"
UNDECIDED = "undecided"  # rounding alone moves the run as far
DIFFERS = "different"
EARLIER_VERSION = "of an earlier version"
OTHER_IMAGES = "of other images"
NOT_TRAINED = "cannot be trained here"
FAILED_AGAIN = "failed again"  # of a run whose record says that it failed
CONFIRMED = (EQUAL, WITHIN_TOLERANCE, FIRST_EQUAL, FIRST_WITHIN, FAILED_AGAIN)
RESULTS = (*CONFIRMED, UNEVALUATED, UNDECIDED, DIFFERS, EARLIER_VERSION, OTHER_IMAGES, NOT_TRAINED)

_SHAPE = {
    str: {
        "result": one_of(*RESULTS),
        "rounds": is_integer,
        "of": is_integer,
        "by": is_line,
        "when": is_line,
        "code": is_line,
        "files": is_line,
        "tolerance?": is_number,
        "gap?": is_number,
        "seed?": is_integer,
    }
}


def digest_of(store: Store, run_id: str) -> str:
    """A digest of the config, the record and the rounds of a run: what was verified is these, and no later ones."""
    found = hashlib.sha256()
    for name in RUN_FILES:
        found.update(hashlib.sha256(read_bytes(store.run_folder(run_id) / name) or b"").digest())
    return found.hexdigest()


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Run id -> what came out: `result`, `rounds` that were compared `of` those of the run, `by` whom, `when`, by which `code`,
    the digest of its `files`, the `tolerance` that was allowed and the largest `gap` of an accuracy where numbers were not
    equal, and the `seed` that drew it; {} if there is no such file.

    Raises:
        StoreError: if the file holds something else.
    """
    try:
        written = read_bytes(path)
        content: Any = {} if written is None else parse(path, written)
    except Damaged as error:
        raise StoreError(f"{error}; remove it, and verify again.") from error
    found = mismatch(content, _SHAPE) or next((f"{key!r} is no run" for key in content if not is_run_id(key)), "")
    if found:
        raise StoreError(f"{path} does not say which runs are verified: {found}; remove it, and verify again.")
    return dict(content)


def current(store: Store, verdicts: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Run id -> what came out, good or bad, of runs that are as they were when they were trained again."""
    return {run: one for run, one in verdicts.items() if store.record(run) and one["files"] == digest_of(store, run)}


def write(path: Path, verdicts: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds runs to a file, in place of what it said of them. Another process may add others at the same time.

    Raises:
        StoreError: if another program keeps the folder locked: of two that write at once, one would lose what it adds.
    """
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # of a file system that locks no folders
            if not lock_within(folder, _PATIENCE):
                raise StoreError(
                    f"Another program has kept {path.parent} locked for {_PATIENCE:g} s, so what was verified is not noted in "
                    f"{path.name}; end that program, and verify again."
                )
        content = {**read(path), **verdicts}
        write_file(path, json.dumps(dict(sorted(content.items())), indent=1) + "\n")
    finally:
        os.close(folder)
