"""Rows of the speed benchmark: as Markdown, as JSON, and beside those of an earlier measurement."""

import json
import os
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


def not_measured(case: str, why: object) -> Row:
    return Row(case, None, note=f"not measured ({str(why).rstrip('.')})")


def machine() -> dict[str, Any]:
    """What the rows were measured on."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {"torch": torch.__version__, "cores": os.cpu_count(), "device": device}


def markdown(rows: list[Row], earlier: dict[str, Row] | None = None) -> str:
    """The table without its empty columns, and what it was measured on.

    Args:
        earlier: case -> row of an earlier measurement; its value in the same unit, and the ratio to it, stand beside each row.
    """
    before = [(earlier or {}).get(row.case, row) for row in rows]
    pairs = [
        (row.value, then.value)
        if then is not row and then.unit == row.unit and None not in (row.value, then.value)
        else ()
        for row, then in zip(rows, before, strict=True)
    ]
    columns = {
        "case": [row.case for row in rows],
        "value": [_number(row.value) for row in rows],
        "unit": [row.unit for row in rows],
        "per core-second": [_number(row.per_core_second) for row in rows],
        "peak MB": [_number(row.peak_mb) for row in rows],
        "GPU use": [_percent(row.gpu_use) for row in rows],
        "padding": [_percent(row.padding) for row in rows],
        "earlier": [_number(pair[1]) if pair else "" for pair in pairs],
        "now / earlier": [f"{pair[0] / pair[1]:.2f}" if pair and pair[1] else "" for pair in pairs],
        "note": [row.note for row in rows],
    }
    columns = {name: column for name, column in columns.items() if any(column)}
    lines = [columns, ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table + "\ntorch {torch}, {cores} cores, {device}; one thread per process.\n".format(**machine())


def write_json(path: Path, rows: list[Row]) -> None:
    """Replaces a file in one step: the machine and the rows."""
    write_file(path, json.dumps({**machine(), "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Row]:
    """Case -> row of a file that `write_json` wrote.

    Raises:
        ValueError: if it is no such file.
        OSError: if it cannot be read.
    """
    if not path.is_file():
        raise ValueError(f"There is no file {path} to compare with; write one with --json.")
    known = {field.name for field in fields(Row)}
    try:
        stored = json.loads(path.read_text())["rows"]
        return {row["case"]: Row(**{key: row[key] for key in known & row.keys()}) for row in stored}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not hold the rows of an earlier measurement; write it with --json.") from error


def _number(value: float | None) -> str:
    """Three digits at least: 12,446 or 1.89 or 0.0310."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
