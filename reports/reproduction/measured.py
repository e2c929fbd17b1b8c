"""The published numbers that have been measured at their own budget, found in results directories."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.experiments.labels import value_of
from bench.published.lookup import Published, keys_of, papers, printed_again
from bench.results.grids import StoredCell, StoredGrid
from bench.results.ids import unversioned
from bench.results.records import FINISHED
from bench.results.store import Store
from reports import api
from reports.reproduction.planned import Plans
from reports.tables.aggregate import cell_keys, collect_runs, current_cells, scores_by_seed
from reports.tables.published_comparison import is_comparable, own_value, taken_for
from reports.tables.records import Records


@dataclass(frozen=True)
class Measured:
    """A published number beside what was measured at its own budget.

    Attributes:
        published: the number.
        mean, std: over seeds, in its unit; NaN if no run is done, or the std of fewer than two.
        difference: of the mean to the number.
        scores: seed -> score, of the runs behind the mean; {} of tables of measurements, whose runs have one seed.
        verdict: "inside", "near" or "outside"; "" if there is none: too few seeds or points of a tuning set, or no rule.
        band: the largest difference that is "inside", in the number's unit; NaN if nothing is judged.
        rule: name of the rule that judges, or None.
        seeds, planned_seeds: how many have ended, and how many the grid of the published table has.
        diverged: how many of those that ended have.
        settings, planned_settings: points of the tuning set, likewise; 1 of 1 without one.
        runs: ids of the runs that have ended, of all points of the tuning set.
        commits: versions of the code of the shown point's runs, as their records name them.
        command: measures it again.
        model: of the runs, where it is taken for that of the published number; else "".
    """

    published: Published
    mean: float
    std: float
    difference: float
    scores: Mapping[str, float]
    verdict: str
    band: float
    rule: str | None
    seeds: int
    planned_seeds: int
    diverged: int
    settings: int
    planned_settings: int
    runs: tuple[str, ...]
    commits: tuple[str, ...]
    command: str
    model: str

    @property
    def is_complete(self) -> bool:
        """Whether all seeds have ended, of all points of its tuning set."""
        return self.seeds == self.planned_seeds and self.settings == self.planned_settings


def find_measured(stores: Iterable[Store], plans: Plans) -> list[Measured]:
    """The published numbers that have been measured, in the order of `papers` and of their files, each once.

    A number has been measured if a run has ended for it in a grid that reproduces its table, at the budget paper as it is,
    on its own dataset, with its own number of clients, participation and model; the same number in other tables has been
    measured with it. Of several grids or directories that have it, the one with the most seeds counts, then the one with the
    most points of its tuning set, then the first.
    """
    found: dict[tuple[str, ...], Measured] = {}
    for store in stores:
        for name in store.grids():
            grid = store.grid(name)
            if not grid or not grid["reproduces"] or not is_comparable(grid, own_value(grid)):
                continue
            for measured in _of_grid(api.GridReport(store, *name.split("@", 1)), plans):
                again = (replace(measured, published=published) for published in printed_again(measured.published))
                for one in (measured, *again):
                    before = found.get(one.published.key)
                    if before is None or (one.seeds, one.settings) > (before.seeds, before.settings):
                        found[one.published.key] = one
    return [found[key] for paper in papers() for key in keys_of(paper) if key in found]


def _of_grid(report: api.GridReport, plans: Plans) -> Iterator[Measured]:
    """The measured numbers of a stored grid."""
    cells = report.build().cells
    if cells.empty:
        return
    cells = cells[cells["published"].notna()]
    scores = _scores(cells, report.expanded, report.records)
    for cell in cells.itertuples():
        if cell.done + cell.diverged and cell.published.same_setting:
            yield _measured(cell, scores.get(cell.Index, {}), report.expanded, report.records, plans)


def _scores(cells: pd.DataFrame, grid: StoredGrid, records: Records) -> dict[int, dict[str, float]]:
    """Index of a line of cells -> its scores by seed; {} of a table of measurements."""
    if grid["report"].get("measured"):
        return {}
    grid = grid | {"cells": current_cells(grid, records)}
    found: dict[int, dict[str, float]] = {}
    for metric, lines in cells.groupby("metric"):
        scores = scores_by_seed(lines, collect_runs(grid, records, metric, own_value(grid)))
        found |= {index: row.dropna().to_dict() for index, row in scores.iterrows()}
    return found


def _measured(cell: Any, scores: Mapping[str, float], grid: StoredGrid, records: Records, plans: Plans) -> Measured:
    """What a line of a report's cells says about its published number."""
    reproduces, ended = grid["reproduces"], {run for run, record in records.items() if record["status"] in FINISHED}
    runs = [run for run in cell.run_ids.split() if run in ended]
    axes = _axes_of(runs[0], grid)
    alike = [one for one in current_cells(grid, records) if one["run"] in ended and _has(one, axes)]
    points = [json.loads(point) for point in dict.fromkeys(json.dumps(one["choice"], sort_keys=True) for one in alike)]
    seeds, settings = int(cell.done + cell.diverged), max(plans.settings(grid, alike[0]), len(points))
    planned = max(plans.seeds(reproduces) if reproduces else 0, seeds)
    return Measured(
        published=cell.published,
        mean=cell.mean,
        std=cell.std,
        difference=cell.difference,
        scores=scores,
        verdict=cell.verdict if len(points) == settings and seeds == planned else "",
        band=cell.band,
        rule=grid["verdict"],
        seeds=seeds,
        planned_seeds=planned,
        diverged=int(cell.diverged),
        settings=len(points),
        planned_settings=settings,
        runs=tuple(run for one in alike if (run := one["run"])),
        commits=tuple(dict.fromkeys(_commit(records[run]) for run in runs)),
        command=_command(grid, [axes, *(points if len(points) < settings else ())], alike, plans),
        model=cell.model if cell.model in taken_for(grid) else "",
    )


def _axes_of(run: str, grid: StoredGrid) -> dict[str, Any]:
    """Axis -> value of a run of a grid."""
    cell = next(cell for cell in grid["cells"] if cell["run"] == run)
    return {key: value_of(cell, key) for key in dict.fromkeys(["dataset", *cell_keys(grid)])}


def _has(cell: Mapping[str, Any], axes: Mapping[str, Any]) -> bool:
    return all(value_of(cell, key) == value for key, value in axes.items())


def _command(grid: StoredGrid, settings: list[dict[str, Any]], cells: list[StoredCell], plans: Plans) -> str:
    """The command that plays cells of a grid which have these settings; for a key with several values, each of them."""
    only = dict.fromkeys(f"{key}={_text(value)}" for one in settings for key, value in one.items())
    seeds = sorted({cell["seed"] for cell in cells})
    words = ["--grid", Path(grid.get("source") or unversioned(grid["grid"])).name, "--only", ",".join(only)]
    if seeds != plans.own_seeds(grid):
        words += ["--seeds", ",".join(map(str, seeds))]
    return f"python -m bench run {' '.join(words)} --data-dir data"


def _commit(record: Mapping[str, Any]) -> str:
    """The commit that a record names; a text that is none would break the page."""
    named = record.get("commit") or ""
    return named if re.fullmatch(r"[0-9a-f]+(-dirty)?|version [\w.+]+", named) else "unknown"


def _text(value: Any) -> str:
    """A value as the command line reads it."""
    return value if isinstance(value, str) else json.dumps(value)
