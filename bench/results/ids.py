"""Ids of runs, and which names may be those of files."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from bench import references

_OF_USERS = ("dataset", "partition")  # settings that may be data of users
_METRIC = re.compile(r"\w[\w.-]{0,59}/[\w.+-]{1,60}", re.ASCII)
_RUN_ID = re.compile(r"[0-9a-f]{16}")


def hash_of(config: Mapping[str, Any]) -> str:
    """The id of the run of a canonical config: 16 hex digits, whatever the order of the keys, and whatever users call their
    data (see `bench.references`)."""
    counted = {key: references.hashed(value) if key in _OF_USERS else value for key, value in config.items()}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def is_run_id(name: object) -> TypeGuard[str]:
    """Whether a value can be the id of a run."""
    return isinstance(name, str) and bool(_RUN_ID.fullmatch(name))


def is_name(name: object) -> TypeGuard[str]:
    """Whether a value can be part of a file name: one line of printable characters without slashes that does not begin with a
    dot."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 230
        and name.isprintable()
        and not ({*name} & {"/", "\\"})
        and name[0] != "."
    )


def is_metric_name(name: object) -> TypeGuard[str]:
    """Whether a value can be the name of a metric of a method or a callback: "method/drift", "per-class-accuracy/3"."""
    return isinstance(name, str) and bool(_METRIC.fullmatch(name))


def versioned(grid: str, version: int) -> str:
    """A grid's name in the store: "leaderboard_mnist v2"; of the first version without one, as all grids were stored once."""
    return grid if version == 1 else f"{grid} v{version}"


def unversioned(stored: str) -> str:
    """The name of the grid file of a stored grid."""
    return re.sub(r" v[1-9][0-9]*$", "", stored)


def is_meant(wanted: str | None, stored: str) -> bool:
    """Whether a stored grid is one of those that a user names: by its name all its versions, by "NAME v2" that one; None for
    all grids."""
    return wanted in (None, stored, unversioned(stored)) or wanted == f"{stored} v1"
