"""Which code a run executes, by parts: no run continues from a checkpoint that other code has written, and what other code has
trained is repeated (see `bench.config.stale`).

The parts are "engine", the code of all runs; "algorithm fedavg" for the method and for each that it wraps; "model mlp" for the
model and for each that the method names; "callback server-ema" for each callback; "partition dir", but a partition file has no
code; and "transform turned" for one of a lab: all others are in the engine. A file of the engine is in no other part, so that a
change of it is one change.
"""

from collections.abc import Mapping
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import algorithms
from bench import imports, models, provenance
from bench.config.plain import TRACE
from bench.imports import Definitions
from bench.registry import Registry

ENGINE = "engine"
ENGINE_VERSION = (
    1  # raised when a change of the engine moves numbers, so that runs of methods of labs are repeated, too
)
_TRANSFORMS = Registry("transform")


def code_version(config: Any) -> dict[str, str]:
    """Part -> hash of its code, 16 hex digits, of the parts on which the numbers of a run depend.

    Args:
        config: a resolved run config (see `bench.config.schema.RunConfig`).
    """
    return {part: imports.hash_of(*_modules(part)) for part in versions_of(config)}


def hash_now(part: str) -> str | None:
    """The hash of a part; None if its code is not there, or cannot be parsed."""
    try:
        found = imports.hash_of(*_modules(part))
        return None if found == imports.NO_CODE else found
    except (LookupError, OSError, SyntaxError, ValueError):
        return None


def definitions_of(part: str) -> Definitions:
    """What the hash of a part stands for."""
    return imports.definitions_of(*_modules(part))


def files_of(config: Any) -> list[Path]:
    """The files that `code_version` covers: those of the run, its method with all that this wraps, its model and a
    partition, with what these import of this project, at their top or inside functions."""
    return imports.files_of(module for part in versions_of(config) for module in _modules(part)[0])


def facts_of(config: Any) -> dict[str, Any]:
    """What the record of a run says of its code: `code`, `commit` and, where files lie in other repositories, `commits` (see
    `bench.results.records.RunRecord`)."""
    return {"code": code_version(config), **provenance.commits_of(files_of(config), imports.folders())}


def versions_of(config: Any) -> dict[str, int]:
    """Part -> its `version`, of a run config or a stored one.

    Where the engine changes numbers, the parts whose numbers it changes get another version; those of labs follow that of the
    engine, which is no part of the id of a run.
    """
    keys = ("algorithm", "model", "versions", "partition", "transform")
    read = itemgetter(*keys) if isinstance(config, Mapping) else attrgetter(*keys)
    algorithm, model, versions, partition, transform = read(config)
    methods = {f"algorithm {name}": versions.get(path, 1) for path, name in algorithms.methods_in(algorithm)}
    others = {key.replace(".", " ", 1): of for key, of in versions.items() if key.startswith(("model.", "callback."))}
    settings = config if isinstance(config, Mapping) else vars(config)
    if settings.get("trace_local_models"):
        others.setdefault(f"callback {TRACE}", 1)
    kind = Registry("partition").named_in(partition)
    dealt = {f"partition {kind.name}": versions.get("partition", 1)} if kind else {}
    found = _TRANSFORMS.get(transform)
    dealt |= {f"transform {transform}": versions.get("transform", 1)} if found and found.lab else {}
    return {ENGINE: ENGINE_VERSION} | methods | others | {f"model {model}": versions.get("model", 1)} | dealt


def _modules(part: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules of a part, and those whose code is another part; raises KeyError if there is no such part."""
    if part == ENGINE:
        return _engine(), ()
    kind, _, name = part.partition(" ")
    if kind == "model":
        return models.modules_of(name), _engine()
    entry = Registry(kind)[name]
    dealt = kind == "partition" and not entry.is_class  # by a function of a lab
    return (entry.module, *["datasets.partitions.of_labs"] * dealt), _engine()


def _engine() -> tuple[str, ...]:
    """The module of a run, and the transforms of the harness, which it finds by their names."""
    return ("bench.simulation.run", *(entry.module for entry in _TRANSFORMS.values() if not entry.lab))
