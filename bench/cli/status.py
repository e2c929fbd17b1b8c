"""`python -m bench status`: what a results directory holds at this moment, and how long the rest takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from rich.table import Column, Table
from rich.text import Text

from bench.cli import options as given
from bench.cli.console import console, counted, explained, name_damaged, no_results, say, say_json, say_stale

if TYPE_CHECKING:
    from bench.results.grids import StoredCell, StoredGrid, StoredSearch
    from bench.results.records import Config
    from bench.results.searched import SearchedRun
    from bench.results.snapshot import RunState, Snapshot
    from bench.results.store import Store

_ALWAYS = ("finished", "running", "failed", "not begun")
_COLUMNS = ("finished", "diverged", "running", "waiting", "interrupted", "failed", "stopped", "not begun", "no data")
_SEARCHES, _OTHERS = "searches", "other runs"


def status(
    grid: given.StoredGridOption = None,
    json_: given.JsonOption = False,
    results_dir: given.ResultsOption = given.RESULTS,
) -> None:
    """Say what a results directory holds: runs that have finished, run or have failed, and how long the rest takes.

    It can be asked at any time, also while a command is training.
    """
    from bench.results.grids import current_cells
    from bench.results.searched import runs_of_searches
    from bench.results.snapshot import read_snapshot
    from bench.results.store import Store

    with explained():
        store = Store(results_dir)
        snapshot = read_snapshot(store)
        states = snapshot.runs
        name, budget = given.stored_name(grid, None)
        grids = {label: stored for label in store.grids() if (stored := store.grid(label))}
        shown = {label: grids[label] for label in store.labels_of(name, budget) if label in grids}
        if grid and not shown:
            raise ValueError(no_results(store, name, budget))
        name_damaged(store, looked=True)
        statuses = {run: state.status for run, state in states.items()}
        cells = {label: current_cells(stored["cells"], statuses) for label, stored in shown.items()}
        others = _others(grids.values(), states)
        searches = {name: found for name in store.searches() if (found := store.search(name))}
        configs = {run: config for run in others if (config := store.config(run))}
        of_searches = runs_of_searches(searches, configs)
        searched = [*{each.run: each for found in of_searches.values() for each in found}.values()]
        trials = _trials(snapshot, searched)
        if grid:  # alone, but what runs beside it takes its share of the machine
            others, searches, searched = {}, {}, []
        rows = _rows(shown, cells, searched, others, states, trials)
        running = _running(snapshot, shown, {run: configs.get(run, {}) for run in others})
        stale = _stale(store, cells, others, states)
        if json_:
            say_json(_for_programs(store, snapshot, rows, stale, running, searches))
            return
        _say_driver(store, snapshot, trials)
        if rows:
            console.print(_table(rows, trials))
        say_stale(stale)
        _say_running(running)
        _say_searches(searches, of_searches, states)


class _Row(NamedTuple):
    """The runs of a grid and budget, those of all searches, or the others.

    Attributes:
        counts: column -> number of runs.
        left: seconds until all have ended, at the speed of the runs so far; None where nobody knows.
        last_ended: when the last one has ended, in seconds since the epoch; None if none has.
    """

    label: str
    counts: Counter[str]
    left: float | None
    last_ended: float | None


class _Running(NamedTuple):
    run: str
    name: str
    round: int
    rounds: int | None
    machine: str


def _for_programs(
    store: Store,
    snapshot: Snapshot,
    rows: Iterable[_Row],
    stale: Mapping[str, list[str]],
    running: Iterable[_Running],
    searches: Mapping[str, StoredSearch],
) -> dict[str, Any]:
    """What `status` says, for `--json`; times in seconds, clock times in UTC."""
    driver = snapshot.driver
    return {
        "results_dir": str(store.folder),
        "driver": driver and {"at_work": driver.is_at_work, "since": _utc(driver.since)},
        "grids": [
            {
                "grid": None if row.label in (_SEARCHES, _OTHERS) else row.label,
                "of_searches": row.label == _SEARCHES,
                **{name.replace(" ", "_"): row.counts.get(name, 0) for name in _COLUMNS},
                "seconds_left": row.left,
                "last_ended": _utc(row.last_ended),
            }
            for row in rows
        ],
        "running": [each._asdict() for each in running],
        "stale": [{"changed": changed, "runs": runs} for changed, runs in stale.items()],
        "searches": [
            {"search": name, "begun": len(found["proposed"]), "of": found.get("wanted", found.get("samples"))}
            for name, found in searches.items()
        ],
    }


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _others(grids: Iterable[StoredGrid], states: Mapping[str, RunState]) -> dict[str, RunState]:
    """The runs that are in no grid: those of searches, those from whose end others start, and single ones."""
    named = {cell["run"] for stored in grids for cell in stored["cells"]}
    return {run: state for run, state in states.items() if run not in named}


def _rows(
    grids: Mapping[str, StoredGrid],
    cells: Mapping[str, list[StoredCell]],
    searched: list[SearchedRun],
    others: Mapping[str, RunState],
    states: Mapping[str, RunState],
    trials: int,
) -> list[_Row]:
    """A row per grid and budget, one for the runs of searches, and one for the others."""
    rows = []
    for label, held in cells.items():
        configs = {cell["run"]: cell["config"] for cell in held if cell["run"]}
        row = _row(label, configs, states, trials, grids[label].get("planned_examples", {}))
        row.counts["no data"] = sum(cell["run"] is None for cell in held)
        rows.append(row)
    of_searches = {each.run: each.config for each in searched}
    if of_searches:
        rows.append(_row(_SEARCHES, of_searches, states, trials, {}))
    single = [state for run, state in others.items() if run not in of_searches]
    if single:
        rows.append(_Row(_OTHERS, Counter(map(_column, single)), 0.0, _last_ended(single)))
    return rows


def _row(
    label: str,
    configs: Mapping[str, Config],
    states: Mapping[str, RunState],
    trials: int,
    planned: Mapping[str, int],
) -> _Row:
    from bench.results.time_left import time_left

    counts = Counter(_column(states.get(run)) for run in configs)
    left = time_left(configs, states, trials, planned)
    return _Row(label, counts, left, _last_ended(states[run] for run in configs if run in states))


def _trials(snapshot: Snapshot, searched: Iterable[SearchedRun]) -> int:
    """Trials that run at once, at least 1; one of a search trains the runs of all its seeds."""
    seeds = {each.run: each.seeds for each in searched}
    return max(1, round(sum(1 / seeds.get(run, 1) for run in snapshot.running)))


def _table(rows: list[_Row], trials: int) -> Table:
    columns = [name for name in _COLUMNS if name in _ALWAYS or any(row.counts.get(name) for row in rows)]
    caption = (
        f"left: at the speed of the runs so far, {counted(trials, 'trial')} at once, without failed runs, which a run repeats; "
        "searches may stop runs early"
    )
    table = Table(
        "grid",
        *(Column(name, justify="right") for name in (*columns, "left")),
        "last ended",
        caption=caption if any(row.left != 0 for row in rows) else None,
        caption_justify="left",
    )
    for label, counts, left, last in rows:
        table.add_row(Text(label), *(str(counts.get(name, 0)) for name in columns), _left(left), _ago(last))
    return table


def _column(state: RunState | None) -> str:
    """The column in which a run is counted."""
    if state is None:
        return "not begun"
    return "finished" if state.status == "done" else state.status


def _left(seconds: float | None) -> str:
    from bench.results.time_left import duration_in_words

    if seconds is None:
        return "?"
    return f"about {duration_in_words(seconds)}" if seconds else ""


def _last_ended(states: Iterable[RunState]) -> float | None:
    """Seconds since the epoch; None if none has ended."""
    return max((ended for state in states if (ended := _time(state.finished))), default=None)


def _ago(then: float | None) -> str:
    """ "14:03, 3 min ago"; "" if there was none."""
    from bench.results.time_left import duration_in_words

    return "" if then is None else f"{_clock(then)}, {duration_in_words(max(0.0, time.time() - then))} ago"


def _time(text: str | None) -> float | None:
    """Seconds since the epoch, of a time as records have it; None of one that cannot be read, or not be told here."""
    from bench.results.records import moment

    seconds = moment(text)
    try:
        return seconds if seconds is None or _clock(seconds) else None
    except (ValueError, OverflowError, OSError):
        return None


def _clock(seconds: float) -> str:
    """ "14:03" today, "2026-11-22 14:03" on other days."""
    then = datetime.fromtimestamp(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d %H:%M}"


def _say_driver(store: Store, snapshot: Snapshot, trials: int) -> None:
    driver = snapshot.driver
    if driver is None or not driver.is_at_work:
        killed = (
            f"; the last one, begun at {_clock(driver.since)}, was killed, or its machine stopped" if driver else ""
        )
        say(f"No command is training in {store.folder}{killed}.")
        return
    running = counted(trials if snapshot.running else 0, "trial")
    say(f"A command is training in {store.folder} since {_clock(driver.since)}; running: {running}.")


def _running(snapshot: Snapshot, grids: Mapping[str, StoredGrid], others: Mapping[str, Config]) -> list[_Running]:
    """The trials that are running, of those that are shown."""
    from bench.experiments.labels import names_of_configs

    held = {cell["run"]: (cell, stored) for stored in grids.values() for cell in stored["cells"]}
    names = names_of_configs({run: others[run] for run in snapshot.running if run in others})
    names |= {run: _name_of(*held[run]) for run in snapshot.running if run in held}
    configs = others | {run: cell["config"] for run, (cell, _) in held.items()}
    states = snapshot.runs
    return [
        _Running(run, name, states[run].rounds, configs[run].get("rounds"), states[run].machine)
        for run in snapshot.running
        if (name := names.get(run))
    ]


def _say_running(running: Iterable[_Running]) -> None:
    for run, name, round, rounds, machine in running:
        where = f" on {machine}" if machine else ""
        say(f"{run}  {name}: round {round} of {'?' if rounds is None else rounds}{where}")


def _stale(
    store: Store,
    cells: Mapping[str, list[StoredCell]],
    others: Mapping[str, RunState],
    states: Mapping[str, RunState],
) -> dict[str, list[str]]:
    """Each set of changes of the code -> finished runs, of those that are shown, that have not been repeated since."""
    from bench.config.stale import stale_runs
    from bench.results.records import FINISHED

    configs: dict[str, Any] = {cell["run"]: cell["config"] for held in cells.values() for cell in held if cell["run"]}
    configs |= {run: store.config(run) for run, state in others.items() if state.code}
    ended = {run: states[run] for run in configs if run in states and states[run].status in FINISHED}
    return stale_runs({run: (state.code, configs[run]) for run, state in ended.items() if configs[run]}, store)


def _name_of(cell: StoredCell, grid: StoredGrid) -> str:
    """A run for people: "cifar10 label-2 fedprox clients=200 mu=0.01 seed 0"."""
    from bench.experiments.labels import chosen_in, pairs, value_of

    first = ("dataset", "partition", "algorithm")
    axes = dict.fromkeys([*grid["report"]["rows"], grid["report"]["columns"]])
    others = {key: value for key in axes if key not in first and (value := value_of(cell, key)) is not None}
    words = [str(value_of(cell, key)) for key in first]
    return " ".join([*words, *pairs(others | chosen_in(cell)), f"seed {cell['seed']}"])


def _say_searches(
    searches: Mapping[str, StoredSearch], runs: Mapping[str, list[SearchedRun]], states: Mapping[str, RunState]
) -> None:
    """A line per search that has not ended, and one for all others; what their configurations have reached is in the files that
    they leave in `reports`."""
    from bench.results.records import Status

    ended, tried, failed = 0, 0, 0
    for name, found in searches.items():
        begun, of_each = len(found["proposed"]), len(found["configs"])
        statuses = [states[each.run].status if each.run in states else None for each in runs[name]]
        if begun and all(status in get_args(Status) for status in statuses):
            ended, tried, failed = ended + 1, tried + begun, failed + statuses.count("failed")
            continue
        samples = found.get("wanted", found.get("samples"))
        count = (
            counted(begun, "configuration") if samples is None else f"{begun} of {counted(samples, 'configuration')}"
        )
        say(f"Search {name}: {count} begun, {counted(of_each, 'run')} each.")
    if ended:
        failures = f"; {counted(failed, 'run')} failed" if failed else ""
        say(f"{counted(ended, 'search', 'searches')} ended, with {counted(tried, 'configuration')}{failures}.")
