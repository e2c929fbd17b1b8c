"""What a grid file may say, checked."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from bench.config.methods import callbacks_in
from bench.config.parts import Part, Round, one_of
from bench.config.schema import SETTINGS
from bench.errors import require_known
from bench.experiments.labels import competitor
from bench.experiments.names_schema import check_axes, check_names
from bench.experiments.report_schema import Layout
from bench.experiments.settings_schema import (
    Budget,
    Condition,
    Tuning,
    Values,
    as_list,
    canonical_value,
    matches,
    require_few,
)
from bench.measurements.specs import REGISTRY
from bench.models import canonical
from bench.published.lookup import PAPERS, models_of
from bench.results.ids import versioned
from bench.results.metrics import check_sources
from datasets.partitions import parse

PAPER = "paper"  # the budget of the grid of a paper as it is
FULL = "full"  # the same of a grid of one's own, which reproduces no paper


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
    def _tuning_sets_leave_axes_alone(self) -> "GridSpec":
        """Their points would replace the values of an axis, whose cells would all be the same run."""
        values = {key: [value] for key, value in self.settings.items()} | self.axes
        for number, tuning in enumerate(self.tuning):
            both = [key for key in tuning.options if key in self.axes]
            if both and _may_match(tuning, values):
                raise ValueError(
                    f"tuning.{number}.options has {', '.join(both)}, of which the grid has an axis; leave it out of one of "
                    "them (a grid that extends another inherits its tuning sets, and `tuning` replaces them)."
                )
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
        return here is not None and here.tuning == "all" and any(_may_match(one, self.axes) for one in sets)

    def is_fixed_by(self, overrides: Collection[str]) -> bool:
        """Whether overriding these options leaves nothing to search: no other has several values in its tuning sets."""
        return all(key in overrides for one in self.tuning for key, values in one.options.items() if len(values) > 1)

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


def _may_match(tuning: Tuning, values: Mapping[str, list[Any]]) -> bool:
    """Whether these values of settings leave it open that a tuning set holds for some cell."""
    known = ((key, as_list(value), values[key]) for key, value in tuning.when.items() if key in values)
    return all(
        {str(canonical_value(key, one)) for one in wanted} & {str(canonical_value(key, one)) for one in there}
        for key, wanted, there in known
    )
