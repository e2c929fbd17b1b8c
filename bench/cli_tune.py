"""`python -m bench tune`: hyper-parameters of one method in one setting, chosen on validation data, then trained on all."""

import functools
from typing import Annotated

import typer

from bench import options as given
from bench.console import INTERRUPTED, console, errors, explained
from bench.options import RESULTS


def tune(
    algorithm: Annotated[str, typer.Option(help="The method.")],
    dataset: Annotated[str, typer.Option(help="The dataset.")],
    partition: Annotated[str, typer.Option(help="The partition.")],
    space: Annotated[
        str | None, typer.Option(help="Where to search: NAME,... (see `list spaces`) or a YAML file; the method's own.")
    ] = None,
    searcher: Annotated[str, typer.Option(help="grid, random, or optuna (TPE).")] = "grid",
    scheduler: Annotated[str, typer.Option(help="none, or asha: stop early what does badly.")] = "none",
    samples: Annotated[int | None, typer.Option(help="Configurations to try; a grid is tried as a whole.")] = None,
    seeds: given.SeedsOption = None,
    metric: Annotated[
        str | None, typer.Option(help="What counts: validation_accuracy, ..._global_accuracy, ..._local_accuracy.")
    ] = None,
    validation_share: Annotated[float, typer.Option(help="Of each class of each client, set aside.")] = 0.15,
    budget: given.BudgetOption = "paper",
    set_: given.SetOption = None,
    data_dir: given.DataOption = None,
    results_dir: given.ResultsOption = RESULTS,
    cpus_per_trial: Annotated[float, typer.Option(help="Cores, and torch threads, of a configuration.")] = 1.0,
    gpus_per_trial: Annotated[float, typer.Option(help="Share of a GPU.")] = 0.0,
    max_concurrent: Annotated[int, typer.Option(help="Configurations at once; 0: as many as there are cores.")] = 0,
    checkpoint_seconds: Annotated[float, typer.Option(help="Least time between checkpoints of a run.")] = 60.0,
) -> None:
    """Search hyper-parameters without the test split, then train the best ones on all data and test them."""
    from bench import grid as grids
    from bench.cli import run_request
    from bench.search_spec import make_search
    from bench.tuning import Playing, choose, final_request

    with explained():
        setting = {"algorithm": algorithm, "dataset": dataset, "partition": partition}
        overrides, wanted_seeds = given.read_set(set_), given.read_seeds(seeds) or [0, 1, 2]
        search = make_search(
            setting,
            budget,
            overrides,
            wanted_seeds,
            space=space,
            searcher=searcher,
            scheduler=scheduler,
            samples=samples,
            metric=metric,
            validation_share=validation_share,
        )
        for option, value in (("--max-concurrent", max_concurrent), ("--checkpoint-seconds", checkpoint_seconds)):
            if not value >= 0:
                raise ValueError(f"{option} must be at least 0, but got {value:g}.")
        data_dir = data_dir and data_dir.absolute()
        playing = Playing(data_dir, results_dir, cpus_per_trial, gpus_per_trial, max_concurrent, checkpoint_seconds)
        final = functools.partial(
            final_request,
            search,
            setting=setting,
            budget=budget,
            overrides=overrides,
            seeds=wanted_seeds,
            playing=playing,
        )
        # What follows the search is checked before it.
        grids.expand(final({}, "").grid, budget, overrides=overrides, seeds=wanted_seeds)
        try:
            chosen, note = choose(search, playing, console, _say)
        except KeyboardInterrupt:
            errors.print("Stopped. Finished runs are kept; the same command continues with the rest.")
            raise typer.Exit(INTERRUPTED) from None
        request = final(chosen.params, note)
        shares = (cpus_per_trial, f"{gpus_per_trial:g}", max_concurrent, None)
        ended_well = run_request(request, results_dir, False, *shares)
    if not ended_well:
        raise typer.Exit(1)


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
