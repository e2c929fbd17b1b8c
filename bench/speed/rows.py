"""Rows of the speed benchmark: as Markdown, as JSON, and beside those of an earlier measurement."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.files import write_file

EXAMPLES = "examples per second"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        case: what was measured; tells rows apart when two measurements are compared.
        value: in `unit`; None if it was not measured, and `note` says why.
        unit: of value.
        note: a ratio to another case, a target, or a reason.
        per_core_second: the value per second of processor time instead of wall time.
        peak_mb: largest memory meanwhile, of the GPU where there is one, else of the process; 10^6 bytes.
        gpu_use: share of time in which the GPU was busy, in [0, 1].
        padding: share of the batch rows that are padding, in [0, 1).
    """

    case: str
    value: float | None
    unit: str = ""
    note: str = ""
    per_core_second: float | None = None
    peak_mb: float | None = None
    gpu_use: float | None = None
    padding: float | None = None


def not_measured(case: str, why: str) -> Row:
    return Row(case, None, note=f"not measured ({why})")


def machine() -> dict[str, Any]:
    """What the rows were measured on."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"torch": torch.__version__, "cores": os.cpu_count(), "device": device}


def markdown(rows: list[Row], earlier: dict[str, Row] | None = None) -> str:
    """The table without its empty columns, and what it was measured on.

    Args:
        earlier: case -> row of an earlier measurement; its value and the ratio to it stand beside each row.
    """
    columns = dict(_COLUMNS)
    if earlier is not None:
        before = {row.case: _comparable(row, earlier.get(row.case)) for row in rows}
        columns["earlier"] = lambda row: _number(before[row.case])
        columns["now / earlier"] = lambda row: f"{row.value / before[row.case]:.2f}" if before[row.case] else ""
    columns["note"] = lambda row: row.note
    lines = [[show(row) for show in columns.values()] for row in rows]
    kept = [index for index in range(len(columns)) if any(line[index] for line in lines)]
    table = [list(columns), ["---"] * len(columns), *lines]
    text = "\n".join("| " + " | ".join(line[index] for index in kept) + " |" for line in table)
    on = machine()
    return f"{text}\n\ntorch {on['torch']}, {on['cores']} cores, {on['device']}; one thread per process.\n"


def write_json(path: Path, rows: list[Row]) -> None:
    """Replaces a file in one step: the machine and the rows."""
    write_file(path, json.dumps({**machine(), "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Row]:
    """Case -> row of a file that `write_json` wrote.

    Raises:
        ValueError: if it is no such file.
        OSError: if it cannot be read.
    """
    known = {field.name for field in fields(Row)}
    if not path.is_file():
        raise ValueError(f"There is no file {path} to compare with; write one with --json.")
    try:
        stored = json.loads(path.read_text())["rows"]
        rows = [Row(**{key: row[key] for key in known & row.keys()}) for row in stored]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not hold the rows of an earlier measurement; write it with --json.") from error
    return {row.case: row for row in rows}


def _comparable(row: Row, earlier: Row | None) -> float | None:
    """The earlier value, if both were measured in the same unit."""
    return earlier.value if earlier and row.value is not None and earlier.unit == row.unit else None


def _number(value: float | None) -> str:
    """Three digits at least: 12,446 or 1.89 or 0.0310."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "case": lambda row: row.case,
    "value": lambda row: _number(row.value),
    "unit": lambda row: row.unit,
    "per core-second": lambda row: _number(row.per_core_second),
    "peak MB": lambda row: _number(row.peak_mb),
    "GPU use": lambda row: _percent(row.gpu_use),
    "padding": lambda row: _percent(row.padding),
}
