"""`python -m bench run`: trains what is not finished of a grid, or of one setting, and prints its table."""

from typing import Annotated, get_args

import typer

from bench.cli import options as given
from bench.cli.console import explained
from bench.cli.pipeline import read_machines, run_experiment, storage_of, warn_of_seeds
from bench.cli.searches import by_ruleset, search_options
from bench.errors import require_known


def run(
    grid: given.GridOption = None,
    algorithm: given.AlgorithmOption = None,
    dataset: given.DatasetOption = None,
    partition: given.PartitionOption = None,
    seeds: given.SeedsOption = None,
    budget: given.BudgetOption = "",
    only: given.OnlyOption = None,
    set_: given.SetOption = None,
    callbacks: given.CallbacksOption = None,
    substitute: given.SubstituteOption = None,
    data_dir: given.DataOption = None,
    results_dir: given.ResultsOption = given.RESULTS,
    cpus_per_trial: given.CpusOption = 1.0,
    gpus_per_trial: given.GpusOption = "auto",
    max_concurrent: given.ConcurrentOption = 0,
    address: given.AddressOption = None,
    wait_for_machines: given.WaitOption = 0.0,
    executor: given.ExecutorOption = "ray",
    slurm: given.SlurmOption = None,
    engine: given.EngineOption = "auto",
    tf32: given.Tf32Option = False,
    keep_state: Annotated[
        str, typer.Option(help="What a run keeps of its last state: deployed (all but clients' states), all, or none.")
    ] = "deployed",
    checkpoint_seconds: given.CheckpointOption = 60.0,
    storage: given.StorageOption = None,
    record_host: given.HostOption = "name",
    track: Annotated[
        str | None, typer.Option(help="Also send every round to a tracking service: wandb or mlflow.")
    ] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat finished runs; their old results are kept.")] = False,
    keep_stale: given.KeepStaleOption = False,
    tuned: Annotated[
        str | None,
        typer.Option(
            help="On what methods choose hyper-parameters: test (the grid's sets, as published), or validation (searches); "
            "test if left out, unless the grid says otherwise."
        ),
    ] = None,
    ruleset: given.RulesetOption = None,
    studies: given.StudiesOption = None,
    samples: given.SamplesOption = None,
    searcher: given.SearcherOption = None,
    space: given.SpaceOption = None,
    validation_share: given.ShareOption = None,
    search_seeds: given.SearchSeedsOption = None,
    dry_run: given.DryRunOption = False,
) -> None:
    """Run what is not finished of a grid, or of one setting, and print its table."""
    with explained():
        from bench.execution import tracking
        from bench.experiments.execution_options import ExecutionOptions
        from bench.experiments.spec import SETS, ExperimentSpec
        from bench.simulation.retention import Final

        if rerun and keep_stale:
            raise ValueError("--rerun repeats all finished runs, and --keep-stale keeps some; leave one of them out.")
        require_known("value of --keep-state", [keep_state], get_args(Final))
        if track:
            tracking.check(track)
        of = given.read_grid(grid, {"algorithm": algorithm, "dataset": dataset, "partition": partition}, seeds, set_)
        values = {
            "samples": samples,
            "searcher": searcher,
            "space": space,
            "validation_share": validation_share,
            "search_seeds": given.read_search_seeds(search_seeds),
        }
        if ruleset or studies is not None:
            others = {"tuned": tuned, "seeds": seeds, "only": "seed" in given.read_only(only) or None}
            tuning = by_ruleset(ruleset, studies, of, budget, others, values)
            instead = "take --ruleset defaults"
        else:
            searched = of.name if of.is_searched(budget or of.usual_budget) else ""
            tuning = search_options(tuned, searched, of.search_seeds, values)
            instead = "fix what is searched by --set, or take --budget small" if searched else "leave --tuned out"
        overrides = given.read_set(set_) | given.read_callbacks(callbacks)
        is_fixed = tuning is not None and tuning.spaces == [SETS] and of.is_fixed_by(overrides)
        if tuning and executor != "ray" and not is_fixed:
            raise ValueError(
                f"Searches of hyper-parameters need Ray Tune: leave --executor {executor} out, or {instead}."
            )
        machines = read_machines(
            cpus_per_trial,
            gpus_per_trial,
            max_concurrent,
            address,
            wait_for_machines,
            executor,
            given.read_once("--slurm", slurm),
        )
        spec = ExperimentSpec(
            grid=of,
            budget=budget,
            only=given.read_only(only),
            overrides=overrides,
            seeds=given.read_seeds(seeds),
            substitutes=given.read_once("--substitute", substitute),
            tuning=tuning,
            ruleset=ruleset or "",
        )
        warn_of_seeds(spec)
        options = ExecutionOptions(
            data_dir=data_dir and data_dir.absolute(),  # workers have working directories of their own
            storage=None if dry_run else storage_of(storage),
            checkpoint_seconds=checkpoint_seconds,
            engine=engine,
            tf32=tf32,
            keep=keep_state,
            rerun=rerun,
            keep_stale=keep_stale,
            names_hosts=record_host == "name",
            track=track,
        )
        run_experiment(spec, options, machines, results_dir, dry_run)
