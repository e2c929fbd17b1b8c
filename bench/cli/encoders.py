"""`python -m bench encoders`: analyses that are no runs of a grid, though some stand in a table of the paper as those do."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options as given
from bench.cli.console import INTERRUPTED, console, errors, explained
from bench.cli.options import RESULTS
from bench.errors import unknown

# What `run --grid` plays by `run_grid`: number of the table, and what it is about.
GRIDS = {
    "paper_table6": (6, "What encoders of two clients know of each other's data"),
    "paper_table7": (7, "What single, averaged and concatenated encoders know"),
    "paper_table8": (8, "Dataset sizes"),
}
_TABLES, _FIGURES = (6, 7), (5, 6)


def encoders(
    table: Annotated[int | None, typer.Option(help="Only this table: 6 or 7.")] = None,
    figure: Annotated[int | None, typer.Option(help="Only this figure: 5 or 6.")] = None,
    view: Annotated[str, typer.Option(help="How figures show features in the plane: pca or tsne.")] = "pca",
    dataset: Annotated[str | None, typer.Option(help="Instead of that of the paper.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of that of the paper.")] = None,
    budget: given.BudgetOption = "paper",
    set_: given.SetOption = None,
    substitute: given.SubstituteOption = None,
    data_dir: given.DataOption = None,
    results_dir: given.ResultsOption = RESULTS,
) -> None:
    """What frozen encoders of two clients know: Tables 6 and 7, Figures 5 and 6 of FedConcat."""
    with explained():
        for kind, number, known in (("table", table, _TABLES), ("figure", figure, _FIGURES)):
            if number not in (None, *known):
                raise ValueError(unknown(kind, number, map(str, known)))
        everything = table is None and figure is None
        tables = _TABLES if everything else [table] if table else []
        figures = _FIGURES if everything else [figure] if figure else []
        own = {key: value for key, value in (("dataset", dataset), ("seed", seed)) if value is not None}
        overrides = given.read_set(set_) | own
        _analyse(budget, overrides, substitute, data_dir, results_dir, tables=tables, figures=figures, view=view)


def run_grid(
    grid: str,
    budget: str,
    overrides: dict,
    seeds: list[int] | None,
    substitute: list[str] | None,
    data_dir: Path | None,
    results_dir: Path,
) -> None:
    """What `run --grid` does for one of GRIDS; arguments as its options are read.

    Raises:
        ValueError: for everything that is wrong with them.
    """
    if GRIDS[grid][0] == 8:
        unread = {"--set": overrides, "--seeds": seeds, "--substitute": substitute}
        if any(unread.values()):
            raise ValueError(f"{grid} counts images; it takes no {' or '.join(key for key in unread if unread[key])}.")
        _count(budget, data_dir, results_dir)
        return
    if seeds and len(seeds) > 1:
        raise ValueError(f"{grid} is about one seed, but got {', '.join(map(str, seeds))}.")
    overrides = overrides | ({"seed": seeds[0]} if seeds else {})
    _analyse(budget, overrides, substitute, data_dir, results_dir, tables=[GRIDS[grid][0]])


def _analyse(budget, overrides, substitute, data_dir, results_dir, **wanted) -> None:
    from bench.analyses import encoder_spec, encoders
    from bench.results.store import Store

    spec = encoder_spec.load(budget, overrides)
    substitutes = given.read_once("--substitute", substitute)
    where = {"data_dir": data_dir, "results_dir": results_dir, "substitutes": substitutes}
    try:
        with Store(results_dir).locked():
            files = encoders.run(spec, **wanted, **where, on_message=lambda line: errors.print(line, markup=False))
    except KeyboardInterrupt:
        errors.print("Stopped. Finished parts are kept; the same command continues with the rest.")
        raise typer.Exit(INTERRUPTED) from None
    _show(files)


def _count(budget: str, data_dir, results_dir) -> None:
    from bench.analyses import dataset_sizes, encoder_spec
    from bench.results.store import Store

    encoder_spec.load(budget)  # refuses a budget that does not exist
    with Store(results_dir).locked():
        files = dataset_sizes.run(data_dir, results_dir, budget)
    _show(files)


def _show(files: dict[str, list[Path]]) -> None:
    """Prints tables, and where everything is."""
    for paths in files.values():
        if paths[0].suffix == ".md":
            sys.stdout.write("\n" + paths[0].read_text(encoding="utf-8"))
    saved = ", ".join(str(path) for paths in files.values() for path in paths)
    console.print(f"\nSaved: {saved}", highlight=False, soft_wrap=True)
