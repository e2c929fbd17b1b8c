"""Two results directories side by side: what the cells of their grids reached, and whether the same runs gave the same
numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from tabulate import tabulate

from bench.results.equality import differences
from bench.results.metrics import METRICS
from bench.results.store import UNFINISHED, Store
from reports.tables.aggregate import cell_keys, choice_of, collect_runs, current_cells, label
from reports.tables.layout import percent
from reports.tables.published_comparison import own_value

_MOST_NAMED = 10
_FACTS = ("commit", "device", "engine", "threads", "block", "data")


@dataclass(frozen=True)
class Comparison:
    """What two directories hold of one grid.

    Attributes:
        name: `<grid>@<budget>`.
        tables: metric -> one line per cell and tuning choice in which a run has ended on either side. Columns: the cell's axes,
            tuning (only where there is any), A, B (percent, mean±std over seeds), B - A (points, mean±std over the seeds that
            both have), numbers ("identical", "1 of 3 differ", "other runs", "only in A", "only in B").
        shared: number of runs that have ended on both sides.
        differing: run id -> the first difference of its numbers.
        choices: cells for which searches have chosen other hyper-parameters -> what they have, in A and in B.
        facts: what the runs of both sides were made with, where that differs: name -> (values of A, values of B).
    """

    name: str
    tables: dict[str, pd.DataFrame]
    shared: int
    differing: dict[str, str]
    choices: dict[str, tuple[str, str]]
    facts: dict[str, tuple[list[str], list[str]]]


def compare(name: str, one: Store, other: Store) -> Comparison:
    """Compares a grid that both directories hold; both are read as the first one lays it out.

    Raises:
        StoreError: if a file cannot be read.
        ValueError: if cells cannot be told apart.
    """
    grids = [one.grid(name), other.grid(name)]
    grids[1] = grids[1] | {"report": grids[0]["report"], "std": grids[0]["std"]}
    records = [_records(grid, store) for grid, store in zip(grids, (one, other), strict=True)]
    grids = [grid | {"cells": current_cells(grid, own)} for grid, own in zip(grids, records, strict=True)]
    shared = records[0].keys() & records[1].keys()
    found = {
        id_: differences((one.rows(id_), records[0][id_]), (other.rows(id_), records[1][id_])) for id_ in sorted(shared)
    }
    differing = {id_: difference for id_, difference in found.items() if difference}
    value, tables = own_value(grids[0]), {}
    for metric in METRICS:
        sides = [collect_runs(grid, own, metric, value) for grid, own in zip(grids, records, strict=True)]
        if any(side["score"].notna().any() for side in sides):
            tables[metric] = pd.DataFrame(_lines(sides, records, differing, grids[0]))
    chosen = [
        {
            ", ".join(label(cell, key) for key in cell_keys(grid)): choice_of(cell)
            for cell in grid["cells"]
            if cell.get("tuned")
        }
        for grid in grids
    ]
    unlike_choices = {
        where: (own, chosen[1][where]) for where, own in chosen[0].items() if chosen[1].get(where, own) != own
    }
    facts = [_facts(own) for own in records]
    unlike = {key: (facts[0].get(key, []), facts[1].get(key, [])) for key in dict.fromkeys([*facts[0], *facts[1]])}
    return Comparison(
        name,
        tables,
        len(shared),
        differing,
        unlike_choices,
        {key: two for key, two in unlike.items() if two[0] != two[1]},
    )


def render(comparison: Comparison) -> str:
    """A comparison as Markdown."""
    parts = [f"# {comparison.name}"]
    for metric, table in comparison.tables.items():
        if len(comparison.tables) > 1:
            parts.append(f"## {metric}")
        body = [[str(value).replace("|", "\\|") for value in line] for line in table.itertuples(index=False)]
        parts.append(tabulate(body, list(table.columns), tablefmt="pipe", stralign="left", disable_numparse=True))
    if not comparison.tables:
        parts.append("No run of it is done in A or B.")
    parts.append("\n".join(f"- {note}" for note in _notes(comparison)))
    return "\n\n".join(parts) + "\n"


def _records(grid: dict, store: Store) -> dict[str, dict]:
    found = {id_: store.record(id_) for id_ in dict.fromkeys(cell["run"] for cell in grid["cells"]) if id_}
    return {id_: record for id_, record in found.items() if record and record["status"] not in UNFINISHED}


def _lines(sides: Sequence[pd.DataFrame], records: Sequence[dict], differing: dict, grid: dict) -> Iterator[dict]:
    """The lines of one metric's table, in the order of the first grid."""
    keys, ddof = [*cell_keys(grid), "choice"], {"population": 0, "sample": 1}[grid["std"]]
    tuned = any(side["choice"].any() for side in sides)
    # What searches have chosen may differ between the sides, and is part of what is compared.
    sides = [side.assign(choice=side["choice"].where(side["searched"] == 0, "searched")) for side in sides]
    cells = [{where: runs.set_index("seed") for where, runs in side.groupby(keys, sort=False)} for side in sides]
    for where in dict.fromkeys([*cells[0], *cells[1]]):
        runs = [side.get(where, sides[0].head(0).set_index("seed")) for side in cells]
        ended = [set(own["run"].dropna()) & known.keys() for own, known in zip(runs, records, strict=True)]
        scores = [own["score"].astype(float).dropna() for own in runs]
        empty = not any(map(len, scores)) and not any(own[["diverged", "failed"]].to_numpy().any() for own in runs)
        if any(ended) and not empty:
            axes = dict(zip(keys, where, strict=True))
            tuning = axes.pop("choice")
            yield (
                axes
                | ({"tuning": tuning} if tuned else {})
                | {
                    "A": _spread(scores[0], ddof),
                    "B": _spread(scores[1], ddof),
                    "B - A": _spread((scores[1] - scores[0]).dropna(), ddof, signed=True),
                    "numbers": _numbers(*ended, differing),
                }
            )


def _numbers(one: set[str], other: set[str], differing: dict) -> str:
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
    mean = f"{values.mean() + 0.0:+.1f}" if signed else percent(values.mean())
    return mean + (f"±{percent(values.std(ddof=ddof))}" if len(values) > 1 else "")


def _facts(records: dict[str, dict]) -> dict[str, list[str]]:
    """What records say of how their runs were made: name -> all values, sorted."""
    found: dict[str, set[str]] = {}
    for record in records.values():
        facts = {key: record.get(key) for key in _FACTS} | record.get("versions", {})
        facts["data"] = (record.get("data") or {}).get("digest")
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
        yield f"{comparison.shared} runs are in both, with identical numbers."
    for where, (one, other) in comparison.choices.items():
        yield f"Searches have chosen otherwise for {where}: {one} in A, {other} in B."
    for key, (one, other) in comparison.facts.items():
        yield f"{key}: {', '.join(one) or 'nothing'} in A, {', '.join(other) or 'nothing'} in B"
