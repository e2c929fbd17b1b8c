"""The three files of a run that has ended, read and compared with each other.

Of a sealed record the seal shows that neither the record nor the rounds have changed. Of a record without a seal, which an
earlier version wrote, every round is checked.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, cast, get_type_hints

from bench.results.equality import same
from bench.results.ids import hash_of, is_metric_name
from bench.results.json_files import Damaged, parse, read_bytes, require_size, unseal
from bench.results.json_schema import is_integer, is_number, is_printable
from bench.results.records import RoundRow, RunRecord, are_metrics
from bench.results.schema import check_config, check_record

RUN_FILES = ("record.json", "config.json", "rounds.jsonl")
_OF_NUMBERS = {
    key for key, kind in get_type_hints(RoundRow).items() if kind is float
}  # keys that reports calculate with


def read_run(folder: Path) -> RunRecord | None:
    """The record of a run, or None if the run has not ended.

    The record must fit the name of its folder, the config, the number of rounds and the accuracies of the last one.

    Raises:
        Damaged: if it does not, or a file is missing or damaged.
    """
    if not _is_folder(folder):
        return None
    record_path, config_path, rounds_path = paths = [folder / name for name in RUN_FILES]
    written, config, rounds = map(read_bytes, paths)
    if written is None:
        return None
    if config is None or rounds is None:
        raise Damaged(config_path if config is None else rounds_path, "is missing, though the run has ended")
    if hash_of(check_config(config_path, config)) != folder.name:  # anybody can seal a wrong config
        raise Damaged(config_path, "is the config of another run: the folder is not named after it")
    content, sealed = unseal(record_path, written, {rounds_path.name: rounds})
    record = check_record(record_path, content)
    if not sealed:
        _check_rows(rounds_path, rounds)
    _check_rounds(rounds_path, rounds, record)
    return record


def read_rows(folder: Path) -> list[RoundRow]:
    """The rounds of a run, in order.

    Raises:
        Damaged: if they cannot be read.
    """
    path = folder / "rounds.jsonl"
    return _rows_of(path, read_bytes(path) or b"")


def fault_of(folder: Path, rounds: bytes, record: str) -> str:
    """Why a run could not be read again if it left these rounds and this record in its folder ("rounds.jsonl would have ...");
    "" if it can."""
    record_path, _, rounds_path = (folder / name for name in RUN_FILES)
    try:
        for path, content in ((rounds_path, rounds), (record_path, record.encode())):
            require_size(path, len(content))
        _check_rows(rounds_path, rounds)
        check_record(record_path, json.loads(record))
    except Damaged as error:
        return f"{error.path.name} {error.what}"
    return ""


def _is_folder(path: Path) -> bool:
    """Whether there is a folder; raises Damaged if there is something else."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(kind):
        raise Damaged(path, "is a link" if stat.S_ISLNK(kind) else "is not the folder of a run")
    return True


def _rows_of(path: Path, rounds: bytes) -> list[RoundRow]:
    rows = parse(path, b"[%s]" % b",".join(rounds.splitlines()))
    for row in rows:
        _check_row(path, row)
    _check_order(path, [row["round"] for row in rows])
    return cast(list[RoundRow], rows)


def _check_row(path: Path, row: Any) -> None:
    if not (isinstance(row, dict) and is_integer(row.get("round"))):
        raise Damaged(path, "has a line that is not a round")
    if not are_metrics(row.get("metrics", {})):
        raise Damaged(path, f"has metrics of round {row['round']} that are no names with numbers")
    for key, value in row.items():
        if is_number(value):
            continue
        if key in _OF_NUMBERS or not (
            value is None or (isinstance(value, list | dict) and is_printable(value, has_methods=False))
        ):
            raise Damaged(path, f"has no number for {key} of round {row['round']}")


def _check_order(path: Path, numbers: list[int]) -> None:
    if numbers != sorted({*numbers}):
        raise Damaged(path, "has rounds that do not follow each other")


_ROUND = b'{"round": '
_INTEGER = rb"(?:0|[1-9]\d{0,17}+)"
_NUMBER = rb"-?%s(?:\.\d++)?+(?:[eE][-+]?\d++)?+|NaN|-?Infinity" % _INTEGER
_FLAT_ROWS = re.compile(rb'(?:%s%s(?:, "\w++": (?:%s))++\}\n)*+' % (re.escape(_ROUND), _INTEGER, _NUMBER))


def _check_rows(path: Path, rounds: bytes) -> None:
    """Raises Damaged where `_rows_of` does. Rows of plain numbers, which most are, are not parsed: a report on an old store
    checks a hundred thousand of them, and parsing takes four times longer."""
    if not _FLAT_ROWS.fullmatch(rounds):
        _rows_of(path, rounds)
    else:
        _check_order(path, [int(line[len(_ROUND) : line.index(b",")]) for line in rounds.splitlines()])


def _check_rounds(path: Path, rounds: bytes, record: RunRecord) -> None:
    """Compares the number of rounds and the last accuracies with a record; parses no more than the last evaluated round."""
    lines = rounds.splitlines()
    if "rounds" in record and len(lines) != record["rounds"]:
        raise Damaged(path, f"has {len(lines)} rounds, but the run's record says {record['rounds']}")
    if lines and not (
        rounds.startswith(_ROUND) and rounds.count(b"}\n" + _ROUND) == len(lines) - 1 and rounds.endswith(b"}\n")
    ):
        raise Damaged(path, "has a line that is not a round")
    last = record["summary"].get("last", {})
    metrics = {name for name in last if is_metric_name(name)}  # any may be there in other rounds
    accuracies = last.keys() - metrics
    for line in reversed(lines):
        if not (accuracies or metrics):
            return
        row = parse(path, line)
        _check_row(path, row)
        here = {name for name in metrics if row.get("metrics", {}).get(name) is not None}
        found = {*here, *(accuracies if accuracies & row.keys() else ())}
        numbers = {**row, **row.get("metrics", {})}
        if differing := sorted(name for name in found if not same(numbers.get(name), last[name])):
            raise Damaged(path, f"ends with another {differing[0].replace('_', ' ')} than the run's record")
        metrics, accuracies = metrics - found, accuracies - found
    if left := accuracies or metrics:
        what = "accuracy" if accuracies else sorted(left)[0]
        raise Damaged(path, f"has no {what}, but the run's record has")
