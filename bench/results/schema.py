"""What the JSON files of a results directory hold, and how a damaged or foreign one is known before anything uses it.

A results directory may come from anybody, and a file in it may be half of what it was. Every file that this program writes is
sealed: it holds a digest of its own content. What earlier versions wrote without one is checked by its shape alone.
"""

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SEAL = "sha256"  # the key of the digest
SCHEMA = 2  # of records that are written now; those without one are of the first schema
STATUS = ("done", "diverged", "failed", "stopped")
RUN_FILES = ("record.json", "config.json", "rounds.jsonl")
_OF_THE_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENOTDIR, errno.EACCES, errno.EIO)
_DEEPEST = 20  # levels of nested values; more only exhaust the interpreter's stack
_LARGEST = 1e300
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # a terminal would obey some of them
_RUN_ID = re.compile(r"[0-9a-f]{16}")


class Damaged(Exception):
    """A file that cannot be used.

    Attributes:
        path: the file.
        what: what is wrong with it; goes on after "PATH ".
    """

    def __init__(self, path: Path, what: str):
        super().__init__(f"{path} {what}")
        self.path, self.what = path, what


def hash_of(config: Mapping[str, Any]) -> str:
    """The id of the run of a canonical config: 16 hex digits, whatever the order of the keys."""
    return hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest()[:16]


def is_run_id(name: Any) -> bool:
    """Whether a text can be the id of a run."""
    return isinstance(name, str) and bool(_RUN_ID.fullmatch(name))


def is_name(name: Any) -> bool:
    """Whether a text can be part of a file's name: one line of printable characters without slashes, which does not begin with
    a dot."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 230
        and name.isprintable()
        and not ({*name} & {"/", "\\"})
        and name[0] != "."
    )


# --- Files ---


def read_bytes(path: Path) -> bytes | None:
    """The content of a file, None if there is none. Links are not followed: they lead out of the directory.

    Raises:
        Damaged: if it is not a regular file, or cannot be read.
        OSError: if nothing can be read now.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would wait for a writer
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _OF_THE_FILE:  # too many open files, or a disk that is away: the file may be fine
            raise
        raise Damaged(path, "is a link" if os.path.islink(path) else f"cannot be read ({error.strerror})") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(path, "is a folder, not a file" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
        content = os.read(descriptor, found.st_size + 1)
        while len(content) < found.st_size and (more := os.read(descriptor, found.st_size)):
            content += more
        return content
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damaged(path, f"cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)


def parse(path: Path, content: bytes) -> Any:
    """The JSON value in a file.

    Raises:
        Damaged: if there is none.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, "is not readable JSON") from error


def seal(content: str, *others: bytes) -> str:
    """The JSON text of a mapping with the digest of the text, and of other files that belong to it, before its first key."""
    return f'{{"{SEAL}": "{_digest(content[1:].encode(), others)}",{content[1:]}'


_SEALED = re.compile(rb'\{"%s": "([0-9a-f]{64})",' % SEAL.encode())


def _digest(content: bytes, others: tuple[bytes, ...]) -> str:
    digest = hashlib.sha256(content)
    for other in others:
        digest.update(hashlib.sha256(other).digest())
    return digest.hexdigest()


def _unsealed(path: Path, written: bytes, others: tuple[bytes, ...] = ()) -> tuple[dict[str, Any], bool]:
    """The mapping in a JSON file without its seal, and whether it had one.

    Raises:
        Damaged: if there is none, or not the one that was sealed.
    """
    content = parse(path, written)
    if not isinstance(content, dict):
        raise Damaged(path, "does not hold what it should: it is not a JSON object")
    if SEAL not in content:
        return content, False
    sealed = _SEALED.match(written)
    if not sealed or sealed[1].decode() != _digest(written[sealed.end() :], others):
        beside = f" or {RUN_FILES[-1]} beside it" if others else ""  # the config has its own hash
        raise Damaged(path, f"does not fit its digest: it{beside} was changed")
    del content[SEAL]
    return content, True


# --- Shapes: a type of Python, a check, [shape of each item], {key: shape} with a "?" after keys that may be absent,
# --- {str: shape} for a mapping with any keys, or a tuple of alternatives.

Check = Callable[[Any], bool]


def text(value: Any) -> bool:
    """Whether a value is a text that a terminal can print."""
    return isinstance(value, str) and not _UNPRINTABLE.search(value)


def number(value: Any) -> bool:
    """Whether a value is a number, not a finite one perhaps."""
    return type(value) in (int, float) and not (type(value) is int and abs(value) > _LARGEST)


def whole(value: Any) -> bool:
    """Whether a value is a whole number."""
    return type(value) is int and abs(value) < 2**62


def plain(value: Any, depth: int = 0) -> bool:
    """Whether a value can be shown: numbers, texts, lists and mappings of these, not too deep."""
    if isinstance(value, str):
        return text(value)
    if value is None or type(value) is bool:
        return True
    if depth == _DEEPEST:
        return False
    if isinstance(value, dict):
        # Methods are shown by their names, and so are those that they wrap.
        named = isinstance(value.get("name", ""), str) and ("base" not in value or "name" in (value["base"] or ()))
        return named and all(text(key) and plain(part, depth + 1) for key, part in value.items())
    return all(plain(part, depth + 1) for part in value) if isinstance(value, list) else number(value)


def _plain_mapping(value: Any) -> bool:
    return isinstance(value, dict) and plain(value)


def _one_of(*known: str) -> Check:
    return lambda value: value in known


def _config(value: Any) -> bool:
    return _plain_mapping(value) and _FITS_CONFIG(value)


def _check_of(shape: Any) -> Check:
    """Whether a value has a shape, as one function: thousands of records are checked for a report."""
    if isinstance(shape, dict) and str in shape:
        of_part = _check_of(shape[str])
        return lambda value: isinstance(value, dict) and all(map(of_part, value.values()))
    if isinstance(shape, dict):
        needed = [(key, _check_of(part)) for key, part in shape.items() if not key.endswith("?")]
        others = [(key[:-1], _check_of(part)) for key, part in shape.items() if key.endswith("?")]
        return lambda value: (
            isinstance(value, dict)
            and all(key in value and check(value[key]) for key, check in needed)
            and all(check(value[key]) for key, check in others if key in value)
        )
    if isinstance(shape, list):
        of_item = _check_of(shape[0])
        return lambda value: isinstance(value, list) and all(map(of_item, value))
    if isinstance(shape, tuple):
        checks = [_check_of(part) for part in shape]
        return lambda value: any(check(value) for check in checks)
    if shape is None or isinstance(shape, type):
        kind = type(None) if shape is None else shape
        return lambda value: isinstance(value, kind)
    return shape


_KINDS = {
    text: "a text",
    number: "a number",
    whole: "a whole number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}


def mismatch(value: Any, shape: Any, where: str = "") -> str:
    """What is wrong with a value, "" if it has the shape: "cells[3].seed is missing". For sentences; `_check_of` is faster."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where or 'it'} is not a JSON object"
        if str in shape:
            wrong = (mismatch(part, shape[str], f"{where}.{key}" if where else str(key)) for key, part in value.items())
            return next(filter(None, wrong), "")
        for key, part in shape.items():
            name = key.removesuffix("?")
            inner = f"{where}.{name}" if where else name
            if name in value:
                if found := mismatch(value[name], part, inner):
                    return found
            elif name == key:
                return f"{inner} is missing"
        return ""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where or 'it'} is not a list"
        wrong = (mismatch(part, shape[0], f"{where}[{index}]") for index, part in enumerate(value))
        return next(filter(None, wrong), "")
    if isinstance(shape, tuple):
        found = [mismatch(value, part, where) for part in shape]
        return "" if "" in found else found[0]
    fits = value is None if shape is None else isinstance(value, shape) if isinstance(shape, type) else shape(value)
    return "" if fits else f"{where or 'it'} is not {_KINDS.get(shape, 'what it should be')}"


_SCORES = {str: number}
_SUMMARY = {"last?": _SCORES, "best?": _SCORES, "last10?": _SCORES, "last10_std?": _SCORES}
_CONFIG = {
    "algorithm": {"name": text},
    "dataset": text,
    "partition": text,
    "seed": whole,
    "model": text,
    "clients": whole,
    "rounds": whole,
    "split": text,
    "versions": {str: whole},
}
_FITS_CONFIG = _check_of(_CONFIG)
_RECORD = {
    "id": is_run_id,
    "schema?": whole,
    "status": _one_of(*STATUS),
    "reason?": str,
    "summary": _SUMMARY,
    "rounds?": whole,
    "seconds?": number,
    "bytes_per_client?": number,
    "data?": {"kind": text, "digest": text},
    "data_note?": text,
    "caveats?": [text],
    "diagnostics?": _plain_mapping,
    "engine?": text,
    "device?": text,
    "peak_memory_mb?": number,
    "versions?": {str: text},
    "kept?": _one_of("deployed", "all", "none"),
    "commit?": (text, None),
    "started?": (text, None),
    "finished?": (text, None),
    "base_summary?": (_SUMMARY, None),
}
_FIRST_KEYS = {"remarks": "caveats", "findings": "diagnostics"}  # of a record: in the first schema -> now
_DIAGNOSTICS = {"clusters?": [whole], "distributions?": [[number]]}
_FIGURES = {
    "curves": {"x": _one_of("rounds", "communication", "time", "examples")},
    "by-setting": {"setting": is_name},
    "distributions": {"client": lambda value: whole(value) and value >= 0},
    "cka": {
        "estimator": _one_of("linear", "minibatch"),
        "show": _one_of("clients", "layers"),
        "layers": [text],
        "round": (whole, _one_of("last")),
    },
    "weight-norms": {"rounds": [(whole, _one_of("last"))]},
    "embedding": {"points": whole},
    "separability": {"relative": bool},
    "encoder-features": {
        "encoders": [text],
        "rounds": [(whole, _one_of("last"))],
        "view": _one_of("pca", "tsne"),
        "points": whole,
    },
    "encoder-heads": {"examples": _one_of("exchange", "pooled"), "decoder_width": whole},
}


_FITS_RECORD = _check_of(_RECORD)


def _figure(value: Any) -> bool:
    return _plain_mapping(value) and is_name(value.get("kind")) and not mismatch(value, _FIGURES.get(value["kind"], {}))


_TUNED = {
    "params": _plain_mapping,
    "score": number,
    "metric": text,
    "seeds": [whole],
    "share": number,
    "searcher": text,
    "scheduler": text,
    "tried": whole,
    "alike": whole,
    "space": {str: text},
    "search": is_name,
}


def _is_wrapped(value: Any) -> bool:
    """Whether a cell that has a wrapper is one of a method that wraps another."""
    return value.get("wrapper", "none") == "none" or "base" in value["config"]["algorithm"]


_CELL = {
    "dataset": text,
    "seed": whole,
    "choice": _plain_mapping,
    "run": (is_run_id, None),
    "missing": (text, None),
    "substitute": (text, None),
    "config": _config,
    "partition?": text,
    "model?": text,
    "clients?": whole,
    "participation?": number,
    "variant?": text,
    "wrapper?": text,
    "published_as?": text,
    "tuned?": _TUNED,
}
_LAYOUT = {
    "rows": lambda value: bool(value) and not mismatch(value, [text]) and len({*value}) == len(value),
    "columns": text,
    "metric": text,
    "value?": text,
    "measured?": _figure,
    "figures?": [_figure],
    "standings?": bool,
    "gains_over?": _plain_mapping,
    "notes?": [text],
}
_GRID = {
    "grid": text,
    "budget": text,
    "source?": text,
    "digest": text,
    "overrides?": _plain_mapping,
    "title": text,
    "mirrors": (
        {"paper": is_name, "table": whole, "variants?": [_plain_mapping], "own?": list, "baselines?": list},
        None,
    ),
    "std": _one_of("population", "sample"),
    "verdict": (text, None),
    "report": _LAYOUT,
    "row_order": [[plain]],
    "column_order": [plain],
    "chosen_on?": text,
    "cells": [_CELL],
}
_FITS_GRID = _check_of(_GRID)
_SEARCH = {"configs": {str: _config}, "space": _plain_mapping, "proposed": [_plain_mapping]}
_MATRIX = [[(number, None)]]
_PROBES = {  # by the beginning of the name
    "label-counts": {"classes": [text], "label_counts": [[whole]]},
    "cka": {"clients": [whole], "cohort": whole, "layers": {str: _MATRIX}},
    "weight-norms": {"clients": [whole], "label_counts": [[whole]], "norms": _MATRIX},
    "embedding": {"points": _MATRIX, "labels": [whole], "before": [whole], "after": [whole]},
    "encoder-features": {
        "panels": {str: {"points": _MATRIX, "axes": [text]}},
        "labels": [whole],
        "owners": [whole],
    },
    "encoder-heads": {
        "values": {str: {str: (number, None)}},
        "clients": [whole],
        "label_counts": [[whole]],
        "classes": [text],
    },
    "dataset-sizes": {"values": {str: {str: whole}}},
}


# --- What each kind of file must hold ---


def check_grid(path: Path, written: bytes) -> dict[str, Any]:
    """A stored grid, from the content of its file.

    Raises:
        Damaged: if it is none, is called otherwise than its file, or its cells do not fit their runs.
    """
    grid, _ = _unsealed(path, written)
    if not _FITS_GRID(grid):
        _must_fit(path, grid, _GRID)
    if f"{grid['grid']}@{grid['budget']}" != path.stem or not is_name(path.stem):
        raise Damaged(
            path, f"says that it is {grid['grid']!r} at the budget {grid['budget']!r}, which its name does not say"
        )
    if not grid["cells"]:
        raise Damaged(path, "has no cells")
    shown = ("partition", "model", "clients", "participation", "seed")
    if grid["report"]["columns"] in grid["report"]["rows"]:
        raise Damaged(path, "does not hold what it should: its columns are one of its rows")
    for index, cell in enumerate(grid["cells"]):
        if not _is_wrapped(cell):
            raise Damaged(path, f"has a damaged cell: cells[{index}] has a wrapper around no method")
        config = cell["config"]
        differing = [key for key in shown if key in cell and key in config and cell[key] != config[key]]
        if differing:
            raise Damaged(path, f"has a damaged cell: {differing[0]} of cells[{index}] is not that of its config")
        if cell["run"] and hash_of(config) != cell["run"]:
            raise Damaged(
                path, f"has a damaged cell: the config of cells[{index}] is not that of the run {cell['run']}"
            )
    return grid


def check_search(path: Path, written: bytes) -> dict[str, Any]:
    """What a search has proposed, from the content of its file.

    Raises:
        Damaged: if the file does not hold that.
    """
    search, _ = _unsealed(path, written)
    _must_fit(path, search, _SEARCH)
    if any({*params} != {*search["space"]} for params in search["proposed"]):
        raise Damaged(path, "has proposed what is not in its space")
    return search


def check_probe(path: Path, written: bytes) -> dict[str, Any]:
    """A measurement, from the content of its file.

    Raises:
        Damaged: if the file does not hold one.
    """
    probe, _ = _unsealed(path, written)
    shapes = [shape for name, shape in _PROBES.items() if path.name.startswith(f"probe-{name}")]
    _must_fit(path, probe, {"version": whole, "result": shapes[0] if shapes else dict})
    if not _plain_mapping(probe["result"]):
        raise Damaged(path, "does not hold what it should: its result cannot be shown")
    return probe


def check_config(path: Path, written: bytes) -> dict[str, Any]:
    """The config of a run, from the content of its file.

    Raises:
        Damaged: if the file does not hold one.
    """
    content = parse(path, written)
    if not _config(content):
        raise Damaged(path, f"does not hold what it should: {mismatch(content, _CONFIG) or 'a value cannot be shown'}")
    return content


def read_run(folder: Path) -> dict[str, Any] | None:
    """How a run ended, or None if it has not.

    Its record must fit its folder, its config and its rounds: by its seal, and by the number of rounds and the last accuracies.

    Raises:
        Damaged: if it does not.
    """
    try:
        kind = os.lstat(folder).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(kind):
        raise Damaged(folder, "is a link" if stat.S_ISLNK(kind) else "is not the folder of a run")
    paths = path, config_path, rounds_path = [folder / name for name in RUN_FILES]
    written, config, rounds = map(read_bytes, paths)
    if written is None:
        return None
    for name, content in zip(RUN_FILES[1:], (config, rounds), strict=True):
        if content is None:
            raise Damaged(folder / name, "is missing, though the run has ended")
    if hash_of(check_config(config_path, config)) != folder.name:  # anybody can seal what is wrong
        raise Damaged(config_path, "is the config of another run: the folder is not named after it")
    content, sealed = _unsealed(path, written, (rounds,))
    record = upgrade(content)
    if not _FITS_RECORD(record):
        _must_fit(path, record, _RECORD)
    if found := mismatch(record.get("diagnostics", {}), _DIAGNOSTICS, "diagnostics"):
        raise Damaged(path, f"does not hold what it should: {found}")
    if record.get("schema", SCHEMA) != SCHEMA:
        raise Damaged(path, f"has schema {record['schema']}, which this version of the program does not know")
    if record["id"] != folder.name:
        raise Damaged(path, f"is the record of another run, {record['id']}")
    if record["status"] == "done" and not {"last", "best", "last10"} <= record["summary"].keys():
        raise Damaged(path, "does not hold what it should: its summary is not complete")
    if not sealed:
        _rows_of(rounds_path, rounds)
    _check_rounds(rounds_path, rounds, record)
    return record


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """A record under the names of today. One without a schema was written by an earlier version of this program; on disk it
    stays as it is."""
    return record if "schema" in record else {_FIRST_KEYS.get(key, key): value for key, value in record.items()}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run, in order.

    Raises:
        Damaged: if they cannot be read.
    """
    path = folder / "rounds.jsonl"
    return _rows_of(path, read_bytes(path) or b"")


def _rows_of(path: Path, rounds: bytes) -> list[dict[str, Any]]:
    rows = parse(path, b"[%s]" % b",".join(rounds.splitlines()))
    for row in rows:
        _check_row(path, row)
    if any(one["round"] >= next_["round"] for one, next_ in zip(rows, rows[1:], strict=False)):
        raise Damaged(path, "has rounds that do not follow each other")
    return rows


def _check_rounds(path: Path, rounds: bytes, record: Mapping[str, Any]) -> None:
    """Number of rounds and last accuracies, without parsing more than the last evaluated round."""
    lines = rounds.splitlines()
    if "rounds" in record and len(lines) != record["rounds"]:
        raise Damaged(path, f"has {len(lines)} rounds, but the run's record says {record['rounds']}")
    if lines and not (
        rounds.startswith(_ROUND) and rounds.count(b"}\n" + _ROUND) == len(lines) - 1 and rounds.endswith(b"}\n")
    ):
        raise Damaged(path, "has a line that is not a round")
    last = record["summary"].get("last")
    if not last:
        return
    for line in reversed(lines):
        row = parse(path, line)
        _check_row(path, row)
        if last.keys() & row.keys():
            differing = [key for key, value in last.items() if not _same(row.get(key), value)]
            if differing:
                raise Damaged(path, f"ends with another {differing[0].replace('_', ' ')} than the run's record")
            return
    raise Damaged(path, "has no accuracy, but the run's record has")


_ROUND = b'{"round": '


def _check_row(path: Path, row: Any) -> None:
    if not (isinstance(row, dict) and whole(row.get("round"))):
        raise Damaged(path, "has a line that is not a round")
    for key, value in row.items():
        if not (number(value) or (isinstance(value, list | dict) and plain(value)) or value is None):
            raise Damaged(path, f"has no number for {key} of round {row['round']}")


def _same(one: Any, other: Any) -> bool:
    return one == other or (
        isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    )


def _must_fit(path: Path, content: Any, shape: Any) -> None:
    if found := mismatch(content, shape):
        raise Damaged(path, f"does not hold what it should: {found}")
