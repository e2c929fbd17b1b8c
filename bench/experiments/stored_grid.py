"""A stored grid over several commands: the cells of the present request, merged with those stored before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

import algorithms
from bench import models
from bench.config.schema import run_id
from bench.errors import ConfigError, sentences
from bench.experiments.cells import cell_key, ordered
from bench.experiments.names_schema import Style
from bench.results.grids import StoredCell, StoredGrid
from datasets import of_labs, partitions
from datasets.info import title_of

Titles = dict[str, dict[str, str]]  # see `bench.results.grids.GridDescription`


def merge_cells(
    now: StoredGrid, earlier: StoredGrid | None, order: Sequence[StoredCell], ended: Callable[[str], bool]
) -> StoredGrid:
    """The expanded grid to store: no cell of an earlier request is lost, and no table cell mixes settings.

    Present cells replace the stored ones of the same table cell where these have other settings (another dataset was
    substituted, or more of its images are here now); stored cells of other seeds stay. Where only versions differ, both stay,
    and the report shows the newest that has ended. A cell without images replaces nothing that was measured.

    Args:
        now, earlier: expanded grids; earlier cells count only if the grid `is_same`.
        order: all cells of the grid, in the order of its tables.
        ended: whether a run has a result.
    """
    layout = now["report"]
    cells = _by_key(now["cells"], layout)
    stored = earlier["cells"] if earlier and is_same(now, earlier) else []
    for key, before in _by_key(stored, layout).items():
        cells[key] = _merged(cells.get(key, []), before, ended, "ruleset" in now)
    rank = {key: number for number, key in enumerate(_by_key(order, layout))}
    in_order = sorted(cells, key=lambda key: rank.get(key, len(rank)))
    merged = ordered(now, [cell for key in in_order for cell in sorted(cells[key], key=lambda cell: cell["seed"])])
    if titles := merge_titles(earlier.get("titles", {}) if earlier else {}, now.get("titles", {})):
        merged["titles"] = titles
    if styles := (earlier.get("styles", {}) if earlier else {}) | now.get("styles", {}):
        merged["styles"] = styles
    return merged


def is_same(one: StoredGrid, other: StoredGrid) -> bool:
    """Whether cells of two stored grids of one name belong into one table: their settings are equal, and so are the seeds of
    their studies, each of which has made a choice of its own."""
    studies = [grid["ruleset"]["studies"] if "ruleset" in grid else [] for grid in (one, other)]
    return one.get("digest") == other.get("digest") and studies[0] == studies[1]


def cells_left_out(now: StoredGrid, earlier: StoredGrid | None) -> int | None:
    """How many table cells an earlier grid that is not the same has beside those of now; None if there is no such grid."""
    if earlier is None or is_same(now, earlier):
        return None
    return len(_by_key(earlier["cells"], now["report"]).keys() - _by_key(now["cells"], now["report"]).keys())


def merge_titles(before: Titles, now: Titles) -> Titles:
    """The titles of two stored grids; where both have one, that of now."""
    return {kind: {**before.get(kind, {}), **now.get(kind, {})} for kind in sorted({*before, *now})}


def _merged(
    present: list[StoredCell], before: list[StoredCell], ended: Callable[[str], bool], by_rules: bool
) -> list[StoredCell]:
    """The cells of one table cell: those of the present request, and those stored before that are still valid. By a
    ruleset a request has all seeds, whose choices may differ."""
    if not present:
        return before
    if present[0]["missing"]:
        return [cell for cell in before if cell["run"] and ended(cell["run"])] or present
    if by_rules:
        return present
    runs = {cell["run"] for cell in present}
    same = [_with_images(cell) for cell in before if _settings(cell) == _settings(present[0])]
    return [cell for cell in same if cell["run"] not in runs] + present


def _by_key(cells: Sequence[StoredCell], layout: Mapping[str, Any]) -> dict[str, list[StoredCell]]:
    by_key: dict[str, list[StoredCell]] = {}
    for cell in cells:
        by_key.setdefault(cell_key(layout, cell), []).append(cell)
    return by_key


def _settings(cell: StoredCell) -> dict[str, Any]:
    """What the seeds of a table cell have in common, whatever the versions."""
    return {key: value for key, value in cell["config"].items() if key not in ("seed", "versions")}


def _with_images(cell: StoredCell) -> StoredCell:
    return {**cell, "missing": None, "run": run_id(cell["config"])}


def titles_of_labs(cells: Sequence[StoredCell]) -> Titles:
    """What tables call the methods, models, datasets and partitions of cells that come from folders of labs, so that others can
    report them without these folders: "algorithm", "model", "dataset" or "partition" -> id -> title."""
    found: Titles = {}
    for cell in cells:
        for _, name in algorithms.methods_in(cell["config"]["algorithm"]):
            if name in algorithms.REGISTRY and algorithms.REGISTRY[name].lab:
                found.setdefault("algorithm", {})[name] = algorithms.title_of(name)
        model = cell["config"]["model"]
        if model in models.REGISTRY and models.REGISTRY[model].lab:
            found.setdefault("model", {})[model] = models.title_of(model)
        partition = cell["config"]["partition"]
        if (kind := partitions.entry_of(partition)) and kind.lab:
            found.setdefault("partition", {})[partition] = partitions.parse(partition).for_people[0]
        for dataset in (cell["dataset"], cell["substitute"]):
            if dataset and of_labs.entry_of(dataset):
                found.setdefault("dataset", {})[dataset] = title_of(dataset)
    return found


def styles_of_labs(cells: Sequence[StoredCell]) -> dict[str, dict[str, Any]]:
    """Method -> how figures draw it, of methods of cells that come from folders of labs whose decorators say so.

    Raises:
        ConfigError: with everything that is wrong in these.
    """
    methods = {name for cell in cells for _, name in algorithms.methods_in(cell["config"]["algorithm"])}
    entries = [algorithms.REGISTRY[name] for name in sorted(methods) if name in algorithms.REGISTRY]
    found, mistakes = {}, []
    for entry in entries:
        if not (entry.lab and "style" in entry.given):
            continue
        try:
            found[entry.name] = Style.model_validate(entry.given["style"]).model_dump(exclude_none=True)
        except ValidationError as error:
            lines = sentences(error, lambda _: list(Style.model_fields))
            mistakes += [f"{entry.place}: style: {line}" for line in lines]
    if mistakes:
        raise ConfigError(mistakes)
    return found
