"""`python -m bench report`: tables and figures of stored results."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options as given
from bench.cli.console import edited_files, explained, require_grids, warn_if_changed
from bench.cli.pipeline import print_saved
from bench.errors import require_known


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
    results_dir: given.ResultsOption = given.RESULTS,
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
        labels = require_grids(store, grid, budget)
        if not print_:
            api.writable_folder(store.folder, to)
        if file and file != grid and Path(file).is_file():
            warn_if_changed(file, store, labels)
        else:
            for edited in sorted(edited_files(store, labels)):
                warn_if_changed(edited, store, labels)
        wanted, wrong, in_csv = (*formats, *[api.STANDALONE] * standalone), [], {}
        for label in labels:
            report_of = api.GridReport(store, *label.split("@", 1))
            try:
                if print_:
                    for one in shown:
                        if one == "csv":  # all of them below one header, for what reads it
                            in_csv[label] = report_of.build(value)
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
                if len(labels) == 1:
                    raise
                wrong.append(f"{label}: {error}")
        if in_csv:
            from reports.formats import csv  # imports pandas, which reports that have not changed do without

            sys.stdout.write(csv.render_all(in_csv))
        if wrong:
            raise ValueError(" ".join(wrong))
