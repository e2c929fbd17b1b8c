"""A table of rounds as a file, for other tools."""

from pathlib import Path

import pandas as pd

from bench.errors import unknown
from bench.files import replacing
from reports.formats.csv import to_csv

SUFFIXES = (".csv", ".parquet")


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
            table.apply(_of_one_type).to_parquet(partial, engine="pyarrow", index=False)


def _of_one_type(column: pd.Series) -> pd.Series:
    """Columns that mix numbers and texts (num_clusters: 5, elbow) become text, which Parquet needs; all others stay."""
    values = column.dropna()
    if column.dtype == object and values.map(type).nunique() > 1:
        return values.map(str).reindex(column.index)
    return column
