"""How many files a reader passes from a command to the workers, and from a stored record to a table, and how often the way
climbs; `python -m tests.support.stairs` prints both ways.

A file is passed when one of its functions is called. Files are listed in the order of their first calls, without the leaves
that everything imports. The way climbs where the next file lies in a layer above that of the file before (see pyproject.toml);
a call climbs where a function calls one of a layer above, which it can only have been given.
"""

import inspect
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tests.support import architecture, stores

_OPTIMIZED = inspect.CO_OPTIMIZED  # a function; bodies of modules and classes are not


class _Arrived(BaseException):
    """The last function of a way is called."""


def way(do: Callable[[], object], until: str = "") -> tuple[list[str], set[tuple[str, str]]]:
    """The modules of which functions are called, in the order of first calls, and pairs of modules: caller and called.

    Args:
        until: the function at which the way ends, as "bench.execution.scheduler.run_jobs"; "" for the end of `do`.
    """
    seen: dict[str, None] = {}
    calls: set[tuple[str, str]] = set()

    def on_event(frame, event: str, _) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not frame.f_code.co_flags & _OPTIMIZED or not module.startswith(_ROOTS):
            return
        if f"{module}.{frame.f_code.co_name}" == until:
            sys.setprofile(None)
            raise _Arrived
        seen[module] = None
        caller = frame.f_back
        while caller is not None and not caller.f_globals.get("__name__", "").startswith(_ROOTS):
            caller = caller.f_back
        if caller is not None:
            calls.add((caller.f_globals["__name__"], module))

    sys.setprofile(on_event)
    try:
        do()
    except _Arrived:
        pass
    finally:
        sys.setprofile(None)
    return [*seen], calls


_ROOTS = tuple(f"{root}." for root in architecture.ROOTS)


def counts(modules: list[str], calls: set[tuple[str, str]]) -> tuple[list[str], list[tuple[str, str]], list]:
    """Files of a way without leaves, pairs of files after one another of which the second lies above, calls that climb."""
    rows = architecture.layers()
    level = {name: number for number, row in enumerate(rows) for name in row}

    def level_of(module: str) -> int | None:
        package = architecture._package_of(module, [*level])
        return None if package is None or package in rows[-1] else level[package]

    files = [module for module in modules if level_of(module) is not None]

    def climbs(pair: tuple[str, str]) -> bool:
        before, after = map(level_of, pair)
        return before is not None and after is not None and after < before

    return files, [*filter(climbs, pairwise(files))], sorted(filter(climbs, calls))


def main() -> None:
    from bench.cli.app import app
    from reports import api

    def say(name: str, modules: list[str], calls: set[tuple[str, str]]) -> None:
        files, steps, up = counts(modules, calls)
        print(f"{name}: {len(files)} files, {len(steps)} climbs of the way, {len(up)} climbing calls")
        if "-v" in sys.argv:
            print(
                " ",
                " ".join(files),
                *(f"  {a} ^ {b}" for a, b in steps),
                *(f"  {a} calls {b}" for a, b in up),
                sep="\n",
            )

    with tempfile.TemporaryDirectory() as folder:
        run = ["run", "--grid", stores.GRID, "--executor", "local", "--results-dir", folder]
        say("command to workers", *way(lambda: app(run), "bench.execution.submitted.run_jobs"))
        cells = stores.cells()[:2]
        stores.results(Path(folder) / "stored", cells, {cell.id: 0.5 for cell in cells})
        report = api.GridReport(Path(folder) / "stored", *stores.LABEL.split("@"))
        say("record to table", *way(report.build))


if __name__ == "__main__":
    main()
