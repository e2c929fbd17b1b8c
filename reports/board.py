"""The board of a pool: which results of which grids lie in it, of whom, when, by which code, and which were trained again.

A pool is a folder of results directories, one for each bundle. A grid that several of them hold gets a table of all together,
without the runs of which they hold different results: nobody can say which of these is right, and no name of a directory does.
"""

import html
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import algorithms
from bench.experiments.importing import label_of, merge_results
from bench.experiments.labels import ABSENT
from bench.experiments.stored_grid import is_same
from bench.files import write_file
from bench.results import authors, verified
from bench.results.equality import differences
from bench.results.grids import StoredCell, StoredGrid
from bench.results.records import FINISHED, RunRecord
from bench.results.store import Store
from reports import api
from reports.formats.markdown import escape, pipe_table
from reports.tables.aggregate import cell_keys, current_cells, label
from reports.tables.footnotes import without_paths
from reports.tables.layout import span
from reports.tables.names import Names
from reports.tables.versions import title_of

PAGE = "board.md"  # in the folder of a pool
TOGETHER = "reports"  # likewise, the tables of grids that several directories hold
_FORMATS = ("md", "tex", "csv")  # of reports; a page, which is large, is written again where there is one
_HEADER = ("method", "results of", "runs", "who", "when", "code", "verified")
_HEAD = """\
# Board

All results of this folder, by grid. `make board` writes this page. The last column counts the runs that somebody has trained
again, by what came out: "equal" is bit for bit, "within tolerance" is of accuracies, where a record names another kind of
processor. Of a run with "first rounds equal", nobody has trained the others.
"""
_NOTHING_VERIFIED = "Nobody has verified a run of this folder yet.\n"
_CONTRADICTIONS = """The directories contradict each other. Tables of all together are without what follows:
"""
_SHOWN = {verified.DIFFERS: "DIFFERS"}
_FIRST = (verified.FIRST_EQUAL, verified.FIRST_WITHIN)
_NOTE = "Runs of which the directories of this pool hold different results are left out; the board names them."


class _Line(NamedTuple):
    """A row of a board: what one directory holds of a method of a grid."""

    method: str
    directory: str
    runs: str
    who: str
    when: str
    code: str
    verified: str


def rebuild(stores: Sequence[Store], folder: Path) -> tuple[list[Path], dict[str, list[str]]]:
    """Writes the tables of all grids of a pool, pages that are there, and the board; what still follows from its inputs stays.

    Returns:
        The files, and for each grid a sentence for each thing in which directories contradict each other.

    Raises:
        StoreError, ValueError, OSError: as `reports.api.GridReport.write`.
    """
    paths: list[Path] = []
    for store in stores:
        for name in store.grids():
            has_page = (store.folder / "reports" / f"{name}.html").exists()
            formats = (*_FORMATS, *["html"] * has_page)
            paths += api.GridReport(store, *name.split("@", 1)).write(formats=formats).values()
    wrong, runs = _of_runs(stores)
    if several := _held_by_several(stores):
        (folder / TOGETHER).mkdir(exist_ok=True)
        paths += _write_together(stores, several, folder / TOGETHER, runs, wrong)
    page = folder / PAGE
    write_file(page, render(stores, verified.read(folder / verified.FILE), wrong))
    return [*paths, page], wrong


def render(
    stores: Sequence[Store],
    verdicts: Mapping[str, Mapping[str, Any]],
    wrong: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """The page of a pool, as Markdown; reads nothing but records.

    Args:
        verdicts: of `bench.results.verified.read`.
        wrong: grid -> sentences, of `rebuild`.
    """
    several = _held_by_several(stores)
    current = {store.folder: verified.current(store, verdicts) for store in stores}
    lines: dict[str, list[_Line]] = {}
    links: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    hidden: dict[str, Callable[[str], str]] = {}
    for store in stores:
        named = authors.read(store)
        for name in store.grids():
            grid = store.grid(name)
            if not grid:
                continue
            hide = hidden.setdefault(name, without_paths(grid))
            titles.setdefault(name, hide(title_of(grid)))
            links.setdefault(name, []).append(_link(store.folder.name, f"{store.folder.name}/reports/{name}.md"))
            lines.setdefault(name, []).extend(_lines(store, grid, named, current[store.folder]))
    parts = [_HEAD, *[_NOTHING_VERIFIED] * (not any(current.values()))]
    for name in sorted(lines):
        together = name in several and not _of_grids(stores, name)
        own = [*links[name], *[_link("all together", f"{TOGETHER}/{name}.md")] * together]
        parts.append(f"## {_plain(name)}\n\n{_plain(titles[name])}. Tables: {', '.join(own)}.\n")
        body = [[_plain(str(value)) for value in line] for line in lines[name]]
        parts.append(pipe_table(_HEADER, body) + "\n")
        if sentences := wrong.get(name):
            parts += [
                _CONTRADICTIONS,
                "\n".join(f"- {_plain(hidden[name](sentence))}" for sentence in sentences) + "\n",
            ]
    return "\n".join(parts)


def _of_runs(stores: Sequence[Store]) -> tuple[dict[str, list[str]], set[str]]:
    """Grid -> a sentence for each run of it that has ended with other numbers in another directory; ids of all these runs."""
    held: dict[str, list[tuple[Store, RunRecord]]] = {}
    for store in stores:
        for run, record in store.records().items():
            if record["status"] in FINISHED:
                held.setdefault(run, []).append((store, record))
    differing: dict[str, list[str]] = {}
    for run, ((first, record), *others) in held.items():
        for other, its in others:
            if what := differences((other.rows(run), its), (first.rows(run), record)):
                by = [one.get("processor") or one.get("device") or "an unknown processor" for one in (its, record)]
                on = f"; on {by[0]} and on {by[1]}" * (by[0] != by[1])
                where = f"in {other.folder.name} than in {first.folder.name}"
                differing.setdefault(run, []).append(f"has other numbers {where} ({what}{on}).")
    sentences: dict[str, dict[str, None]] = {}
    for store in stores if differing else ():
        for name in store.grids():
            if grid := store.grid(name):
                for cell in grid["cells"]:
                    for how in differing.get(cell["run"] or "", ()):
                        sentence = f"{label_of(grid, cell)}, seed {cell['seed']} (run {cell['run']}) {how}"
                        sentences.setdefault(name, {})[sentence] = None
    return {name: [*found] for name, found in sentences.items()}, {*differing}


def _of_grids(stores: Sequence[Store], name: str) -> str:
    """A sentence where two directories hold different grids of one name, "" else."""
    first, *others = [(store.folder.name, grid) for store in stores if (grid := store.grid(name))]
    differing = [folder for folder, grid in others if not is_same(grid, first[1])]
    if not differing:
        return ""
    where = f"in {' and in '.join(differing)} than in {first[0]}"
    return f"It has other settings, axes or studies {where}: nothing of it is put together."


def _write_together(
    stores: Sequence[Store], names: Iterable[str], folder: Path, runs: Collection[str], wrong: dict[str, list[str]]
) -> list[Path]:
    """Writes the tables of grids that several directories hold, without what these contradict each other in, and adds
    sentences about that to those of the grids; returns the files.

    Args:
        runs: ids of runs that have ended with different numbers.
    """
    paths: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="skewbench-pool-") as pool:
        together = Store(pool)
        replaced = sorted({cell for store in stores for cell in merge_results(store, together).replaced})
        for name in names:
            if sentence := _of_grids(stores, name):
                wrong.setdefault(name, []).append(sentence)
                for ending in (*(f".{format}" for format in _FORMATS), "-standings.csv"):
                    (folder / f"{name}{ending}").unlink(missing_ok=True)
                continue
            cells = [cell.removeprefix(f"{name}: ") for cell in replaced if cell.startswith(f"{name}: ")]
            if cells:
                more = [f"{cell} has other settings in one directory than in another." for cell in cells]
                wrong.setdefault(name, []).extend(more)
            if name in wrong:
                _leave_out(together, name, runs, cells)
            paths += api.GridReport(together, *name.split("@", 1)).write(formats=_FORMATS, to=folder).values()
    return paths


def _leave_out(together: Store, name: str, runs: Collection[str], cells: Collection[str]) -> None:
    """Removes runs from a grid of all together, and those of table cells, which are as `label_of` has them."""
    if grid := together.grid(name):
        for cell in grid["cells"]:
            if cell["run"] and (cell["run"] in runs or label_of(grid, cell) in cells):
                shutil.rmtree(together.run_folder(cell["run"]), ignore_errors=True)
        notes = [*grid["report"].get("notes", []), _NOTE]
        together.write_grid(name, {**grid, "report": {**grid["report"], "notes": notes}})


def _held_by_several(stores: Iterable[Store]) -> list[str]:
    names = [name for store in stores for name in store.grids()]
    return sorted({name for name in names if names.count(name) > 1})


def _lines(
    store: Store, grid: StoredGrid, named: authors.Authors, current: Mapping[str, Mapping[str, Any]]
) -> list[_Line]:
    """A line for each method of a grid that has runs, in the order of its cells."""
    records, names, axes = store.records_of(grid), Names.of_grid(grid), cell_keys(grid)
    runs: dict[str, dict[str, RunRecord]] = {}
    of_labs: set[str] = set()
    for cell in current_cells(grid, records):
        record = records.get(cell["run"] or "")
        if record and record["status"] in (*FINISHED, "failed"):
            runs.setdefault(method := _method(cell, names, axes), {})[record["id"]] = record
            entry = algorithms.REGISTRY.get(cell["config"]["algorithm"]["name"])
            of_labs |= {method} if entry is None or entry.lab else set()
    found = []
    for method, own in runs.items():
        ended = [run for run, record in own.items() if record["status"] in FINISHED]
        failed = f", {len(own) - len(ended)} failed" * (len(ended) < len(own))
        who = dict.fromkeys(named.of(run) or "not said" for run in own)
        ends = [record.get("finished") or record.get("started") for record in own.values()]
        days = sorted(str(end)[:10] for end in ends if end)
        commits = dict.fromkeys(
            _short(commit)
            for record in own.values()
            for commit in (record.get("commit"), *record.get("commits", {}).values())
        )
        found.append(
            _Line(
                method,
                store.folder.name,
                f"{len(ended)}{failed}",
                ", ".join(who),
                span(days[0], days[-1]) if days else "",
                ", ".join([*commits][:3])
                + (f" and {len(commits) - 3} more" if len(commits) > 3 else "")
                + ", and the method's own" * (method in of_labs),
                _verified([current[run] for run in ended if run in current], len(ended)),
            )
        )
    return found


def _verified(again: Sequence[Mapping[str, Any]], runs: int) -> str:
    """What came out for the runs of a line that were trained again: "1 of 4 equal, 1 DIFFERS (Ann, 2026-11-26)"."""
    counts = Counter(_result(one) for one in sorted(again, key=lambda one: verified.RESULTS.index(one["result"])))
    by = dict.fromkeys(f"{one['by']}, {one['when']}" for one in again)
    said = ", ".join(f"{count} {result}" for result, count in counts.items())
    return f"{said.replace(' ', f' of {runs} ', 1)} ({'; '.join(by)})" if again else "no"


def _result(verdict: Mapping[str, Any]) -> str:
    """What came out for a run, with the number of its rounds where only some were compared."""
    done, of, result = verdict["rounds"], verdict["of"], _SHOWN.get(verdict["result"], verdict["result"])
    return f"{result} ({done} of {of} rounds)" if result in _FIRST else str(result)


def _method(cell: StoredCell, names: Names, axes: Collection[str]) -> str:
    """What tables of these axes call the method of a cell, with what is around it, and its base where that is on an axis."""
    keys = ["algorithm", *["wrapper"] * bool(cell.get("wrapper"))]
    method = names.together(keys, [label(cell, key) for key in keys]).plain
    base = label(cell, "base") if "base" in axes else ABSENT
    return method if base == ABSENT else f"{method} of {names.value('base', base).plain}"


def _short(commit: str | None) -> str:
    """A commit as people write it: "35e83c83d1", "35e83c83d1-dirty", "version 0.1.0"."""
    found, _, dirty = (commit or "not said").partition("-")
    return (found[:10] if len(found) == 40 else found) + f"-{dirty}" * bool(dirty)


def _link(text: str, path: str) -> str:
    path = re.sub(r"[<>\\]|[^\S ]", lambda found: quote(found[0]), path)  # which would end the link
    return f"[{_plain(text)}](<{path}>)"


def _plain(text: str) -> str:
    """A text of somebody in a page: neither Markdown nor HTML."""
    return escape(html.escape(text, quote=False)).replace("[", "\\[").replace("_", "\\_")
