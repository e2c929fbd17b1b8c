"""How fast the harness is on this machine: named cases, each a few rows; what cannot be measured here says so.

Figures of one case take turns and are compared within one run, so that a machine whose speed drifts treats all alike. It
runs on the GPU if there is one, else on one thread of the CPU. Needs neither Ray nor pydantic, and not even the libraries
of the command line: `python -m bench.speed` is the same as `python -m bench speed`.
"""

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import algorithms
import datasets
from bench.errors import require_known
from bench.speed.rows import Row, markdown, not_measured, read_json, write_json

CASES = {  # name of a case and of its function -> module
    "w1": "runs",
    "methods": "engines",
    "engines": "engines",
    "models": "engines",
    "fedconcat": "fedconcat",
    "launches": "launches",
    "trials": "scheduler",
    "population": "runs",
    "memory": "runs",
    "scheduler": "scheduler",
}
LONG = ("launches", "population", "memory", "scheduler")  # only measured when they are named


def main(arguments: list[str], prog: str = "python -m bench.speed") -> None:
    """The command: prints the table, and ends with a sentence and exit code 2 where an option makes no sense."""
    parser = _parser(prog)
    given = parser.parse_args(arguments)
    try:
        cases = _names("case", given.cases, CASES) or [name for name in CASES if name not in LONG]
        methods = tuple(_names("method", given.methods, algorithms.REGISTRY))
        _check(given)
        earlier = read_json(given.compare) if given.compare else None
        options = {key: getattr(given, key) for key in ("share", "repeats", "processes")} | {"methods": methods}
        rows = measure(cases, given.data_dir, **options)
        if given.json:
            write_json(given.json, rows)
    except (ValueError, OSError, datasets.DataError) as error:
        parser.exit(2, f"error: {error}\n")
    sys.stdout.write(markdown(rows, earlier))


def measure(cases: list[str], data_dir: Path | None = None, **options) -> list[Row]:
    """The rows of some cases, each named on stderr, and for a case that cannot be measured here one row that says why.

    Args:
        data_dir: where CIFAR-10 is; random images of its shape and class counts if it is not there.
        options: of `bench.speed.workload.Setting`.
    """
    import torch

    from bench.profiling import GpuUse, keep_freed_memory
    from bench.speed.workload import Setting, images

    torch.set_num_threads(1)
    keep_freed_memory()  # as workers do
    with tempfile.TemporaryDirectory() as scratch, GpuUse() as gpu, images(data_dir, Path(scratch)) as (folder, source):
        setting = Setting(folder, data_dir, gpu, **options)
        rows = [Row("images", None, note=source)]
        for name in cases:
            try:
                case = getattr(importlib.import_module(f"bench.speed.{CASES[name]}"), name)
                print(case.__doc__.splitlines()[0], file=sys.stderr)
                rows += case(setting)
            except (ModuleNotFoundError, datasets.MissingData) as error:
                rows.append(not_measured(name, error))
    return rows


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.splitlines()[0], allow_abbrev=False)
    add, own = parser.add_argument, "(default: %(default)s)"
    add("--data-dir", type=Path, default=os.environ.get("SKEWBENCH_DATA"), help=f"Where the images are {own}.")
    add("--cases", help=f"NAME,... of {', '.join(CASES)}; all but {', '.join(LONG)} if left out.")
    add("--methods", help="NAME,... that the cases methods and launches measure; most methods if left out.")
    add("--share", type=float, default=0.5, help=f"Part of the 40 clients that trains in a round {own}; in W1 all do.")
    add("--repeats", type=int, default=3, help=f"Measurements of each case {own}; the median counts.")
    add(
        "--processes", type=int, default=min(2, os.cpu_count() or 1), help=f"Plain processes that run W1 at once {own}."
    )
    add("--json", type=Path, help="Also write the rows to this file.")
    add("--compare", type=Path, help="Set an earlier --json file's values beside the rows.")
    return parser


def _names(kind: str, text: str | None, known: Iterable[str]) -> list[str]:
    """The names in a list, each once, all of them known."""
    names = [] if text is None else [*dict.fromkeys(part.strip() for part in text.split(","))]
    require_known(kind, names, known)
    return names


def _check(given: argparse.Namespace) -> None:
    """Raises ValueError for a value out of its range, before anything is measured."""
    if not 0 < given.share <= 1:
        raise ValueError(f"--share must be above 0 and at most 1, but got {given.share:g}.")
    for option in ("repeats", "processes"):
        if getattr(given, option) < 1:
            raise ValueError(f"--{option} must be at least 1, but got {getattr(given, option)}.")
    if given.json and not given.json.absolute().parent.is_dir():
        raise ValueError(f"--json: there is no folder {given.json.absolute().parent}.")
