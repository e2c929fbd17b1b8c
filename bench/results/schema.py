"""What each JSON file of a results directory must hold; `bench.results.records` has the same as types."""

from pathlib import Path
from typing import Any, cast, get_args

from bench.results.ids import hash_of, is_name, is_run_id
from bench.results.json_files import Damaged, parse, unseal
from bench.results.records import Config, RunRecord, Status, StoredGrid, StoredProbe, StoredSearch
from bench.results.shapes import (
    Shape,
    check_of,
    is_integer,
    is_number,
    is_printable,
    is_printable_mapping,
    is_text,
    mismatch,
    one_of,
)

SCHEMA = 2  # version of the keys of records that are written now; records without a version are of the first
_FIRST_KEYS = {"remarks": "caveats", "findings": "diagnostics"}  # of a record: in the first schema -> now

_SCORES = {str: is_number}
_SUMMARY = {"last?": _SCORES, "best?": _SCORES, "last10?": _SCORES, "last10_std?": _SCORES}
_CONFIG = {
    "algorithm": {"name": is_text},
    "dataset": is_text,
    "partition": is_text,
    "seed": is_integer,
    "model": is_text,
    "clients": is_integer,
    "rounds": is_integer,
    "split": is_text,
    "versions": {str: is_integer},
}
_fits_config = check_of(_CONFIG)


def _is_config(value: Any) -> bool:
    return is_printable_mapping(value) and _fits_config(value)


_RECORD = {
    "id": is_run_id,
    "schema?": is_integer,
    "status": one_of(*get_args(Status)),
    "reason?": str,
    "summary": _SUMMARY,
    "rounds?": is_integer,
    "seconds?": is_number,
    "bytes_per_client?": is_number,
    "data?": {"kind": is_text, "digest": is_text},
    "data_note?": is_text,
    "caveats?": [is_text],
    "diagnostics?": is_printable_mapping,
    "engine?": is_text,
    "device?": is_text,
    "peak_memory_mb?": is_number,
    "versions?": {str: is_text},
    "kept?": one_of("deployed", "all", "none"),
    "commit?": (is_text, None),
    "started?": (is_text, None),
    "finished?": (is_text, None),
    "base_summary?": (_SUMMARY, None),
}
_fits_record = check_of(_RECORD)
_DIAGNOSTICS = {"clusters?": [is_integer], "distributions?": [[is_number]]}
_FIGURES = {
    "curves": {"x": one_of("rounds", "communication", "time", "examples")},
    "by-setting": {"setting": is_name},
    "distributions": {"client": lambda value: is_integer(value) and value >= 0},
    "cka": {
        "estimator": one_of("linear", "minibatch"),
        "show": one_of("clients", "layers"),
        "layers": [is_text],
        "round": (is_integer, one_of("last")),
    },
    "weight-norms": {"rounds": [(is_integer, one_of("last"))]},
    "embedding": {"points": is_integer},
    "separability": {"relative": bool},
    "encoder-features": {
        "encoders": [is_text],
        "rounds": [(is_integer, one_of("last"))],
        "view": one_of("pca", "tsne"),
        "points": is_integer,
    },
    "encoder-heads": {"examples": one_of("exchange", "pooled"), "decoder_width": is_integer},
}


def _is_figure(value: Any) -> bool:
    known = is_printable_mapping(value) and is_name(value.get("kind"))
    return known and not mismatch(value, _FIGURES.get(value["kind"], {}))


_TUNED = {
    "params": is_printable_mapping,
    "score": is_number,
    "metric": is_text,
    "seeds": [is_integer],
    "share": is_number,
    "searcher": is_text,
    "scheduler": is_text,
    "tried": is_integer,
    "alike": is_integer,
    "space": {str: is_text},
    "search": is_name,
}


def _is_wrapped(value: Any) -> bool:
    """Whether a cell that has a wrapper is one of a method that wraps another."""
    return value.get("wrapper", "none") == "none" or "base" in value["config"]["algorithm"]


_CELL = {
    "dataset": is_text,
    "seed": is_integer,
    "choice": is_printable_mapping,
    "run": (is_run_id, None),
    "missing": (is_text, None),
    "substitute": (is_text, None),
    "config": _is_config,
    "partition?": is_text,
    "model?": is_text,
    "clients?": is_integer,
    "participation?": is_number,
    "variant?": is_text,
    "wrapper?": is_text,
    "published_as?": is_text,
    "tuned?": _TUNED,
}
_LAYOUT = {
    "rows": lambda value: bool(value) and not mismatch(value, [is_text]) and len({*value}) == len(value),
    "columns": is_text,
    "metric": is_text,
    "value?": is_text,
    "measured?": _is_figure,
    "figures?": [_is_figure],
    "standings?": bool,
    "gains_over?": is_printable_mapping,
    "notes?": [is_text],
}
_GRID = {
    "grid": is_text,
    "budget": is_text,
    "source?": is_text,
    "digest": is_text,
    "overrides?": is_printable_mapping,
    "title": is_text,
    "mirrors": (
        {"paper": is_name, "table": is_integer, "variants?": [is_printable_mapping], "own?": list, "baselines?": list},
        None,
    ),
    "std": one_of("population", "sample"),
    "verdict": (is_text, None),
    "report": _LAYOUT,
    "row_order": [[is_printable]],
    "column_order": [is_printable],
    "chosen_on?": is_text,
    "cells": [_CELL],
}
_fits_grid = check_of(_GRID)
_SEARCH = {"configs": {str: _is_config}, "space": is_printable_mapping, "proposed": [is_printable_mapping]}
_MATRIX = [[(is_number, None)]]
_PROBES = {  # by the beginning of the name
    "label-counts": {"classes": [is_text], "label_counts": [[is_integer]]},
    "cka": {"clients": [is_integer], "cohort": is_integer, "layers": {str: _MATRIX}},
    "weight-norms": {"clients": [is_integer], "label_counts": [[is_integer]], "norms": _MATRIX},
    "embedding": {"points": _MATRIX, "labels": [is_integer], "before": [is_integer], "after": [is_integer]},
    "encoder-features": {
        "panels": {str: {"points": _MATRIX, "axes": [is_text]}},
        "labels": [is_integer],
        "owners": [is_integer],
    },
    "encoder-heads": {
        "values": {str: {str: (is_number, None)}},
        "clients": [is_integer],
        "label_counts": [[is_integer]],
        "classes": [is_text],
    },
    "dataset-sizes": {"values": {str: {str: is_integer}}},
}


def check_grid(path: Path, written: bytes) -> StoredGrid:
    """A stored grid, from the content of its file.

    Raises:
        Damaged: if it is none, is called otherwise than its file, or its cells do not fit their runs.
    """
    grid, _ = unseal(path, written)
    if not _fits_grid(grid):
        require_shape(path, grid, _GRID)
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
    return cast(StoredGrid, grid)


def check_search(path: Path, written: bytes) -> StoredSearch:
    """What a search has proposed, from the content of its file.

    Raises:
        Damaged: if the file does not hold that.
    """
    search, _ = unseal(path, written)
    require_shape(path, search, _SEARCH)
    if any({*params} != {*search["space"]} for params in search["proposed"]):
        raise Damaged(path, "has proposed what is not in its space")
    return cast(StoredSearch, search)


def check_probe(path: Path, written: bytes) -> StoredProbe:
    """A measurement, from the content of its file.

    Raises:
        Damaged: if the file does not hold one.
    """
    probe, _ = unseal(path, written)
    shapes = [shape for name, shape in _PROBES.items() if path.name.startswith(f"probe-{name}")]
    require_shape(path, probe, {"version": is_integer, "result": shapes[0] if shapes else dict})
    if not is_printable_mapping(probe["result"]):
        raise Damaged(path, "does not hold what it should: its result cannot be shown")
    return cast(StoredProbe, probe)


def check_config(path: Path, written: bytes) -> Config:
    """The config of a run, from the content of its file.

    Raises:
        Damaged: if the file does not hold one.
    """
    content = parse(path, written)
    if not _is_config(content):
        raise Damaged(path, f"does not hold what it should: {mismatch(content, _CONFIG) or 'a value cannot be shown'}")
    return content


def check_record(path: Path, content: dict[str, Any]) -> RunRecord:
    """The record of a run, from the content of its file without its seal; one of an earlier version gets the keys of today.

    Raises:
        Damaged: if the content is no record, or not that of the run after which its folder is named.
    """
    record = content
    if "schema" not in content:
        record = {_FIRST_KEYS.get(key, key): value for key, value in content.items()}
    if not _fits_record(record):
        require_shape(path, record, _RECORD)
    if found := mismatch(record.get("diagnostics", {}), _DIAGNOSTICS, "diagnostics"):
        raise Damaged(path, f"does not hold what it should: {found}")
    if record.get("schema", SCHEMA) != SCHEMA:
        raise Damaged(path, f"has schema {record['schema']}, which this version of the program does not know")
    if record["id"] != path.parent.name:
        raise Damaged(path, f"is the record of another run, {record['id']}")
    if record["status"] == "done" and not {"last", "best", "last10"} <= record["summary"].keys():
        raise Damaged(path, "does not hold what it should: its summary is not complete")
    return cast(RunRecord, record)


def require_shape(path: Path, content: Any, shape: Shape) -> None:
    """Raises Damaged if the content of a file does not have the shape."""
    if found := mismatch(content, shape):
        raise Damaged(path, f"does not hold what it should: {found}")
