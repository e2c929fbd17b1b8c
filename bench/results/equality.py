"""Whether two results of the same run are the same numbers, bit for bit; what depends on the clock is not compared."""

from collections.abc import Mapping, Sequence
from typing import Any

_OF_THE_CLOCK = ("seconds", "examples_per_second")

Result = tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]  # rounds and record of a run that has ended


def differences(one: Result, other: Result) -> str:
    """The first difference of two results of one run in a few words ("accuracy of round 3: 0.5 and 0.51"), "" if there is none.

    Compared are how the run ended, its summary, diagnostics and accuracies of clients, and every number of every round. A
    statistic of the summary that only one of them has is not: records of earlier versions lack some.
    """
    (rows, record), (other_rows, other_record) = one, other
    if record["status"] != other_record["status"]:
        return f"status: {record['status']} and {other_record['status']}"
    if len(rows) != len(other_rows):
        return f"rounds: {len(rows)} and {len(other_rows)}"
    for row, other_row in zip(rows, other_rows, strict=True):
        for key in dict.fromkeys((*row, *other_row)):
            if key not in _OF_THE_CLOCK and not same(row.get(key), other_row.get(key)):
                return f"{key} of round {row['round']}: {_short(row.get(key))} and {_short(other_row.get(key))}"
    summary, other_summary = record["summary"], other_record["summary"]
    if not all(same(summary[key], other_summary[key]) for key in summary.keys() & other_summary.keys()):
        return "summary"
    for key in ("diagnostics", "client_accuracies"):
        if not same(record.get(key) or {}, other_record.get(key) or {}):
            return key
    return ""


def same(one: Any, other: Any) -> bool:
    """Equality under which NaN, which a diverged run reports, is itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 30 else f"{text[:27]}..."
