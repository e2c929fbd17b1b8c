"""The best cell of each row, and the cells that the seeds cannot tell from it."""

import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd

from reports.tables.aggregate import scores_by_seed
from reports.tables.layout import percent

LEVEL = 0.05
FEW_SEEDS = 5  # below, the test finds only differences of several standard deviations


def contenders(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that may be compared with others of their row: complete ones, on their own dataset."""
    return cells[cells["complete"] & (cells["substitute"] == "")]


def printed(means: pd.Series) -> pd.Series:
    """Means as a table prints them, so that what looks alike counts as alike."""
    return means.map(percent).astype(float)


def mark_best(cells: pd.DataFrame, rows: list[str]) -> pd.Series:
    """True for the best mean of each row, for all of them where several print alike.

    Only contenders take part, and only where there are two or more of them.
    """
    candidates = contenders(cells)
    means = printed(candidates["mean"])
    by_row = means.groupby([candidates[key] for key in rows])
    best = (means == by_row.transform("max")) & (by_row.transform("size") > 1)
    return best.reindex(cells.index, fill_value=False)


def compare_with_best(cells: pd.DataFrame, runs: pd.DataFrame, rows: list[str]) -> pd.DataFrame:
    """Cells with best and three more columns: p_value (adjusted), pairs, not_significant.

    Each contender is compared with the highest mean of its row by the two-sided paired t-test over the runs of the same seed;
    Holm's correction covers the rivals of a row. Of three or five seeds no test by ranks could ever tell rivals apart: the
    smallest p-value of Wilcoxon's is 0.25 and 0.06. That the best was found on the same seeds
    is not corrected for: of eight equals on three to ten seeds, some rival differs in about one row in ten.

    Args:
        cells: of `reports.tables.aggregate.summarise`.
        runs: of `reports.tables.aggregate.collect_runs`.
        rows: names of the columns that tell rows apart.

    Returns:
        Besides `best` (of `mark_best`): p_value, in [0, 1], NaN for the best itself and where fewer than two seeds can be
        paired; pairs, the number of seeds behind it; not_significant: not bold, and p_value above LEVEL.
    """
    candidates = contenders(cells)
    best_of = candidates.groupby(rows)["mean"].transform("idxmax").astype(cells.index.dtype)
    rivals = best_of[best_of != best_of.index]
    scores = scores_by_seed(cells, runs)
    own, best = scores.loc[rivals.index].to_numpy(), scores.loc[rivals].to_numpy()
    shared = ~np.isnan(own) & ~np.isnan(best)
    pairs = pd.Series(shared.sum(axis=1), rivals.index, dtype=int)
    p_values = pd.Series(np.nan, rivals.index)
    for count in pairs[pairs > 1].unique():
        of = (pairs == count).to_numpy()
        p_values[of] = _paired_t_test(*(side[of][shared[of]].reshape(-1, count) for side in (own, best)))
    p_values = _holm(p_values.dropna(), cells[rows])
    bold = mark_best(cells, rows)
    return cells.assign(
        best=bold,
        p_value=p_values.reindex(cells.index),
        pairs=pairs.reindex(cells.index, fill_value=0),
        not_significant=(p_values.reindex(cells.index) > LEVEL) & ~bold,
    )


def footnotes(cells: pd.DataFrame) -> Iterator[str]:
    """What bold and italics are, and how much the test behind them can find."""
    if not cells["best"].any():
        return
    yield "Bold: best mean of the row among the complete cells, all of them where several print alike."
    pairs = cells.loc[cells["p_value"].notna(), "pairs"]
    if pairs.empty:
        yield "Fewer than 2 seeds per cell say nothing about which cells differ from the best of their row: none is marked."
        return
    seeds = " to ".join(dict.fromkeys(map(str, (pairs.min(), pairs.max()))))
    weak = " Of so few seeds its power is low: italics say unknown, not equal." if pairs.min() < FEW_SEEDS else ""
    yield (
        f"Italics (not_significant in the CSV): not distinguishable from the best of the row, by the two-sided paired t-test "
        f"over the same {seeds} seeds at level {LEVEL:g} with Holm's correction for the rivals of the row; that the best was "
        f"found on the same seeds is not corrected for, so that more than {LEVEL:.0%} of the rows of equals show a "
        f"difference.{weak}"
    )


def _paired_t_test(own: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Two-sided p-values [rivals] of scores [rivals, seeds]; without any difference 1, with the same one on every seed 0."""
    from scipy import stats  # takes as long to import as pandas; tables of single seeds do without

    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # differences without spread
        p_values = stats.ttest_rel(own, best, axis=1).pvalue
    return np.where((own == best).all(axis=1), 1.0, p_values)


def _holm(p_values: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Adjusted p-values: of m in a row the smallest times m, the next times m - 1, ..., none below the one before it.

    Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.
    """
    ordered = p_values.sort_values()
    keys = [rows.loc[ordered.index, key] for key in rows]
    groups = ordered.groupby(keys)
    scaled = (ordered * (groups.transform("size") - groups.cumcount())).clip(upper=1.0)
    return scaled.groupby(keys).cummax()
