"""Which version of its grid a report is of; versions differ in ranges, defaults or settings, so that their numbers do."""

from collections.abc import Iterable

from bench.experiments import grid_files
from bench.results.grids import StoredGrid
from bench.results.ids import unversioned
from reports.tables.aggregate import is_board, studies_of


def title_of(grid: StoredGrid) -> str:
    """The title of a stored grid, with its version. One of the first version has none until there is another one. Of a board it
    says whether one search seed has chosen the hyper-parameters, by whose luck ranks then are."""
    title, name = grid["title"] or grid["grid"], unversioned(grid["grid"])
    is_first = name == grid["grid"]
    marks = [f"{name} v1"] * (is_first and _now(grid) > 1) + ["chosen by one search seed"] * _has_one_search_seed(grid)
    title = f"{title} ({', '.join(marks)})" if marks else title
    return f"{title}, ruleset {grid['ruleset']['name']}" if "ruleset" in grid else title


def _has_one_search_seed(grid: StoredGrid) -> bool:
    """Whether searches of a board have compared configurations on one seed, and no other study has chosen again."""
    seeds = [cell["tuned"]["seeds"] for cell in grid["cells"] if cell.get("tuned")]
    return bool(seeds) and is_board(grid) and not studies_of(grid) and all(len(one) == 1 for one in seeds)


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
