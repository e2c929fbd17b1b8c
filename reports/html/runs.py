"""Config, versions and outcome of every run of the page; values that all runs share are listed once."""

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from bench.results.omitted_defaults import spell_out
from reports.tables.aggregate import cell_keys, choice_of, derived_scores, labels, short
from reports.tables.footnotes import without_paths
from reports.tables.layout import NOT_REACHED, printed
from reports.tables.names import Names
from reports.tables.records import Records

# Of a record: shown elsewhere, or not readable.
_LEFT_OUT = (
    "id",
    "schema",
    "status",
    "reason",
    "diagnostics",
    "client_accuracies",
    "reached",
    "last_row",
    "changed",
    "code",
    "base_code",
)
_MOST_VALUES = 12  # that are listed for a setting


@dataclass(frozen=True)
class RunDetails:
    """All runs of a grid.

    Attributes:
        runs: run id -> {"seed", "status", "reason", "config", "record"}; config and record are name -> text without shared
            values.
        shared: "config" and "record" -> name -> text of the values that all runs have in common.
        differing: name -> texts of the values of a setting that differs between runs, at most _MOST_VALUES of them.
    """

    runs: dict[str, dict]
    shared: dict[str, dict[str, str]]
    differing: dict[str, list[str]]


@dataclass(frozen=True)
class Line:
    """A run in the list of all runs.

    Attributes:
        labels: names of its cell: one per row key, and the column.
        scores: percent or the unit of a cost, one per metric of the report; None without a number.
        texts: the same as tables print them; "not reached" of a target.
    """

    run: str
    labels: tuple[str, ...]
    choice: str
    seed: int
    status: str
    scores: tuple[float | None, ...]
    texts: tuple[str, ...]
    rounds: int | None
    seconds: float | None
    reason: str


def collect(grid: StoredGrid, records: Records) -> RunDetails:
    """The runs of a grid, with the names of image folders and without their paths; arguments as in
    `reports.html.page.render`."""
    hide = without_paths(grid)
    configs = {cell["run"]: _named(spell_out(cell["config"]), hide) for cell in grid["cells"] if cell["run"]}
    ended = {run: _named(_short(_without(records[run], _LEFT_OUT)), hide) for run in configs if run in records}
    seeds = {cell["run"]: cell["seed"] for cell in grid["cells"]}
    shared = {"config": _common(configs), "record": _common(ended)}
    runs = {
        run: {
            "seed": seeds[run],
            "status": status_of(run, records),
            "reason": hide(records[run].get("reason") or "") if run in records else "",
            "config": _without(config, shared["config"]),
            "record": _without(ended.get(run, {}), shared["record"]),
        }
        for run, config in configs.items()
    }
    return RunDetails(runs, shared, _differing(configs, shared["config"]))


def lines(metrics: Sequence[str], value: str, grid: StoredGrid, records: Records) -> Iterator[Line]:
    """All runs in the grid's order.

    Args:
        metrics: those that are shown of each run.
        value: at which rounds: `last`, `best` or `last10`.
        grid, records: as in `collect`.
    """
    names, keys, hide = Names.of_grid(grid), cell_keys(grid), without_paths(grid)
    called = functools.cache(lambda key, value: names.value(key, value).plain)  # of few values in thousands of runs
    derived = {metric: found for metric in metrics if (found := derived_scores(grid, records, metric)) is not None}
    for cell in grid["cells"]:
        if cell["run"]:
            record: Mapping[str, Any] = records.get(cell["run"], {})
            own = {metric: found.get(cell["run"]) for metric, found in derived.items()}
            known = record.get("summary", {}).get(value, {}) | {
                metric: score for metric, score in own.items() if isinstance(score, int | float)
            }
            scores = {metric: METRICS[metric].scale * score for metric, score in known.items() if metric in metrics}
            yield Line(
                run=cell["run"],
                labels=tuple(called(key, value) for key, value in labels(cell, keys).items()),
                choice=names.choice(short(choice_of(cell))).plain,
                seed=cell["seed"],
                status=status_of(cell["run"], records),
                scores=tuple(
                    None if math.isnan(scores.get(metric, math.nan)) else scores[metric] for metric in metrics
                ),
                texts=tuple(_score(metric, scores[metric]) if metric in scores else "" for metric in metrics),
                rounds=record.get("rounds"),
                seconds=record.get("seconds"),
                reason=hide(record.get("reason") or ""),
            )


def _score(metric: str, score: float) -> str:
    return NOT_REACHED if math.isnan(score) else printed(metric, score)


def status_of(run: str, records: Records) -> str:
    """ "done", "diverged" or "failed"; "waiting" for a run that has not ended."""
    return records[run]["status"] if run in records else "waiting"


def _named(part: Mapping, hide: Callable[[str], str]) -> dict[str, str]:
    return {name: hide(text) for name, text in _flat(part)}


def _flat(part: Mapping, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name -> text of every value: "algorithm.mu", "0.01"."""
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in ("", []):
            yield f"{prefix}{name}", _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(part: Mapping) -> dict:
    """A record with numbers rounded to six digits."""
    return {name: _short(value) if isinstance(value, Mapping) else _rounded(value) for name, value in part.items()}


def _rounded(value: object) -> object:
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _common(of_runs: dict[str, dict[str, str]]) -> dict[str, str]:
    """The entries that all runs share."""
    first, *others = of_runs.values() or [{}]
    return {name: text for name, text in first.items() if all(other.get(name) == text for other in others)}


def _differing(configs: dict[str, dict[str, str]], shared: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for config in configs.values():
        for name, text in _without(config, shared).items():
            found.setdefault(name, {})[text] = None
    return {name: _listed([*texts]) for name, texts in found.items()}


def _listed(texts: list[str]) -> list[str]:
    rest = len(texts) - _MOST_VALUES
    return texts if rest <= 0 else [*texts[:_MOST_VALUES], f"and {rest} more"]


def _without(part: Mapping, names: Mapping | tuple) -> dict:
    return {name: value for name, value in part.items() if name not in names}
