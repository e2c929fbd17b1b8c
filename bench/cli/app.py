"""The command line. A command imports what it needs when it runs: `--help`, `list` and `report` start in a moment."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from bench.cli import options as given
from bench.cli.check import check
from bench.cli.console import (
    console,
    counted,
    edited_files,
    explained,
    meant_grids,
    name_damaged,
    no_results,
    say,
    say_json,
    stopped_by_sigterm,
    use_plugins,
    warn,
    warn_if_changed,
)
from bench.cli.data import app as data_commands
from bench.cli.exchange import compare, export, import_
from bench.cli.listing import KINDS, listing, listing_table
from bench.cli.options import RESULTS
from bench.cli.pipeline import check_models, print_saved, read_machines, run_experiment, storage_of
from bench.cli.reproduction import board, reproduction
from bench.cli.status import status
from bench.cli.tune import tune
from bench.cli.verify import verify
from bench.errors import require_known

if TYPE_CHECKING:
    from bench.experiments.cells import Cell
    from bench.experiments.grid_schema import GridSpec
    from bench.experiments.spec import ExperimentSpec, TuningOptions
    from bench.tuning.search import Search


class _Program(TyperGroup):
    """The commands; what is about all of them may also stand behind one."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        with stopped_by_sigterm():
            return super().main(*arguments, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # who asks for nothing has made no mistake
            typer.echo(ctx.get_help())
            ctx.exit()
        rest = super().parse_args(ctx, given.plugins_first(args))
        named = next((word for word in args if word in self.commands), "")
        if named:
            with explained():
                given.require_no_settings(args, [each for one in self.commands[named].params for each in one.opts])
        return rest


app = typer.Typer(
    cls=_Program,
    help="Federated learning under label skew: runs grids of experiments, and makes tables of their results.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands, name="data")
app.command()(tune)
app.command()(check)
app.command()(export)
app.command(name="import")(import_)
app.command()(compare)
app.command()(verify)
app.command()(status)
app.command()(reproduction)
app.command()(board)


def _say_version(wanted: bool) -> None:
    if wanted:
        from bench import __version__

        sys.stdout.write(f"skewbench {__version__}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version, and end.")
    ] = False,
    plugins: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder with methods, models, search spaces and grids of your own; may be repeated, and "
            "may stand behind the command."
        ),
    ] = None,
) -> None:
    with explained():
        use_plugins(plugins or [])


@app.command()
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
    results_dir: given.ResultsOption = RESULTS,
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
        from bench.experiments.spec import ExecutionOptions, ExperimentSpec
        from bench.simulation.retention import Final

        if rerun and keep_stale:
            raise ValueError("--rerun repeats all finished runs, and --keep-stale keeps some; leave one of them out.")
        require_known("value of --keep-state", [keep_state], get_args(Final))
        if track:
            tracking.check(track)
        of = _grid(grid, {"algorithm": algorithm, "dataset": dataset, "partition": partition}, seeds, set_)
        values = {
            "samples": samples,
            "searcher": searcher,
            "space": space,
            "validation_share": validation_share,
            "search_seeds": given.read_search_seeds(search_seeds),
        }
        if ruleset or studies is not None:
            others = {"tuned": tuned, "seeds": seeds, "only": "seed" in given.read_only(only) or None}
            tuning = _by_rules(ruleset, studies, of, budget, others, values)
        else:
            searched = of.name if of.is_searched(budget or of.usual_budget) else ""
            tuning = _tuning_options(tuned, searched, of.search_seeds, values)
        if tuning and executor != "ray":
            instead = (
                "take --ruleset defaults"
                if ruleset
                else "fix them by --tuned test, --set or a budget that does not search"
            )
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
            overrides=given.read_set(set_) | given.read_callbacks(callbacks),
            seeds=given.read_seeds(seeds),
            substitutes=given.read_once("--substitute", substitute),
            tuning=tuning,
            ruleset=ruleset or "",
        )
        _warn_of_seeds(spec)
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


@app.command()
def report(
    grid: given.GridOption = None,
    budget: given.StoredBudgetOption = None,
    value: Annotated[str | None, typer.Option(help="last, best or last10 rounds; the grid's own if left out.")] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Draw accuracy over rounds, communication, time or examples; may be repeated."),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Also save the tables as a LaTeX document of its own.")
    ] = False,
    format: Annotated[
        str | None, typer.Option(help="Only these formats: md, tex, csv, html; several as md,html.")
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            help="check (published values and verdicts beside), or paper (the published layout, nothing else)."
        ),
    ] = "check",
    notes: Annotated[
        str, typer.Option(help="Footnotes in LaTeX: inside the float, below it, or none (comments).")
    ] = "inside",
    width: Annotated[
        str | None, typer.Option(help="How wide tables of LaTeX and figures may be, such as 5.5in or 84mm.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="The same by name: acl, cvpr, icml, ieee, lncs or neurips.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Where to save; the folder reports in the results directory if left out."),
    ] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Save nothing, only print the tables: as Markdown, or in the --format.")
    ] = False,
    results_dir: given.ResultsOption = RESULTS,
) -> None:
    """Print and save the tables of stored results, and the figures that their grids list: all of them, or of one grid."""
    with explained():
        from bench.experiments import figure_names
        from bench.results.store import Store
        from reports import api

        figures, formats = given.read_figures(figure), given.read_formats(format)
        require_known("value", [] if value is None else [value], figure_names.VALUES)
        require_known("value of --style", [style], api.STYLES)
        require_known("value of --notes", [notes], api.NOTES)
        asked = given.read_widths(width, template)
        if style == "paper" and format and "csv" in formats:
            raise ValueError(
                "A CSV has ids and numbers, whatever the style; leave csv out of --format, or --style paper."
            )
        shown = ("md",) if print_ and not format else formats
        if notes != api.NOTES[0] and not standalone and "tex" not in shown:
            raise ValueError(f"--notes {notes} is for LaTeX only; add tex to --format, or leave --notes out.")
        if asked and print_ and "tex" not in shown:
            raise ValueError(
                "--width and --template are for LaTeX and figures only; add tex to --format, or leave them out."
            )
        saving = {"--to": to, "--figure": figures, "--standalone": standalone}
        if print_ and any(saving.values()):
            raise ValueError(f"--print saves nothing; leave out {' and '.join(key for key in saving if saving[key])}.")
        file = grid
        grid, budget = given.stored_name(grid, budget)
        store = Store(results_dir)
        chosen = [label.partition("@")[::2] for label in meant_grids(store, grid, budget)]
        if not chosen:
            raise ValueError(no_results(store, grid, budget))
        if not print_:
            api.writable_folder(store.folder, to)
        labels = ["@".join(one) for one in chosen]
        if file and file != grid and Path(file).is_file():
            warn_if_changed(file, store, labels)
        else:
            for edited in sorted(edited_files(store, labels)):
                warn_if_changed(edited, store, labels, named=False)
        wanted, wrong, in_csv = (*formats, *[api.STANDALONE] * standalone), [], {}
        for name, of in chosen:
            report_of = api.GridReport(store, name, of)
            try:
                if print_:
                    for one in shown:
                        if one == "csv":  # all of them below one header, for what reads it
                            in_csv[report_of.label] = report_of.build(value)
                            continue
                        text = report_of.render(value=value, format=one, style=style, notes=notes, widths=asked)
                        sys.stdout.write(text + "\n")
                    continue
                paths = report_of.write(value=value, formats=wanted, to=to, style=style, notes=notes, widths=asked)
                if "md" in paths:
                    sys.stdout.write(paths["md"].read_text(encoding="utf-8") + "\n")
                drawn, sentences = report_of.write_figures(figures, value=value, to=to, widths=asked)
                print_saved([*paths.values(), *drawn], sentences)
            except ValueError as error:  # of one grid: the others are reported all the same
                if len(chosen) == 1:
                    raise
                wrong.append(f"{name}@{of}: {error}")
        if in_csv:
            sys.stdout.write(api.render_csv(in_csv))
        if wrong:
            raise ValueError(" ".join(wrong))


@app.command(name="list")
def list_(
    what: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(KINDS)}; all if left out.")] = None,
    json_: given.JsonOption = False,
) -> None:
    """List grids, algorithms, datasets, models, partitions, kinds of figures and search spaces."""
    with explained():
        kinds = KINDS if what is None else ["algorithms" if what == "methods" else what]
        require_known("listing", kinds, KINDS)
        if json_:
            say_json({kind: [{"name": name, "description": text} for name, text in listing(kind)] for kind in kinds})
            return
        for kind in kinds:
            console.print(listing_table(kind), "")


@app.command()
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
    results_dir: given.ResultsOption = RESULTS,
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
        from bench.cli.listing import cost_table, costs, disk_table, disk_use, heads_in_words, stale_changes
        from bench.cli.status import say_stale
        from bench.config.stale import stale_runs
        from bench.execution.resources import Machines, Resources
        from bench.experiments.images import locate
        from bench.experiments.planning import as_stored
        from bench.experiments.selection import select_cells
        from bench.experiments.spec import ExperimentSpec
        from bench.results.store import Store

        of = _grid(grid, {"algorithm": algorithm, "dataset": dataset, "partition": partition}, seeds, set_)
        tuning = None
        if samples is not None and not ruleset:
            raise ValueError("--samples is for --ruleset tuned here; leave it out, or name that ruleset.")
        if configs and results_dir != RESULTS:
            raise ValueError(f"--configs {configs} is itself the results directory; leave --results-dir out.")
        if ruleset or studies is not None:
            tuning = _by_rules(ruleset, studies, of, budget, {"seeds": seeds, "configs": configs}, {"samples": samples})
        changes = given.read_only(only), given.read_set(set_), given.read_seeds(seeds)
        spec = ExperimentSpec(of, budget, *changes, tuning=tuning, ruleset=ruleset or "")
        _warn_of_seeds(spec)
        selection = select_cells(spec, datasets.INFO)
        data_dir = data_dir and data_dir.absolute()
        if data_dir:
            selection = select_cells(spec, locate(spec, selection.selected, data_dir).facts)
        cells = selection.selected
        store = Store(configs or results_dir)
        name_damaged(store)
        at_once = Machines(Resources()).at_once
        searches = _searches(spec, cells)
        check_models([cell for cell in cells if cell.id not in searches], cells, of)
        rows, disk = costs(cells, store, searches), disk_use(cells, of, store, at_once)
        written = []
        if configs:
            from bench.execution import elsewhere

            written = elsewhere.write(as_stored(spec, store), selection, store, data_dir).todo
        if json_:
            say_json({"grid": spec.label, "costs": rows, "disk": disk})
            return
        console.print(cost_table(spec.label, rows))
        say_stale(stale_runs(stale_changes(cells, store), store))
        if tuning:
            own, drawn = len(tuning.studies[0]), tuning.samples or 0
            count = len(tuning.studies)
            say(
                f"Per cell {counted(count, 'study', 'studies')} x ({counted(drawn, 'configuration')} with one seed + "
                f"{counted(own, 'seed')} of the choice) = {count * (drawn + own)} runs."
            )
        console.print(disk_table(disk, at_once))
        if heads := heads_in_words(cells, of, store):
            say(heads)
        if of.is_searched(spec.budget):
            say("Not counted: the searches on validation data that come before, which run --dry-run names.")
        if configs and written:
            say(
                f"{len(written)} run{'s wait' if len(written) > 1 else ' waits'} in {configs}. Copy the folder to a machine "
                f"with this checkout, train there by `python -m bench.worker {configs}`, copy it back, and type `python -m "
                f"bench import {configs}`."
            )
        elif configs:
            say(f"No run waits: all of them are done in {configs}.")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def speed(context: typer.Context) -> None:
    """Measure how fast this machine trains: examples per second, memory, and what the scheduler costs."""
    from bench.speed import main as speed  # reads its options itself: it must also run where there is no typer

    speed.main(context.args, prog="python -m bench speed")


def _searches(spec: "ExperimentSpec", cells: "Iterable[Cell]") -> "dict[str, Search]":
    """Run id -> the search that chooses its hyper-parameters, of a ruleset with searches."""
    if not spec.tuning:
        return {}
    from bench.tuning.select import searches_of

    cells, layout = [*cells], spec.grid.report.model_dump()
    found, tuning = searches_of(spec, cells), spec.tuning
    return {cell.id: found[place] for cell in cells if (place := tuning.place(cell, layout)) in found}


def _warn_of_seeds(spec: "ExperimentSpec") -> None:
    """Says where a budget leaves out seeds of the grid."""
    grid, here = spec.grid.axes.get("seed", [0]), spec.grid.seeds_at(spec.budget)
    if spec.seeds is None and {*grid} - {*here}:
        own, all_ = (", ".join(map(str, seeds)) for seeds in (here, grid))
        warn(f"Budget {spec.budget}: seed{'s' * (len(here) > 1)} {own} alone; the grid has {all_}.")


def _by_rules(
    ruleset: str | None,
    studies: int | None,
    grid: "GridSpec",
    budget: str,
    others: Mapping[str, Any],
    values: Mapping[str, Any],
) -> "TuningOptions | None":
    """How the hyper-parameters of a grid are chosen by a ruleset; None where nothing is searched.

    Args:
        others: of options that a ruleset decides itself, None for those that are left out.
        values: as in `_tuning_options`.
    """
    from bench.experiments.spec import ALL, RULESETS, SAMPLES, STUDIES, TUNED, TuningOptions, by_study

    if ruleset is None:
        raise ValueError("--studies is for --ruleset tuned; leave it out, or name that ruleset.")
    require_known("value of --ruleset", [ruleset], RULESETS)
    budget = budget or grid.usual_budget
    asked = {key: value for key, value in {**values, "studies": studies}.items() if value is not None}
    free = {"samples", "space", "validation_share", "studies"} if ruleset == TUNED else set()
    refused = [key for key, value in others.items() if value is not None] + [key for key in asked if key not in free]
    if refused:
        options = " and ".join("--only seed" if key == "only" else f"--{key.replace('_', '-')}" for key in refused)
        searches = ruleset == TUNED or not {*refused} <= {*values, "studies", "tuned"}
        does = "decides that itself" if searches else "searches nothing"
        seeds = others.get("seeds")
        hint = f", or set seeds in the grid, as budgets: {{{budget}: {{seeds: [{seeds}]}}}}" if seeds else ""
        raise ValueError(f"{options}: the ruleset {ruleset} {does}; leave one of the two out{hint}.")
    here = grid.budgets.get(budget)
    several = [one for one in grid.tuning if here and here.tuning == "all" and len(one.points("all")) > 1]
    if several and ruleset != TUNED:
        raise ValueError(
            f"{grid.name} has several values of {', '.join(several[0].options)} to choose from, but the ruleset defaults "
            "chooses nothing; take --budget small, which has one, or leave --ruleset out."
        )
    if ruleset != TUNED:
        return None
    if (count := asked.pop("studies", STUDIES)) < 1:
        raise ValueError(f"--studies must be at least 1, but got {count}.")
    own = {"samples": SAMPLES, "space": ALL} | asked
    tuning = TuningOptions("random", compares=True, studies=by_study(grid.seeds_at(budget), count), **own)
    tuning.validate()
    return tuning


def _tuning_options(
    tuned: str | None, searched_grid: str, search_seeds: Sequence[int], values: Mapping[str, Any]
) -> "TuningOptions | None":
    """How the hyper-parameters of a grid are searched on validation data; None if they are not.

    Args:
        searched_grid: name of the grid if it is one that is searched, at its budget, without being asked; "" for others.
        search_seeds: those that the grid names; none for those of its table.
        values: of the options that only searches read, as fields of TuningOptions; None for those that are left out.
    """
    require_known("value of --tuned", [tuned or "test"], ("test", "validation"))
    if tuned == "test" and searched_grid:
        raise ValueError(
            f"{searched_grid} chooses hyper-parameters on validation data, as published: leave --tuned out, or fix them by "
            "--set or by --budget small."
        )
    given_values = {key: value for key, value in values.items() if value is not None}
    if tuned != "validation" and not searched_grid:
        if given_values:
            options = " and ".join(f"--{key.replace('_', '-')}" for key in given_values)
            raise ValueError(f"{options}: only searches read that; use it with --tuned validation.")
        return None
    from bench.experiments.spec import ALL, PROTOCOL, TuningOptions

    samples = None if values["searcher"] == "grid" else 8
    own = TuningOptions("random", samples=samples, space=ALL, search_seeds=tuple(search_seeds) or None, compares=True)
    usual = PROTOCOL if searched_grid else own
    tuning = replace(usual, **given_values)
    tuning.validate()
    return tuning


def _grid(name: str | None, settings: dict[str, str | None], seeds: str | None, set_: list[str] | None):
    """The grid of that name, or of the one setting that the other options describe."""
    from bench.experiments.grid_loading import load_grid, single

    if name:
        clash = [f"--{key}" for key, value in settings.items() if value]
        if clash:
            raise ValueError(f"Use either --grid or {', '.join(clash)}; within a grid, choose cells with --only.")
        return load_grid(name)
    if settings["algorithm"] == "centralized":
        settings["partition"] = settings["partition"] or "none"
    absent = [f"--{key}" for key, value in settings.items() if not value]
    if absent:
        raise ValueError(f"Name a --grid, or one setting: {', '.join(absent)} missing.")
    given.require_one(settings)
    return single(settings, given.read_seeds(seeds) or [0], given.read_set(set_))
