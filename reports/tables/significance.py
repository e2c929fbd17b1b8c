"""The best cell of each row, and the cells that do not differ significantly from it."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from bench.results.metrics import METRICS
from reports.tables import layout
from reports.tables.aggregate import scores_by_seed

LEVEL = 0.05
_ROUNDING = 1e-12  # share of a score: devices divide by the number of examples in different ways
FEW_SEEDS = 5  # with fewer, the test detects only differences of several standard deviations


def competitors(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that are compared within their row: complete ones that were not run on a substitute dataset."""
    return cells[cells["complete"] & (cells["substitute"] == "")]


def merits(candidates: pd.DataFrame, metric: str, digits: int | None = None, rounded: bool = True) -> pd.Series:
    """A number for each of these competitors, the larger the better it is: what its mean says, unless some seeds have not
    reached the target of the metric. Then a cell of which more have is better, whatever the means.

    Args:
        digits: decimals of means as printed; None are those of the style `check`.
        rounded: whether means count as they are printed.
    """
    means = _printed(candidates, metric, digits) if rounded else candidates["mean"]
    means = METRICS[metric].sign * means
    if not candidates["missed"].any():
        return means
    reached = 1 - candidates["missed"] / candidates["seeds"]
    return means.fillna(0).groupby([reached, means.fillna(0)]).ngroup().astype(float)


def _printed(cells: pd.DataFrame, metric: str, digits: int | None) -> pd.Series:
    """Means of cells as a table prints them, with the decimals of a paper if given: what prints alike compares as equal."""
    pairs = zip(cells["mean"], cells.get("std", [math.nan] * len(cells)), strict=True)  # a score of one seed has no std
    return pd.Series(
        [float(layout.printed(metric, mean, digits, std)) for mean, std in pairs], cells.index, dtype=float
    )


def mark_best(cells: pd.DataFrame, rows: list[str], metric: str, digits: int | None = None) -> pd.Series:
    """True for the competitor with the best mean of each row, for all of them if several print alike with these decimals.

    A row with a single competitor has no best cell, and a cell of which no seed, or no median study, has reached the target is
    none.
    """
    if not METRICS[metric].ranked:
        return pd.Series(False, cells.index)
    candidates = competitors(cells)
    values = merits(candidates, metric, digits)
    by_row = values.groupby([candidates[key] for key in rows])
    best = (values == by_row.transform("max")) & (by_row.transform("size") > 1)
    best &= (candidates["missed"] < candidates["seeds"]) & candidates["mean"].notna()
    return best.reindex(cells.index, fill_value=False)


def compare_with_best(
    cells: pd.DataFrame, runs: pd.DataFrame, rows: list[str], metric: str, against: pd.Series | None = None
) -> pd.DataFrame:
    """Cells with four more columns: best, p_value (adjusted), pairs, not_significant.

    Each competitor is compared with the best mean of its row by the two-sided paired t-test over runs of the same seed,
    with Holm's correction for the rivals of a row. A rank test could not reject at three or five seeds: the smallest
    p-value of Wilcoxon's test is 0.25 and 0.06. The selection of the best on the same seeds is not corrected for: with
    eight equal methods and three to ten seeds, about one row in ten shows a significant difference.

    Args:
        cells: of `reports.tables.aggregate.summarise`.
        runs: of `reports.tables.aggregate.collect_runs`.
        rows: names of the columns that identify a row: what its cells have in common.
        metric: of the cells.
        against: for each cell the index of the one that it is tested against instead of the best, NaN for none; None for the
            best.

    Returns:
        best: of `mark_best`. p_value: in [0, 1]; NaN for the best mean itself, with fewer than two common seeds, and where
        seeds of either cell have not reached the target, since those that have are a selection.
        pairs: number of common seeds; NA for cells that are not tested for another reason. not_significant: p_value above
            LEVEL; and not best, where that is compared with.
    """
    if not METRICS[metric].ranked:
        return cells.assign(best=False, p_value=np.nan, pairs=0, not_significant=False)
    candidates = competitors(cells)
    values = merits(candidates, metric, rounded=False)
    best_of = values.groupby([candidates[key] for key in rows]).transform("idxmax").astype(cells.index.dtype)
    if against is not None:
        best_of = against.loc[candidates.index]
        best_of = best_of[best_of.isin(candidates.index)].astype(cells.index.dtype)
    rivals = best_of[best_of != best_of.index]
    scores = scores_by_seed(cells, runs)
    own, best = scores.loc[rivals.index].to_numpy(), scores.loc[rivals].to_numpy()
    reached = candidates["missed"] == 0
    tested = reached.loc[rivals.index].to_numpy() & reached.loc[rivals].to_numpy()
    shared = ~np.isnan(own) & ~np.isnan(best) & tested[:, None]
    pairs = pd.Series(shared.sum(axis=1), rivals.index, dtype=int)
    p_values = pd.Series(np.nan, rivals.index)
    for count in pairs[pairs > 1].unique():
        of = (pairs == count).to_numpy()
        p_values[of] = _paired_t_test(*(side[of][shared[of]].reshape(-1, count) for side in (own, best)))
    p_values = _holm(p_values.dropna(), cells[rows])
    bold = mark_best(cells, rows, metric)
    return cells.assign(
        best=bold,
        p_value=p_values.reindex(cells.index),
        pairs=pairs.astype("Int64").where(tested).reindex(cells.index),
        not_significant=(p_values.reindex(cells.index) > LEVEL) & (~bold | (against is not None)),
    )


def footnotes(cells: pd.DataFrame, contest: str, against: str) -> Iterator[str]:
    """What bold and italics mean, and the power of the test.

    Args:
        contest: of what the best is marked: of a row, or of cells that differ in the axes that are compared.
        against: with what cells are compared instead of the best; "" for the best.
    """
    runs = "studies" if cells["studies"].any() else "seeds"
    if cells["best"].any():
        of = "median" if cells["studies"].any() else "mean"
        yield f"Bold: best {of} of the {contest} among the complete cells, all of them where several print alike."
    if has_few(cells):
        yield f"Cells with fewer {runs} than others of their {contest}, or that lack some, are neither bold nor tested."
    if not (cells["best"].any() or (against and cells["p_value"].notna().any())):
        return
    pairs = cells.loc[cells["p_value"].notna(), "pairs"]
    if pairs.empty:
        if against and not (cells["pairs"] > 0).any():
            yield f"No cell has finished {runs} in common with {against}: none is tested."
            return
        of = against or f"the best of their {contest}"
        yield f"Fewer than 2 {runs} per cell say nothing about which cells differ from {of}: none is marked."
        return
    seeds = layout.span(pairs.min(), pairs.max())
    few = pairs.min() < FEW_SEEDS
    weak = f" With {seeds} {runs} the test often finds nothing. Italics do not mean equal." if few else ""
    alone = (
        f" Cells with fewer than 2 {runs} in common with {against or 'the best'} are not tested."
        if (cells["pairs"] < 2).any()
        else ""
    )
    none = f" No cell is tested in {', '.join(found)}." if (found := _untested(cells)) else ""
    chosen = (
        f" The best was chosen on these {runs}, so equal methods differ in more than {LEVEL:.0%} of the {contest}s."
    )
    yield (
        f"Italics (not_significant in the CSV): not significantly different from {against or f'the best of the {contest}'} "
        f"(two-sided paired t-test over the same {seeds} {runs}, level {LEVEL:g}, Holm's correction within the {contest})."
        f"{'' if against else chosen}{weak}{alone}{none}"
    )


def about_italics(cells: pd.DataFrame, contest: str, against: str) -> str:
    """What italics mean, as a clause of a caption; arguments as in `footnotes`."""
    pairs = cells.loc[cells["p_value"].notna(), "pairs"]
    seeds = layout.span(pairs.min(), pairs.max())
    runs = "studies" if cells["studies"].any() else "seeds"
    test = f"paired t-test over {seeds} {runs}, Holm's correction, level {LEVEL:g}"
    few = "; cells with fewer of them, or compared with such a one, are not tested" * has_few(cells)
    none = f"; no cell is tested in {', '.join(found)}" if (found := _untested(cells)) else ""
    return f"italics: not significantly different from {against or f'the best of the {contest}'} ({test}{few}{none})"


def _untested(cells: pd.DataFrame) -> list[str]:
    """Titles of the metrics in which no cell is tested, such as those that the one to compare with does not have."""
    measured = cells[cells["mean"].notna()]
    tested = measured["p_value"].notna().groupby(measured["metric"], sort=False).any()
    return [METRICS[metric].title for metric in tested.index[~tested] if METRICS[metric].ranked]


def has_few(cells: pd.DataFrame) -> bool:
    """Whether there are cells that lack some seeds or studies, or have fewer than others of their contest."""
    return bool(cells["complete"].any() and ((cells["done"] > 0) & ~cells["complete"]).any())


def _paired_t_test(own: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Two-sided p-values [rivals] of scores [rivals, seeds]: 1 if all scores are equal but for rounding, 0 if all differ by
    one constant.

    These are those of scipy.stats.ttest_rel, but scipy.stats takes as long to import as pandas.
    """
    from scipy import special

    differences, seeds = own - best, own.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):  # differences without spread
        t = differences.mean(axis=1) / np.sqrt(differences.var(axis=1, ddof=1) / seeds)
    return np.where(
        np.isclose(own, best, rtol=_ROUNDING, atol=0).all(axis=1), 1.0, 2 * special.stdtr(seeds - 1, -np.abs(t))
    )


def _holm(p_values: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Holm's adjusted p-values: of m in a row, the smallest times m, the next times m - 1, ..., made non-decreasing.

    Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.
    """
    ordered = p_values.sort_values()
    keys = [rows.loc[ordered.index, key] for key in rows]
    groups = ordered.groupby(keys)
    scaled = (ordered * (groups.transform("size") - groups.cumcount())).clip(upper=1.0)
    return scaled.groupby(keys).cummax()
