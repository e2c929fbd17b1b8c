"""Footnotes about the runs of a table: which are missing, failed or special, and what they have used."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pandas as pd

import algorithms
from bench import references
from bench.experiments.labels import UNWRAPPED, number
from bench.results.grids import StoredCell, StoredGrid
from bench.results.metrics import METRICS
from bench.results.records import DATA_SETTINGS, Config
from reports.tables.aggregate import NO_METRIC, cell_keys, is_board, label
from reports.tables.layout import HAS_NONE, span
from reports.tables.names import Names
from reports.tables.records import Records, distinct_runs, ended_runs, left_behind
from reports.tables.versions import footnotes as version_notes


def about_runs(grid: StoredGrid, records: Records, cells: pd.DataFrame, names: Names) -> Iterable[str]:
    """Plain sentences, only those that apply; arguments as in `reports.tables.footnotes.footnotes`, names are the grid's."""
    yield from _pooled(cells, names)
    yield from _data(cells, names)
    yield from _partition_files(grid, records, names)
    yield from version_notes(grid)
    yield from _unfinished(cells)
    if not is_board(grid) or "mb" not in cells["metric"].unique():  # which has a column of it
        yield from _traffic(grid, records, names)
    yield from _machines(grid, records, cells)
    yield from _caveats(grid, records, names)
    yield from _without_paper(grid, names)
    yield from _origins(grid, records, names)
    yield from _casualties(grid, records)
    yield from _earlier(grid, records, names)
    yield from _stale(grid, records, names)
    yield from _mixtures(grid, records)
    yield from _coalitions(grid, records)


def listed(names: Iterable[str]) -> str:
    """Names in a sentence, each once."""
    return ", ".join(dict.fromkeys(names))


def _pooled(cells: pd.DataFrame, names: Names) -> Iterable[str]:
    """Centralized methods beside federated ones."""
    pooled = cells["partition"] == "none"
    if pooled.any() and not pooled.all():
        methods = listed(names.value("algorithm", method).plain for method in cells.loc[pooled, "algorithm"])
        yield f"{methods}: trained once per dataset on pooled data; stands in its first row and is not ranked."


def _data(cells: pd.DataFrame, names: Names) -> Iterable[str]:
    """Substituted and incomplete datasets."""
    substituted = cells[cells["substitute"] != ""]
    for pair in substituted[["dataset", "substitute"]].drop_duplicates().to_numpy():
        dataset, substitute = (names.value("dataset", name).plain for name in pair)
        yield f"{dataset} was replaced by {substitute}: these cells check the mechanics, not {dataset}."
    partial = cells[cells["data_note"] != ""]
    partial = partial.assign(images=partial["substitute"].where(partial["substitute"] != "", partial["dataset"]))
    for dataset, note in partial[["images", "data_note"]].drop_duplicates().to_numpy():
        name = names.value("dataset", dataset).plain
        if references.is_dataset(dataset):  # there is no complete one: the note says how it was split
            yield f"{name}: {note}."
        else:
            yield f"{name} was incomplete ({note}): these cells have no published counterpart."


def _partition_files(grid: StoredGrid, records: Records, names: Names) -> Iterable[str]:
    """Partitions from files, and what they leave out."""
    found = dict.fromkeys(cell["config"]["partition"] for cell in grid["cells"])
    for partition in filter(references.is_partition, found):
        yield f"{names.value('partition', partition).plain}: read from a file; the same for all seeds."
    yield from dict.fromkeys(record["unused"] for _, _, record in ended_runs(grid, records) if "unused" in record)


def _unfinished(cells: pd.DataFrame) -> Iterable[str]:
    """Cells some of whose runs have no result yet."""
    waiting = (cells["missing"] == "") & (cells["diverged"] < cells["seeds"]) & (cells["failed"] < cells["seeds"])
    waiting &= (cells["lacking"] == "") | (cells["done"] > 0)  # else that is what the cell says
    if (waiting & ((cells["done"] < cells["seeds"]) | (cells["tried"] < cells["settings"]))).any():
        yield "n/m seeds, n/m settings: n of the m planned have a result; mean and std are of those."
    if ((cells["lacking"] == NO_METRIC) & (cells["done"] == 0)).any():
        yield f"{HAS_NONE}: the runs have ended without such a metric, or with none that is finite."


def _traffic(grid: StoredGrid, records: Records, names: Names) -> Iterable[str]:
    """Bytes that clients sent and received: one sentence per dataset whose images were used, a range where a method's runs
    differ."""
    found: dict[str, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for _, cell, record in ended_runs(grid, records):
        if exchanged := record.get("bytes_per_client"):
            found[cell["config"]["dataset"]][_method(grid, cell, names)].add(exchanged)
    for dataset, methods in found.items():
        amounts = (f"{name} {span(_megabytes(min(sizes)), _megabytes(max(sizes)))}" for name, sizes in methods.items())
        where = names.value("dataset", dataset).plain
        yield f"Sent and received, MB (10^6 bytes) per client on {where}: {', '.join(amounts)}."


def _megabytes(count: float) -> str:
    return number(float(f"{count / 1e6:.3g}"))


def _machines(grid: StoredGrid, records: Records, cells: pd.DataFrame) -> Iterable[str]:
    """On which machines times were measured, if there were several."""
    timed = [METRICS[name].title for name in ("minutes", "core_minutes") if name in cells["metric"].values]
    done = [one for one, _ in distinct_runs(grid, records).values() if one["status"] == "done"]
    counts = Counter((record.get("host", "a machine without a name"), record.get("device", "cpu")) for record in done)
    if timed and len(counts) > 1:
        shares = ", ".join(
            f"{host}{f' with {device}' * (device != 'cpu')} ({_runs(n)})" for (host, device), n in counts.items()
        )
        yield f"{' and '.join(timed)}: not comparable across rows, for they are of several machines: {shares}."


def _method(grid: StoredGrid, cell: StoredCell, names: Names) -> str:
    """A cell's method with the wrapper around it, and with its base where the table shows it: "FedAvg + FedCollab"."""
    keys = ["algorithm", "wrapper", *({"base"} & {*cell_keys(grid)})]
    labels = {key: name for key in keys if (name := label(cell, key)) not in ("-", UNWRAPPED)}
    return names.together([*labels], [*labels.values()]).plain


def _caveats(grid: StoredGrid, records: Records, names: Names) -> Iterable[str]:
    """Caveats that methods recorded about their runs, with the columns that have them."""
    axis, found = grid["report"]["columns"], defaultdict[str, dict[str, None]](dict)
    for _, cell, record in ended_runs(grid, records):
        for caveat in record.get("caveats", ()):
            found[caveat][label(cell, axis)] = None
    alike = defaultdict[tuple[str, str], list[str]](list)  # columns and what is said -> the methods it is said of
    for caveat, columns in found.items():
        method, _, said = caveat.partition(": ")
        about = listed(names.value(axis, column).plain for column in columns)
        named = all(method in column.split() for column in columns)
        of = [] if named or not said else [names.value("algorithm", method).plain]
        alike[about, said or caveat] += of
    for (about, said), methods in alike.items():
        yield ": ".join(filter(None, (about, listed(methods), said)))


def _without_paper(grid: StoredGrid, names: Names) -> Iterable[str]:
    """The methods that follow code alone; not of the table of a paper."""
    methods = dict.fromkeys(cell["algorithm"] for cell in grid["cells"] if not grid["reproduces"])
    if found := [name for name in methods if name in algorithms.REGISTRY and algorithms.is_without_paper(name)]:
        listed = ", ".join(names.value("algorithm", name).plain for name in found)
        yield f"Written from public code, abstracts or what others say, as the text of the paper was not at hand: {listed}."


def _origins(grid: StoredGrid, records: Records, names: Names) -> Iterable[str]:
    """The files of the images: original files and re-encoded copies have the same counts, but not the same pixels."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for _, cell, record in ended_runs(grid, records):
        if data := record.get("data"):
            found[cell["config"]["dataset"]][data["digest"]] = data["kind"]
    for dataset, kinds in found.items():
        sources = " and ".join(f"{kind} ({digest})" for digest, kind in kinds.items())
        images = names.value("dataset", dataset).plain
        yield f"{'Mixed data' if len(kinds) > 1 else 'Data'}: {images} from {sources}."


def _casualties(grid: StoredGrid, records: Records) -> Iterable[str]:
    """One sentence per reason why runs diverged or failed, with the first such run; one of runs that callbacks ended."""
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    runs = distinct_runs(grid, records)
    for run_id, (record, _) in runs.items():
        if record["status"] in ("diverged", "failed"):
            reason = " ".join((record.get("reason") or "no reason given").split()).rstrip(".")
            by_reason[record["status"], reason].append(run_id)
    for (status, reason), run_ids in by_reason.items():
        yield f"{_runs(len(run_ids))} {status} (first {run_ids[0]}): {reason}."
    early = [record for record, _ in runs.values() if record["status"] == "done" and record.get("reason")]
    if early:
        first, reason = early[0], " ".join(early[0]["reason"].split()).rstrip(".")
        yield f"{_runs(len(early))} ended early (first {first['id']}, after round {first['rounds']}): {reason}."


def _earlier(grid: StoredGrid, records: Records, names: Names) -> Iterable[str]:
    """One sentence per method with runs of a version that its file has left behind: other numbers would come out now."""
    counts = Counter[tuple[str, int]]()
    for record, config in distinct_runs(grid, records).values():
        if record["status"] == "done":
            counts.update(left_behind(config))
    for (name, version), runs in counts.items():
        current, comment = algorithms.version_of(name)
        number, _, did = comment.partition(" ")
        which = f", which {did}" if number == str(version) else ""
        about = names.value("algorithm", name).plain
        yield f"{about}: {_runs(runs)} of version {version} of the method{which}; it has version {current} now."


def _stale(grid: StoredGrid, records: Records, names: Names) -> Iterable[str]:
    """One sentence per set of changes of the code since which runs have not been repeated, with their methods."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, cell, record in ended_runs(grid, records):
        if changed := record.get("changed"):
            found[changed][run_id] = _method(grid, cell, names)
    for changed, methods in found.items():
        yield (
            f"{listed(methods.values())}: {_runs(len(methods))} of earlier code ({changed} changed since), so that the numbers "
            "may be others now; run the grid to train them again."
        )


def _mixtures(grid: StoredGrid, records: Records) -> Iterable[str]:
    """One sentence per part, library, device or engine with several versions in the table."""
    counts: dict[str, Counter[Any]] = defaultdict(Counter)
    for record, config in distinct_runs(grid, records).values():
        if record["status"] != "done":
            continue
        for part, version in config["versions"].items():
            counts[_part(config, part)][version] += 1
        for library, version in record.get("versions", {}).items():
            counts[library][version] += 1
        for fact, found in (("device", record.get("device")), ("engine", record.get("engine"))):
            if found is not None:
                counts[fact][found] += 1
    for what, versions in counts.items():
        if len(versions) > 1:
            shares = ", ".join(f"{version} ({_runs(n)})" for version, n in versions.items())
            yield f"Mixed versions: {what} {shares}."


def _coalitions(grid: StoredGrid, records: Records) -> Iterable[str]:
    """Runs of FedCollab that should have found the same coalitions, but have not."""
    found: dict[str, set[str]] = defaultdict(set)
    for record, config in distinct_runs(grid, records).values():
        method, coalitions = config["algorithm"], record.get("diagnostics", {}).get("coalitions")
        if method["name"] == "fedcollab" and coalitions is not None:
            options = {key: value for key, value in method.items() if key != "base"}
            alike = [options, *(config.get(key) for key in ("seed", *DATA_SETTINGS))]
            found[json.dumps(alike, sort_keys=True)].add(json.dumps(coalitions))
    if any(len(coalitions) > 1 for coalitions in found.values()):
        yield (
            "Runs of FedCollab with the same data, seed and options have found different coalitions, as different devices or "
            "machines without a shared cache may: these runs differ in more than their bases."
        )


def _part(config: Config, path: str) -> str:
    """The part that has a version: "model mlp"; "algorithm fedavg" also for the path "algorithm.base"."""
    if path.startswith(("model.", "callback.")):
        return path.replace(".", " ", 1)
    found: Any = config
    for name in path.split("."):
        found = found.get(name, "-") if isinstance(found, dict) else "-"
    return f"{path.partition('.')[0]} {found.get('name', '-') if isinstance(found, dict) else found}"


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
