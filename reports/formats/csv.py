"""A report as CSV: one line per cell, metric and value (such as "best"), in percent, for spreadsheets and statistics."""

import math
from collections.abc import Mapping

import pandas as pd

from bench.results.ids import is_metric_name
from bench.results.metrics import METRICS
from reports.tables.aggregate import with_tried
from reports.tables.report import Report

_COLUMNS = (
    *("dataset", "partition", "algorithm", "model", "clients", "participation", "metric", "value"),
    *("mean", "std", "done", "seeds", "diverged", "failed", "choice", "chosen_on", "tried", "settings"),
    *("missing", "substitute", "best", "not_significant", "p_value"),
    *("published_mean", "published_std", "difference", "verdict", "run_ids"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: full-width = + - @


def to_csv(table: pd.DataFrame) -> str:
    """A table as CSV.

    Results may come from anybody, and a spreadsheet executes a text that begins as a formula does. Such a text gets an
    apostrophe before it, in cells and in names of columns; numbers stay as they are, negative ones, too.
    """
    safe = table.copy(deep=False)
    for column in range(len(table.columns)):
        values = table.iloc[:, column]
        if any(isinstance(value, str) and _safe(value) != value for value in values):
            safe.isetitem(column, [_safe(value) if isinstance(value, str) else value for value in values])
    safe.columns = [_safe(str(name)) for name in table.columns]
    return safe.to_csv(index=False, lineterminator="\n")


def _safe(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # Python 3.11 does not quote "\r", which would begin a line
    if not text.startswith(_FORMULA):
        return text
    try:
        is_number = math.isfinite(float(text)) and text == text.strip()
    except ValueError:
        is_number = False
    return text if is_number else f"'{text}"


def render(report: Report) -> str:
    """The lines of `lines_of`."""
    return to_csv(lines_of(report))


def render_all(reports: Mapping[str, Report]) -> str:
    """The lines of several reports, by their `<grid>@<budget>`, below one header, with the columns `grid` and `budget`."""
    tables = []
    for label, report in reports.items():
        grid, _, budget = label.partition("@")
        tables.append(lines_of(report).assign(grid=grid, budget=budget))
    together = pd.concat(tables, ignore_index=True)
    return to_csv(together[list(dict.fromkeys(["grid", "budget", *together]))])


def lines_of(report: Report) -> pd.DataFrame:
    """Numbers in percent, or the unit of a cost, with six decimals, empty if missing; read with `keep_default_na=False`.

    P-values, and metrics of methods and callbacks that are not in percent, have seven digits: they may be very small. Where
    seeds have not reached a target, `missed` says how many of those that are done. Of studies `mean` is the median, with those
    that have missed behind all others; `low`, `high` and `std` are of the others.
    """
    cells = with_tried(pd.concat([report.cells, report.further_cells], ignore_index=True))
    cells = cells.assign(
        published_mean=[published.mean if published else "" for published in cells["published"]],
        published_std=[published.std if published else "" for published in cells["published"]],
    )
    axes = [key for table in report.tables[:1] for key in (*table.row_keys, table.column_key)]
    own_axes = [key for key in axes if key not in _COLUMNS and key in cells]
    lacking = ["lacking"] if (cells["lacking"] != "").any() else []
    missed = ["missed"] if cells["missed"].any() else []
    of_studies = ["studies", "low", "high"] if cells["studies"].any() else []
    gains = ["gain", "gain_std"] if cells["gain"].notna().any() else []
    numbers = ["mean", "std", "difference", *gains, *of_studies[1:]]
    scalar = cells["metric"].map(lambda name: is_metric_name(name) and not METRICS[name].is_share)
    exact = cells.loc[scalar, numbers].map(_seven_digits)
    cells[numbers] = cells[numbers].round(6)
    cells.loc[scalar, numbers] = exact
    cells["p_value"] = cells["p_value"].map(_seven_digits)
    return cells[[*own_axes, *_COLUMNS, *gains, *of_studies, *lacking, *missed]]


def _seven_digits(value: float) -> float:
    return float(f"{value:.7g}")


def render_standings(report: Report) -> str:
    """Mean ranks and wins, one line per number with its interval."""
    return "" if report.standings_data is None else to_csv(report.standings_data.round(6))
