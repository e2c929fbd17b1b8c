"""Tables and figures of measured and published results, a pure function of an expanded grid and its run records.

`write` saves a grid's tables, `render` returns them as text in one format, `cells` as one table for pandas; `write_figures`
saves its figures. Their input are the JSON files of a result store.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench import plugins
from bench.errors import ConfigError, StoreError, require_known, suggestion, unknown
from bench.experiments.figure_names import CURVES
from bench.files import file_name, make_folder, write_file
from bench.results.records import StoredGrid, StoredLayout
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    import pandas as pd

    from bench.results.store import Store
    from bench.results.written import Written
    from reports.figures import Figure
    from reports.tables.records import Records
    from reports.tables.report import Report

FORMATS = ("md", "tex", "csv", "html")
STYLES = ("check", "paper")
"""Of tables: with published values, verdicts and all that is known about the numbers, or as the paper prints them."""
NOTES = ("inside", "below", "none")
"""Where LaTeX has footnotes: inside the float, below it as a paragraph of the text, or below it as comments."""
STANDALONE = "standalone"  # a complete LaTeX document


def write(
    results: "Store | Path",
    grid: str,
    budget: str,
    *,
    value: str | None = None,
    formats: tuple[str, ...] = FORMATS,
    to: Path | None = None,
    style: str = "check",
    notes: str = "inside",
    widths: Widths | None = None,
) -> dict[str, Path]:
    """Saves the tables of a grid and returns format -> path. Files that still follow from the same inputs stay as they are.

    The files are `<grid>@<budget>.md` and so on. A value other than the grid's own is part of the name
    (`<grid>@<budget>-best.md`). With a CSV, standings are written to `<grid>@<budget>-standings.csv`. STANDALONE is
    `<grid>@<budget>-standalone.tex`. Files of the style `paper` are `<grid>@<budget>-paper.md` and so on, without a CSV: its
    numbers have no style.

    Args:
        results: the result store, or its directory.
        grid: name of a grid that was run there.
        budget: `paper`, `small`, `smoke` or the grid's own.
        value: `last`, `best` or `last10` (rounds); None is the grid's own. Tables of measurements have one value.
        formats: which of FORMATS and STANDALONE to write.
        to: the folder of the files, created if only the folder itself is missing; None is `reports/` of the store.
        style: one of STYLES.
        notes: where LaTeX has footnotes, one of NOTES.
        widths: into which tables of LaTeX must fit; None for those of the document that they are in.

    Raises:
        StoreError: if the store holds no such grid, or a file of it cannot be read.
        ValueError: if an argument is unknown, the report's axes do not fit the grid, or the folder is not writable.
        OSError: if a file cannot be written; it names the file.
    """
    from bench.results.store import below

    if style == "paper":
        formats = tuple(format for format in formats if format != "csv")
    _check(formats, style, notes)
    store, expanded, inputs = _open_noted(results, grid, budget)
    folder = writable_folder(store.folder, to)
    written = _written(store, grid, budget, inputs, folder, "tables", value, *formats, style, notes, widths)
    if unchanged := written.unchanged():
        found, names = unchanged
        return dict(zip(names, found, strict=True))
    report, *sources = _build(store, expanded, value, style)
    if "csv" in formats and report.standings:
        formats = (*formats, _STANDINGS)
    paths = {format: below(folder, report.name + _ENDINGS.get(format, f".{format}")) for format in formats}
    for format, path in paths.items():
        write_file(path, _text(format, notes, widths, report, *sources))
    written.note(paths.values(), [*paths])
    return paths


def render(
    results: "Store | Path",
    grid: str,
    budget: str,
    *,
    value: str | None = None,
    format: str = "md",
    style: str = "check",
    notes: str = "inside",
    widths: Widths | None = None,
) -> str:
    """The tables of a grid as text; arguments and errors as in `write`. Writes no file."""
    _check((format,), style, notes)
    return _text(format, notes, widths, *_build(*_open(results, grid, budget), value, style))


def report_of(results: "Store | Path", grid: str, budget: str, *, value: str | None = None) -> "Report":
    """The tables of a grid as what every format renders; arguments and errors as in `write`."""
    return _build(*_open(results, grid, budget), value)[0]


def render_csv(reports: "Mapping[str, Report]") -> str:
    """The cells of several reports, by their `<grid>@<budget>`, as one CSV with the columns `grid` and `budget`."""
    from reports.formats import csv

    return csv.render_all(reports)


def cells(results: "Store | Path", grid: str, budget: str, *, value: str | None = None) -> "pd.DataFrame":
    """The cells of a grid's tables as `reports.exports.frames.cells_frame` has them; arguments and errors as in `write`."""
    from reports.exports.frames import cells_frame

    return cells_frame(report_of(results, grid, budget, value=value))


def write_figures(
    results: "Store | Path",
    grid: str,
    budget: str,
    curves: tuple[str, ...] = (),
    *,
    value: str | None = None,
    to: Path | None = None,
    widths: Widths | None = None,
) -> tuple[list[Path], list[str]]:
    """Saves the figures that a grid lists, and further curves. Files that still follow from the same inputs stay as they are.

    The files are `<grid>@<budget>-<figure>.png`, `.pdf` and `.svg`. A metric other than the grid's own is part of the
    name.

    Args:
        results, grid, budget, value, to: as in `write`.
        curves: x axes (from CURVES) of further curves of accuracy.
        widths: of figures, None for FIGURES; one of a single panel is as wide as a column.

    Returns:
        The files, and one sentence for each figure without a result yet.

    Raises:
        StoreError, ValueError, OSError: as in `write`.
    """
    for x in curves:
        if x not in CURVES:
            raise ValueError(unknown("figure", x, CURVES))
    store, expanded, inputs = _open_noted(results, grid, budget)
    described = [*expanded["report"].get("figures", ()), *({"kind": "curves", "x": x} for x in curves)]
    if not described:  # then matplotlib is not imported
        return [], []
    folder = writable_folder(store.folder, to)
    written = _written(store, grid, budget, inputs, folder, "figures", value, *curves, widths)
    if unchanged := written.unchanged():
        return unchanged

    from bench.measurements.specs import REGISTRY, figure_of
    from bench.results.store import below
    from reports.figures import lines
    from reports.tables.costs import with_reached
    from reports.tables.published_comparison import own_value
    from reports.tables.stale_runs import with_changes

    records = with_reached(expanded, with_changes(expanded, store.records_of(expanded), store), store)
    metric = expanded["report"]["metric"]
    name = f"{grid}@{budget}" + (f"-{value}" if value not in (None, own_value(expanded)) else "")
    paths, sentences = [], []
    for kind in dict.fromkeys(one["kind"] for one in described if one["kind"] not in REGISTRY):
        sentences.append(f"Not drawn in {name}: {unknown('kind of figure', kind, REGISTRY)}{plugins.hint()}")
    figures = [cast("Figure", figure_of(one)) for one in described if one["kind"] in REGISTRY]
    for title, figure in {figure.name: figure for figure in figures}.items():
        try:
            by_metric = figure.drawings(expanded, records, store, value, widths or FIGURES)
        except Exception as error:
            if not (entry := REGISTRY[figure.kind]).lab:
                raise
            sentences.append(f"Not drawn in {name}: {title}: {entry.failure(error)}")
            continue
        if not by_metric:
            sentences.append(f"Nothing to draw yet for {title} of {name}: no run that is done has results for it.")
        for of, drawn in by_metric.items():
            stem = file_name(f"{name}-{title}" + (f"-{of}" if of != metric else ""), longest=200)
            for format in lines.FORMATS:
                paths.append(below(folder, f"{stem}.{format}"))
                lines.save(drawn, paths[-1])
    written.note(paths, sentences)
    return paths, sentences


def build(store: "Store", expanded: StoredGrid, value: str | None = None) -> "tuple[Report, Records]":
    """The report of an expanded grid of a store, and the records of its runs; value and errors as in `write`."""
    from reports.tables import measured, report
    from reports.tables.costs import with_reached
    from reports.tables.stale_runs import with_changes

    records = with_reached(expanded, with_changes(expanded, store.records_of(expanded), store), store)
    if what := expanded["report"].get("measured"):
        return measured.build(expanded, records, _measured(what, expanded, records, store)), records
    return report.build(expanded, records, value), records


def writable_folder(results_dir: Path, to: Path | None = None) -> Path:
    """The folder of a store's reports, or `to`; creates it and checks that it is writable.

    Raises:
        ValueError: if it is not writable; the message names the options of `report` for such stores.
    """
    folder = Path(results_dir) / "reports" if to is None else to
    if to is None and folder.is_symlink():  # it may belong to somebody else
        raise ValueError(
            f"{folder} is a link, so reports would lie elsewhere; name the folder by `report --to FOLDER`, or only print "
            "tables by `report --print`."
        )
    try:
        make_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"Cannot write reports to {folder} ({error.strerror}); name another folder by `report --to FOLDER`, or only "
            "print tables by `report --print`."
        ) from error
    return folder


_STANDINGS = "standings"
_ENDINGS = {STANDALONE: "-standalone.tex", _STANDINGS: "-standings.csv"}

# Imports are inside functions, so that commands which only import this module do not load pandas.


def _check(formats: tuple[str, ...], style: str, notes: str) -> None:
    """Raises ValueError for an unknown format, style or place of footnotes."""
    require_known("report format", formats, [*FORMATS, STANDALONE])
    require_known("style", [style], STYLES)
    require_known("place of footnotes", [notes], NOTES)
    if style == "paper" and "csv" in formats:
        raise ValueError("A CSV has ids and numbers, whatever the style of the tables; leave the style paper out.")


def _written(store: "Store", grid: str, budget: str, inputs: str, folder: Path, *options: object) -> "Written":
    """What is noted of the files that these options make of a grid."""
    from bench.results.written import Written

    place = [str(folder.absolute()), str(store.folder), grid, budget, *map(str, options)]
    return Written(place, [inputs])


def _open_noted(results: "Store | Path", grid: str, budget: str) -> "tuple[Store, StoredGrid, str]":
    """As `_open`, and the digest of what reports read, from before it was read: what a driver writes meanwhile is a change."""
    store = _store(results)
    inputs = store.digest(f"{grid}@{budget}")
    return *_open(store, grid, budget), inputs


def _build(store: "Store", expanded: StoredGrid, value: str | None, style: str = "check") -> tuple:
    """The report of an expanded grid, and its sources: expanded grid, records, store."""
    from reports.tables import paper_style

    report, records = build(store, expanded, value)
    if style == "paper":
        report = paper_style.as_printed(report, expanded)
    return report, expanded, records, store


def _store(results: "Store | Path") -> "Store":
    from bench.results.store import Store

    return results if isinstance(results, Store) else Store(results)


def _open(results: "Store | Path", grid: str, budget: str) -> "tuple[Store, StoredGrid]":
    """The store and an expanded grid of it."""
    store = _store(results)
    expanded = store.grid(f"{grid}@{budget}")
    if expanded is None:
        held = store.grids()  # only to say what there is
        budgets = [name.removeprefix(f"{grid}@") for name in held if name.startswith(f"{grid}@")]
        hint = suggestion(budget, budgets) or f" Run it first: python -m bench run --grid {grid} --budget {budget}"
        raise StoreError(f"{store.folder} holds no {grid}@{budget}, only: {', '.join(held) or 'nothing yet'}.{hint}")
    _check_parts(store.folder / "grids" / f"{grid}@{budget}.json", expanded["report"])
    return store, expanded


def _check_parts(path: Path, layout: StoredLayout) -> None:
    """Raises ValueError if figures or the measured table of a stored grid are wrong; unknown kinds of figures are passed."""
    figures, measured = layout.get("figures", ()), layout.get("measured")
    if not (figures or measured):
        return
    from bench.measurements.specs import REGISTRY, figure_of
    from bench.measurements.tables import table_of

    try:
        for figure in figures:
            if figure["kind"] in REGISTRY:
                figure_of(figure)
        if measured:
            table_of(measured)
    except ConfigError as error:
        raise ValueError(f"{path} does not hold what it should: {' '.join(error.mistakes)}") from error


def _measured(what: dict, expanded: StoredGrid, records: "Records", store) -> dict[str, dict]:
    """Run id -> what a measured table shows of it, for the runs of which it is stored."""
    from bench.measurements.tables import table_of
    from reports.tables.records import ended_runs

    table = table_of(what)
    return {
        run: result
        for run, cell, record in ended_runs(expanded, records)
        if record["status"] == "done"
        for result in table.results(store, run, cell["config"]["rounds"]).values()
    }


def _text(format: str, notes: str, widths: Widths | None, report, grid: StoredGrid, records: "Records", store) -> str:
    from reports.formats import csv, latex, markdown

    if format == "html":
        from reports.html import page

        return page.render(report, grid, records, store)
    renderers = {"md": markdown.render, "csv": csv.render, _STANDINGS: csv.render_standings}
    if format in renderers:
        return renderers[format](report)
    return (latex.render if format == "tex" else latex.render_document)(report, notes, widths)
