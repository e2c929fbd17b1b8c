"""Tables and figures of measured and published results, a pure function of an expanded grid and its run records.

`GridReport` reads a grid of a result store once: it saves tables and figures, or returns tables as text in one format.
"""

import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench import plugins
from bench.errors import ConfigError, StoreError, require_known, suggestion, unknown
from bench.experiments.figure_names import CURVES
from bench.files import file_name, make_folder, write_file
from bench.results.grids import StoredGrid, StoredLayout
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
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


class GridReport:
    """What reports show of a grid of a store. Its file and the records of its runs are read when they are needed first, and
    again by each `write`.

    Errors of all that reads:
        StoreError: if the store holds no such grid, or a file of it cannot be read.
        ValueError: if an argument is unknown, or the report's axes do not fit the grid.
    """

    def __init__(self, results: "Store | Path", grid: str, budget: str):
        """
        Args:
            results: the result store, or its directory.
            grid: name of a grid that was run there.
            budget: `paper`, `small`, `smoke` or the grid's own.
        """
        from bench.results.store import Store

        self.store = results if isinstance(results, Store) else Store(results)
        self.grid, self.budget, self.label = grid, budget, f"{grid}@{budget}"

    @cached_property
    def expanded(self) -> StoredGrid:
        """The expanded grid."""
        found = self.store.grid(self.label)
        if found is None:
            held = self.store.grids()  # only to say what there is
            budgets = [name.removeprefix(f"{self.grid}@") for name in held if name.startswith(f"{self.grid}@")]
            hint = suggestion(self.budget, budgets)
            hint = hint or f" Run it first: python -m bench run --grid {self.grid} --budget {self.budget}"
            there = ", ".join(held) or "nothing yet"
            raise StoreError(f"{self.store.folder} holds no {self.label}, only: {there}.{hint}")
        _check_parts(self.store.folder / "grids" / f"{self.label}.json", found["report"])
        return found

    @cached_property
    def records(self) -> "Records":
        """Run id -> record, with what tables say of earlier code and of the cost of an accuracy."""
        from reports.tables.costs import with_reached
        from reports.tables.stale_runs import with_changes

        records = self.store.records_of(self.expanded)
        return with_reached(self.expanded, with_changes(self.expanded, records, self.store), self.store)

    @cached_property
    def _inputs(self) -> str:
        """The digest of what reports read, from before it was read: what a driver writes meanwhile is a change."""
        for read_before in ("expanded", "records"):
            self.__dict__.pop(read_before, None)
        return self.store.digest(self.label)

    def build(self, value: str | None = None, style: str = "check") -> "Report":
        """The tables as what every format renders; value and style as in `write`."""
        from reports.tables import measured, paper_style, report

        if what := self.expanded["report"].get("measured"):
            results = _measured(what, self.expanded, self.records, self.store)
            built = measured.build(self.expanded, self.records, results)
        else:
            built = report.build(self.expanded, self.records, value)
        return paper_style.as_printed(built, self.expanded) if style == "paper" else built

    def render(
        self,
        *,
        value: str | None = None,
        format: str = "md",
        style: str = "check",
        notes: str = "inside",
        widths: Widths | None = None,
    ) -> str:
        """The tables as text; arguments and errors as in `write`. Writes no file."""
        _check((format,), style, notes)
        return self._text(self.build(value, style), format, notes, widths)

    def write(
        self,
        *,
        value: str | None = None,
        formats: tuple[str, ...] = FORMATS,
        to: Path | None = None,
        style: str = "check",
        notes: str = "inside",
        widths: Widths | None = None,
    ) -> dict[str, Path]:
        """Saves the tables and returns format -> path. Files that still follow from the same inputs stay as they are.

        The files are `<grid>@<budget>.md` and so on. A value other than the grid's own is part of the name
        (`<grid>@<budget>-best.md`). With a CSV, standings are written to `<grid>@<budget>-standings.csv`. STANDALONE is
        `<grid>@<budget>-standalone.tex`. Files of the style `paper` are `<grid>@<budget>-paper.md` and so on, without a
        CSV: its numbers have no style.

        Args:
            value: `last`, `best` or `last10` (rounds); None is the grid's own. Tables of measurements have one value.
            formats: which of FORMATS and STANDALONE to write.
            to: the folder of the files, created if only the folder itself is missing; None is `reports/` of the store.
            style: one of STYLES.
            notes: where LaTeX has footnotes, one of NOTES.
            widths: into which tables of LaTeX must fit; None for those of the document that they are in.

        Raises:
            ValueError: also if the folder is not writable.
            OSError: if a file cannot be written; it names the file.
        """
        from bench.results.store import below

        if style == "paper":
            formats = tuple(format for format in formats if format != "csv")
        _check(formats, style, notes)
        inputs = self._inputs  # before anything else is read
        folder, written = self._written(inputs, to, "tables", value, *formats, style, notes, widths)
        if unchanged := written.unchanged():
            found, names = unchanged
            return dict(zip(names, found, strict=True))
        report = self.build(value, style)
        if "csv" in formats and report.standings:
            formats = (*formats, _STANDINGS)
        paths = {format: below(folder, report.name + _ENDINGS.get(format, f".{format}")) for format in formats}
        for format, path in paths.items():
            write_file(path, self._text(report, format, notes, widths))
        written.note(paths.values(), [*paths])
        return paths

    def write_figures(
        self,
        curves: tuple[str, ...] = (),
        *,
        value: str | None = None,
        to: Path | None = None,
        widths: Widths | None = None,
    ) -> tuple[list[Path], list[str]]:
        """Saves the figures that the grid lists, and further curves. Files that still follow from the same inputs stay as they
        are.

        The files are `<grid>@<budget>-<figure>.png`, `.pdf` and `.svg`. A metric other than the grid's own is part of the
        name.

        Args:
            value, to: as in `write`.
            curves: x axes (from CURVES) of further curves of accuracy.
            widths: of figures, None for FIGURES; one of a single panel is as wide as a column.

        Returns:
            The files, and one sentence for each figure without a result yet.

        Raises:
            ValueError, OSError: as in `write`.
        """
        require_known("figure", curves, CURVES)
        inputs = self._inputs  # before anything else is read
        described = [*self.expanded["report"].get("figures", ()), *({"kind": "curves", "x": x} for x in curves)]
        if not described:  # then matplotlib is not imported
            return [], []
        folder, written = self._written(inputs, to, "figures", value, *curves, widths)
        if unchanged := written.unchanged():
            return unchanged

        from bench.measurements.specs import REGISTRY, Shown, figure_of
        from bench.results.store import below
        from reports.figures import lines
        from reports.tables.published_comparison import own_value

        expanded = self.expanded
        metric = expanded["report"]["metric"]
        name = self.label + (f"-{value}" if value not in (None, own_value(expanded)) else "")
        paths, sentences, has_failed = [], [], False
        for kind in dict.fromkeys(one["kind"] for one in described if one["kind"] not in REGISTRY):
            sentences.append(f"Not drawn in {name}: {unknown('kind of figure', kind, REGISTRY)}{plugins.hint()}")
        figures = [cast("Figure", figure_of(one)) for one in described if one["kind"] in REGISTRY]
        for title, figure in {figure.name: figure for figure in figures}.items():
            try:
                by_metric = figure.pictures(expanded, self.records, self.store, value, widths or FIGURES)
                for of, drawn in by_metric.items():
                    stem = file_name(f"{name}-{title}" + (f"-{of}" if of != metric else ""), longest=200)
                    paths += lines.save(drawn, below(folder, stem))
            except Exception as error:
                entry = REGISTRY[figure.kind]
                if not entry.lab or (isinstance(error, OSError) and not entry.has_raised(error)):  # no space is left
                    raise
                sentences.append(f"Not drawn in {name}: {title}: {entry.failure(error)}")
                has_failed = True
                continue
            if not by_metric:
                sentence = f"Nothing to draw yet for {title} of {name}: no run that is done has results for it"
                if type(figure).probes is not Shown.probes:
                    sentence += f"; python -m bench run --grid {expanded.get('source') or self.grid} measures it"
                sentences.append(f"{sentence}.")
            sentences += [f"{title} of {name}: no run has round {number}." for number in self._absent_rounds(figure)]
        if not has_failed:  # else the cause may be gone next time: a package that was missing, for example
            written.note(paths, sentences)
        return paths, sentences

    def _absent_rounds(self, figure: "Figure") -> list[int]:
        """The rounds that a figure lists and no run that is done has."""
        trained = [
            record["rounds"] for record in self.records.values() if record["status"] == "done" and "rounds" in record
        ]
        listed = getattr(figure, "rounds", ())
        if not (trained and isinstance(listed, list)):
            return []
        return [number for number in listed if isinstance(number, int) and number > max(trained)]

    def _written(self, inputs: str, to: Path | None, *options: object) -> "tuple[Path, Written]":
        """The folder of files, and what is noted of those that these options make."""
        from bench.results.written import Written

        named = [self.expanded["grid"], self.expanded["budget"]]  # a grid that is not there makes no folder
        folder = writable_folder(self.store.folder, to)
        place = [str(folder.absolute()), str(self.store.folder), *named, *map(str, options)]
        return folder, Written(place, [inputs])

    def _text(self, report: "Report", format: str, notes: str, widths: Widths | None) -> str:
        from reports.formats import csv, latex, markdown

        if format == "html":
            from reports.html import page

            return page.render(report, self.expanded, self.records, self.store)
        renderers = {"md": markdown.render, "csv": csv.render, _STANDINGS: csv.render_standings}
        if format in renderers:
            return renderers[format](report)
        return (latex.render if format == "tex" else latex.render_document)(report, notes, widths)


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
        for result in table.results(store, run, cell["config"]["rounds"], record).values()
    }
