"""Comparison of two results directories: accuracies of their grids, and whether equal runs have equal numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.results.equality import differences
from bench.results.grids import StoredGrid
from bench.results.metrics import ACCURACIES
from bench.results.records import FINISHED
from bench.results.store import Store
from reports.formats.markdown import escape, pipe_table
from reports.tables.aggregate import (
    BETWEEN_CHOICES,
    BETWEEN_RUNS,
    DDOF,
    cell_keys,
    choice_of,
    collect_runs,
    current_cells,
    label,
)
from reports.tables.layout import half_up, percent
from reports.tables.published_comparison import own_value
from reports.tables.records import Records, ReportedRecord

_MOST_NAMED = 10
_FACTS = ("commit", "processor", "device", "tf32", "engine", "threads", "block", "data")


@dataclass(frozen=True)
class Comparison:
    """Comparison of one grid's results in two directories, A and B.

    Attributes:
        name: `<grid>@<budget>`.
        tables: metric -> one line per cell and tuning choice with an ended run in A or B. Columns: the cell's axes, tuning
            (only with tuning sets), A, B (percent, mean±std over seeds), B - A (points, mean±std over common seeds), numbers
            ("identical", "1 of 3 differ", "other runs", "only in A", "only in B").
        shared: number of runs that have ended in both.
        differing: run id -> the first difference of its numbers.
        choices: cell -> hyper-parameters that searches chose in A and in B, if they differ.
        facts: name -> values of A and of B, for commits, devices, versions and data that differ.
    """

    name: str
    tables: dict[str, pd.DataFrame]
    shared: int
    differing: dict[str, str]
    choices: dict[str, tuple[str, str]]
    facts: dict[str, tuple[list[str], list[str]]]


def compare(name: str, one: Store, other: Store) -> Comparison:
    """Compares a grid that both directories hold, with the report layout of the first.

    Raises:
        StoreError: if a file cannot be read.
        ValueError: if two runs of one seed belong to the same table cell.
    """
    stores = (one, other)
    grids = [grid for store in stores if (grid := store.grid(name))]
    grids[1] = grids[1] | {"report": grids[0]["report"], "std": grids[0]["std"]}
    records = [_records(grid, store) for grid, store in zip(grids, stores, strict=True)]
    grids = [grid | {"cells": current_cells(grid, own)} for grid, own in zip(grids, records, strict=True)]
    shared = sorted(records[0].keys() & records[1].keys())
    differing = _differing_runs(shared, stores, records)
    return Comparison(
        name,
        tables=_tables(grids, records, differing),
        shared=len(shared),
        differing=differing,
        choices=_differing_choices(grids),
        facts=_differing_facts(records),
    )


def render(comparison: Comparison) -> str:
    """A comparison as Markdown."""
    parts = [f"# {comparison.name}"]
    for metric, table in comparison.tables.items():
        if len(comparison.tables) > 1:
            parts.append(f"## {metric}")
        body = [[escape(str(value)) for value in line] for line in table.itertuples(index=False)]
        parts.append(pipe_table([*map(escape, table.columns)], body))
    if not comparison.tables:
        parts.append("No run of it is done in A or B.")
    parts.append("\n".join(f"- {escape(note)}" for note in _notes(comparison)))
    return "\n\n".join(parts) + "\n"


def _records(grid: StoredGrid, store: Store) -> dict[str, ReportedRecord]:
    """Run id -> record of the runs of a grid that have reached their end."""
    return {id_: {**record} for id_, record in store.records_of(grid).items() if record["status"] in FINISHED}


def _differing_runs(shared: list[str], stores: Sequence[Store], records: Sequence[Records]) -> dict[str, str]:
    """Run id -> first difference, of the shared runs whose numbers differ."""
    sides = [*zip(stores, records, strict=True)]
    found = {run_id: differences(*((store.rows(run_id), own[run_id]) for store, own in sides)) for run_id in shared}
    return {run_id: difference for run_id, difference in found.items() if difference}


def _tables(
    grids: Sequence[StoredGrid], records: Sequence[Records], differing: dict[str, str]
) -> dict[str, pd.DataFrame]:
    value, tables = own_value(grids[0]), {}
    shown = [grids[0]["report"]["metric"], *grids[0]["report"].get("metrics", ())]
    for metric in sorted(ACCURACIES, key=lambda name: name not in shown):  # first those of the report
        sides = [collect_runs(grid, own, metric, value) for grid, own in zip(grids, records, strict=True)]
        if any(side["score"].notna().any() for side in sides):
            tables[metric] = pd.DataFrame(_lines(sides, records, differing, grids[0]))
    return tables


def _differing_choices(grids: Sequence[StoredGrid]) -> dict[str, tuple[str, str]]:
    """Cell -> choices of searches in A and B, if they differ."""
    found: list[dict[str, dict[str, None]]] = []
    for grid in grids:
        found.append({})
        for cell in grid["cells"]:
            if cell.get("tuned"):  # by each study, if the grid has some
                where = ", ".join(label(cell, key) for key in cell_keys(grid))
                found[-1].setdefault(where, {})[choice_of(cell)] = None
    chosen, others = ({where: BETWEEN_CHOICES.join(own) for where, own in side.items()} for side in found)
    return {where: (own, others[where]) for where, own in chosen.items() if others.get(where, own) != own}


def _differing_facts(records: Sequence[Records]) -> dict[str, tuple[list[str], list[str]]]:
    one, other = map(facts_of, records)
    pairs = {key: (one.get(key, []), other.get(key, [])) for key in dict.fromkeys([*one, *other])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _lines(
    sides: Sequence[pd.DataFrame],
    records: Sequence[Records],
    differing: dict[str, str],
    grid: StoredGrid,
) -> Iterator[dict]:
    """The lines of one metric's table, in the order of the first grid."""
    keys, ddof = [*cell_keys(grid), "choice"], DDOF[grid["std"]]
    tuned = any(side["choice"].any() for side in sides)
    # Choices of searches may differ between A and B, so they do not identify a line.
    sides = [side.assign(choice=side["choice"].where(side["searched"] == 0, "searched")) for side in sides]
    cells = [{where: runs.set_index("seed") for where, runs in side.groupby(keys, sort=False)} for side in sides]
    for where in dict.fromkeys([*cells[0], *cells[1]]):
        runs = [side.get(where, sides[0].head(0).set_index("seed")) for side in cells]
        ids = [{run for unit in own["run"].dropna() for run in unit.split(BETWEEN_RUNS)} for own in runs]
        ended = [own & known.keys() for own, known in zip(ids, records, strict=True)]
        scores = [own["score"].astype(float).dropna() for own in runs]
        empty = not any(map(len, scores)) and not any(own[["diverged", "failed"]].to_numpy().any() for own in runs)
        if any(ended) and not empty:
            axes = dict(zip(keys, where, strict=True))
            tuning = axes.pop("choice")
            yield {
                **axes,
                **({"tuning": tuning} if tuned else {}),
                "A": _spread(scores[0], ddof),
                "B": _spread(scores[1], ddof),
                "B - A": _spread((scores[1] - scores[0]).dropna(), ddof, signed=True),
                "numbers": _numbers(ended[0], ended[1], differing),
            }


def _numbers(one: set[str], other: set[str], differing: dict[str, str]) -> str:
    if not (one and other):
        return "only in A" if one else "only in B"
    shared = one & other
    unlike = len(shared & differing.keys())
    if not shared:
        return "other runs"
    return f"{unlike} of {len(shared)} differ" if unlike else "identical"


def _spread(values: pd.Series, ddof: int, signed: bool = False) -> str:
    if values.empty:
        return ""
    mean = f"{half_up(values.mean()):+z.1f}" if signed else percent(values.mean())
    return mean + (f"±{percent(values.std(ddof=ddof))}" if len(values) > 1 else "")


def facts_of(records: Records) -> dict[str, list[str]]:
    """Commit, device, versions, data and so on of runs: name -> distinct values, sorted."""
    found: dict[str, set[str]] = {}
    for record in records.values():
        facts: dict[str, object] = {key: record.get(key) for key in _FACTS} | record.get("versions", {})
        facts["data"] = record["data"]["digest"] if "data" in record else None
        for key, value in facts.items():
            if value is not None:
                found.setdefault(key, set()).add(str(value))
    return {key: sorted(values) for key, values in found.items()}


def _notes(comparison: Comparison) -> Iterator[str]:
    if comparison.tables:
        yield "Accuracies in percent, mean±std over seeds; B - A over the seeds that both have."
    if not comparison.shared:
        yield "No run has ended on both sides."
    elif comparison.differing:
        yield f"{len(comparison.differing)} of {comparison.shared} runs that both have differ in their numbers:"
        named = list(comparison.differing.items())[:_MOST_NAMED]
        yield from (f"{run_id}: {difference}" for run_id, difference in named)
        if len(comparison.differing) > _MOST_NAMED:
            yield f"and {len(comparison.differing) - _MOST_NAMED} more"
    else:
        yield f"{'1 run is' if comparison.shared == 1 else f'{comparison.shared} runs are'} in both, with identical numbers."
    for where, (one, other) in comparison.choices.items():
        yield f"Searches have chosen otherwise for {where}: {one} in A, {other} in B."
    for key, sides in comparison.facts.items():
        one, other = (", ".join(values) or "nothing" for values in sides)
        yield f"{key}: {one} in A, {other} in B"
