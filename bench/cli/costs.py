"""What a grid would cost (`describe`), as tables for a terminal."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from bench.config.schema import RunConfig
    from bench.experiments.cells import Cell
    from bench.experiments.grid_schema import GridSpec
    from bench.results.records import RunRecord
    from bench.results.store import Store
    from bench.tuning.search import Search

_SIZES = ("kept", "checkpoints", "scratch", "together")


def costs(cells: list[Cell], store: Store, searches: Mapping[str, Search] | None = None) -> list[dict[str, Any]]:
    """What trials cost: one row per dataset and method (with the one around it), and the total, in which both are "".

    Args:
        searches: run id -> the search on validation data that comes before; these runs and their examples count.

    Returns:
        Rows of `dataset`, `algorithm`; `trials`, `chosen`, `trainings`, `done` (without searches), numbers of runs as in the
        caption of the table;
        `examples` of those trainings of which they are known, whether that is a bound (`examples_at_most`), and the number of
        the others, `unknown`; `bytes_per_client` of the smallest and the largest trial, each with whether that is a bound
        (`at_most`), None for a size that is not known.
    """
    from bench.config.stale import changes
    from bench.experiments.cost import bytes_per_client, examples_are_bound, is_bound
    from bench.experiments.labels import competitor

    searches = searches or {}
    current = {run for run, known in finished(cells, store).items() if not changes(*known, store)}
    counted: set[tuple[str, str]] = set()  # trainings that were counted in a row above
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        around = [cell.wrapper] * cell.is_wrapped
        groups.setdefault((cell.dataset, competitor([cell.setting("algorithm"), *around])), []).append(cell)
    rows = []
    for (dataset, algorithm), members in groups.items():
        sizes = {cell.id: bytes_per_client(cell.config) for cell in members}
        known = sorted((size, is_bound(cell.config)) for cell in members if (size := sizes[cell.id]) is not None)
        ends = dict.fromkeys((known[0], known[-1])) if known else ()
        traffic = [*({"bytes": size, "at_most": bound} for size, bound in ends), *[None] * (None in sizes.values())]
        numbers = _with_searches(_counts(members, current, counted, searches), members, searches)
        bound = any(examples_are_bound(cell.config) for cell in members)
        numbers |= {"bytes_per_client": traffic, "examples_at_most": bound}
        rows.append({"dataset": dataset, "algorithm": algorithm} | numbers)
    total = _with_searches(_counts(cells, current, set(), searches), cells, searches)
    bound = any(row["examples_at_most"] for row in rows)
    return [*rows, {"dataset": "", "algorithm": "", "examples_at_most": bound} | total]


def _with_searches(numbers: dict[str, int], cells: list[Cell], searches: Mapping[str, Search]) -> dict[str, int]:
    """Counts of runs with those of their searches."""
    from bench.experiments.cost import examples_to_train

    distinct = {search.name: search for cell in cells if (search := searches.get(cell.id))}.values()
    if not distinct:
        return numbers
    tried = [(one.wanted, config) for one in distinct for config in one.configs.values()]
    examples = sum(count * examples_to_train(config) for count, config in tried)
    own = {key: number for key, number in numbers.items() if key != "done"}  # which runs will be chosen is not known
    return own | {"searched": sum(count for count, _ in tried), "examples": numbers["examples"] + examples}


def cost_table(title: str, rows: list[dict[str, Any]]) -> Group:
    """The rows of `costs`, below a title and above what the columns are."""
    searched = ["searched"] * any("searched" in row for row in rows)
    done = ["done"] * (not searched)
    numbers = (*searched, "trials", "chosen", "trainings", *done, "M examples", "MB/client")
    table = Table("dataset", "method", *(Column(name, justify="right") for name in numbers))
    for row in rows:
        if not row["dataset"]:
            table.add_section()
        known = [f"{'≤ ' * end['at_most']}{end['bytes'] / 1e6:.2f}" for end in row.get("bytes_per_client", ()) if end]
        unknown = ["?"] * (None in row.get("bytes_per_client", ()))
        megabytes = ", ".join([*[" to ".join(known)] * bool(known), *unknown])
        counts = [str(row.get(key, 0)) for key in numbers[:-2]]
        table.add_row(row["dataset"] or "all", row["algorithm"], *counts, _examples_in_words(row), megabytes)
    # rich would wrap them where the table ends.
    about = _SEARCHED * bool(searched) + _CAPTION
    return Group(Text(title, "table.title"), table, Text(about, "table.caption"))


def _examples_in_words(row: Mapping[str, Any]) -> str:
    if row["unknown"] and not row["examples"]:
        return "?"
    return "≤ " * row["examples_at_most"] + _millions(row["examples"]) + " ?" * bool(row["unknown"])


def heads_in_words(cells: list[Cell], grid: GridSpec, store: Store) -> str:
    """What heads on frozen encoders cost, which the table of a grid is about; "" for other grids."""
    from bench.experiments.cost import heads_to_train

    measured = grid.report.measured
    if not measured or measured.kind not in ("encoder-heads", "encoder-information"):
        return ""
    count, visited, done = 0, 0, 0
    for cell in {cell.id: cell for cell in cells}.values():
        heads, examples = heads_to_train(cell.config, measured.model_dump())
        count, visited = count + heads, visited + examples
        done += heads * bool(measured.results(store, cell.id, cell.config.rounds))
    millions = f"{_millions(visited)} M examples" if visited else "? examples"
    return f"Not counted above: {count} heads on frozen encoders, trained once the runs are done ({done} done), {millions}."


def disk_use(cells: list[Cell], grid: GridSpec, store: Store, at_once: int) -> list[dict[str, Any]]:
    """What runs take on disk, one row for each value of `--keep-state`.

    Args:
        at_once: number of trials that run at the same time.

    Returns:
        Rows of `keep_state`; bytes `kept`, of `checkpoints`, of `scratch` files and `together`, None where no run's are known;
        `unknown`, the number of runs whose bytes are not.
    """
    from bench.execution import disk
    from bench.experiments.execution_options import ExecutionOptions
    from bench.experiments.planning import retention_of, training_of
    from bench.simulation.retention import Final

    bases = {base.id: base for cell in cells if not cell.missing and (base := training_of(cell))}
    runs = {cell.id: cell for cell in cells if not cell.missing} | bases
    rows = []
    for keep in get_args(Final):
        options = ExecutionOptions(keep=keep)
        retention = {run: retention_of(cell, grid, options, store, run in bases) for run, cell in runs.items()}
        found = list(disk.footprints(runs.values(), retention).values())
        known = [one for one in found if one]
        sizes = disk.total(known, at_once) if known else ()
        together = (*sizes, sum(sizes)) if sizes else (None,) * 4
        rows.append(
            {"keep_state": keep, **dict(zip(_SIZES, together, strict=True)), "unknown": len(found) - len(known)}
        )
    return rows


def disk_table(rows: list[dict[str, Any]], at_once: int) -> Table:
    """The rows of `disk_use`."""
    from bench.execution import disk

    caption = (
        f"kept: states of all trials in the results directory; checkpoints: of the {at_once} largest trials at once, one per "
        "core of this machine; scratch: client states of large models in files beside the decoded datasets, while they "
        "run"
    )
    columns = ("--keep-state", *(Column(name, justify="right") for name in _SIZES))
    table = Table(*columns, title="disk", title_justify="left", caption=caption, caption_justify="left")
    for row in rows:
        texts = ["?" if row[key] is None else disk.in_words(row[key]) for key in _SIZES]
        if row["unknown"] and row["kept"] is not None:
            texts[0] += f" + {row['unknown']} of unknown size"
        table.add_row(row["keep_state"], *texts)
    return table


def chosen(cells: Iterable[Cell]) -> int:
    """Trials with one tuning point for each place of the table and seed, instead of every point of the tuning sets."""
    places = set()
    for cell in cells:
        config = cell.config.canonical()
        config["algorithm"] = _without(config["algorithm"], cell.choice)
        places.add((cell.dataset, json.dumps(_without(config, cell.choice))))
    return len(places)


def _without(settings: dict[str, Any], choice: Collection[str]) -> dict[str, Any]:
    """Settings, or a method and those that it wraps, without what a tuning point chooses."""
    rest = {key: value for key, value in settings.items() if key not in choice}
    return rest | ({"base": _without(rest["base"], choice)} if isinstance(rest.get("base"), dict) else {})


def finished(cells: Iterable[Cell], store: Store) -> dict[str, tuple[RunRecord, RunConfig]]:
    """Run id -> record and config of the runs that have finished, stale ones included."""
    from bench.results.records import FINISHED

    records = ((cell, store.record(cell.id)) for cell in cells)
    ended = ((cell, record) for cell, record in records if record and record["status"] in FINISHED)
    return {cell.id: (record, cell.config) for cell, record in ended}


def _counts(
    cells: list[Cell], current: set[str], counted: set[tuple[str, str]], searches: Mapping[str, Search]
) -> dict[str, int]:
    from bench.experiments.cost import examples_to_train
    from bench.experiments.planning import training_of

    done = len(current & {cell.id for cell in cells})
    trained, after = {}, {}
    for cell in cells:
        base = training_of(cell)
        if base:  # what a method does with the models that another run has trained
            after[cell.id] = examples_to_train(cell.config) - examples_to_train(base.config)
        trained[_choice_of(cell, base, searches), (base or cell).id] = (base or cell).config
    examples = [examples_to_train(config) for key, config in trained.items() if key not in counted]
    counted.update(trained)
    numbers = {"trials": len(cells), "chosen": chosen(cells), "trainings": len(examples), "done": done}
    return numbers | {"examples": sum(examples) + sum(after.values()), "unknown": examples.count(0)}


def _choice_of(cell: Cell, base: Cell | None, searches: Mapping[str, Search]) -> str:
    """The name of the search that chooses how a cell's training is done; "" where none does, because all that is searched are
    options of what is around the base that trains."""
    search = searches.get(cell.id)
    own = cell.config.algorithm.keys() if base else ()
    return search.name if search and search.space.keys() - own else ""


def _millions(count: int) -> str:
    """ "1,234.5", and "0.0026" of few."""
    return f"{count / 1e6:,.1f}" if count >= 1e6 or not count else f"{float(f'{count:.2g}') / 1e6:.6f}".rstrip("0")


_SEARCHED = "searched: runs of searches on validation data, beside those of trainings; M examples has both; "
_CAPTION = (
    "trials: every point of the tuning sets; chosen: one for each cell and seed; trainings: runs that train, each counted "
    "once (what is calibrated after training shares one, if no search chooses how it trains); M examples: millions of "
    "training examples, all epochs and trainings (`python -m bench speed` says how many this machine trains in a second; ?: "
    "not known before the images are read, as --data-dir DIR does); MB/client: sent and received in one trial, mean over "
    "clients (10^6 bytes); ≤: at most, as a method may train or send less"
)
