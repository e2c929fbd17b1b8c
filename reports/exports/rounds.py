"""All rounds of all runs of a grid as one table, for other tools."""

import json
from pathlib import Path

import pandas as pd

from bench.errors import unknown
from bench.experiments.labels import chosen_in, value_of
from bench.files import replacing
from bench.results.metrics import ACCURACIES
from bench.results.store import Store
from reports.formats.csv import to_csv
from reports.tables.aggregate import cell_keys, current_cells

SUFFIXES = (".csv", ".parquet")
_SETTING = ("dataset", "substitute", "partition", "algorithm", "options", "model", "clients", "participation")
_RUN = ("seed", "run", "status")
_FIRST = ("round", *ACCURACIES, "loss", "bytes_down", "bytes_up", "examples", "seconds")


def rounds_table(grid: dict, records: dict[str, dict], store: Store) -> pd.DataFrame:
    """One line per run and round, in the order of the grid.

    Args:
        grid: expanded grid.
        records: run id -> record of the runs that have ended; others are left out.
        store: holds their rounds.

    Returns:
        Columns: the axes of the grid's table and its tuning settings; dataset, substitute (the dataset that replaced it, or
        ""), partition, algorithm, options (JSON, every option of the method), model, clients, participation; seed, run,
        status ("done", "diverged" or "failed"); and the metrics of the round: round (from 1), accuracies (in [0, 1]; NaN
        if not evaluated), loss; cumulative bytes_down and bytes_up (mean per client of the population), examples and
        seconds; and all other numbers of the round.
    """
    cells = [cell for cell in current_cells(grid, records) if cell["run"] in records]
    axes = [*cell_keys(grid), *sorted({key for cell in cells for key in chosen_in(cell)})]
    settings, metrics = [], []
    for number, cell in enumerate(cells):
        settings.append(_described(cell, axes) | {"status": records[cell["run"]]["status"]})
        for row in store.rows(cell["run"]):
            metrics.append({"cell": number} | {key: row[key] for key in row if not isinstance(row[key], dict | list)})
    rounds = pd.DataFrame(metrics, columns=None if metrics else ["cell", *_FIRST])
    described = pd.DataFrame(settings, columns=list(dict.fromkeys([*axes, *_SETTING, *_RUN]))).apply(_of_one_type)
    names = [*(name for name in _FIRST if name in rounds), *(name for name in rounds if name not in (*_FIRST, "cell"))]
    of_rows = described.loc[rounds["cell"].astype(int)].reset_index(drop=True)
    return pd.concat([of_rows, rounds[names]], axis=1)


def check_suffix(path: Path) -> None:
    """Raises ValueError if a table cannot be written to a file of that name."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{unknown('kind of file', path.suffix or path.name, SUFFIXES)} Name a file that ends in one of them."
        )


def write(table: pd.DataFrame, path: Path) -> None:
    """Writes a table atomically, in the format of the suffix.

    Raises:
        ValueError: for a suffix that is not among SUFFIXES.
    """
    check_suffix(path)
    with replacing(path) as partial:
        if path.suffix == ".csv":
            partial.write_text(to_csv(table), encoding="utf-8", newline="")
        else:
            table.to_parquet(partial, engine="pyarrow", index=False)


def _described(cell: dict, axes: list[str]) -> dict:
    options = {key: value for key, value in cell["config"]["algorithm"].items() if key != "name"}
    own = {key: value_of(cell, key) for key in (*axes, *_SETTING, *_RUN)}
    return own | {"substitute": cell["substitute"] or "", "options": json.dumps(options)}


def _of_one_type(column: pd.Series) -> pd.Series:
    """Numeric columns stay numeric; mixed ones (num_clusters: 5, elbow) become text, "" for a missing value."""
    values = column.dropna()
    if len(values) and values.map(lambda value: isinstance(value, int | float) and not isinstance(value, bool)).all():
        return pd.to_numeric(column)
    return column.map(lambda value: "" if value is None or value != value else str(value))
