"""Tables of measured and published results: a pure function of an expanded grid and its run records.

`write` saves a grid's tables and says where, `render` returns one of them as text. Everything comes from the
JSON files of a result store.
"""

from pathlib import Path

FORMATS = ("md", "tex", "csv")
VALUES = ("last", "best", "last10")


def write(
    results_dir: Path, grid: str, budget: str, *, value: str | None = None, formats: tuple[str, ...] = FORMATS
) -> dict[str, Path]:
    """Saves the tables of a grid under `<results_dir>/reports/` and returns format -> path.

    The files are called `<grid>@<budget>.md` and so on; a value other than the grid's own is part of the name
    (`<grid>@<budget>-best.md`), so that no file changes its meaning.

    Args:
        results_dir: the result store.
        grid: name of a grid that was run there.
        budget: `paper`, `small`, `smoke` or the grid's own.
        value: `last`, `best` or `last10` (rounds); None takes what the grid asks for.
        formats: which of FORMATS to write.

    Raises:
        StoreError: if the store holds no such grid, or a file of it cannot be read.
        ValueError: if an argument is unknown, or the grid cannot be laid out as its report asks.
    """
    from bench.store import write_file

    report = _build(results_dir, grid, budget, value)
    folder = Path(results_dir) / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {format: folder / f"{report.name}.{format}" for format in formats}
    for format, path in paths.items():
        write_file(path, _text(report, format))
    return paths


def render(results_dir: Path, grid: str, budget: str, *, value: str | None = None, format: str = "md") -> str:
    """The tables of a grid as text, nothing saved; arguments and errors as in `write`."""
    return _text(_build(results_dir, grid, budget, value), format)


# pandas takes most of a report's time to import; commands that only import this package do not pay for it.


def _build(results_dir: Path, grid: str, budget: str, value: str | None):
    from bench.store import Store, StoreError
    from reports import report

    store = Store(results_dir)
    expanded = store.grid(f"{grid}@{budget}")
    if expanded is None:
        raise StoreError(
            f"{results_dir} holds no {grid}@{budget}, only: {', '.join(store.grids()) or 'nothing yet'}. "
            f"Run it first: python -m bench run --grid {grid} --budget {budget}"
        )
    records = {run_id: store.record(run_id) for run_id in {cell["run"] for cell in expanded["cells"]} - {None}}
    return report.build(expanded, {run_id: record for run_id, record in records.items() if record}, value)


def _text(report, format: str) -> str:
    from bench.names import unknown
    from reports import latex, markdown, tidy

    renderers = dict(zip(FORMATS, (markdown.render, latex.render, tidy.render), strict=True))
    if format not in renderers:
        raise ValueError(unknown("report format", format, FORMATS))
    return renderers[format](report)
