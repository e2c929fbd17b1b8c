"""For notebooks: results as tables of pandas, and one run in this process.

    from bench.api import load_rounds, load_runs, run, table

`load_runs`, `load_rounds` and `table` read a results directory; they need neither PyTorch nor Ray. `run` trains one run
without Ray, with the numbers that `python -m bench run` gets. Mistakes raise `bench.errors.ConfigError`, `StoreError` or
`datasets.DataError`, each with one message that says what to do.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.errors import ConfigError, StoreError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from bench.config.schema import RunConfig
    from bench.results.records import RunRecord
    from bench.results.store import Store
    from bench.simulation.run import Run

# Imports are inside functions: who reads results does not wait for PyTorch.


def load_runs(results_dir: "Path | str | None" = None) -> "pd.DataFrame":
    """Every run of a results directory that has ended, one row per run.

    Damaged runs are left out, with a warning that names their files. Runs of searches are there too: their `split` is
    "validation".

    Args:
        results_dir: as `--results-dir` of the command line; None for $SKEWBENCH_RESULTS, or `results` without that.

    Returns:
        Columns, NaN where they do not apply:

        - `run`: the run id.
        - settings by their names (`dataset`, `partition`, `model`, `clients`, `seed`, ...), and `versions` of its parts.
        - `algorithm`: name of the method; `base`: of the method inside a wrapper, "none" without one. CCVR on top of MOON is
          `ccvr` with the base `moon`.
        - `partition_kind`, and its parameters as numbers: `labels_per_client` of label-2, `concentration` of dir-0.1,
          `shards_per_client`.
        - options by the method that has them: `fedprox.mu`, also where FedProx is the base of another method.
        - `status` (done, diverged, failed, stopped), `reason`, `rounds_trained`.
        - `accuracy_last`, `accuracy_best`, `accuracy_last10` and `accuracy_last10_std` of every accuracy that was measured
          (`own_accuracy_last`, ...), in [0, 1]; so for metrics of methods and callbacks, `method/drift_last`.
        - `hellinger`, `jensen_shannon`, `classes_per_client`, `size_variation`: label skew, see `datasets.skew.Skew`.
        - `seconds` of training and evaluation, `cpu_seconds` of all cores together, `base_seconds` and `base_cpu_seconds` of
          the run from whose end it started, `bytes_per_client` sent and received, mean over clients.
        - `client_accuracies`: a list per run, where clients have test data of their own.
        - `engine`, `device`, `threads`, `peak_memory_mb`, `commit`, `data_note`, `started` and `finished` (UTC).
        - `grids`: list of the stored `<grid>@<budget>` that show the run.

        Of what no run has, there is no column.

    Raises:
        StoreError: if there is no such directory, or no run in it has ended.
    """
    from reports.exports.frames import runs_frame

    with _opened(results_dir) as store:
        return runs_frame(store)


def load_rounds(
    results_dir: "Path | str | None" = None, grid: str | None = None, budget: str | None = None
) -> "pd.DataFrame":
    """Every round of every run of a results directory that has ended: one row per round and grid that shows the run.

    Means over rows are means over runs of one kind only if the rows are of one grid and budget; a table that mixes them comes
    with a warning. `python -m bench export` writes the rows of one grid and budget.

    Args:
        results_dir: as in `load_runs`.
        grid: only of this grid; `NAME@BUDGET` names the budget as well. None for all runs, also those that no grid shows.
        budget: only of this budget, as in `table`.

    Returns:
        `grid` and `budget`, NaN of a run that no grid shows; `substitute_for`, the dataset of the grid that `dataset` stands in
        for; the columns of `load_runs` that say what was run (`run`, settings, options) and `status`; then `round` (from 1),
        accuracies in [0, 1] (NaN in rounds that were not evaluated), `loss`, `bytes_down` and `bytes_up` (since the first
        round, mean over clients), `examples` and `seconds` (since the first round), `examples_per_second` (of the round); and
        metrics of methods and callbacks, `method/drift`.

    Raises:
        StoreError: as `load_runs`, or if no grid of that name and budget is stored.
        ConfigError: if there is no such grid at all.
    """
    from reports.exports.frames import rounds_frame

    with _opened(results_dir) as store:
        meant = None if grid is None and budget is None else _stored(store, grid, budget)
        if meant == []:
            wanted = "@".join(filter(None, (grid, budget)))
            raise StoreError(f"{store.folder} holds no {wanted}, only: {', '.join(store.grids()) or 'nothing yet'}.")
        rounds = rounds_frame(store, meant)
    if rounds["budget"].nunique(dropna=False) > 1 or rounds.duplicated(["run", "round"]).any():
        pairs = rounds[["grid", "budget"]].drop_duplicates().itertuples(index=False)
        places = sorted("no grid" if one != one or one is None else f"{one}@{at}" for one, at in pairs)
        warnings.warn(
            f"The rounds are of {', '.join(places)}, and a run of several of them has a row for each: choose by grid=... and "
            "budget=..., or group by these columns, before you average.",
            stacklevel=2,
        )
    return rounds


def table(
    grid: str, results_dir: "Path | str | None" = None, budget: str | None = None, value: str | None = None
) -> "pd.DataFrame":
    """The table of a grid, one row per cell and metric, in the order of the table.

    `table(...).pivot(index="partition", columns="algorithm", values="mean")` has the shape of the printed one.

    Args:
        grid: name of a grid that was run; `NAME@BUDGET` names the budget as well.
        results_dir: as in `load_runs`.
        budget: its budget, with what was overridden, as in the names of the files: "small", "smoke+rounds=5". None for
            the whole grid ("paper" or "full"), or for the only one at which the directory holds the grid.
        value: `last`, `best` or `last10` rounds; None for the grid's own.

    Returns:
        Columns, NaN where they do not apply:

        - the axes of the table, and `dataset`, `partition`, `algorithm`, `model`, `clients`, `participation`.
        - `metric`, `value`; `mean` and `std` over seeds in percent, or in the unit of a cost, not rounded; `seeds`, and how
          many are `done`, `missed` (a target), `diverged`, `failed`.
        - `choice` of hyper-parameters, of how many `settings` how many were `tried`.
        - `gain` and `gain_std` over the cell that the grid names; `best` of its row; `not_significant`: not the best, but
          not distinguishable from it; `p_value` of that.
        - `published_mean`, `published_std`, `difference` of the means and `verdict`.
        - `missing` data, `substitute` dataset, `run_ids`: list of ids, as `run` of `load_runs`.

    Raises:
        StoreError: if there is no such directory, or it holds no such grid at this budget.
        ConfigError: if there is no such grid at all, or several are meant.
        ValueError: if the value is unknown.
    """
    from reports.api import GridReport
    from reports.exports.frames import cells_frame

    with _opened(results_dir) as store:
        meant = _stored(store, grid, budget)
        grid, _, named = grid.partition("@")
        if len(meant) > 1:
            meant = [name for name in meant if name in (f"{grid}@paper", f"{grid}@full")] or meant
        if len(meant) > 1:
            raise ConfigError([f"{store.folder} holds {', '.join(meant)}; name one of them."])
        chosen = meant[0] if meant else f"{grid}@{named or budget or 'paper'}"
        return cells_frame(GridReport(store, *chosen.split("@", 1)).build(value))


@dataclass(frozen=True)
class RunResult:
    """A run of a method that was trained in this process.

    Attributes:
        config: every setting and option, resolved.
        record: what `record.json` of a results directory holds, without dates: id, status, summary, seconds, skew, ...
        rounds: one row per round, columns as the measured ones of `load_rounds`.
        run: its last state. `run.deployed` has the model that clients use now (`model`, `params`, `buffers`; None if the run
            has diverged), `run.task` the data of all clients.
    """

    config: "RunConfig"
    record: "RunRecord"
    rounds: "pd.DataFrame"
    run: "Run"


def run(
    config: "RunConfig | Mapping[str, Any]",
    *,
    data_dir: "Path | str | None" = None,
    on_round: Callable[[dict[str, Any]], object] | None = None,
    device: str = "cpu",
    engine: str = "auto",
    threads: int = 1,
    tf32: bool = False,
) -> RunResult:
    """Trains one run in this process, without Ray. Nothing is stored.

    The numbers are those of `python -m bench run --algorithm ... --dataset ... --partition ... --set ...`: the config is
    resolved in the same way, and the run has the same id.

    Args:
        config: `dataset`, `partition`, `algorithm` and any further setting or option of the method, as in a cell of a grid:
            `{"dataset": "digits", "partition": "label-2", "algorithm": "fedprox", "mu": 0.1, "seed": 1}`, with `wrapper` for
            a method around it. Or a complete config: a `RunConfig`, or the content of a `config.json`.
        data_dir: where the images are; None for $SKEWBENCH_DATA.
        on_round: gets the row of every round when it ends. What it raises ends the run.
        device: "cpu" or "cuda".
        engine: "loop", "vectorised", or "auto" for the faster one.
        threads: of PyTorch, while the run is trained. Trials have one; others round sums in another way.
        tf32: on a GPU, whether convolutions and matrix products are faster and less exact; see `bench.determinism`.

    Raises:
        ConfigError: with all mistakes of the config and of the other arguments.
        datasets.DataError: if the dataset is not there, or damaged.
        ValueError: if the parts of the config do not fit the images.
    """
    from bench.config.code_version import facts_of
    from bench.config.schema import run_id
    from bench.determinism import make_deterministic
    from bench.experiments.one_run import prepare
    from bench.results.schema import SCHEMA
    from bench.simulation.run import Run
    from reports.exports.frames import rows_frame

    named = data_dir or os.environ.get("SKEWBENCH_DATA")
    folder = Path(named) if named else None
    resolved, dataset = prepare(config, folder, _validate(device, engine, threads, on_round))
    if device == "cuda":
        make_deterministic(tf32)
    with _torch_threads(threads):
        run = Run(resolved, dataset, device=device, engine=engine, data_dir=folder)
        while not run.finished:
            row = run.step()
            if on_round:
                on_round({**row})
        record = {"id": run_id(resolved), "schema": SCHEMA, **run.result(), **facts_of(resolved)}
    return RunResult(resolved, cast("RunRecord", record), rows_frame(run.rows), run)


@contextmanager
def _opened(results_dir: "Path | str | None") -> "Iterator[Store]":
    """A results directory to read, with a warning at the end that names the damaged ones of the files that were read.

    Raises:
        StoreError: if it is not there.
    """
    from bench.results.store import Store

    store = Store(results_dir or os.environ.get("SKEWBENCH_RESULTS") or "results")
    store.check_exists()
    try:
        yield store
    finally:
        if store.damaged:
            files = "; ".join(
                f"{path.relative_to(store.folder)} {what}" for path, what in sorted(store.damaged.items())
            )
            warnings.warn(f"What damaged files of {store.folder} hold is left out: {files}.", stacklevel=4)


def _stored(store: "Store", grid: str | None, budget: str | None) -> list[str]:
    """The `<grid>@<budget>` of the stored grids that are meant; None for all grids, or all budgets.

    Raises:
        ConfigError: if there is no such grid at all, here or among those of skewbench, or its name has another budget.
    """
    from bench.experiments import grid_files

    grid, _, named = (grid or "").partition("@")
    if named and budget not in (None, named):
        raise ConfigError([f"{grid}@{named} names the budget {named}, but budget is {budget}; leave one of them out."])
    known = sorted({*(label.partition("@")[0] for label in store.grids()), *grid_files.names()})
    meant = [*filter(store.grid, store.labels_of(grid or None, named or budget))]
    if grid and not meant and grid not in known:
        raise ConfigError([unknown("grid", grid, known)])
    return meant


def _validate(device: str, engine: str, threads: int, on_round: object) -> list[str]:
    """Mistakes in how a run is to be trained."""
    import torch

    from bench.simulation.engines import ENGINES

    choices = (("device", device, ("cpu", "cuda")), ("engine", engine, ("auto", *ENGINES)))
    mistakes = [unknown(kind, name, known) for kind, name, known in choices if name not in known]
    if device == "cuda" and not torch.cuda.is_available():
        mistakes.append("PyTorch finds no GPU on this machine; use the device cpu.")
    if type(threads) is not int or threads < 1:
        mistakes.append(f"threads must be an integer of at least 1, but got {threads!r}.")
    if on_round is not None and not callable(on_round):
        mistakes.append(f"on_round must be a function of a row, but got {on_round!r}.")
    return mistakes


@contextmanager
def _torch_threads(number: int) -> "Iterator[None]":
    """Lets PyTorch use so many threads for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
