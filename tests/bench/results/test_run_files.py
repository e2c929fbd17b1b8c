"""Rounds of a record without a seal: rows of plain numbers are checked without parsing them, with the same result."""

import json
from pathlib import Path

import pytest

from bench.results import run_files
from bench.results.json_files import Damaged

PATH = Path("rounds.jsonl")
FLAT = '{"round": 1, "examples": 300, "bytes_up": 1.5e+07, "loss": NaN, "accuracy": 0.5}\n'
NESTED = '{"round": 2, "local_models": {"ids": [0, 1], "accuracy": [[0.1], [0.2]]}}\n'


def raised(check, content: str) -> str:
    try:
        check(PATH, content.encode())
    except Damaged as error:
        return error.what
    return ""


@pytest.mark.parametrize(
    "content",
    [
        "",
        FLAT,
        FLAT + FLAT.replace("1,", "2,", 1),
        FLAT + NESTED,
        '{"round": 3, "loss": Infinity, "seconds": -0.5, "x": null}\n',
        '{"round": 3, "seconds": 1e5}\n',
    ],
)
def test_rounds_that_can_be_read_are_accepted(content):
    assert raised(run_files._check_rows, content) == raised(run_files._rows_of, content) == ""


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (FLAT + FLAT, "rounds that do not follow each other"),
        (FLAT.replace("1,", "2,", 1) + FLAT, "rounds that do not follow each other"),
        (FLAT.replace("0.5", "0.5.5"), "is not readable JSON"),
        (FLAT.replace("0.5", "00.5"), "is not readable JSON"),
        (FLAT.replace("0.5", ".5"), "is not readable JSON"),
        (FLAT.replace("0.5", "-"), "is not readable JSON"),
        (FLAT.replace("0.5", "nan"), "is not readable JSON"),
        (FLAT.replace("0.5", '"high"'), "has no number for accuracy of round 1"),
        (FLAT.replace("0.5", "null"), "has no number for accuracy of round 1"),
        (FLAT.replace("0.5", "[0.5]"), "has no number for accuracy of round 1"),
        (FLAT.replace("300", '{"a": 300}'), "has no number for examples of round 1"),
        (FLAT.replace("300", "1" * 400), "has no number for examples of round 1"),
        (FLAT.replace('"round": 1', '"round": 1.5'), "has a line that is not a round"),
        (FLAT[:40], "is not readable JSON"),
        (FLAT + "\n" + FLAT, "is not readable JSON"),
        (FLAT + "[]\n", "has a line that is not a round"),
    ],
)
def test_damaged_rounds_are_named_as_when_they_are_read(content, what):
    assert what in raised(run_files._check_rows, content)
    assert raised(run_files._check_rows, content) == raised(run_files._rows_of, content)


def test_rows_of_plain_numbers_are_not_parsed(monkeypatch):
    monkeypatch.setattr(run_files, "_rows_of", None)
    rows = [json.loads(FLAT) | {"round": number} for number in range(1, 60)]
    assert raised(run_files._check_rows, "".join(json.dumps(row) + "\n" for row in rows)) == ""
