"""`python -m bench tune`: hyper-parameters of one method in one setting, chosen on validation data, then trained on all."""

from typing import Annotated

import typer

from bench.cli import options as given
from bench.cli.console import explained


def tune(
    algorithm: given.AlgorithmOption,
    dataset: given.DatasetOption,
    partition: given.PartitionOption,
    space: given.SpaceOption = "own",
    searcher: given.SearcherOption = "grid",
    scheduler: Annotated[str, typer.Option(help="none, or asha: stop early what does badly.")] = "none",
    samples: given.SamplesOption = None,
    seeds: given.SeedsOption = None,
    metric: Annotated[
        str | None,
        typer.Option(help="What counts: validation_accuracy, ..._global_..., ..._local_..., ..._own_accuracy."),
    ] = None,
    validation_share: given.ShareOption = 0.15,
    search_seeds: given.SearchSeedsOption = None,
    budget: given.BudgetOption = "",
    set_: given.SetOption = None,
    data_dir: given.DataOption = None,
    results_dir: given.ResultsOption = given.RESULTS,
    cpus_per_trial: given.CpusOption = 1.0,
    gpus_per_trial: given.GpusOption = "auto",
    max_concurrent: given.ConcurrentOption = 0,
    address: given.AddressOption = None,
    wait_for_machines: given.WaitOption = 0.0,
    engine: given.EngineOption = "auto",
    tf32: given.Tf32Option = False,
    checkpoint_seconds: given.CheckpointOption = 60.0,
    storage: given.StorageOption = None,
    record_host: given.HostOption = "name",
    keep_stale: given.KeepStaleOption = False,
    dry_run: given.DryRunOption = False,
) -> None:
    """Search hyper-parameters without the test split, then train the best ones on all data and test them."""
    with explained():
        from bench.cli.pipeline import read_machines, run_experiment, storage_of
        from bench.experiments.execution_options import ExecutionOptions
        from bench.experiments.grid_loading import single
        from bench.experiments.spec import ExperimentSpec, TuningOptions

        setting = {"algorithm": algorithm, "dataset": dataset, "partition": partition}
        given.require_one(setting)
        overrides, wanted_seeds = given.read_set(set_), given.read_seeds(seeds) or [0, 1, 2]
        compared = given.read_search_seeds(search_seeds)
        tuning = TuningOptions(searcher, scheduler, samples, space, metric, validation_share, compared)
        tuning.validate()
        machines = read_machines(cpus_per_trial, gpus_per_trial, max_concurrent, address, wait_for_machines)
        spec = ExperimentSpec(
            grid=single(setting, wanted_seeds, overrides),
            budget=budget,
            overrides=overrides,
            seeds=wanted_seeds,
            tuning=tuning,
        )
        options = ExecutionOptions(
            data_dir=data_dir and data_dir.absolute(),
            storage=None if dry_run else storage_of(storage),
            checkpoint_seconds=checkpoint_seconds,
            engine=engine,
            tf32=tf32,
            keep_stale=keep_stale,
            names_hosts=record_host == "name",
        )
        run_experiment(spec, options, machines, results_dir, dry_run)
