"""Checks that a JSON file of a results directory holds what it should: its type, and whatever else its parts must agree in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bench.results.grids import StoredGrid, StoredSearch
from bench.results.ids import hash_of, is_name
from bench.results.json_files import Damaged, parse, unseal
from bench.results.json_schema import (
    Shape,
    is_integer,
    is_line,
    is_plain_mapping,
    is_text,
    mismatch,
    shape_of,
)
from bench.results.records import CONFIG, Config, RunRecord, StoredProbe, fault_of_diagnostics, is_config

SCHEMA = 2  # version of the keys of records that are written now; records without a version are of the first
_FIRST_KEYS = {"remarks": "caveats", "findings": "diagnostics"}  # of a record: in the first schema -> now

_GRID_KEYS = {"mirrors": "reproduces"}  # of a grid: once -> now
_REPORT_KEYS = {"value": "rounds_shown"}  # of its report
_CHOSEN_KEYS = {"params": "hparams"}  # of what a search has chosen for a cell

_RECORD, _GRID, _SEARCH = map(shape_of, (RunRecord, StoredGrid, StoredSearch))
_LABEL_COUNTS = {"classes": [is_text], "label_counts": [[is_integer]]}


def check_grid(path: Path, written: bytes) -> StoredGrid:
    """A stored grid, from the content of its file.

    Raises:
        Damaged: if it is none, is called otherwise than its file, or its cells do not fit their runs.
    """
    grid, _ = unseal(path, written)
    grid = _renamed(path, grid, _GRID_KEYS)
    if isinstance(grid.get("report"), dict):
        grid["report"] = _renamed(path, grid["report"], _REPORT_KEYS)
    for cell in grid["cells"] if isinstance(grid.get("cells"), list) else ():
        if isinstance(cell, dict) and isinstance(cell.get("tuned"), dict):
            cell["tuned"] = _renamed(path, cell["tuned"], _CHOSEN_KEYS)
    _require_shape(path, grid, _GRID)
    if f"{grid['grid']}@{grid['budget']}" != path.stem or not is_name(path.stem):
        raise Damaged(
            path, f"says that it is {grid['grid']!r} at the budget {grid['budget']!r}, which its name does not say"
        )
    if not grid["cells"]:
        raise Damaged(path, "has no cells")
    studies = grid["ruleset"]["studies"] if "ruleset" in grid else []
    known = [seed for study in studies for seed in study]
    if not all(studies) or len(known) > len({*known}):
        raise Damaged(path, "does not hold what it should: a study has no seed, or one of another study")
    if studies and not {*known} & {cell["seed"] for cell in grid["cells"]}:
        raise Damaged(path, "does not hold what it should: no cell has a seed of its studies")
    shown = ("partition", "model", "clients", "participation", "seed")
    if grid["report"]["columns"] in grid["report"]["rows"]:
        raise Damaged(path, "does not hold what it should: its columns are one of its rows")
    for index, cell in enumerate(grid["cells"]):
        if cell.get("wrapper", "none") != "none" and "base" not in cell["config"]["algorithm"]:
            raise Damaged(path, f"has a damaged cell: cells[{index}] has a wrapper around no method")
        config = cell["config"]
        differing = [key for key in shown if key in cell and key in config and cell[key] != config[key]]
        if differing:
            raise Damaged(path, f"has a damaged cell: {differing[0]} of cells[{index}] is not that of its config")
        if cell["run"] and hash_of(config) != cell["run"]:
            raise Damaged(
                path, f"has a damaged cell: the config of cells[{index}] is not that of the run {cell['run']}"
            )
    return cast(StoredGrid, grid)


def _renamed(path: Path, part: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A part of a file with today's names of its keys."""
    if twice := [f"{once} and {now}" for once, now in names.items() if once in part and now in part]:
        raise Damaged(path, f"does not hold what it should: it has both {twice[0]}")
    return {names.get(key, key): value for key, value in part.items()}


def check_search(path: Path, written: bytes) -> StoredSearch:
    """What a search has proposed, from the content of its file.

    Raises:
        Damaged: if the file does not hold that.
    """
    search, _ = unseal(path, written)
    _require_shape(path, search, _SEARCH)
    if any({*params} != {*search["space"]} for params in search["proposed"]):
        raise Damaged(path, "has proposed what is not in its space")
    return cast(StoredSearch, search)


def check_probe(path: Path, written: bytes) -> StoredProbe:
    """A measurement, from the content of its file; who reads that of a figure knows more about its result.

    Raises:
        Damaged: if the file does not hold one.
    """
    probe, _ = unseal(path, written)
    result = _LABEL_COUNTS if path.name == "probe-label-counts.json" else dict
    _require_shape(path, probe, {"version": is_integer, "result": result})
    if result is _LABEL_COUNTS and any(
        len(counts) != len(probe["result"]["classes"]) for counts in probe["result"]["label_counts"]
    ):
        raise Damaged(path, "does not hold what it should: a client does not have a count of each class")
    if not is_plain_mapping(probe["result"]):
        raise Damaged(path, "does not hold what it should: its result cannot be shown")
    return cast(StoredProbe, probe)


def check_code(path: Path, written: bytes) -> dict[str, dict[str, str]]:
    """What the hash of a part of the code stands for, from the content of the file that is named after it.

    Raises:
        Damaged: if the file does not hold that.
    """
    content: dict[str, dict[str, str]] = parse(path, written)
    _require_shape(path, content, {str: {str: is_text}})
    if not all(map(is_line, [*content, *(name for names in content.values() for name in names)])):
        raise Damaged(path, "does not hold what it should: a name cannot be shown")
    if f"{hash_of(content)}.json" != path.name:
        raise Damaged(path, "does not hold what it should: it is not named after the hash of its content")
    return content


def check_config(path: Path, written: bytes) -> Config:
    """The config of a run, from the content of its file.

    Raises:
        Damaged: if the file does not hold one.
    """
    content: Config = parse(path, written)
    if not is_config(content):
        raise Damaged(path, f"does not hold what it should: {mismatch(content, CONFIG) or 'a value cannot be shown'}")
    return content


def check_record(path: Path, content: dict[str, Any]) -> RunRecord:
    """The record of a run, from the content of its file without its seal; one of an earlier version gets the keys of today.

    Raises:
        Damaged: if the content is no record, or not that of the run after which its folder is named.
    """
    record = content
    if "schema" not in content:
        record = {_FIRST_KEYS.get(key, key): value for key, value in content.items()}
    _require_shape(path, record, _RECORD)
    if found := fault_of_diagnostics(record.get("diagnostics", {})):
        raise Damaged(path, f"does not hold what it should: {found}")
    if record.get("schema", SCHEMA) != SCHEMA:
        raise Damaged(path, f"has schema {record['schema']}, which this version of the program does not know")
    if record["id"] != path.parent.name:
        raise Damaged(path, f"is the record of another run, {record['id']}")
    if record["status"] == "done" and not {"last", "best", "last10"} <= record["summary"].keys():
        raise Damaged(path, "does not hold what it should: its summary is not complete")
    return cast(RunRecord, record)


def _require_shape(path: Path, content: Any, shape: Shape) -> None:
    """Raises Damaged if the content of a file does not have the shape."""
    if found := mismatch(content, shape):
        raise Damaged(path, f"does not hold what it should: {found}")
