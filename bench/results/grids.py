"""What the files of grids and searches in a results directory hold, as types; `bench.results.schema` checks that they do."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bench.results.ids import is_name
from bench.results.json_schema import is_number, is_printable_mapping
from bench.results.records import FINISHED, Config, Name, RunId, are_distinct_texts


def is_figure(value: Any) -> bool:
    """Whether a value may describe a figure or a measured table; its other keys are checked where it is shown."""
    return is_printable_mapping(value) and is_name(value.get("kind"))


MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h", "d", "<", ">")  # of matplotlib
LARGEST_MARKER = 20  # points


def is_style(value: Any) -> bool:
    """Whether a value says how figures draw a method, see `bench.experiments.names_schema.Style`."""
    return (
        isinstance(value, dict)
        and value.keys() <= {"colour", "marker", "size"}
        and bool(re.fullmatch("#[0-9a-f]{6}", str(value.get("colour", "#000000"))))
        and value.get("marker", "o") in MARKERS
        and is_number(value.get("size", 1))
        and 0 < value.get("size", 1) <= LARGEST_MARKER
    )


Figure = Annotated[dict[str, Any], is_figure]
Style = Annotated[dict[str, Any], is_style]


class ChosenParams(TypedDict):
    """Hyper-parameters that a search on validation data has chosen for a cell, and how.

    Attributes:
        hparams: option -> value.
        score: of the chosen configuration, mean over seeds, in [0, 1].
        share: of the training images that were set aside for validation.
        tried: configurations that were compared.
        alike: those of them that are not distinguishable from the chosen one.
        defaults: whether the values that the cell has without a search were among them; older grids do not say.
        space: option -> its range, for people.
        search: name of the search.
        spaces: how many spaces have been searched for the same runs, this one included; missing where it is the only one.
        failed: configurations that failed, and could not be chosen; missing where none did.
        copies: copies of the images on which the compared configurations were trained; missing where it was one.
        at_end: options of which the chosen value lies at an end of its range, beyond which the method allows values; missing
            where none does, and in older grids.
    """

    hparams: dict[str, Any]
    score: float
    metric: str
    seeds: list[int]
    share: float
    searcher: str
    scheduler: str
    tried: int
    alike: int
    defaults: NotRequired[bool]
    space: dict[str, str]
    search: Name
    spaces: NotRequired[int]
    failed: NotRequired[int]
    copies: NotRequired[int]
    at_end: NotRequired[list[str]]


class StoredCell(TypedDict):
    """One run of a stored grid, see `bench.experiments.cells.Cell`.

    Attributes:
        seed: of the run.
        choice: the point of the tuning set.
        run: id of the run; None if the cell cannot run.
        missing: why it cannot.
        substitute: the dataset that is used instead of the missing one.
        config: of the run.
    """

    dataset: str
    seed: int
    choice: dict[str, Any]
    run: RunId | None
    missing: str | None
    substitute: str | None
    config: Config
    partition: NotRequired[str]
    algorithm: NotRequired[str]
    model: NotRequired[str]
    clients: NotRequired[int]
    participation: NotRequired[float]
    variant: NotRequired[str]
    wrapper: NotRequired[str]
    published_as: NotRequired[str]
    tuned: NotRequired[ChosenParams]


def current_cells(cells: Iterable[StoredCell], statuses: Mapping[str, str]) -> list[StoredCell]:
    """Stored cells without superseded ones.

    Cells that differ only in the versions of their parts (algorithm, model, ...) are repetitions of one cell. The last
    one whose run has ended is kept; if none has ended, the last one.

    Args:
        statuses: run id -> status, of runs that have begun.
    """
    current: dict[str, tuple[bool, StoredCell]] = {}
    for cell in cells:
        unversioned = {"run": None, "tuned": None, "config": {**cell["config"], "versions": None}}
        key = json.dumps({**cell, **unversioned}, sort_keys=True)
        ended = statuses.get(cell["run"] or "") in FINISHED
        if ended or not current.get(key, (False,))[0]:
            current[key] = (ended, cell)
    return [cell for _, cell in current.values()]


class StoredPrinted(TypedDict, total=False):
    """How a published table is arranged, see `bench.experiments.names_schema.Printed`."""

    rows: list[str]
    columns: str
    names: dict[str, dict[str, str]]
    without: dict[str, list[Any]]
    over: str
    best_other: str
    std: bool
    where: str
    bold: Literal["best", "own", "none"]
    italics: bool
    caption: str


class StoredNote(TypedDict):
    """A sentence beneath a table with a condition, see `bench.experiments.report_schema.Note`."""

    when: dict[str, list[Any]]
    say: str


class StoredLayout(TypedDict):
    """How the report lays out a stored grid, see `bench.experiments.report_schema.Layout`."""

    rows: Annotated[list[str], are_distinct_texts]
    columns: str
    metric: str
    metrics: NotRequired[list[str]]
    rounds_shown: NotRequired[str]
    also: NotRequired[list[Literal["last", "best", "last10"]]]
    compared: NotRequired[list[str]]
    reference: NotRequired[dict[str, Any]]
    measured: NotRequired[Figure]
    figures: NotRequired[list[Figure]]
    standings: NotRequired[bool | str]
    gains_over: NotRequired[dict[str, Any]]
    against: NotRequired[dict[str, Any]]
    improvement_over: NotRequired[dict[str, Any]]
    notes: NotRequired[list[str | StoredNote]]
    names: NotRequired[dict[str, dict[str, str]]]
    styles: NotRequired[dict[str, Style]]
    printed: NotRequired[StoredPrinted]


class StoredReproduces(TypedDict):
    """The published table that a stored grid repeats, see `bench.experiments.grid_schema.Reproduces`."""

    paper: Name
    table: int | str
    variants: NotRequired[list[dict[str, Any]]]
    own: NotRequired[list[Any]]
    baselines: NotRequired[list[Any]]
    models: NotRequired[dict[str, str]]
    partitions: NotRequired[dict[str, str]]


class StoredRuleset(TypedDict):
    """By which rules hyper-parameters of a stored grid were chosen, see `bench.experiments.spec.RULESETS`.

    Attributes:
        studies: seeds of each study; [] of the ruleset "defaults".
        samples: configurations that a study tries; 0 of the ruleset "defaults".
    """

    name: Literal["tuned", "defaults"]
    studies: list[list[int]]
    samples: int


class GridDescription(TypedDict):
    """A stored grid without its cells.

    Attributes:
        grid: its name.
        budget: with what was overridden, see `bench.experiments.cells.budget_label`.
        source: the user's file; "" for a grid that comes with the harness.
        digest: of what its cells have in common.
        chosen_on: the split on which hyper-parameters were chosen.
        ruleset: by which rules; missing where none was named.
        planned_examples: run id -> examples to train on, see `bench.experiments.cost`, of those for which that is known;
            missing from files of earlier versions.
        titles: "algorithm", "model", "dataset" or "partition" -> id -> what tables call it, of what labs have brought; missing
            where there is none.
        styles: method -> how figures draw it, of methods of labs that say so; missing where there is none.
    """

    grid: str
    budget: str
    source: NotRequired[str]
    digest: str
    overrides: NotRequired[dict[str, Any]]
    title: str
    reproduces: StoredReproduces | None
    std: Literal["population", "sample"]
    verdict: str | None
    report: StoredLayout
    chosen_on: NotRequired[str]
    ruleset: NotRequired[StoredRuleset]
    planned_examples: NotRequired[dict[str, int]]
    titles: NotRequired[dict[str, dict[str, str]]]
    styles: NotRequired[dict[str, Style]]


class StoredGrid(GridDescription):
    """An expanded grid: `grids/<grid>@<budget>.json`.

    Attributes:
        row_order: labels of each row of the table, in their order.
        column_order: labels of the columns.
    """

    row_order: list[list[Any]]
    column_order: list[Any]
    cells: list[StoredCell]


class StoredSearch(TypedDict):
    """What a search has proposed: `searches/<name>.json`.

    Attributes:
        configs: seed -> config of the run in which options are varied.
        space: option -> its range, as the search was described.
        proposed: option -> value for every proposed configuration, in order.
        samples: configurations to try, at most; None for all of a space.
        wanted: how many these are, without those that other searches have tried; missing from earlier files.
        sampler: arguments of Optuna's TPE sampler; missing where another searcher proposes, and from earlier files.
    """

    configs: dict[str, Config]
    space: dict[str, Any]
    proposed: list[dict[str, Any]]
    samples: NotRequired[int | None]
    wanted: NotRequired[int]
    sampler: NotRequired[dict[str, Any]]
