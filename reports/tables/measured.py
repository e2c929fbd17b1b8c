"""Tables of what was measured on runs instead of their accuracies: losses on frozen encoders, sizes of datasets."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from bench import references
from bench.results.grids import StoredGrid
from reports.tables import versions
from reports.tables.aggregate import cell_keys, collect_runs, current_cells, row_keys, summarise
from reports.tables.footnotes import published_beside, without_paths
from reports.tables.layout import Cell, Row, Table, caveats_of
from reports.tables.names import Name, Names
from reports.tables.published_comparison import compare, own_value
from reports.tables.records import Records
from reports.tables.report import Report
from reports.tables.run_notes import about_runs
from reports.tables.significance import competitors

# Of each kind of table: metric -> title of its column, and how numbers are printed.
_METRICS = {
    "encoder-heads": {"cls_loss": ("Classification loss", ".4f"), "rec_loss": ("Reconstruction loss", ".4f")},
    "encoder-information": {"information": ("I(Z; Y) is at least", ".4f"), "entropy": ("H(Y)", ".4f")},
    "dataset-sizes": {"n_train": ("#Training", ",.0f"), "n_test": ("#Test", ",.0f"), "n_classes": ("#Classes", ",.0f")},
}
_ESTIMATE = (
    "In nats. The mutual information of features Z and labels Y is at least H(Y) minus the cross-entropy, on test images, of a "
    "linear classifier of frozen features; below 0 the bound says nothing."
)
_EXCHANGE = (
    "f_e1 and f_e2 are the encoders of client 0 and client 1. A row is of one client's examples: with exchange, the classifier "
    "sees them through the encoder of the other client."
)
# What one run has several rows of: name of the row's published numbers -> labels.
_HEADS = {
    "exchange": {
        "fe1-own": {"encoder": "f_e1", "exchange": "no"},
        "fe1-exchange": {"encoder": "f_e1", "exchange": "yes"},
        "fe2-own": {"encoder": "f_e2", "exchange": "no"},
        "fe2-exchange": {"encoder": "f_e2", "exchange": "yes"},
    },
    "pooled": {name: {"encoder": f"f_{name[1:]}"} for name in ("fe1", "fe2", "favg", "fe")},
}
# Published row -> the measured one that it shows: a row is of one client's images (see `bench.measurements.encoders`).
_MEASURED_AS = {"fe1-exchange": "fe2-exchange", "fe2-exchange": "fe1-exchange"}
_PUBLISHED_AS = {"favg": "fedavg", "fe": "fedconcat", "": ""}  # the other rows are those of local models


def build(grid: StoredGrid, records: Records, found: dict[str, dict]) -> Report:
    """The report of a grid whose layout names a measured table.

    Args:
        grid: expanded grid, as stored by `run`.
        records: run id -> record of the runs that have ended.
        found: run id -> what was measured.

    Raises:
        ValueError: if cells cannot be told apart.
    """
    grid = grid | {"cells": current_cells(grid, records)}
    kind, value = grid["report"]["measured"]["kind"], own_value(grid)
    runs = collect_runs(grid, records, grid["report"]["metric"], value)
    *_, column = cell_keys(grid)
    own = [*next(iter(_rows_of_a_run(grid).values()))]
    keys = [*row_keys(grid), *([column] if runs[column].nunique() > 1 else []), *own]
    cells = _cells(grid, runs, found, keys, value)
    best = _smallest(cells, [*keys[:-1], "metric"]) if kind == "encoder-heads" else False
    empty = {"gain": math.nan, "gain_std": math.nan, "p_value": math.nan, "not_significant": False, "chosen_on": ""}
    cells = cells.assign(value=value, best=best, **empty)
    names = Names.of_grid(grid)
    notes = [*grid["report"].get("notes", ()), *_clients(grid, found, names), f"Budget {grid['budget']}."]
    if cells["best"].any():
        notes.append("Bold: the smaller loss, as in the paper.")
    notes += [*published_beside(grid, cells, value, names), *about_runs(grid, records, cells, names)]
    hide, table = without_paths(grid), arrange(cells, keys, grid)
    if kind == "encoder-information":
        notes.append(_ESTIMATE)
        if "exchange" in own:
            notes.append(_EXCHANGE)
    if kind == "dataset-sizes":
        notes += _incomplete(runs, names)
        cells = cells.astype({"mean": "Int64", "difference": "Int64"})
    name = f"{grid['grid']}@{grid['budget']}"
    return Report(name, hide(versions.title_of(grid)), (table,), tuple(map(hide, notes)), cells)


def arrange(
    cells: pd.DataFrame, keys: Sequence[str], grid: StoredGrid, show: Callable[[Any, Cell], Cell] | None = None
) -> Table:
    """The table of measured cells.

    Args:
        cells: of a report of `build`.
        keys: axes of its rows.
        show: changes the text of a cell; None leaves it.
    """
    kind = grid["report"]["measured"]["kind"]
    metrics, names, shown = _METRICS[kind], _names(grid), {}
    for cell in cells.itertuples():
        text = _show(cell, metrics[cell.metric][1], names)
        shown[tuple(getattr(cell, key) for key in keys), cell.metric] = show(cell, text) if show else text
    found, outer = dict.fromkeys(labels for labels, _ in shown), len({*keys} & {*row_keys(grid)})
    settings = [*dict.fromkeys(labels[:outer] for labels in found)]
    rows = tuple(
        Row(labels, tuple(shown[labels, metric] for metric in metrics))
        for labels in sorted(found, key=lambda labels: settings.index(labels[:outer]))
    )
    titles = tuple(title for title, _ in metrics.values())
    return Table(kind.replace("-", "_"), tuple(keys), titles, rows, "metric", names=names)


def _rows_of_a_run(grid: StoredGrid) -> dict[str, dict[str, str]]:
    """Name of a row's published numbers -> its labels, for each row that the table has of one run."""
    measured = grid["report"]["measured"]
    return {"": {}} if measured["kind"] == "dataset-sizes" else _HEADS[measured["examples"]]


def _cells(grid: StoredGrid, runs: pd.DataFrame, found: dict[str, dict], keys: list[str], value: str) -> pd.DataFrame:
    """One line per cell and metric, compared with what is published."""
    frames, measured = [], grid["report"]["measured"]["kind"]
    for name, labels in _rows_of_a_run(grid).items():
        for metric in _METRICS[measured]:
            scores = {run: result["values"][_MEASURED_AS.get(name, name)][metric] for run, result in found.items()}
            score = runs["run"].map(scores).astype(float)
            lines = runs.assign(
                **labels,
                variant=name,
                published_as=_PUBLISHED_AS.get(name, "local"),
                score=score,
                done=score.notna(),
                missed=False,
                diverged=runs["diverged"] | (runs["run"].isin(scores) & score.isna()),
            )
            cells = summarise(lines, keys, grid["std"])
            frames.append(_compare(cells, grid, metric, value).assign(metric=metric))
    return pd.concat(frames, ignore_index=True)


def _compare(cells: pd.DataFrame, grid: StoredGrid, metric: str, value: str) -> pd.DataFrame:
    """Cells with the published numbers of the same setting: a loss says nothing about that of another model."""
    if grid["report"]["measured"]["kind"] == "dataset-sizes":  # incomplete images are what these show
        return compare(cells.assign(data_note=""), grid, metric, value)
    # The encoders of two clients are compared, of any number.
    compared = compare(cells.assign(clients="2"), grid, metric, value).assign(clients=cells["clients"])
    other = [bool(found) and not found.same_setting for found in compared["published"]]
    compared.loc[other, "difference"] = math.nan
    compared["published"] = compared["published"].where([not is_other for is_other in other], None)
    return compared


def _clients(grid: StoredGrid, found: dict[str, dict], names: Names) -> Iterator[str]:
    """Whose encoders were compared: clients, their examples and classes."""
    for cell in grid["cells"]:
        result, config = found.get(cell["run"] or "", {}), cell["config"]
        if about := result.get("label_counts"):
            clients = "; ".join(
                f"client {client}: {sum(counts):,} examples "
                f"({', '.join(name for name, count in zip(result['classes'], counts, strict=True) if count)})"
                for client, counts in zip(result["clients"], about, strict=True)
            )
            where = ", ".join(names.value(axis, config[axis]).plain for axis in ("dataset", "partition"))
            yield f"{where}, {config['clients']} clients, seed {cell['seed']}: {clients}."


def _incomplete(runs: pd.DataFrame, names: Names) -> Iterator[str]:
    """How datasets differ from the complete ones."""
    known = runs[runs["data_note"] != ""]
    for dataset, note in known[["dataset", "data_note"]].drop_duplicates().to_numpy():
        what = "" if references.is_dataset(dataset) else "Incomplete data: "
        yield f"{what}{names.value('dataset', dataset).plain}: {note}."


def _smallest(cells: pd.DataFrame, rivals: list[str]) -> pd.Series:
    """True for the smallest mean among the complete cells that have these columns in common, two or more, as printed."""
    candidates = competitors(cells)
    groups = candidates["mean"].round(4).groupby([candidates[key] for key in rivals])
    is_smallest = (groups.transform("min") == candidates["mean"].round(4)) & (groups.transform("size") > 1)
    return is_smallest.reindex(cells.index, fill_value=False)


def _names(grid: StoredGrid) -> Names:
    """The grid's names, and in LaTeX those of encoders as the paper sets them."""
    encoders = dict.fromkeys(labels["encoder"] for labels in _rows_of_a_run(grid).values() if labels)
    own = {encoder: Name(encoder, f"$f_{{{encoder.removeprefix('f_')}}}$") for encoder in encoders}
    names = Names.of_grid(grid)
    return replace(names, own={**names.own, "encoder": own})


def _show(cell: Any, digits: str, names: Names) -> Cell:
    published: tuple[str, ...] = ()
    if cell.published:
        published = (f"{float(cell.published.mean):{digits}}",)
        if cell.done:
            published += (f"{cell.difference:+{digits}}",)
    spread = "" if math.isnan(cell.std) else f"±{cell.std:{digits}}"
    return Cell(
        measured=f"{cell.mean:{digits}}{spread}" if cell.done else "",
        caveats=tuple(caveats_of(cell, names)),
        published=published,
        best=cell.best,
        mean=cell.mean if cell.done else None,
        runs=tuple(cell.run_ids.split()),
    )
