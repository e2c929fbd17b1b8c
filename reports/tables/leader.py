"""The sentence that a board begins with: who is first, and which methods are not told apart from it."""

import math
from collections.abc import Callable, Iterable

import pandas as pd

from bench.results.grids import StoredGrid
from bench.results.metrics import METRICS
from reports.tables.aggregate import competitors_of, contest_keys, contest_name, is_board, units_of
from reports.tables.footnotes import is_smoke
from reports.tables.layout import percent, span
from reports.tables.rankings import are_few, first_ranks, titles_of_competitors, unit
from reports.tables.significance import LEVEL, compare_with_best


def sentence(
    found: pd.DataFrame | None, cells: pd.DataFrame, grid: StoredGrid, runs_of: Callable[[str], pd.DataFrame]
) -> str:
    """Who is first by the first ranks of a board, and which methods differ from it significantly in no setting; "" without
    ranks.

    A method of which a run has diverged or failed is none of these.

    Args:
        found: standings of all metrics.
        cells: of all metrics.
        runs_of: the runs of a metric.
    """
    if found is None or found.empty or not is_board(grid):
        return ""
    metric, setting, ranks = found["metric"].iloc[0], contest_name(grid), first_ranks(found)
    titles, units = titles_of_competitors(grid), units_of(grid)

    def listed(those: Iterable[str]) -> str:
        return ", ".join(titles[one] for one in those)

    leader = ranks.iloc[0]
    tied = ranks.loc[ranks["value"] == leader["value"], "column"]
    value, low, high = map(percent, (leader["value"], leader["low"], leader["high"]))
    interval = "" if math.isnan(leader["low"]) else f" [{low}, {high}]"
    narrow = ", too narrow" if interval and are_few(found, cells, grid) else ""
    first = (
        f"First by mean rank of {METRICS[metric].title}: {listed(tied)} ({value}{interval}{narrow}, "
        f"over {leader['rows']} pairs of {setting} and {unit(grid)})."
        f"{' Accuracies of a smoke budget mean nothing.' * is_smoke(grid)}"
    )
    own = cells[cells["metric"] == metric].reset_index(drop=True)
    own["competitor"] = competitors_of(own, grid)
    of = own.loc[own["substitute"] == "", "competitor"].nunique()
    if absent := of - len(ranks):
        first += f" {absent} of {of} methods {'are' if absent > 1 else 'is'} not ranked, for lack of runs."
    own = own[own["competitor"].isin(ranks["column"])]
    setting_of = pd.MultiIndex.from_frame(own[contest_keys(grid)])
    of_leader = (own["competitor"] == leader["column"]).to_numpy()
    against = pd.Series(setting_of.map(dict(zip(setting_of[of_leader], own.index[of_leader], strict=True))), own.index)
    lost = own["diverged"] + own["failed"] > 0
    if count := (of_leader & lost).sum():
        name = listed([leader["column"]])
        first += (
            f" {name} has lost runs in {count} of {of_leader.sum()} {setting}s, in which nothing is compared with it."
        )
    # One correction of all tests: with one for each setting, four of them and 100 equal methods, four boards in ten would
    # tell a method apart; so it is one in eight, because the first was chosen on the same seeds.
    tests = compare_with_best(own.assign(board=""), runs_of(metric), ["board"], metric, against)
    tests = tests[tests["p_value"].notna()]
    if tests.empty:
        return f"{first} Nothing says whether others differ from it: that needs two {units} of each {setting}."
    apart = {*tests.loc[tests["p_value"] <= LEVEL, "competitor"], *own.loc[lost, "competitor"]}
    alike = [one for one in ranks["column"][1:] if one not in apart]
    if not alike:
        return f"{first} Each of the others differs from it significantly in a {setting}, or has lost a run."
    those = f"all others{' that are ranked' if absent else ''}" if len(alike) == len(ranks) - 1 else listed(alike)
    from_it = (
        f"Not significantly different from {listed([leader['column']])} in any {setting}, which does not mean equal"
    )
    seeds = span(tests["pairs"].min(), tests["pairs"].max())
    least = _least(tests)
    how = (
        f"paired t-test over {seeds} {units}, level {LEVEL:g}, Holm's correction over all {len(tests)} tests, of which "
        f"the largest difference must exceed {least:.{least < 10:d}f} times its sample std"
    )
    return f"{first} {from_it} ({how}): {those}."


def _least(tests: pd.DataFrame) -> float:
    """What the most significant difference must exceed, in its own sample stds over seeds: few seeds and many tests tell
    little."""
    from scipy import special

    pairs = tests["pairs"].max()
    return -special.stdtrit(pairs - 1, LEVEL / 2 / len(tests)) / math.sqrt(pairs)
