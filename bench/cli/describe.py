"""`python -m bench describe`: what a grid costs, before it runs."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import options as given
from bench.cli.console import console, counted, explained, name_damaged, say, say_json, say_stale
from bench.cli.pipeline import check_models, warn_of_rounds, warn_of_seeds
from bench.cli.searches import by_ruleset

if TYPE_CHECKING:
    from bench.experiments.cells import Cell
    from bench.experiments.spec import ExperimentSpec, TuningOptions
    from bench.tuning.search import Search


def describe(
    grid: given.GridOption = None,
    algorithm: given.AlgorithmOption = None,
    dataset: given.DatasetOption = None,
    partition: given.PartitionOption = None,
    seeds: given.SeedsOption = None,
    budget: given.BudgetOption = "",
    only: given.OnlyOption = None,
    set_: given.SetOption = None,
    ruleset: given.RulesetOption = None,
    studies: given.StudiesOption = None,
    samples: given.SamplesOption = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            callback=given.look_in,
            help="Count what is in this folder with its own sizes, decoding what is not yet decoded.",
        ),
    ] = None,
    json_: given.JsonOption = False,
    results_dir: given.ResultsOption = given.RESULTS,
    configs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write the runs that are not done in this results directory into it, for another machine: python -m "
            "bench.worker DIR trains them without Ray.",
        ),
    ] = None,
) -> None:
    """Say what a grid costs: trials, how many are done, examples to train, bytes per client, disk. Needs no data."""
    import torch

    torch.set_num_threads(1)  # a few tiny steps, in which threads would only wait for each other
    with explained():
        import datasets
        from bench.cli.costs import cost_table, costs, disk_table, disk_use, finished, heads_in_words
        from bench.config.stale import stale_runs
        from bench.execution.resources import Machines, Resources
        from bench.experiments.images import locate
        from bench.experiments.planning import as_stored
        from bench.experiments.selection import select_cells
        from bench.experiments.spec import ExperimentSpec
        from bench.results.store import Store

        of = given.read_grid(grid, {"algorithm": algorithm, "dataset": dataset, "partition": partition}, seeds, set_)
        tuning = None
        if samples is not None and not ruleset:
            raise ValueError("--samples is for --ruleset tuned here; leave it out, or name that ruleset.")
        if configs and str(results_dir) not in (str(given.RESULTS), os.environ.get("SKEWBENCH_RESULTS")):
            raise ValueError(f"--configs {configs} is itself the results directory; leave --results-dir out.")
        if ruleset or studies is not None:
            tuning = by_ruleset(
                ruleset, studies, of, budget, {"seeds": seeds, "configs": configs}, {"samples": samples}
            )
        changes = given.read_only(only), given.read_set(set_), given.read_seeds(seeds)
        spec = ExperimentSpec(of, budget, *changes, tuning=tuning, ruleset=ruleset or "")
        warn_of_seeds(spec)
        selection = select_cells(spec, datasets.INFO)
        data_dir = data_dir and data_dir.absolute()
        if data_dir:
            selection = select_cells(spec, locate(spec, selection.selected, data_dir).facts)
        cells = selection.selected
        warn_of_rounds(cells, of, spec.overrides)
        store = Store(configs or results_dir)
        name_damaged(store)
        at_once = Machines(Resources()).at_once
        searches = _searches(spec, cells)
        check_models([cell for cell in cells if cell.id not in searches], cells, of)
        rows, disk = costs(cells, store, searches), disk_use(cells, of, store, at_once)
        waiting = 0
        if configs:
            from bench.execution import elsewhere

            waiting = len(elsewhere.write(as_stored(spec, store), selection, store, data_dir).todo)
        if json_:
            say_json({"grid": spec.label, "costs": rows, "disk": disk})
            return
        console.print(cost_table(spec.label, rows))
        say_stale(stale_runs(finished(cells, store), store))
        if tuning:
            say(_studies_in_words(tuning))
        console.print(disk_table(disk, at_once))
        if heads := heads_in_words(cells, of, store):
            say(heads)
        if of.is_searched(spec.budget) and not of.is_fixed_by(spec.overrides):
            say("Not counted: the searches on validation data that come before, which run --dry-run names.")
        if configs:
            say(_waiting_in_words(configs, waiting))


def _studies_in_words(tuning: "TuningOptions") -> str:
    count, own, drawn = len(tuning.studies), len(tuning.studies[0]), tuning.samples or 0
    return (
        f"Per cell {counted(count, 'study', 'studies')} x ({counted(drawn, 'configuration')} with one seed + "
        f"{counted(own, 'seed')} of the choice) = {count * (drawn + own)} runs."
    )


def _waiting_in_words(configs: Path, count: int) -> str:
    """What to do with a folder in which runs wait for another machine."""
    if not count:
        return f"No run waits: all of them are done in {configs}."
    return (
        f"{count} run{'s wait' if count > 1 else ' waits'} in {configs}. Copy the folder to a machine with this checkout, "
        f"train there by `python -m bench.worker {configs}`, copy it back, and type `python -m bench import {configs}`."
    )


def _searches(spec: "ExperimentSpec", cells: "Iterable[Cell]") -> "dict[str, Search]":
    """Run id -> the search that chooses its hyper-parameters, of a ruleset with searches."""
    if not spec.tuning:
        return {}
    from bench.tuning.select import searches_of

    cells, layout = [*cells], spec.grid.report.model_dump()
    found, tuning = searches_of(spec, cells), spec.tuning
    return {cell.id: found[place] for cell in cells if (place := tuning.place(cell, layout)) in found}
