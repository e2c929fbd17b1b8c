"""Which files of a results directory go into a bundle, and what its manifest and its citation say."""

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import algorithms
from bench import __version__
from bench.config.resolve import proposed_configs, resolve, trained_by
from bench.config.schema import run_id, settings_of
from bench.errors import ConfigError, StoreError
from bench.provenance import commits_of
from bench.references import LAB
from bench.references import read as read_reference
from bench.registry import KINDS, Registry
from bench.results import authors, bundles
from bench.results.authors import Authors
from bench.results.ids import is_name
from bench.results.json_files import read_bytes, seal, unseal
from bench.results.records import code_of, methods_in, moment
from bench.results.run_files import RUN_FILES
from bench.results.store import Store
from datasets.partition_files import FOLDER as PARTITIONS
from datasets.partition_files import kept

_OF_THIS_MACHINE = ("host", "traceback")  # of a record: its name, and the paths of its files
TITLE = "skewbench: a benchmark harness for federated learning under label skew"


def write(store: Store, labels: Iterable[str], path: Path, author: str) -> "Written":
    """Writes a bundle of stored grids, with the runs of their cells, the runs from which these start and the searches that have
    chosen for them.

    Raises:
        StoreError: if nothing of these has ended, or a file cannot be read.
        OSError: if the bundle cannot be written.
    """
    with store.unchanging():
        labels = list(labels)
        searches = _searches_of(store, labels)
        records = {run: store.record(run) for run in _runs_of(store, labels, searches)}
        ended = {run: record for run, record in records.items() if record}
        if not ended:
            raise StoreError(f"No run of {', '.join(labels) or 'a grid'} has ended in {store.folder}.")
        configs = {run: config for run in ended if (config := store.config(run))}
        said = authors.read(store)
        named = Authors({run: said.of(run) for run in ended if said.of(run)}, author)
        names = [f"grids/{label}.json" for label in labels] + [f"searches/{name}.json" for name in searches]
        for run in ended:
            probes = sorted(path.name for path in store.run_folder(run).glob("probe-*.json") if is_name(path.name))
            names += [f"runs/{run}/{name}" for name in (*RUN_FILES, *probes)]
        hashes = {digest for record in ended.values() for _, digest in code_of(record)}
        names += [f"code/{digest}.json" for digest in sorted(hashes) if store.code(digest)]
        names += _partitions(store, configs.values())
        files = {name: content for name in names if (content := _read(store, name)) is not None}
        files[authors.FILE] = authors.text(named).encode()
        used = sorted({name for config in configs.values() for name in methods_in(config["algorithm"])})
        manifest = _manifest(store, labels, ended, configs, used, author)
    bundles.write(path, files, manifest, citation(used))
    pairs = [(record, configs[run]) for run, record in ended.items() if run in configs]
    dirty = [run for run, record in ended.items() if any(commit.endswith("-dirty") for commit in _commits(record))]
    return Written(len(ended), len(dirty), [*_needed(store, labels, pairs)])


def _needed(
    store: Store, labels: Iterable[str], runs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Iterator[str]:
    """What of the author is not in a bundle, but needed to train its runs or to expand its grids again.

    Args:
        runs: record and config of each.
    """
    runs = list(runs)
    sources = {Path(grid.get("source") or "").name for label in labels if (grid := store.grid(label))}
    yield from (f"the grid's file {name} (--grid)" for name in sorted(sources - {""}))
    data = {found for _, config in runs if (found := read_reference(config["dataset"]))}
    parts = {part for record, _ in runs for part, _ in code_of(record)}
    own = {name for part in parts if (name := _of_lab(part))} | {found.name for found in data if found.kind == LAB}
    if own:
        yield f"the folder with {', '.join(sorted(own))} (--plugins)"
    yield from (f"the images of {name} (--dataset)" for name in sorted({one.name for one in data if one.kind != LAB}))
    weights = {name for record, _ in runs for name in record.get("weights", {})}
    yield from (f"the weights {name} (--data-dir)" for name in sorted(weights))


def _of_lab(part: str) -> str:
    """The name of a method, model, partition or callback that does not come with skewbench, of a part of the code of a run."""
    kind, _, name = part.partition(" ")
    entry = Registry(kind).get(name) if name and kind in KINDS else None
    return name if name and kind in KINDS and (entry is None or entry.lab) else ""


class Written(NamedTuple):
    """What a bundle is.

    Attributes:
        runs: number of runs in it.
        uncommitted: how many of these are of code that was changed or not committed.
        needed: what others need besides in order to verify all of it.
    """

    runs: int
    uncommitted: int
    needed: list[str]


def _read(store: Store, name: str) -> bytes | None:
    """A file of a results directory without what others need not know of this machine; None if there is none."""
    content, path = read_bytes(store.folder / name), store.folder / name
    if content is None or not re.fullmatch(r"grids/[^/]+|runs/[^/]+/record\.json", name):
        return content
    rounds = {"rounds.jsonl": read_bytes(path.parent / "rounds.jsonl") or b""} if path.name == "record.json" else {}
    kept, was_sealed = unseal(path, content, rounds)
    public = {key: value for key, value in kept.items() if key not in _OF_THIS_MACHINE}
    if source := public.get("source"):
        public["source"] = Path(source).name
    if public == kept:
        return content
    text = json.dumps(public, indent=1) + "\n"
    return (seal(text, *rounds.values()) if was_sealed else text).encode()


def citation(names: Iterable[str]) -> str:
    """What to cite: skewbench, and the papers that the files of methods name."""
    lines = [f"The authors of skewbench. {TITLE}, version {__version__}."]
    for name in names:
        if name in algorithms.REGISTRY:
            lines += [f"{algorithms.title_of(name)}: {paper}" for paper in papers_of(name)]
        else:
            lines.append(f"{name}: a method that is not part of skewbench; ask the author of the results.")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def papers_of(name: str) -> list[str]:
    """The papers that the docstring of the file of a method names, with their links."""
    text = ast.get_docstring(ast.parse(algorithms.REGISTRY[name].path.read_text(encoding="utf-8"))) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")[1:]]
    return [part for part in paragraphs if "https://" in part and not re.match(r"[a-z-]+: ", part)]


def _manifest(
    store: Store,
    labels: list[str],
    records: Mapping[str, Any],
    configs: Mapping[str, Any],
    methods: Iterable[str],
    author: str,
) -> dict[str, Any]:
    def counted(values: Iterable[Any]) -> dict[str, int]:
        return dict(sorted(Counter(str(value) for value in values if value is not None).items()))

    ends = [record.get("finished") or record.get("started") for record in records.values()]
    times = sorted((str(end) for end in ends if end), key=lambda end: moment(end) or 0.0)
    grids = {label: grid for label in labels if (grid := store.grid(label))}
    versions = [pair for record in records.values() for pair in record.get("versions", {}).items()]
    data = {
        f"{config['dataset']}: {records[run]['data']['digest']}"
        for run, config in configs.items()
        if "data" in records[run]
    }
    return {
        "author": author,
        "first_run": times[0] if times else None,
        "last_run": times[-1] if times else None,
        "written_by": {"skewbench": __version__, **commits_of([], [])},
        "grids": {label: {"title": grid["title"], "cells": len(grid["cells"])} for label, grid in grids.items()},
        "runs": len(records),
        "commits": counted(commit for record in records.values() for commit in _commits(record)),
        "versions": counted(f"{name} {version}" for name, version in versions),
        "devices": counted(record.get("processor") or record.get("device") for record in records.values()),
        "images": sorted(data),
        "methods": {name: _method(name, records.values()) for name in methods},
    }


def _commits(record: Mapping[str, Any]) -> list[str]:
    """The commits of a run: of skewbench, and of other repositories after the names of their folders."""
    own = record.get("commit")
    return [*([own] if own else []), *(f"{folder} {commit}" for folder, commit in record.get("commits", {}).items())]


def _method(name: str, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether a method is part of skewbench, and the hashes of its code in the runs, which `code` describes."""
    hashes = {record["code"][part] for record in records if (part := f"algorithm {name}") in record.get("code", {})}
    entry = algorithms.REGISTRY.get(name)
    return {"part_of_skewbench": bool(entry and not entry.lab), "code": sorted(hashes)}


def _runs_of(store: Store, labels: Iterable[str], searches: Iterable[str]) -> Iterator[str]:
    """Ids of the runs of grids, of the runs from which these start, and of searches."""
    for label in labels:
        for cell in (store.grid(label) or {"cells": []})["cells"]:
            if cell["run"]:
                yield cell["run"]
                if base := _base_of(cell["config"]):
                    yield base
    for name in searches:
        search = store.search(name)
        if search:
            yield from _searched(search)


def _base_of(config: Mapping[str, Any]) -> str:
    """Id of the run from whose end a run starts; "" if there is none, or nobody here knows."""
    try:
        trained = trained_by(resolve(settings_of(config), facts=None))
    except ConfigError:  # of a method that is not here
        return ""
    return run_id(trained) if trained else ""


def _searched(search: Mapping[str, Any]) -> Iterator[str]:
    """Ids of the runs of a search, of the versions that its parts had then."""
    configs = list(search["configs"].values())
    for found in proposed_configs(configs, search["proposed"]):
        pairs = zip(found, configs, strict=True)
        yield from (run_id({**one.canonical(), "versions": stored["versions"]}) for one, stored in pairs)
    for config, params in itertools.product(configs, search["proposed"]):
        method = config["algorithm"]  # as it was stored: it may have had other options then, or not be here
        own = {key: value for key, value in params.items() if key in method}
        yield run_id(
            {**config, **{key: params[key] for key in params if key not in own}, "algorithm": {**method, **own}}
        )


def _searches_of(store: Store, labels: Iterable[str]) -> list[str]:
    """Names of the searches that have chosen for cells of grids."""
    cells = (cell for label in labels for cell in (store.grid(label) or {"cells": []})["cells"])
    return sorted({cell["tuned"]["search"] for cell in cells if "tuned" in cell})


def _partitions(store: Store, configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The partition files by which runs were dealt."""
    digests = {found.digest for config in configs if (found := read_reference(config["partition"]))}
    return [f"{PARTITIONS}/{path.name}" for path in kept(store.folder) if path.stem.rpartition("@")[2] in digests]
