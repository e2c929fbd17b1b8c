"""The footnotes of a report: what the numbers are, how hyper-parameters were chosen, and what went wrong."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from bench.errors import suggestion
from bench.published.lookup import PAPERS
from bench.published.tolerances import rule
from bench.registry import Registry
from bench.results.grids import StoredGrid
from bench.results.ids import is_metric_name
from bench.results.metrics import ACCURACIES, METHOD, METRICS
from datasets.info import folder_of
from reports.tables import agreement, gains, significance, tuning_notes
from reports.tables.aggregate import cell_keys, compared_keys, contest_name, label, seeds_of, split_of, studies_of
from reports.tables.layout import percent, span
from reports.tables.names import Names
from reports.tables.published_comparison import (
    further_values,
    is_comparable,
    own_value,
    partitions_taken_for,
    taken_for,
)
from reports.tables.records import Records, ended_runs
from reports.tables.run_notes import about_runs, listed

_STAGES = {"encoder_rounds", "phase_rounds"}  # options of methods whose rounds are not those that the grid says
ROUNDS_OF = {
    "last": "at the last round",
    "best": "at the best round, found on the split itself",
    "last10": "mean of the last 10 evaluated rounds",
}


def footnotes(grid: StoredGrid, records: Records, cells: pd.DataFrame, value: str) -> Iterable[str]:
    """The footnotes of a grid's tables as plain sentences, only those that apply.

    Args:
        grid: expanded grid.
        records: run id -> record.
        cells: compared cells of all metrics.
        value: `last`, `best` or `last10`, the rounds of the accuracies.
    """
    yield from map(without_paths(grid), _all(grid, records, cells, value, Names.of_grid(grid)))


def without_paths(grid: StoredGrid) -> Callable[[str], str]:
    """A function of texts, such as notes of a grid and reasons of failures, in which an image folder then has its name."""
    names, found = Names.of_grid(grid), {}
    datasets = {name for cell in grid["cells"] for name in (cell["dataset"], cell["config"]["dataset"])}
    for dataset in sorted(datasets, key=len, reverse=True):  # a folder before the one that it is in
        if folder := folder_of(dataset):
            forms = [re.escape(dataset), re.escape(dataset.replace("/", "_"))]  # of a grid's name: the other
            if len(folder.parts) > 1:  # else it is a word like any other
                forms.append(("" if folder.is_absolute() else r"(?:[^\s'\"(]*/)?") + re.escape(str(folder)))
            found[re.compile("|".join(forms))] = names.value("dataset", dataset).plain

    def named(text: str) -> str:
        for path, name in found.items():
            text = path.sub(name.replace("\\", r"\\"), text)
        return text

    return named


def _all(grid: StoredGrid, records: Records, cells: pd.DataFrame, value: str, names: Names) -> Iterable[str]:
    yield numbers_are(grid, value)
    yield from _further(grid, cells, value)
    yield from _evaluated_once(grid, records, value, names)
    for metric in cells["metric"].unique():
        if METRICS[metric].about:
            yield f"{METRICS[metric].title}: {METRICS[metric].about}."
    yield from _unknown_callbacks(cells)
    yield from _unreported(records, cells, value)
    yield from _reference(grid, cells, names)
    yield from significance.footnotes(cells, contest_name(grid), against_in_words(grid, names))
    if contest_name(grid) == "setting" and cells["best"].any():
        yield f"Cells of one setting differ in {' and '.join(compared_keys(grid))} only."
    yield from gains.footnotes(cells, grid, names)
    yield from tuning_notes.footnotes(grid, cells, names)
    yield from _of_author(grid)
    yield from published_beside(grid, cells, value, names)
    yield from agreement.footnotes(grid, cells)
    yield from about_runs(grid, records, cells, names)


def against_in_words(grid: StoredGrid, names: Names) -> str:
    """What all other cells are tested against; "" for the best of their contest."""
    against = grid["report"].get("against")
    return names.setting(against).plain if against else ""


def _of_author(grid: StoredGrid) -> Iterable[str]:
    """The notes of the grid, without those about what no cell has."""
    for note in grid["report"].get("notes", ()):
        if isinstance(note, str):
            yield note
        elif any(
            all(label(cell, key) in map(str, those) for key, those in note["when"].items()) for cell in grid["cells"]
        ):
            yield note["say"]


def _unknown_callbacks(cells: pd.DataFrame) -> Iterable[str]:
    """Metrics of callbacks whose decorators nobody can read."""
    for metric in cells["metric"].unique():
        source = metric.partition("/")[0]
        if is_metric_name(metric) and source not in (METHOD, *Registry("callback")):
            yield (
                f"{metric}: the callback {source} is in no folder that is in use (--plugins DIR), so nothing is bold or in "
                "percent."
            )


def _unreported(records: Records, cells: pd.DataFrame, value: str) -> Iterable[str]:
    """Metrics of methods and callbacks that no run has, and which there are."""
    summaries: list[Mapping[str, Any]] = [one["summary"] for one in records.values() if one["status"] == "done"]
    there = sorted({name for summary in summaries for name in summary[value] if is_metric_name(name)})
    for metric in cells["metric"].unique() if summaries else ():
        if is_metric_name(metric) and metric not in there:
            known = f"there are: {', '.join(there) or 'none'}.{suggestion(metric, there)}"
            yield f"No run has the metric {metric}, or none a finite one; {known}"


def _reference(grid: StoredGrid, cells: pd.DataFrame, names: Names) -> Iterable[str]:
    """With what relative metrics compare."""
    if any(METRICS[metric].relative for metric in cells["metric"].unique()):
        reference = names.setting(grid["report"]["reference"]).plain
        yield f"Reference: the run of {reference} with the same data, seed, split and budget, which is not compared itself."


def numbers_are(grid: StoredGrid, value: str) -> str:
    """What the accuracies of a table are: of which split and rounds, over which seeds, at which budget."""
    seeds = seeds_of(grid)
    listed = f"({', '.join(map(str, seeds))})"
    alone = f"1 seed {listed}, {'std (population) of these rounds' if value == 'last10' else 'so no std'}"
    spread = f"mean±std ({grid['std']}) over {len(seeds)} seeds {listed}" if len(seeds) > 1 else alone
    if studies_of(grid):
        spread = over_studies(grid)
    common = "".join(f"; {fact}" for fact in [in_common(grid)] if fact)
    return f"Accuracy in percent on the {split_of(grid)} split, {ROUNDS_OF[value]}; {spread}{common}; {_budget(grid)}."


def over_studies(grid: StoredGrid) -> str:
    """What the numbers of a grid with studies are, and the seeds of each."""
    studies = studies_of(grid)
    each = "; ".join(", ".join(map(str, study)) for study in studies)
    counted = "1 study" if len(studies) == 1 else f"{len(studies)} studies"
    return f"median [lowest, highest] over {counted}, a study is the mean over its seeds ({each})"


def _budget(grid: StoredGrid) -> str:
    """The budget by its name, and what it overrides where that name is cut."""
    cut = "~" in grid["budget"] and [f"{key}={value}" for key, value in sorted(grid.get("overrides", {}).items())]
    machinery = " (which touches every part in seconds: its accuracies mean nothing)" * is_smoke(grid)
    return f"budget {grid['budget']}" + (f" ({', '.join(cut)})" if cut else "") + machinery


def is_smoke(grid: StoredGrid) -> bool:
    """Whether the budget is the one whose accuracies mean nothing."""
    return grid["budget"].partition("+")[0] == "smoke"


def in_common(grid: StoredGrid) -> str:
    """Settings that all federated cells of a grid of one's own share, with the rounds of methods that have other ones: "Simple
    CNN, 10 clients, 50 % take part in a round, 50 rounds (FedConcat 231), 2 local epochs, 12,000 training images"; of tables of
    papers that come with skewbench, whose settings are the paper's, only that they have a part of the images."""
    keys: tuple[str, ...] = ("train_examples", "test_examples")  # None for all of them
    if not grid["reproduces"] or grid.get("source"):
        keys = ("model", "clients", "participation", "rounds", "local_epochs", *keys)
    names, axes = Names.of_grid(grid), {*cell_keys(grid)}
    configs = [cell["config"] for cell in grid["cells"] if cell["config"]["partition"] != "none"]
    found = {key: {config.get(key) for config in configs} for key in keys if key not in axes}
    alike = {key: value for key, values in found.items() if len(values) == 1 for value in values if value is not None}
    words = {
        "model": lambda value: names.value("model", value).plain,
        "clients": lambda value: _count(value, "client"),
        "participation": lambda value: "" if value == 1 else f"{100 * value:.3g} % take part in a round",
        "local_epochs": lambda value: _count(value, "local epoch"),
        "train_examples": lambda value: _count(value, "training image"),
        "test_examples": lambda value: _count(value, "test image"),
    }
    said = {key: words[key](alike[key]) for key in words if key in alike}
    if "rounds" in keys and "rounds" not in axes:
        said["rounds"] = _rounds(grid, names)
    return ", ".join(said[key] for key in keys if said.get(key))


def _rounds(grid: StoredGrid, names: Names) -> str:
    """The rounds of most methods that train as many as the grid says, and those of the others by name; "" where a method has
    several numbers of rounds."""
    of, as_said = defaultdict[str, set[int]](set), list[int]()
    for cell in grid["cells"]:
        if cell["config"]["partition"] != "none":
            of[cell["algorithm"]].add(cell["config"]["rounds"])
            as_said += [cell["config"]["rounds"]] * (not _STAGES & cell["config"]["algorithm"].keys())
    if not of or any(len(rounds) > 1 for rounds in of.values()):
        return ""
    ((usual, _),) = Counter(as_said or [min(rounds) for rounds in of.values()]).most_common(1)
    others = [
        f"{names.value('algorithm', name).plain} {min(rounds):,}" for name, rounds in of.items() if usual not in rounds
    ]
    return _count(usual, "round") + (f" ({', '.join(others)})" if others else "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _further(grid: StoredGrid, cells: pd.DataFrame, value: str) -> Iterable[str]:
    """Of which rounds the tables below the first are."""
    if also := further_values(grid, value):
        alone = " (1 seed: std of these rounds)" if "last10" in also and len(seeds_of(grid)) == 1 else ""
        rounds = "; ".join(ROUNDS_OF[other] for other in also)
        tuned = "; each takes its own best point of a tuning set" if (cells["settings"] > 1).any() else ""
        verdicts = "; they carry no verdict" if grid["reproduces"] else ""
        yield f"Further tables show other rounds of the same cells: {rounds}{alone}{tuned}{verdicts}."


def _evaluated_once(grid: StoredGrid, records: Records, value: str, names: Names) -> Iterable[str]:
    """Which columns have means of a single evaluated round: a method that only changes the end of a run has no other."""
    if "last10" not in (value, *further_values(grid, value)):
        return
    summaries = [(cell, record["summary"]) for _, cell, record in ended_runs(grid, records)]
    axis = grid["report"]["columns"]
    known = [(cell, found) for cell, found in summaries if found.get("last10") and "last10_std" in found]
    columns = [label(cell, axis) for cell, found in known if not ACCURACIES.keys() & found["last10_std"].keys()]
    if once := [names.value(axis, column).plain for column in columns]:
        yield f"{listed(once)}: evaluated at one round only, so the mean of the last 10 is that of this round."


def published_beside(grid: StoredGrid, cells: pd.DataFrame, value: str, names: Names) -> Iterable[str]:
    """What the published numbers beside the measured ones are; arguments as in `footnotes`.

    Args:
        names: those of the grid.
    """
    compared, reproduces = cells[cells["published"].notna()], grid["reproduces"]
    if reproduces and reproduces["paper"] not in PAPERS:
        yield f"Without published values: those of {reproduces['paper']} are in no folder that is in use (--plugins DIR)."
    if compared.empty or not reproduces:
        return
    paper, table = names.value("algorithm", reproduces["paper"]).plain, str(reproduces["table"])
    shares = [metric in METRICS and METRICS[metric].is_share for metric in compared["metric"].unique()]
    unit = ", in points" if all(shares) else ""
    source = f"{paper}, Table {table}" if table.isdigit() else f"{paper}, {table}"
    yield f"In parentheses: published value ({source}) and difference, measured minus published{unit}."
    for model, published in taken_for(grid).items():
        if datasets := compared["dataset"][compared["model"] == model].unique().tolist():
            where = listed(names.value("dataset", dataset).plain for dataset in datasets)
            yield (
                f"{names.value('model', model).plain} is taken for the model of the published numbers on {where}, "
                f"{names.value('model', published).plain}."
            )
    for partition, published in partitions_taken_for(grid).items():
        if (compared["partition"] == partition).any():
            yield (
                f"{names.value('partition', partition).plain} is taken for the partition of the published numbers of "
                f"{names.value('partition', published).plain}."
            )
    compared = compared[compared["done"] > 0]
    if compared.empty:
        return
    if grid["budget"] != "paper":
        yield f"Budget {grid['budget']} is not the paper's, so not comparable: differences carry no verdict."
    if value != own_value(grid):
        yield f"Published: {ROUNDS_OF[own_value(grid)]}, so not comparable: differences carry no verdict."
    if is_comparable(grid, value) and grid["verdict"]:
        judged = compared[compared["verdict"] != ""]
        inside = (judged["verdict"] == "inside").sum()
        if len(judged):
            seeds = int(judged["seeds"].max())
            widths = span(percent(judged["band"].min()), percent(judged["band"].max()))
            yield (
                f"Inside: {rule(grid['verdict']).text}. The band is a proposal of this harness, not the paper's. Inside are "
                f"{inside} of {len(judged)} judged cells, over {seeds} seed{'s' * (seeds > 1)}, with bands of ±{widths}."
            )
        if not all(published.same_setting for published in compared["published"]):
            yield "No verdict where clients, participation or model differ from the published setting."
