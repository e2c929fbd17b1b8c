"""Which version of its grid a report is of; versions differ in ranges, defaults or settings, so that their numbers do."""

from collections.abc import Iterable

from bench.experiments import grid_files
from bench.results.ids import unversioned
from bench.results.records import StoredGrid


def title_of(grid: StoredGrid) -> str:
    """The title of a stored grid, with its version. One of the first version has none until there is another one."""
    title, name = grid["title"] or grid["grid"], unversioned(grid["grid"])
    is_first = name == grid["grid"]
    return f"{title} ({name} v1)" if is_first and _now(grid) > 1 else title


def footnotes(grid: StoredGrid) -> Iterable[str]:
    """That a grid is of an earlier version than the one that comes with the harness now."""
    name, now = unversioned(grid["grid"]), _now(grid)
    version = int(grid["grid"].removeprefix(f"{name} v")) if name != grid["grid"] else 1
    if version < now:
        yield (
            f"Version {version} of {name}, which is at version {now} now: ranges, defaults or settings differ, so that numbers "
            "of the two are not to be compared."
        )


def _now(grid: StoredGrid) -> int:
    """The version that comes with the harness; 1 for a grid of the user's own."""
    return 1 if grid.get("source") else grid_files.version_of(unversioned(grid["grid"]))
