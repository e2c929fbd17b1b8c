"""What a grid file may say, checked."""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

import algorithms
from bench.config.compatibility import subset
from bench.config.methods import callbacks_in, defaults_of, is_method
from bench.config.parts import Part, Round, one_of
from bench.config.schema import SETTINGS, RunConfig
from bench.errors import ConfigError, require_known
from bench.experiments.figure_names import VALUES
from bench.experiments.labels import competitor
from bench.experiments.names_schema import OwnNames, Printed, Style, check_axes, check_names
from bench.measurements.specs import REGISTRY, Shown, figure_of
from bench.measurements.tables import table_of
from bench.models import canonical
from bench.participation import cohort_size
from bench.published.lookup import PAPERS, models_of
from bench.published.tolerances import RULES
from bench.results.ids import versioned
from bench.results.metrics import METRICS, check_sources, unknown_metric
from datasets import DatasetInfo
from datasets.partitions import counts_clients, parse, usual_clients

PAPER = "paper"  # the budget of the grid of a paper as it is
FULL = "full"  # the same of a grid of one's own, which reproduces no paper
MOST_CELLS = 100_000  # of a grid: a few lines of axes can name more than a machine can store
Values = Annotated[list, Field(min_length=1)]
Figure = Annotated[SerializeAsAny[Shown], BeforeValidator(figure_of)]
Measured = Annotated[SerializeAsAny[Shown], BeforeValidator(table_of)]


def require_few(axes: Mapping[str, Collection[Any]], what: str) -> None:
    """Raises ValueError if values have more combinations than a grid has cells."""
    count = math.prod(map(len, axes.values()))
    if count > MOST_CELLS:
        raise ValueError(f"{what} has {count:,} combinations of {', '.join(axes)}, but there may be {MOST_CELLS:,}.")


def _is_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(unknown_metric(name))
    return name


MetricName = Annotated[str, AfterValidator(_is_metric)]


class Condition(Part):
    """Cells whose settings are all among the values of `when` get the settings of `set`."""

    when: dict[str, Any]
    set: dict[str, Any]


class Note(Part):
    """A sentence beneath the table, where a cell's settings are all among the values of `when`."""

    when: dict[str, Annotated[list, BeforeValidator(lambda value: as_list(value))]]
    say: str


class Tuning(Part):
    """A tuning set: one cell for every combination of the options' values.

    Attributes:
        named: the one point that the budget `small` runs; needed where the set has more than one.
        chosen_on: the split on which a point is chosen. Of a set of "validation", cells have the named point until a search on
            validation data has replaced it.
    """

    when: dict[str, Any]
    options: dict[str, Values]
    named: dict[str, Any] = {}
    chosen_on: Literal["test", "validation"] = "test"

    @field_validator("options")
    @classmethod
    def _has_few_points(cls, options: dict) -> dict:
        require_few(options, "A tuning set")
        return options

    @field_validator("named")
    @classmethod
    def _is_a_point(cls, named: dict, info: ValidationInfo) -> dict:
        options = info.data.get("options")
        if named and options is not None and named not in _product(options):
            raise ValueError(f"named must be one point of the options {options}, but got {named}.")
        return named

    @model_validator(mode="after")
    def _names_what_a_search_replaces(self) -> "Tuning":
        if self.is_searched and not self.named:
            raise ValueError(
                f"A point of the tuning set {self.options} is chosen on validation data: set `named` to the one that cells "
                "have without a search."
            )
        return self

    @property
    def is_searched(self) -> bool:
        """Whether a point is chosen on validation data."""
        return self.chosen_on == "validation" and len(_product(self.options)) > 1

    def points(self, which: str) -> list[dict]:
        """All points, the named one, or the first; always the named one of a set that is searched.

        Raises:
            ConfigError: if `which` is "named", there are several points, and none is named.
        """
        points = _product(self.options)
        which = "named" if self.is_searched else which
        if which == "all" or len(points) == 1:
            return points
        if which == "named" and not self.named:
            raise ConfigError([f"The tuning set {self.options} has several points: set `named` to the one to run."])
        return [self.named] if which == "named" else points[:1]


class Budget(Part):
    """How much of a grid is run.

    Attributes:
        tuning: which points of the tuning sets: all, the named one, or the first.
        seeds: replaces the grid's seeds.
        axes: replaces the values of these axes of the grid.
        min_clients: the population becomes max(min_clients, number of classes).
        train_examples_per_client: trains on a stratified subset of this many examples per client.
        first_clients: where the clients are those of the data (partition `natural`), only the first so many, if there are more.
        whole_cycles: rounds, and evaluate_every where it is set, become the next multiple of the number of clients of a round:
            FedCat has a model only then, and all methods of a table train and are evaluated alike.
    """

    tuning: Literal["all", "named", "first"] = "all"
    seeds: list[int] | None = None
    axes: dict[str, Values] = {}
    min_clients: int | None = None
    train_examples_per_client: int | None = None
    first_clients: int | None = None
    whole_cycles: bool = False
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []

    def apply(
        self,
        flat: dict[str, Any],
        fixed: Collection[str],
        axes: Collection[str],
        info: DatasetInfo | None,
        cell: Mapping[str, Any],
    ) -> None:
        """Puts the settings of the budget into those of a cell.

        Args:
            fixed: settings that the budget leaves as they are: those of axes, tuning sets and `--set`.
            axes: those among them that are axes; on an axis over clients, `min_clients` is the least.
            info: what is known about the cell's dataset.
            cell: the settings that the cell would have without a budget: with the conditions of its grid.
        """
        partition = str(cell.get("partition"))
        of_partition, natural = counts_clients(partition), partition == "natural"
        is_fixed = of_partition and not natural  # of fewer images, most clients of a shift would have none
        left = ["clients"] if of_partition else []
        # A validation run reads no test example.
        left += ["test_examples"] if flat.get("split") == "validation" or is_fixed else []
        settings = without(self.settings, left + (["train_examples"] if is_fixed else []))
        flat |= without(settings, fixed)
        changes: dict[str, Any] = {}
        for condition in self.conditions:
            if matches(condition.when, flat):
                changes |= condition.set
                flat |= without(condition.set, fixed)
        of_data = {"clients": None} if of_partition and cell.get("clients") is None else {}
        clients = _clients({**flat, "partition": partition, **of_data}, info)
        if clients is not None and not of_partition and self.min_clients:
            if "clients" in axes or "clients" not in fixed:
                wanted = clients if "clients" in axes else 0
                flat["clients"] = clients = max(self.min_clients, info.num_classes if info else 0, wanted)
        own = dict(settings)
        if clients is not None and self.train_examples_per_client and not is_fixed:
            own["train_examples"] = self.train_examples_per_client * clients
        own |= changes
        for key, size in (("train_examples", "train_size"), ("test_examples", "test_size")):
            if key in own and key not in fixed:
                of = getattr(info, size, None)
                flat[key] = subset(own[key], of, info.num_classes) if info and of and own[key] is not None else own[key]

    def fit_to_clients(self, flat: dict[str, Any], fixed: Collection[str], info: DatasetInfo | None) -> None:
        """Puts what depends on the number of clients into the settings of a cell, which have all conditions: the first of the
        clients of the data, and whole cycles; arguments as in `apply`."""
        clients, natural = _clients(flat, info), flat.get("partition") == "natural"
        if clients is None:
            return
        if natural and self.first_clients and self.first_clients < clients and "first_clients" not in fixed:
            flat["first_clients"] = self.first_clients
        population, share = flat.get("first_clients") or clients, _setting(flat, "participation")
        if not (self.whole_cycles and isinstance(population, int) and isinstance(share, int | float)):
            return
        cohort = cohort_size(population, share, to_nearest=natural)
        numbers = {key: _setting(flat, key) for key in ("rounds", "evaluate_every") if key not in fixed}
        flat |= {key: -(-number // cohort) * cohort for key, number in numbers.items() if isinstance(number, int)}


class Variant(Part):
    """Cells whose settings are all among the values of `when` are the published ones of a variant.

    Attributes:
        algorithm: what the published table calls the method; "" for the name that it has here.
    """

    when: dict[str, Any]
    variant: str
    algorithm: str = ""


class Reproduces(Part):
    """The published table that a grid repeats.

    Attributes:
        table: its number, or its name where it has none, as `bench/published` lists it.
        variants: what tells published numbers of one method apart; the first that holds counts.
        own: the report's columns that are the paper's own methods: whether each is ahead of the best of `baselines` (none
            named: of all others) is compared with what is published. Where the report compares along other axes, their values.
        models: model of a cell -> the one of the published table for which it is taken, where there is reason to think that the
            published numbers are the former's.
        partitions: likewise partition of a cell -> the one of the published table.
    """

    paper: Annotated[str, one_of("paper", PAPERS)]
    table: int | str
    variants: list[Variant] = []
    own: list[Any] = []
    baselines: list[Any] = []
    models: dict[str, str] = {}
    partitions: dict[str, str] = {}

    @field_validator("partitions")
    @classmethod
    def _are_partitions(cls, taken: dict[str, str]) -> dict[str, str]:
        return {parse(name).name: parse(published).name for name, published in taken.items()}

    @field_validator("models")
    @classmethod
    def _are_models(cls, taken: dict[str, str]) -> dict[str, str]:
        return {canonical(name): published for name, published in taken.items()}

    @model_validator(mode="after")
    def _stand_for_published_models(self) -> "Reproduces":
        known = models_of(self.paper, str(self.table))
        require_known(f"model in Table {self.table} of {self.paper}", self.models.values(), known)
        return self

    @model_validator(mode="after")
    def _is_not_its_own_baseline(self) -> "Reproduces":
        twice = [str(name) for name in self.own if name in self.baselines]
        if twice:
            raise ValueError(f"own and baselines of reproduces both name {', '.join(twice)}; name it in one of them.")
        return self

    def variant_of(self, flat: Mapping[str, Any]) -> Variant:
        """The variant of a cell with these settings; one without a name for none."""
        found = (variant for variant in self.variants if matches(variant.when, flat))
        return next(found, Variant(when={}, variant=""))


class Layout(Part):
    """How the report lays out the cells, of which rounds its numbers are, by which rule it judges a difference, and which
    figures it draws.

    Attributes:
        rounds_shown: of which rounds the accuracies are that are compared with published ones.
        metrics: what one table shows side by side, for each value of the columns; none for a table per accuracy that runs
            report. The first is the `metric`, by which points of tuning sets are chosen.
        also: other rounds, whose accuracies the report shows in further tables below.
        compared: rows and columns along which cells compete: the best of those that are alike on all others is marked, ranks
            and agreement are about these. None for the columns.
        reference: values of rows or columns; metrics that are relative compare the clients of each run with those of the run
            that has these instead. It is run even where a selection leaves it out.
        measured: what the table shows instead of accuracies; None for accuracies.
        standings: whether the report shows mean ranks and wins of what competes below the table; with "seeds" mean ranks
            alone, of single seeds, of all metrics in one table.
        gains_over: values of rows or columns; each cell shows what it gains over the one that has these instead.
        improvement_over: what competes in a board, as values of `compared`: the report says how likely each other is better.
        against: values of rows or columns, or one of the columns; cells are tested against the one that has these instead, not
            against the best of their row.
        notes: sentences of the grid's author beneath the table; with a condition only where a cell of the table meets it.
        names: what tables and figures call values of rows and columns, instead of their usual names.
        styles: method -> how figures draw it, in place of the style that it has in all grids.
        printed: how the published table is arranged; not inherited from the grid that is extended, which repeats another one.
    """

    rows: list[str] = ["dataset", "partition"]
    columns: str = "algorithm"
    metric: MetricName = "accuracy"
    metrics: list[MetricName] = []
    rounds_shown: Annotated[str, one_of("rounds_shown", VALUES)] = "last"
    also: list[Annotated[str, one_of("also", VALUES)]] = []
    std: Literal["population", "sample"] = "population"
    verdict: Annotated[str, one_of("verdict rule", RULES)] | None = None
    compared: list[str] = []
    reference: dict[str, Any] = {}
    measured: Measured | None = None
    figures: list[Figure] = []
    standings: bool | Literal["seeds"] = False
    gains_over: dict[str, Any] = {}
    against: dict[str, Any] = {}
    improvement_over: dict[str, Any] = {}
    notes: list[str | Note] = []
    names: OwnNames = {}
    styles: dict[str, Style] | None = None
    printed: Printed | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_metric(cls, given: Any) -> Any:
        """The first of several metrics is the one where only one is shown."""
        metrics = given.get("metrics") if isinstance(given, dict) else None
        return {"metric": metrics[0]} | given if isinstance(metrics, list) and metrics else given

    @field_validator("styles")
    @classmethod
    def _are_of_methods(cls, styles: dict[str, Style] | None) -> dict[str, Style] | None:
        require_known("method in styles", styles or (), algorithms.REGISTRY)
        return styles

    @field_validator("against", mode="before")
    @classmethod
    def _is_of_the_columns(cls, against: Any, info: ValidationInfo) -> Any:
        return {info.data.get("columns"): against} if isinstance(against, str | int | float) else against

    @field_validator("also")
    @classmethod
    def _are_further(cls, also: list[str], info: ValidationInfo) -> list[str]:
        shown = [str(info.data.get("rounds_shown")), *also]
        if twice := [value for value, count in Counter(shown).items() if count > 1]:
            raise ValueError(
                f"rounds_shown and also of the report name {', '.join(twice)} twice; name it in one of them, once."
            )
        return also

    @model_validator(mode="after")
    def _metrics_have_what_they_compare(self) -> "Layout":
        shown = [self.metric, *self.metrics]
        if twice := [name for name, count in Counter(self.metrics).items() if count > 1]:
            raise ValueError(f"metrics of the report names {', '.join(twice)} more than once.")
        if self.metrics and self.metric != self.metrics[0]:
            raise ValueError(
                f"metric of the report is the first of metrics, {self.metrics[0]}, but got {self.metric}; name that one."
            )
        relative = [name for name in dict.fromkeys(shown) if METRICS[name].relative]
        if relative and not self.reference:
            raise ValueError(
                f"{', '.join(relative)} compare runs with others: name these by reference, as {{algorithm: local}}."
            )
        if self.reference and not relative:
            comparing = " or ".join(name for name, metric in METRICS.items() if metric.relative)
            raise ValueError(
                f"reference is for metrics that compare runs with it, but the report shows {', '.join(dict.fromkeys(shown))}; "
                f"add {comparing} to metrics, or leave reference out."
            )
        if relative and self.rounds_shown != "last":
            raise ValueError(
                f"{', '.join(relative)} are known of the last round only: rounds_shown must be last, "
                f"but got {self.rounds_shown}."
            )
        return self

    @model_validator(mode="after")
    def _some_axis_tells_contests_apart(self) -> "Layout":
        axes = [*self.rows, self.columns]
        require_known("row or column in compared", self.compared, axes)
        if not set(axes) - set(self.compared):
            raise ValueError("compared names all rows and columns, but contests differ in at least one of them.")
        return self

    @model_validator(mode="after")
    def _improves_over_a_competitor(self) -> "Layout":
        compared = self.compared or [self.columns]
        if self.improvement_over and ({*self.improvement_over} != {*compared} or self.standings != "seeds"):
            raise ValueError(
                f"improvement_over names a value of {' and '.join(compared)}, in a report with standings: seeds, but got "
                f"{self.improvement_over} and standings: {self.standings}."
            )
        return self

    @model_validator(mode="after")
    def _shows_accuracies(self) -> "Layout":
        if self.measured and self.also:
            raise ValueError(
                f"also ({', '.join(self.also)}) is for tables of accuracies, but the report is measured; leave it out."
            )
        if self.measured and self.metrics:
            raise ValueError(
                f"The report is measured and names metrics ({', '.join(self.metrics)}); leave one of them out."
            )
        return self

    @property
    def needs(self) -> list[Shown]:
        """Figures and measured table: what is measured on runs that are done is for these."""
        return [part for part in (*self.figures, self.measured) if part]

    @field_validator("rows", "columns")
    @classmethod
    def _are_axes(cls, names: list[str] | str, info: ValidationInfo) -> list[str] | str:
        known = [*SETTINGS, *(info.context or {}).get("axes", ())]
        require_known("axis of the report", as_list(names), known)
        return names


class GridSpec(Part):
    """A grid file, with what it inherits from the one that it `extends`.

    Attributes:
        source: the user's file; "" for a grid that comes with the harness.
        version: is raised when ranges, defaults or settings change the numbers of the grid; from 2 on it is part of its name in
            the store and of its title.
        search_seeds: seeds on which searches compare configurations unless they name others; empty for those of the table.
        save_rounds, save_local_models: rounds whose state, or whose cohort's models, runs keep on disk, as far as they have so
            many, beside those that figures need.
        save_when: settings of the runs that keep local models; of all if empty.
    """

    name: str
    source: str = ""
    title: str = ""
    version: Annotated[int, Field(ge=1, strict=True)] = 1
    reproduces: Reproduces | None = None
    axes: dict[str, Values]
    settings: dict[str, Any] = {}
    conditions: list[Condition] = []
    tuning: list[Tuning] = []
    budgets: dict[str, Budget]
    report: Layout = Layout()
    search_seeds: list[Annotated[int, Field(ge=0)]] = []
    save_rounds: list[Round] = []
    save_local_models: list[Round] = []
    save_when: dict[str, Any] = {}

    @property
    def stored_name(self) -> str:
        """Its name in the store: versions whose numbers differ lie side by side."""
        return versioned(self.name, self.version)

    @property
    def usual_budget(self) -> str:
        """The budget at which it is whole."""
        return FULL if FULL in self.budgets and not self.reproduces else PAPER

    @property
    def stored_title(self) -> str:
        """Its title with the version; of the first version as it is."""
        return f"{self.title} ({self.stored_name})" if self.title and self.version > 1 else self.title

    @field_validator("axes")
    @classmethod
    def _can_be_expanded(cls, axes: dict) -> dict:
        require_few(axes, "The grid")
        return axes

    @field_validator("search_seeds")
    @classmethod
    def _are_different(cls, seeds: list[int]) -> list[int]:
        if len({*seeds}) < len(seeds):
            raise ValueError(f"search_seeds needs each seed once, but got {seeds}.")
        return seeds

    @model_validator(mode="after")
    def _gains_are_over_a_cell(self) -> "GridSpec":
        shown = [*self.report.rows, self.report.columns]
        for part in ("gains_over", "reference", "against", "improvement_over"):
            for key, value in getattr(self.report, part).items():
                require_known(f"row or column of {part}", [key], shown)
                values = [str(known) for known in self.axes.get(key, [value])]
                if str(value) not in values:
                    raise ValueError(f"{part} names {key}={value}, but the axis has {', '.join(values)}.")
        return self

    @model_validator(mode="after")
    def _budgets_replace_axes_that_there_are(self) -> "GridSpec":
        known = [key for key in self.axes if key != "seed"]
        for name, budget in self.budgets.items():
            require_known(f"axis of the budget {name}", budget.axes, known)
        return self

    @model_validator(mode="after")
    def _names_are_of_what_it_has(self) -> "GridSpec":
        layout, values = self.report, self._values()
        check_names(layout.names, [*layout.rows, layout.columns], values)
        if layout.printed:
            check_axes(layout.printed, layout.rows, layout.columns, values)
            axes = [*layout.printed.axes(layout.rows, layout.columns), "metric"]
            check_names(layout.printed.names, axes, values | {"metric": [layout.metric, *layout.metrics]})
        return self

    @model_validator(mode="after")
    def _callbacks_are_settings(self) -> "GridSpec":
        """Metrics are of callbacks that runs have; and no axis is of callbacks, which look at runs and change none."""
        if "callbacks" in self.axes:
            raise ValueError(
                "callbacks is no axis, because runs with others have the same numbers; name it in settings."
            )
        named = [name for value in self._values().get("callbacks", ()) for name in callbacks_in(value)]
        if mistakes := check_sources(dict.fromkeys([self.report.metric, *self.report.metrics]), named):
            raise ValueError(" ".join(mistakes))
        return self

    def _values(self) -> dict[str, list[Any]]:
        """Setting or option -> all values that it may have in a cell."""
        found: dict[str, list[Any]] = {}
        parts = [self.settings, *(condition.set for condition in self.conditions)]
        for budget in self.budgets.values():
            parts += [budget.settings, *(condition.set for condition in budget.conditions)]
        given = [self.axes, *(one.options for one in self.tuning), *(budget.axes for budget in self.budgets.values())]
        for part in [*given, *({key: [value] for key, value in part.items()} for part in parts)]:
            for key, values in part.items():
                found.setdefault(key, []).extend(values)
        return found

    @model_validator(mode="after")
    def _figures_have_different_names(self) -> "GridSpec":
        names = Counter(figure.name for figure in self.report.figures)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"The report lists more than one figure called {twice[0]}; their files would be the same.")
        return self

    @model_validator(mode="after")
    def _methods_of_the_paper_are_columns(self) -> "GridSpec":
        names = [*self.reproduces.own, *self.reproduces.baselines] if self.reproduces else []
        compared = self.report.compared or [self.report.columns]
        if all(key in self.axes for key in compared):
            known = [competitor(values) for values in itertools.product(*(self.axes[key] for key in compared))]
            require_known("column in own or baselines of reproduces", names, known)
        return self

    @model_validator(mode="after")
    def _figures_have_what_they_show(self) -> "GridSpec":
        for figure in self.report.figures:
            try:
                figure.check(self)
            except ValueError:
                raise
            except Exception as error:  # whatever the code of a lab raises
                raise ValueError(REGISTRY[figure.kind].failure(error)) from error
        return self

    @property
    def known_settings(self) -> list[str]:
        """Names of all settings, and of the options of methods that it varies or sets."""
        options = [key for tuning in self.tuning for key in tuning.options]
        return list(dict.fromkeys([*SETTINGS, *self.axes, *self.settings, *options]))

    def seeds_at(self, budget: str) -> list[int]:
        """Its seeds at a budget."""
        here = self.budgets.get(budget)
        return (here and here.seeds) or self.axes.get("seed", [0])

    def untuned(self) -> "GridSpec":
        """The same with one point of each tuning set, for hyper-parameters that are chosen elsewhere: the named one, else the
        first."""
        points = [tuning.named or tuning.points("first")[0] for tuning in self.tuning]
        sets = [
            tuning.model_copy(update={"options": {key: [value] for key, value in point.items()}})
            for tuning, point in zip(self.tuning, points, strict=True)
        ]
        return self.model_copy(update={"tuning": sets})

    def is_searched(self, budget: str) -> bool:
        """Whether hyper-parameters are chosen on validation data at a budget: at those with all points of tuning sets."""
        here = self.budgets.get(budget)
        sets = (tuning for tuning in self.tuning if tuning.is_searched)
        return here is not None and here.tuning == "all" and any(map(self._may_match, sets))

    def _may_match(self, tuning: Tuning) -> bool:
        """Whether the values on the axes leave it open that a tuning set holds for some cell."""
        on_axes = ((as_list(value), self.axes[key]) for key, value in tuning.when.items() if key in self.axes)
        return all(set(map(str, wanted)) & set(map(str, there)) for wanted, there in on_axes)

    def digest(self, budget: str) -> str:
        """Hash of what its cells at a budget have in common; a grid whose file was changed there is another grid."""
        parts = self.model_dump(include={"settings", "conditions", "tuning"})
        for tuning in parts["tuning"]:
            if tuning["chosen_on"] == "test":  # all that there was
                del tuning["chosen_on"]
        # Keys that budgets did not always have are left out where they say nothing: stored grids keep their digest.
        later = {"axes", "first_clients", "whole_cycles"} - self.budgets[budget].model_fields_set
        parts |= {"budget": self.budgets[budget].model_dump(exclude=later), "axes": sorted(self.axes)}
        parts |= {"rows": self.report.rows, "columns": self.report.columns}
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def matches(when: Mapping[str, Any], flat: Mapping[str, Any]) -> bool:
    """Whether settings, or options of the method (its defaults included), are among the values of a condition."""
    algorithm: Any = flat.get("algorithm")
    defaults = defaults_of(algorithm) if is_method(algorithm) and not when.keys() <= flat.keys() else {}
    seen = {**defaults, **flat}
    return all(seen.get(key) in as_list(value) for key, value in when.items())


def as_list(value: Any) -> list:
    """The values of a condition on one setting: one, or a list of them."""
    return value if isinstance(value, list) else [value]


def _setting(flat: Mapping[str, Any], name: str) -> Any:
    """A setting of a cell, or its default."""
    return flat.get(name, RunConfig.model_fields[name].default)


def _clients(flat: Mapping[str, Any], info: DatasetInfo | None) -> int | None:
    """The number of clients of a cell; None where that is known to the data alone, or no number, which `resolve` refuses."""
    clients, partition = _setting(flat, "clients"), flat.get("partition")
    if counts_clients(partition) and flat.get("clients") is None:
        clients = usual_clients(str(partition), info.num_writers if info else None)
    return clients if isinstance(clients, int) else None


def _product(options: Mapping[str, list]) -> list[dict]:
    return [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]


def without(settings: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Settings but for those of the keys."""
    return {key: value for key, value in settings.items() if key not in keys}
