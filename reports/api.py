"""Tables and figures of measured and published results: a pure function of an expanded grid and its run records.

`write` saves a grid's tables and says where, `render` returns one of them as text, `write_figures` saves its figures.
Everything comes from the JSON files of a result store.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.experiments.figure_names import CURVES

if TYPE_CHECKING:
    from bench.results.store import Store

FORMATS = ("md", "tex", "csv", "html")
STANDALONE = "standalone"  # LaTeX as a document of its own


def write(
    results: "Store | Path",
    grid: str,
    budget: str,
    *,
    value: str | None = None,
    formats: tuple[str, ...] = FORMATS,
    to: Path | None = None,
) -> dict[str, Path]:
    """Saves the tables of a grid and returns format -> path.

    The files are called `<grid>@<budget>.md` and so on; a value other than the grid's own is part of the name
    (`<grid>@<budget>-best.md`), so that no file changes its meaning. Beside a CSV, standings get a file of their own
    (`<grid>@<budget>-standings.csv`); STANDALONE is `<grid>@<budget>-standalone.tex`.

    Args:
        results: the result store, or its directory.
        grid: name of a grid that was run there.
        budget: `paper`, `small`, `smoke` or the grid's own.
        value: `last`, `best` or `last10` (rounds); None takes what the grid asks for. Tables of measurements have one value.
        formats: which of FORMATS and STANDALONE to write.
        to: the folder of the files, which is made, but none above it; None is `reports/` of the directory.

    Raises:
        StoreError: if the store holds no such grid, or a file of it cannot be read.
        ValueError: if an argument is unknown, the grid cannot be laid out as its report asks, or nothing can be written there.
        OSError: if a file cannot be written; it names the file.
    """
    from bench.errors import unknown
    from bench.files import write_file
    from bench.results.store import below

    for format in formats:
        if format not in (*FORMATS, STANDALONE):
            raise ValueError(unknown("report format", format, [*FORMATS, STANDALONE]))
    made = _build(results, grid, budget, value)
    folder = writable_folder(made[-1].folder, to)
    if "csv" in formats and made[0].standings:
        formats = (*formats, _STANDINGS)
    paths = {format: below(folder, made[0].name + _ENDINGS.get(format, f".{format}")) for format in formats}
    for format, path in paths.items():
        write_file(path, _text(format, *made))
    return paths


def render(results: "Store | Path", grid: str, budget: str, *, value: str | None = None, format: str = "md") -> str:
    """The tables of a grid as text, nothing saved; arguments and errors as in `write`."""
    return _text(format, *_build(results, grid, budget, value))


def write_figures(
    results: "Store | Path",
    grid: str,
    budget: str,
    curves: tuple[str, ...] = (),
    *,
    value: str | None = None,
    to: Path | None = None,
) -> tuple[list[Path], list[str]]:
    """Saves the figures that a grid lists, and curves on request.

    The files are called `<grid>@<budget>-<figure>.png`, `.pdf` and `.svg`; a metric other than the grid's own is part of
    the name.

    Args:
        results, grid, budget, value, to: as in `write`.
        curves: x axes of curves of accuracy, of CURVES, besides the listed figures.

    Returns:
        The files, and one sentence for each figure for which there is no result yet.

    Raises:
        StoreError, ValueError, OSError: as in `write`.
    """
    from bench.errors import unknown
    from bench.files import file_name
    from bench.results.store import Store, below

    for x in curves:
        if x not in CURVES:
            raise ValueError(unknown("figure", x, CURVES))
    store = results if isinstance(results, Store) else Store(results)
    expanded = _expanded(store, grid, budget)
    wanted = [*expanded["report"].get("figures", ()), *({"kind": "curves", "x": x} for x in curves)]
    if not wanted:
        return [], []

    from bench.experiments.figure_names import figure_name
    from reports.figures import dispatch, lines
    from reports.tables.published_comparison import own_value

    records, metric = _records(store, expanded), expanded["report"]["metric"]
    name = f"{grid}@{budget}" + (f"-{value}" if value not in (None, own_value(expanded)) else "")
    folder = writable_folder(store.folder, to)
    paths, sentences = [], []
    for title, figure in {figure_name(figure): figure for figure in wanted}.items():
        found = dispatch.draw(figure, expanded, records, store, value)
        if not found:
            sentences.append(f"Nothing to draw yet for {title} of {name}: no run that is done has results for it.")
        for of, drawn in found.items():
            stem = file_name(f"{name}-{title}" + (f"-{of}" if of != metric else ""), longest=200)
            for format in lines.FORMATS:
                paths.append(below(folder, f"{stem}.{format}"))
                lines.save(drawn, paths[-1])
    return paths, sentences


def writable_folder(results_dir: Path, to: Path | None = None) -> Path:
    """Where `write` writes, made and found to be writable.

    Raises:
        ValueError: if it is not; it names the options of `report` for results that cannot be written to.
    """
    from bench.files import make_folder

    folder = Path(results_dir) / "reports" if to is None else to
    if to is None and folder.is_symlink():  # it may be another one's directory
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

# pandas takes most of a report's time to import; commands that only import this package do not pay for it.


def _build(results: "Store | Path", grid: str, budget: str, value: str | None) -> tuple:
    """The report of a grid, and what it was made of: expanded grid, records, store."""
    from bench.results.store import Store
    from reports.tables import measured, report

    store = results if isinstance(results, Store) else Store(results)
    expanded = _expanded(store, grid, budget)
    records = _records(store, expanded)
    if what := expanded["report"].get("measured"):
        found = _measured(what, expanded, records, store)
        return measured.build(expanded, records, found), expanded, records, store
    return report.build(expanded, records, value), expanded, records, store


def _expanded(store, grid: str, budget: str) -> dict:
    from bench.errors import StoreError

    expanded = store.grid(f"{grid}@{budget}")
    if expanded is None:
        raise StoreError(
            f"{store.folder} holds no {grid}@{budget}, only: {', '.join(store.grids()) or 'nothing yet'}. "
            f"Run it first: python -m bench run --grid {grid} --budget {budget}"
        )
    return expanded


def _records(store, expanded: dict) -> dict[str, dict]:
    """Run id -> record of the runs of an expanded grid that have ended."""
    records = {run_id: store.record(run_id) for run_id in {cell["run"] for cell in expanded["cells"]} - {None}}
    return {run_id: record for run_id, record in records.items() if record}


def _measured(what: dict, expanded: dict, records: dict[str, dict], store) -> dict[str, dict]:
    """Run id -> what a measured table shows of it, for the runs of which it is stored."""
    from bench.measurements.specs import probes_of, result_of

    done = [cell for cell in expanded["cells"] if records.get(cell["run"], {}).get("status") == "done"]
    found = {cell["run"]: result_of(store, cell["run"], *probes_of(what, cell["config"]["rounds"])) for cell in done}
    return {run: result for run, result in found.items() if result}


def _text(format: str, report, grid: dict, records: dict[str, dict], store) -> str:
    from bench.errors import unknown
    from reports.formats import csv, latex, markdown

    if format == "html":
        from reports.html import page

        return page.render(report, grid, records, store)
    renderers = {"md": markdown.render, "tex": latex.render, "csv": csv.render}
    renderers |= {STANDALONE: latex.render_document, _STANDINGS: csv.render_standings}
    if format not in renderers:
        raise ValueError(unknown("report format", format, [*FORMATS, STANDALONE]))
    return renderers[format](report)
