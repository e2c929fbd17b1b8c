"""What there is (`list`), as tables for a terminal."""

from typing import Any

from rich.table import Column, Table
from rich.text import Text

KINDS = (
    "grids",
    "algorithms",
    "datasets",
    "models",
    "partitions",
    "transforms",
    "callbacks",
    "figures",
    "spaces",
    "papers",
)


def listing(what: str) -> list[tuple[str, str]]:
    """(name, one-line description) of everything of a kind; reads files, imports none of the things listed."""
    import algorithms
    import datasets
    import search_spaces
    from bench import models
    from bench.experiments import grid_files
    from bench.measurements.specs import REGISTRY as figures
    from bench.published import lookup
    from bench.registry import Registry
    from datasets import of_labs, partitions, transforms
    from datasets.info import OF_USERS

    match what:
        case "grids":
            return [(name, _titled(grid_files.read(name))) for name in grid_files.names()]
        case "algorithms":
            return [(name, algorithms.describe(name)) for name in sorted(algorithms.REGISTRY)]
        case "datasets":
            known = [(name, info.description) for name, info in datasets.INFO.items()]
            of_lab = [(name, entry.description) for name, entry in of_labs.entries().items()]
            return [*known, *of_lab, *OF_USERS.items()]
        case "models":
            aliases = [(alias, f"Another name of {name}.") for alias, name in models.REGISTRY.aliases.items()]
            return [*((name, models.describe(name)) for name in sorted(models.REGISTRY)), *aliases]
        case "partitions":
            return list(partitions.known_kinds().items())
        case "transforms":
            return [(name, entry.description) for name, entry in sorted(transforms.REGISTRY.items())]
        case "callbacks":
            return [(name, entry.description) for name, entry in sorted(Registry("callback").items())]
        case "figures":
            return [(name, entry.description) for name, entry in sorted(figures.items())]
        case "spaces":
            return [(name, search_spaces.describe(name)) for name in search_spaces.names()]
        case "papers":
            return [(name, lookup.describe(name)) for name in lookup.papers()]
    raise KeyError(what)


def _titled(grid: Any) -> str:
    """The title of a grid, with its version from 2 on."""
    version = grid.get("version", 1)
    return grid.get("title", "") + (f" (version {version})" if version != 1 else "")


def listing_table(what: str) -> Table:
    columns = Column(no_wrap=True), Column()
    table = Table(*columns, title=what, title_justify="left", box=None, show_header=False, pad_edge=False)
    for name, description in listing(what):
        table.add_row(Text(name), Text(description))  # brackets in them mean nothing
    return table
