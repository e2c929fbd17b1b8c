"""Which code a run executes: no run continues from a checkpoint that other code has written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import algorithms
from bench import imports, models
from bench.config.methods import methods_in, named_models


def code_version(config: Any) -> str:
    """Hash of the code on which the numbers of a run depend.

    Args:
        config: a resolved run config (see `bench.config.schema.RunConfig`).
    """
    return imports.hash_of(_starts(config))


def files_of(config: Any) -> list[Path]:
    """The files that `code_version` covers: those of the run, its method with all that this wraps, and its models, with
    what these import of this project, at their top or inside functions."""
    return imports.files_of(_starts(config))


def _starts(config: Any) -> Iterator[str]:
    yield "bench.simulation.run"
    for name in (config.model, *named_models(config)):
        yield models.REGISTRY[name].module
    for name in methods_in(config.algorithm):
        yield algorithms.REGISTRY[name].module
