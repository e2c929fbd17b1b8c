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
from collections.abc import Callable
from pathlib import Path

import datasets
from bench.errors import require_known
from bench.speed.rows import Row, markdown, not_measured, read_json, write_json

CASES = {
    "w1": "w1:w1",
    "methods": "engines:methods",
    "engines": "engines:engines",
    "models": "engines:models",
    "fedconcat": "fedconcat:fedconcat",
    "trials": "scheduler:trials",
    "population": "population:population",
    "memory": "memory:memory",
    "scheduler": "scheduler:scheduler",
}
LONG = ("population", "memory", "scheduler")  # only measured when they are named


def main(arguments: list[str], prog: str = "python -m bench.speed") -> None:
    """The command: prints the table, and ends with a sentence and exit code 2 where an option makes no sense."""
    parser = _parser(prog)
    given = parser.parse_args(arguments)
    try:
        cases, methods = _chosen(given.cases), _methods(given.methods)
        _check(given)
        earlier = read_json(given.compare) if given.compare else None
        options = {key: getattr(given, key) for key in ("share", "repeats", "processes")} | {"methods": methods}
        rows = measure(cases, given.data_dir, on_message=lambda line: print(line, file=sys.stderr), **options)
        if given.json:
            write_json(given.json, rows)
    except (ValueError, OSError, datasets.DataError) as error:
        parser.exit(2, f"error: {error}\n")
    sys.stdout.write(markdown(rows, earlier))


def measure(
    cases: list[str], data_dir: Path | None = None, *, on_message: Callable[[str], None] = lambda line: None, **options
) -> list[Row]:
    """The rows of some cases, and for a case that cannot be measured here one row that says why.

    Args:
        data_dir: where CIFAR-10 is; random images of its shape and class counts if it is not there.
        on_message: is told which case is being measured.
        options: of `bench.speed.workload.Setting`.
    """
    from bench.profiling import GpuUse
    from bench.speed.workload import Setting, images, one_thread

    with (
        tempfile.TemporaryDirectory() as scratch,
        one_thread(),
        GpuUse() as gpu,
        images(data_dir, Path(scratch)) as (folder, source),
    ):
        setting = Setting(folder, data_dir, gpu, **options)
        rows = [Row("images", None, note=source)]
        for name in cases:
            try:
                case = _load(name)
                on_message(case.__doc__.splitlines()[0])
                rows += case(setting)
            except (ModuleNotFoundError, datasets.MissingData) as error:
                rows.append(not_measured(name, str(error).rstrip(".")))
    return rows


class _WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Says the default of an option that has one."""

    def _get_help_string(self, action):
        return action.help if action.default is None else super()._get_help_string(action)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__.splitlines()[0], allow_abbrev=False, formatter_class=_WithDefaults
    )
    add = parser.add_argument
    add("--data-dir", type=Path, default=os.environ.get("SKEWBENCH_DATA"), help="Where the images are.")
    add("--cases", help=f"NAME,... of {', '.join(CASES)}; all but {', '.join(LONG)} if left out.")
    add("--methods", help="NAME,... that the case methods measures; most methods if left out.")
    add("--share", type=float, default=0.5, help="Part of the 40 clients that trains in a round; in W1 all do.")
    add("--repeats", type=int, default=3, help="Measurements of each case; the median counts.")
    add("--processes", type=int, default=min(2, os.cpu_count() or 1), help="Plain processes that run W1 side by side.")
    add("--json", type=Path, help="Also write the rows to this file.")
    add("--compare", type=Path, help="Set an earlier --json file's values beside the rows.")
    return parser


def _chosen(text: str | None) -> list[str]:
    """Cases by name, in the order in which they are named; all that are not long if none is."""
    if text is None:
        return [name for name in CASES if name not in LONG]
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    require_known("case", names, CASES)
    return names


def _methods(text: str | None) -> tuple[str, ...]:
    """Methods by name."""
    import algorithms

    names = () if text is None else tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    require_known("method", names, algorithms.REGISTRY)
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


def _load(name: str) -> Callable[..., list[Row]]:
    module, function = CASES[name].split(":")
    return getattr(importlib.import_module(f"bench.speed.{module}"), function)
