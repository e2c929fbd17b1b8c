"""Mean ranks and pairwise wins of the columns of a table over its rows, or ranks alone over single seeds, with bootstrap
intervals."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bench.experiments.labels import competitor
from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from reports.tables import robust
from reports.tables.aggregate import (
    cell_keys,
    compared_keys,
    competitors_of,
    contest_keys,
    contest_name,
    is_board,
    label,
    studies_of,
    units_of,
)
from reports.tables.layout import Cell, Row, Table, half_up, span
from reports.tables.names import Name, Names
from reports.tables.robust import LEVEL, RESAMPLES
from reports.tables.significance import competitors, merits

FEW = 10  # rows, or seeds in a setting; below, percentile intervals are clearly too narrow
COLUMNS = ("metric", "column", "over", "measure", "value", "low", "high", "rows")

_FORMS = {"mean_rank": ".1f", "iqm": ".1f"}  # of numbers of a board; others are whole


def unit(grid: StoredGrid) -> str:
    """What has one score in a setting of a board."""
    return "study" if studies_of(grid) else "seed"


def standings(
    cells: pd.DataFrame, runs: pd.DataFrame, grid: StoredGrid, metric: str, columns: tuple[str, ...]
) -> pd.DataFrame:
    """Mean ranks and wins of the columns, over the rows in which every column has a competitor or has lost runs; of a board
    over its common pairs, see `_common`.

    Means are compared as printed. Rank 1 is the best; equal means share their mean rank. A column wins a row against
    another one if its mean is better; equal means count as half a win for both. One of which a run has diverged or failed is
    last. By seed, scores of runs are ranked instead of means, and there are no wins: a leaderboard has too many pairs.

    Args:
        cells: of one metric.
        runs: of the same metric, of `reports.tables.aggregate.collect_runs`.
        grid: expanded grid.
        columns: of its table, or what else it compares, in order. A column that has no competitor in a row with others is left
            out.

    Returns:
        Lines of COLUMNS without the metric. A rank has over "" and measure "mean_rank"; a pair has measure "wins", in
        percent of rows. low and high are the ends of percentile bootstrap intervals over rows, which by seed are drawn within
        each setting, and NaN where a setting has one seed alone. Empty with fewer than two columns or two rows.
    """
    ranked = scores_of_pairs(cells, runs, grid, metric) if is_board(grid) else _ranked(cells, grid, metric)
    values = ranked[[name for name in columns if name in ranked]].dropna()
    count, names = len(values), list(values.columns)
    if len(names) < 2 or count < 2:
        return pd.DataFrame(columns=COLUMNS[1:])
    ranks = values.rank(axis=1, ascending=False).to_numpy()
    own, other = values.to_numpy()[:, :, None], values.to_numpy()[:, None, :]
    wins = 100 * ((own > other) + 0.5 * (own == other))
    pairs = [] if is_board(grid) else [(a, b) for a in range(len(names)) for b in range(len(names)) if a != b]
    measured = np.column_stack([ranks, *(wins[:, a, b] for a, b in pairs)])
    strata = robust.strata_of(values, contest_keys(grid)) if is_board(grid) else [np.arange(count)]
    low, high = robust.interval(measured, strata)
    return pd.DataFrame(
        {
            "column": [*names, *(names[a] for a, _ in pairs)],
            "over": [""] * len(names) + [names[b] for _, b in pairs],
            "measure": ["mean_rank"] * len(names) + ["wins"] * len(pairs),
            "value": measured.mean(axis=0),
            "low": low,
            "high": high,
            "rows": count,
        }
    )


def arrange(found: pd.DataFrame, grid: StoredGrid) -> Iterator[Table]:
    """Standings of all metrics as tables with one row per column of the grid's table: one for each metric, or, by seed, one of
    all metrics with the best of the first one at the top."""
    names = names_of_competitors(grid)
    labels = (" ".join(compared_keys(grid)),)
    if is_board(grid):
        yield from _of_board(found, labels, grid, names)
        return
    by_metric = dict([*found.groupby("metric", sort=False)])
    shown: dict[tuple, Cell] = {}
    for line in found.itertuples():
        digits = ".2f" if line.measure == "mean_rank" else ".0f"
        shown[line.metric, line.column, line.over] = _cell(line, digits)
    for metric, lines in by_metric.items():
        ranked = tuple(lines["column"].unique())
        rows = tuple(Row((one,), tuple(shown.get((metric, one, over)) for over in ("", *ranked))) for one in ranked)
        titles = ("mean rank", *(f"over {one}" for one in ranked))
        less = (True, *(False for _ in ranked))  # of ranks, but not of wins
        title = _title(lines, grid)
        yield Table(metric, labels, titles, rows, "metric", title=title, less_is_better=less, names=names)


def _of_board(found: pd.DataFrame, labels: tuple[str, ...], grid: StoredGrid, names: Names) -> Iterator[Table]:
    """Mean ranks of all metrics side by side, and what is measured of the first one, with the best of this at the top."""
    shown = {
        (line.metric, line.measure, line.over, line.column): _cell(line, _FORMS.get(line.measure, ".0f"))
        for line in found.itertuples()
    }
    ranks = {key[0]: key[:3] for key in shown if key[1] == "mean_rank"}
    others = dict.fromkeys(key[:3] for key in shown if key[1] != "mean_rank")
    columns = {f"by {METRICS[metric].title}": key for metric, key in ranks.items()}
    columns |= {_heading(measure, over, labels[0], names): (metric, measure, over) for metric, measure, over in others}
    ranks_of = first_ranks(found).set_index("column")["value"]
    ranked = sorted({key[3]: None for key in shown}, key=lambda one: ranks_of.get(one, math.inf))
    rows = tuple(Row((one,), tuple(shown.get((*key, one)) for key in columns.values())) for one in ranked)
    less = tuple(measure == "mean_rank" for _, measure, _ in columns.values())
    heading = ", ".join(METRICS[metric].title for metric in ranks)
    title = _title(found[found["measure"] == "mean_rank"], grid)
    yield Table(heading, labels, (*columns,), rows, "metric", title=title, less_is_better=less, names=names)


def _cell(line: Any, form: str) -> Cell:
    """A number with its interval, if there is one."""
    value, low, high = map(half_up, (line.value, line.low, line.high))
    interval = "" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return Cell(f"{value:{form}}{interval}", mean=line.value)


def _heading(measure: str, over: str, key: str, names: Names) -> str:
    if measure == "better_than":
        return f"better than {names.value(key, over).plain}, %"
    if measure.startswith("within_"):
        points = measure.removeprefix("within_")
        return "the best, %" if points == "0" else f"within {points} point{'s' * (points != '1')}, %"
    return "interquartile mean"


def in_order(tables: Iterable[Table], standings: pd.DataFrame | None, grid: StoredGrid) -> Iterator[Table]:
    """Tables of a board with the rows in the order of the first ranks, those that are not ranked behind; others as they are."""
    tables, keys = [*tables], compared_keys(grid)
    ranks = {} if standings is None else first_ranks(standings).set_index("column")["value"].to_dict()
    for table in tables:
        joined = table.row_keys == (" ".join(keys),)
        places = [0] if joined else [table.row_keys.index(key) for key in keys if key in table.row_keys]
        if is_board(grid) and ranks and (joined or len(places) == len(keys)):
            rank = [ranks.get(competitor([row.labels[place] for place in places]), math.inf) for row in table.rows]
            order = sorted(range(len(rank)), key=rank.__getitem__)
            table = replace(table, rows=tuple(table.rows[place] for place in order))
        yield table


def first_ranks(standings: pd.DataFrame) -> pd.DataFrame:
    """The lines of the mean ranks by the first metric that is ranked, the best first."""
    ranks = standings[standings["measure"] == "mean_rank"]
    return ranks[ranks["metric"].isin(ranks["metric"].head(1))].sort_values("value", kind="stable")


def names_of_competitors(grid: StoredGrid) -> Names:
    """The grid's names, with those of all that competes and of the columns "over fedavg"."""
    keys = compared_keys(grid)
    found = dict.fromkeys(tuple(label(cell, key) for key in keys) for cell in grid["cells"])
    names = Names.of_grid(grid).with_combined(keys, found)
    over = {f"over {one}": Name.join([Name.of("over"), name], " ") for one, name in names.own[" ".join(keys)].items()}
    return replace(names, own={**names.own, "metric": over})


def titles_of_competitors(grid: StoredGrid) -> dict[str, str]:
    """Id -> name for people, of all that competes."""
    names = names_of_competitors(grid).own[" ".join(compared_keys(grid))]
    return {one: name.plain for one, name in names.items()}


def _title(found: pd.DataFrame, grid: StoredGrid) -> str:
    what = "Mean ranks" if is_board(grid) else "Mean ranks and wins"
    return f"{what} over {span(found['rows'].min(), found['rows'].max())} {_rows(grid)}"


def _rows(grid: StoredGrid) -> str:
    """Over what ranks are means, in words."""
    name = contest_name(grid)
    return f"pairs of {name} and {unit(grid)}" if is_board(grid) else f"{name}s"


def footnotes(
    found: pd.DataFrame, cells: pd.DataFrame, grid: StoredGrid, runs_of: Callable[[str], pd.DataFrame]
) -> Iterator[str]:
    """What mean ranks and wins are, or why there are none yet, and what is in none.

    Args:
        found: standings of all metrics.
        cells: of all metrics.
        runs_of: the runs of a metric.
    """
    rows = _rows(grid)
    what = "columns" if rows == "rows" else "competitors"
    if len(found) and is_board(grid):
        of, setting = units_of(grid), contest_name(grid)
        narrow = "; of so few they are too narrow" if are_few(found, cells, grid) else ""
        brackets = (
            f"In brackets, here and beside: {LEVEL:.0%} percentile intervals of {RESAMPLES:,} bootstrap samples of the {of} "
            f"within each {setting}. They say how far {of} move a number, not what other settings would give{narrow}."
        )
        unknown = (
            f"No intervals where a {setting} has one {unit(grid)} alone: how far {of} move a number is not known then."
        )
        missing = found["low"].isna()
        brackets = unknown if missing.all() else f"{brackets} {unknown}" if missing.any() else brackets
        lost = "study that was missed" if studies_of(grid) else "run that has diverged or failed"
        yield (
            f"Mean ranks (1 is the best) are over the {rows} in which all these {what} have ended, of scores as printed: "
            f"equal ones share their mean rank, and a {lost} is behind all others. {brackets} Rows stand in the order of the "
            "first ranks."
        )
        if (found["measure"] == "iqm").any():
            yield from _about_robust(found, lost, grid)
    elif len(found):
        least = found["rows"].min()
        less = {METRICS[metric].less_is_better for metric in found["metric"]}
        better = "above" if less == {False} else "below" if less == {True} else "better than"
        narrow = f"; of {least} {rows} they are too narrow, most of all where these agree" if least < FEW else ""
        lost = " or have lost a run, which puts them behind all others" if _has_lost(cells).any() else ""
        mean = "median" if studies_of(grid) else "mean"
        yield (
            f"Mean ranks (1 is the best) and wins (over: percent of {rows} in which the {mean} is {better} the other's) are "
            f"over the {rows} in which all these {what} are complete{lost}, of {mean}s as printed: equal ones share their "
            f"mean rank, and half a win each. In brackets: {LEVEL:.0%} percentile intervals of {RESAMPLES:,} bootstrap samples "
            f"of the {rows}, which take {rows} as independent{narrow}."
        )
    elif cells.groupby(contest_keys(grid)).size().gt(1).sum() > (not is_board(grid)):
        wins, order = ("", " Rows stand in the order of the grid.") if is_board(grid) else (" and wins", "")
        needed = f"two {rows} in which two {what}, and all that are ranked, are complete"
        yield f"No mean ranks{wins} yet: they need {needed}.{order}"
    if is_board(grid):
        yield from _left_out(cells, grid, runs_of)


def _about_robust(found: pd.DataFrame, lost: str, grid: StoredGrid) -> Iterator[str]:
    """What is measured beside ranks."""
    metric, of, setting = found["metric"].iloc[0], unit(grid), contest_name(grid)
    better = "; better than: how likely a random score is above one of the other method in the same " + setting
    yield (
        f"Of {METRICS[metric].title} alone, because no number here is a mean over metrics: the best, within n points: the "
        f"percentage of pairs of {setting} and {of} in which a method is at most so far behind the best of the pair "
        f"(performance profile of Dolan and Moré, with differences instead of ratios); interquartile mean: of the scores of "
        f"all {setting}s, as printed, without the lowest and the highest quarter"
        f"{better if (found['measure'] == 'better_than').any() else ''}. Interquartile mean, probability of improvement and "
        f"bootstrap are those of rliable; a {lost} counts as 0 in means, and as behind all others elsewhere."
    )


def _left_out(cells: pd.DataFrame, grid: StoredGrid, runs_of: Callable[[str], pd.DataFrame]) -> Iterator[str]:
    """The methods that are not ranked, with the settings in which they lack runs, and the settings that are in no rank."""
    metric = next(metric for metric in cells["metric"] if METRICS[metric].ranked)
    scores = _ranked_by_seed(cells[cells["metric"] == metric], runs_of(metric), grid, metric)
    common, names, titles = _common(scores), Names.of_grid(grid), titles_of_competitors(grid)
    settings = scores.index.droplevel("seed")

    def methods(those: Iterable[str]) -> str:
        return ", ".join(titles[one] for one in those)

    def setting(values: Any) -> str:
        values = values if isinstance(values, tuple) else (values,)
        return ", ".join(names.value(axis, value).plain for axis, value in zip(contest_keys(grid), values, strict=True))

    lacking: dict[str, list[str]] = {}
    for one in scores.columns.difference(common.columns, sort=False):
        where = scores.loc[common.index, one]
        without = where[where.isna()].index.droplevel("seed").unique()
        lacking.setdefault("; ".join(map(setting, without)), []).append(one)
    for where, those in lacking.items():
        if where:
            yield f"Not ranked, as runs in {where} are missing or have not ended: {methods(those)}."
    for values in settings.unique().difference(common.index.droplevel("seed").unique(), sort=False):
        ended = scores[settings == values].notna().any()
        yield f"Not in the ranks: {setting(values)}, where only these have ended: {methods(ended[ended].index)}."


def are_few(found: pd.DataFrame, cells: pd.DataFrame, grid: StoredGrid) -> bool:
    """Whether the settings of a board have so few seeds, or studies, that intervals by them are too narrow; arguments as of
    `footnotes`."""
    ranked = cells[competitors_of(cells, grid).isin(found["column"])]
    return bool(ranked["seeds"].min() < FEW)


def _ranked(cells: pd.DataFrame, grid: StoredGrid, metric: str) -> pd.DataFrame:
    """Merits of printed means [rows, columns], -inf where runs are lost, without rows that have one competitor, such as those
    of centralized training."""
    found, lost = competitors(cells), cells[_has_lost(cells)]
    found = pd.concat([found.assign(merit=merits(found, metric)), lost.assign(merit=-np.inf)])
    found = found.assign(competitor=competitors_of(found, grid))
    found = found[found.groupby(contest_keys(grid))["merit"].transform("size") > 1]
    return found.pivot(index=contest_keys(grid), columns="competitor", values="merit")


def _has_lost(cells: pd.DataFrame) -> pd.Series:
    """Which cells have ended, but for runs that have diverged or failed; none that had other settings to choose from."""
    lost = cells["diverged"] + cells["failed"]
    return (
        (lost > 0) & (cells["done"] + lost == cells["seeds"]) & (cells["settings"] == 1) & (cells["substitute"] == "")
    )


def scores_of_pairs(cells: pd.DataFrame, runs: pd.DataFrame, grid: StoredGrid, metric: str) -> pd.DataFrame:
    """Printed scores [rows and seeds, columns] of the common pairs of a board, the larger the better; arguments as of
    `standings`."""
    return _common(_ranked_by_seed(cells, runs, grid, metric))


def _common(scores: pd.DataFrame) -> pd.DataFrame:
    """The pairs in which at least half of the methods, and two, have ended, and the methods that have ended in all of these: no
    method takes a pair from the others, or is ranked over those that it has chosen.

    Args:
        scores: of `_ranked_by_seed`.
    """
    ended = scores.notna()
    rivals = ended.loc[ended.sum(axis=1) > 1].any()
    pairs = ended[ended.sum(axis=1) >= max(2, rivals.sum() / 2)]
    return scores.loc[pairs.index, pairs.all() & rivals]


def _ranked_by_seed(cells: pd.DataFrame, runs: pd.DataFrame, grid: StoredGrid, metric: str) -> pd.DataFrame:
    """Merits of printed scores [rows and seeds, columns] of the cells whose runs have all ended; -inf of a run that has
    diverged or failed, or a study that was missed."""
    single = _single(cells, runs, grid)
    found = merits(single, metric).mask(single["diverged"], -np.inf)
    found = single.assign(merit=found, competitor=competitors_of(single, grid))
    return found.pivot(index=[*contest_keys(grid), "seed"], columns="competitor", values="merit")


def _single(cells: pd.DataFrame, runs: pd.DataFrame, grid: StoredGrid) -> pd.DataFrame:
    """One line per run, or study, of the cells whose runs have all ended."""
    ended = cells[(cells["done"] + cells["diverged"] + cells["failed"] == cells["seeds"]) & (cells["substitute"] == "")]
    about = runs.assign(diverged=runs["diverged"] | runs["failed"])
    about = about.drop_duplicates("run").set_index("run")[["seed", "score", "missed", "diverged"]]
    single = ended[cell_keys(grid)].assign(run=ended["units"].str.split()).explode("run").join(about, on="run")
    single = single.rename(columns={"score": "mean"}).assign(seeds=1).reset_index(drop=True)
    return single.astype({"missed": bool, "diverged": bool})
