"""From runs to the cells of a table: the chosen setting, its mean and std over seeds, and what is missing.

A *cell* is one (row, column) of a table. It holds one run per tuning setting and seed; the setting shown is
the one with the best mean over seeds, as the papers do ("best of, chosen on the test split").
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from bench.experiments.labels import chosen_in, competitor, number, values_of
from bench.results import grids as stored
from bench.results.grids import StoredCell, StoredGrid
from bench.results.metrics import METRICS
from bench.results.records import RunRecord
from reports.tables.costs import cost_scores
from reports.tables.records import Records, left_behind
from reports.tables.relative import is_shown, relative_scores

# Identifies the published counterpart of a cell; the same for all runs of the cell.
SETTING = ["dataset", "partition", "algorithm", "model", "clients", "participation", "variant", "published_as"]
NO_METRIC = "no such metric"
DDOF = {"population": 0, "sample": 1}  # of a std: it divides by the number of seeds minus this
BETWEEN_RUNS = "+"  # of one study
BETWEEN_CHOICES = " | "  # of the studies of one cell


def row_keys(grid: StoredGrid) -> list[str]:
    """Names of the axes that label a row, outermost first."""
    return list(grid["report"]["rows"])


def cell_keys(grid: StoredGrid) -> list[str]:
    """Names of the axes that identify a cell of a table: those of its rows, then that of its columns."""
    return [*row_keys(grid), grid["report"]["columns"]]


def compared_keys(grid: StoredGrid) -> list[str]:
    """Names of the axes along which cells compete: that of the columns, unless the report names others."""
    return grid["report"].get("compared") or [grid["report"]["columns"]]


def contest_keys(grid: StoredGrid) -> list[str]:
    """Names of the axes on which competing cells are alike: those of the rows, unless the report compares others."""
    compared = compared_keys(grid)
    return [key for key in cell_keys(grid) if key not in compared]


def contest_name(grid: StoredGrid) -> str:
    """What cells that compete make together, in words: a row; a column, or what it stands for; or a setting."""
    compared, columns = compared_keys(grid), grid["report"]["columns"]
    if compared == [columns]:
        return "row"
    if compared == row_keys(grid):
        return columns if columns in ("dataset", "model", "partition") else "column"
    return "setting"


def competitors_of(cells: pd.DataFrame, grid: StoredGrid) -> pd.Series:
    """What competes in each cell: the label of its column, or those of the axes that the report compares."""
    labels = [cells[key] for key in compared_keys(grid)]
    return pd.Series([competitor(values) for values in zip(*labels, strict=True)], cells.index, dtype=object)


def label(cell: Mapping[str, Any], key: str) -> str:
    """The label of a grid cell on an axis (a field of the cell, a setting or a method option); "-" if it has no value."""
    return labels(cell, [key])[key]


def labels(cell: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """`label` of several axes."""
    return {key: "-" if value is None else str(value) for key, value in values_of(cell, keys).items()}


def seeds_of(grid: StoredGrid) -> list[int]:
    """All seeds of a grid, in rising order."""
    return sorted({cell["seed"] for cell in grid["cells"]})


def split_of(grid: StoredGrid) -> str:
    """The split on which a grid is evaluated; "test and validation" if its cells use both."""
    return " and ".join(sorted({cell["config"]["split"] for cell in grid["cells"]}))


def current_cells(grid: StoredGrid, records: Mapping[str, RunRecord]) -> list[StoredCell]:
    """The cells of a grid without superseded ones, see `bench.results.grids.current_cells`."""
    return stored.current_cells(grid["cells"], {run: record["status"] for run, record in records.items()})


def with_tried(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells whose `tried` and `settings` count the configurations of a search, where one has chosen."""
    searched = cells["searched"].where(cells["searched"] > 0)
    return cells.assign(**{key: searched.fillna(cells[key]).astype(int) for key in ("tried", "settings")})


def collect_runs(grid: StoredGrid, records: Records, metric: str, value: str) -> pd.DataFrame:
    """One line per run of the grid, ended or not, in the grid's order.

    Args:
        grid: expanded grid.
        records: run id -> record of the runs that have ended; of `reports.tables.costs.with_reached` for a metric with a
            target.
        metric: one of METRICS.
        value: `last`, `best` or `last10`; relative metrics are of the last round only, costs of the run.

    Returns:
        Columns: the cell keys and SETTING, choice, searched (number of configurations that a search on validation data
        tried, 0 without a search), seed, run, missing, substitute and data_note ("" unless they apply), score (percent, or
        the unit of a cost; NaN unless the run is done and has the metric), missed (bool: the run is done and has not reached
        the target of the metric), lacking (why a run that is done does not have the metric, or ""),
        std_last10 (std over the last 10 rounds of the run; NaN unless value is `last10`), done,
        diverged, failed (bool), stale (bool: trained before the code changed, see `reports.tables.stale_runs`), outdated
        (bool: of a version that its method has left behind).
        Of a relative metric there is no line of reference runs. Of a grid with studies a line is one study, see `_by_study`.

    Raises:
        ValueError: if two runs of one seed belong to the same table cell.
    """
    keys = cell_keys(grid)
    about, found, lines = METRICS[metric], derived_scores(grid, records, metric), []
    for cell in grid["cells"]:
        if not is_shown(grid, cell, metric):
            continue
        record: Mapping[str, Any] = records.get(cell["run"] or "", {})
        status = record.get("status")
        score: Any = (record["summary"][value] if status == "done" else {}).get(metric)
        if found is not None:
            score = found.get(cell["run"] or "")
        lacking = NO_METRIC if found is None and status == "done" and score is None else ""
        lacking = score if isinstance(score, str) else lacking
        done = isinstance(score, int | float)
        stds = record["summary"].get("last10_std", {}) if done and value == "last10" else {}
        lines.append(
            {
                "variant": cell.get("variant") or "-",  # not an option of that name, which some methods have
                **labels(cell, {*keys, *SETTING, "seed"} - ({"variant"} - {*keys})),
                "choice": choice_of(cell),
                "searched": cell.get("tuned", {}).get("tried", 0),
                "run": cell["run"],
                "missing": cell["missing"] or "",
                "substitute": cell["substitute"] or "",
                "data_note": record.get("data_note", ""),
                "score": float(about.scale * score) if done else float("nan"),
                "missed": done and math.isnan(score),
                "lacking": lacking,
                "std_last10": float(about.scale * stds.get(metric, float("nan"))),
                "done": done,
                "diverged": status == "diverged",
                "failed": status == "failed",
                "stale": bool(record.get("changed")),
                "outdated": done and any(left_behind(cell["config"])),
            }
        )
    runs = pd.DataFrame(lines)
    twice = runs[runs.duplicated([*keys, "choice", "seed"])]
    if len(twice):
        where = ", ".join(twice.iloc[0][[*keys, "choice"]])
        raise ValueError(
            f"Grid {grid['grid']!r} has more than one run with seed {twice.iloc[0]['seed']} for ({where}): "
            "name the axis in which they differ among the report's rows or columns."
        )
    return _by_study(runs, keys, studies) if (studies := studies_of(grid)) else runs


def derived_scores(grid: StoredGrid, records: Records, metric: str) -> Mapping[str, float | str] | None:
    """Run id -> score of a relative metric or a cost, or why a run has none; None for metrics that runs report themselves."""
    if METRICS[metric].relative:
        return relative_scores(grid, records, metric)
    return cost_scores(grid, records, metric) if METRICS[metric].cost else None


def is_board(grid: StoredGrid) -> bool:
    """Whether a grid is a board: methods are ranked by single seeds, or by studies, and stand in the order of their ranks."""
    return grid["report"].get("standings") == "seeds"


def studies_of(grid: StoredGrid) -> list[list[int]]:
    """Seeds of each study of a grid that was run by the ruleset "tuned"; [] for others."""
    return grid["ruleset"]["studies"] if "ruleset" in grid else []


def units_of(grid: StoredGrid) -> str:
    """What numbers of cells are over, in words."""
    return "studies" if studies_of(grid) else "seeds"


def _by_study(runs: pd.DataFrame, keys: list[str], studies: list[list[int]]) -> pd.DataFrame:
    """One line per study of each cell, with its number as `seed` and the mean over its seeds as score.

    A study has diverged, which counts as a miss, if one of its runs has diverged or failed; it has missed a target if one has.
    The choices of all studies of a cell are its one `choice`: none of them is selected by the numbers that are shown.
    """
    study = {str(seed): number for number, seeds in enumerate(studies, 1) for seed in seeds}
    runs = runs[runs["seed"].isin(study)].assign(lost=runs["diverged"] | runs["failed"])
    of = [*keys, runs["seed"].map(study).rename("study")]
    runs = runs.assign(ended=runs["done"] | runs["lost"])
    over_seeds = {
        "score": ("score", lambda scores: scores.mean(skipna=False)),
        "missed": ("missed", "any"),
        "lacking": ("lacking", "max"),
        "std_last10": ("std_last10", "mean"),
        "done": ("done", "all"),
        "diverged": ("lost", "any"),
        "stale": ("stale", "any"),
        "outdated": ("outdated", "any"),
        "ended": ("ended", "all"),
        "run": ("run", lambda ids: BETWEEN_RUNS.join(ids.dropna()) or None),
    }
    alike = {name: (name, "first") for name in runs if name not in {*keys, *over_seeds, "seed", "failed", "lost"}}
    found = runs.groupby(of, sort=False).agg(**alike, **over_seeds)
    found["diverged"] &= found["ended"]
    found["missed"] &= found["done"]
    found = found.drop(columns="ended").assign(failed=False).reset_index().rename(columns={"study": "seed"})
    choices = found.groupby(keys, sort=False)["choice"].transform(BETWEEN_CHOICES.join)
    return found.assign(choice=choices.where(choices.str.strip(BETWEEN_CHOICES) != "", ""))


def summarise(runs: pd.DataFrame, keys: list[str], std: str, sign: int = 1, studies: int = 0) -> pd.DataFrame:
    """One line per cell, in the order of the runs.

    Args:
        runs: lines of `collect_runs`.
        keys: names of the columns that identify a cell.
        std: `population` or `sample`, a key of DDOF.
        sign: -1 where less is better, so that the setting with the smallest mean is chosen.
        studies: number of studies where the runs are of studies: then `mean` is the median over these, in which those that have
            missed are behind all others, NaN if the median is one of these; and seeds are studies.

    Returns:
        Columns about the chosen setting: keys and SETTING, choice, searched, missing, substitute, data_note, lacking, mean, std
        (percentage points over seeds, or the unit of a cost; NaN below two seeds, except that where all runs have the same
        seed it is over the last 10 rounds if the value is `last10`; both of the seeds that reached a target),
        seeds, done, missed (of those done), diverged, failed, stale, outdated (numbers of seeds), few ("1 seed" where others
        have more; "" also where some of its own are missing), run_ids, units (the same ids, those of a study joined), low, high
        (the least and the greatest score), studies. Columns about all settings of the cell: settings (how many there are),
        tried (how many ended on every seed, done or diverged), complete.
    """
    named = runs.assign(run=runs["run"].astype(object).fillna(""))
    by_setting = named.groupby([*keys, "choice"], sort=False)
    firsts = [*(key for key in SETTING if key not in keys), "searched", "missing", "substitute"]
    settings = by_setting.agg(
        **{name: (name, "first") for name in firsts},
        mean=("score", "mean"),
        std_last10=("std_last10", "mean"),
        seeds=("done", "size"),
        done=("done", "sum"),
        missed=("missed", "sum"),
        data_note=("data_note", "max"),
        lacking=("lacking", "max"),
        diverged=("diverged", "sum"),
        failed=("failed", "sum"),
        stale=("stale", "sum"),
        outdated=("outdated", "sum"),
        units=("run", lambda ids: " ".join(filter(None, ids))),
        low=("score", "min"),
        high=("score", "max"),
    )
    settings["run_ids"] = settings["units"].str.replace(BETWEEN_RUNS, " ")
    if studies:
        lost = runs["score"].where(~(runs["diverged"] | runs["missed"]), -sign * math.inf)
        medians = lost.groupby([runs[key] for key in (*keys, "choice")], sort=False).median()
        settings["mean"] = medians.replace([-math.inf, math.inf], math.nan)
    settings["std"] = by_setting["score"].std(ddof=DDOF[std]).where(settings["done"] - settings["missed"] > 1)
    if runs["seed"].nunique() == 1:  # Table 3 of FedConcat prints the std of a single run over its last rounds
        settings["std"] = settings["std"].fillna(settings["std_last10"])
    settings["ended"] = settings["done"] + settings["diverged"] == settings["seeds"]
    settings["measured"] = settings["done"] == settings["seeds"]

    order = ["measured", "done", "missed", "mean"]
    rising = [False, False, True, sign < 0]
    chosen = settings.sort_values(order, ascending=rising, kind="stable").reset_index("choice")
    by_cell = settings.groupby(keys, sort=False)
    cells = pd.DataFrame({"settings": by_cell.size(), "tried": by_cell["ended"].sum()})
    cells = cells.join(chosen[~chosen.index.duplicated()])
    cells["complete"] = cells["measured"] & (cells["tried"] == cells["settings"])
    counted = cells["done"].map(lambda done: f"{done} seed{'s' * (done > 1)}")
    few = (cells["done"] == cells["seeds"]) & (cells["done"] < cells["done"].max()) & (cells["done"] > 0)
    cells = cells.assign(few=counted.where(few, ""), studies=studies)
    return cells.drop(columns=["ended", "measured", "std_last10"]).reset_index()


def with_equal_seeds(cells: pd.DataFrame, contest: list[str]) -> pd.DataFrame:
    """Cells of which those are not complete that have fewer seeds than a complete rival: means over other seeds are of other
    clients.

    Args:
        cells: of `summarise`.
        contest: names of the columns in which rivals are alike.
    """
    counted = cells["seeds"].where(cells["complete"] & (cells["substitute"] == ""))
    most = counted.groupby([cells[key] for key in contest]).transform("max")
    return cells.assign(complete=cells["complete"] & ~(cells["seeds"] < most))


def scores_by_seed(cells: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Scores of the chosen settings, [cells, seeds] with the cells' index, in percent; NaN where a seed has no result.

    Args:
        cells: of `summarise`.
        runs: of `collect_runs`.
    """
    scored = runs.dropna(subset=["run", "score"]).drop_duplicates("run").set_index("run")[["seed", "score"]]
    chosen = cells["units"].str.split().explode().to_frame("run").join(scored, on="run", how="inner")
    return chosen.pivot(columns="seed", values="score").reindex(cells.index)


def choice_of(cell: Mapping[str, Any]) -> str:
    """The chosen hyper-parameters of a grid cell, as "mu=0.01, tau=0.5"; empty if there was no choice."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(chosen_in(cell).items()))


def short(choice: str, digits: int = 4) -> str:
    """A choice with its decimals as people read them: rounded, where a search has drawn them from a range, and 10 for 10.0."""

    def rounded(found: re.Match) -> str:
        return number(float(f"{float(found[0]):.{digits}g}"))

    return re.sub(r"(?<![\w.])\d+\.\d+(e[-+]?\d+)?(?![\w.])", rounded, choice)
