"""The board of a pool: which results of which grids lie in it, of whom, when, by which code, and which were trained again.

A pool is a folder of results directories, one for each bundle. A grid that several of them hold gets a table of all together.
"""

import html
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from bench.experiments.importing import merge_results
from bench.files import write_file
from bench.results import authors, verified
from bench.results.records import RunRecord, StoredCell, StoredGrid
from bench.results.store import Store
from reports import api
from reports.formats.markdown import escape
from reports.tables.aggregate import current_cells
from reports.tables.names import Names

PAGE = "board.md"  # in the folder of a pool
TOGETHER = "reports"  # likewise, the tables of grids that several directories hold
_FORMATS = ("md", "tex", "csv")  # of reports; a page, which is large, is written again where there is one
_HEADER = ("method", "results of", "runs", "who", "when", "code", "verified")
_HEAD = """\
# Board

All results of this folder, by grid. `make board` writes this page. A run is verified if somebody has trained it again and
found equal numbers, bit for bit, or, where its record names another kind of processor, accuracies within a tolerance. Of a run
with `first rounds equal`, nobody has trained the others.
"""


class _Line(NamedTuple):
    """A row of a board: what one directory holds of a method of a grid."""

    method: str
    directory: str
    runs: int
    who: str
    when: str
    code: str
    verified: str


def rebuild(stores: Sequence[Store], folder: Path) -> tuple[list[Path], list[str]]:
    """Writes the tables of all grids of a pool, pages that are there, and the board; what still follows from its inputs stays.

    Returns:
        The files, and a sentence for each thing in which directories contradict each other.

    Raises:
        StoreError, ValueError, OSError: as `reports.api.GridReport.write`.
    """
    paths: list[Path] = []
    for store in stores:
        for name in store.grids():
            has_page = (store.folder / "reports" / f"{name}.html").exists()
            formats = (*_FORMATS, *["html"] * has_page)
            paths += api.GridReport(store, *name.split("@", 1)).write(formats=formats).values()
    sentences: list[str] = []
    if several := _held_by_several(stores):
        with tempfile.TemporaryDirectory(prefix="skewbench-pool-") as pool:
            together = Store(pool)
            for store in stores:
                found = merge_results(store, together)
                of = f"in {store.folder.name} and in a directory before it"
                sentences += [f"Run {run} has other numbers {of} ({what})." for run, what in found.disagreeing.items()]
                sentences += [f"Grid {name} has other settings {of}; its cells are left out." for name in found.others]
                sentences += [f"{cell} has other settings {of}; the first is shown." for cell in found.replaced]
            (folder / TOGETHER).mkdir(exist_ok=True)
            for name in several:
                paths += (
                    api.GridReport(together, *name.split("@", 1)).write(formats=_FORMATS, to=folder / TOGETHER).values()
                )
    page = folder / PAGE
    write_file(page, render(stores, verified.read(folder / verified.FILE)))
    return [*paths, page], sentences


def render(stores: Sequence[Store], verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of a pool, as Markdown; reads nothing but records.

    Args:
        verdicts: of `bench.results.verified.read`.
    """
    several = _held_by_several(stores)
    confirmed = {store.folder: verified.confirmed(store, verdicts) for store in stores}
    lines: dict[str, list[_Line]] = {}
    links: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for store in stores:
        named = authors.read(store)
        for name in store.grids():
            grid = store.grid(name)
            if not grid:
                continue
            titles.setdefault(name, grid["title"])
            links.setdefault(name, []).append(_link(store.folder.name, f"{store.folder.name}/reports/{name}.md"))
            lines.setdefault(name, []).extend(_lines(store, grid, named, confirmed[store.folder]))
    parts = [_HEAD]
    for name in sorted(lines):
        own = [*links[name], *([_link("all together", f"{TOGETHER}/{name}.md")] if name in several else [])]
        parts.append(f"## {_plain(name)}\n\n{_plain(titles[name])}. Tables: {', '.join(own)}.\n")
        body = [[_plain(str(value)) for value in line] for line in lines[name]]
        parts.append(tabulate(body, _HEADER, tablefmt="pipe", stralign="left", disable_numparse=True) + "\n")
    return "\n".join(parts)


def _held_by_several(stores: Iterable[Store]) -> list[str]:
    names = [name for store in stores for name in store.grids()]
    return sorted({name for name in names if names.count(name) > 1})


def _lines(
    store: Store, grid: StoredGrid, named: authors.Authors, confirmed: Mapping[str, Mapping[str, Any]]
) -> list[_Line]:
    """A line for each method of a grid that has runs, in the order of its cells."""
    records, names = store.records_of(grid), Names.of_grid(grid)
    runs: dict[str, dict[str, RunRecord]] = {}
    for cell in current_cells(grid, records):
        record = records.get(cell["run"] or "")
        if record and record["status"] in ("done", "diverged"):
            runs.setdefault(_method(cell, names), {})[record["id"]] = record
    found = []
    for method, own in runs.items():
        who = dict.fromkeys(named.of(run) or "not said" for run in own)
        ends = [record.get("finished") or record.get("started") for record in own.values()]
        days = sorted(str(end)[:10] for end in ends if end)
        commits = dict.fromkeys(_short(record.get("commit")) for record in own.values())
        again = [confirmed[run] for run in own if run in confirmed]
        results = Counter(_result(one) for one in again)
        by = dict.fromkeys(f"{one['by']}, {one['when']}" for one in again)
        said = [f"{count} {result}" for result, count in sorted(results.items())]
        found.append(
            _Line(
                method,
                store.folder.name,
                len(own),
                ", ".join(who),
                " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
                ", ".join([*commits][:3]) + (f" and {len(commits) - 3} more" if len(commits) > 3 else ""),
                f"{', '.join(said)} ({'; '.join(by)})" if again else "no",
            )
        )
    return found


def _result(verdict: Mapping[str, Any]) -> str:
    """What came out for a run, with the number of its rounds where only some were compared."""
    done, of = verdict["rounds"], verdict["of"]
    return f"{verdict['result']} ({done} of {of} rounds)" if done < of else str(verdict["result"])


def _method(cell: StoredCell, names: Names) -> str:
    """What a board calls the method of a cell."""
    method = names.value("algorithm", cell["config"]["algorithm"]["name"]).plain
    base = cell["config"]["algorithm"].get("base")
    return f"{method} of {names.value('algorithm', base['name']).plain}" if isinstance(base, Mapping) else method


def _short(commit: str | None) -> str:
    """A commit as people write it: "35e83c83d1", "35e83c83d1-dirty", "version 0.1.0"."""
    found, _, dirty = (commit or "not said").partition("-")
    return (found[:10] if len(found) == 40 else found) + f"-{dirty}" * bool(dirty)


def _link(text: str, path: str) -> str:
    return f"[{_plain(text)}](<{path}>)"


def _plain(text: str) -> str:
    """A text of somebody in a page: neither Markdown nor HTML."""
    return escape(html.escape(text, quote=False)).replace("[", "\\[").replace("_", "\\_")
