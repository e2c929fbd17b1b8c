"""What a grid file may say of its report, checked."""

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, SerializeAsAny, ValidationInfo, field_validator, model_validator

import algorithms
from bench.config.parts import Part, one_of
from bench.config.schema import SETTINGS
from bench.errors import require_known
from bench.experiments.figure_names import VALUES
from bench.experiments.names_schema import OwnNames, Printed, Style
from bench.experiments.settings_schema import as_list
from bench.measurements.specs import Shown, figure_of
from bench.measurements.tables import table_of
from bench.published.tolerances import RULES
from bench.results.metrics import METRICS, unknown_metric

# Columns of the frames from which tables are made: an option of such a name would take the place of one.
TABLE_COLUMNS = frozenset(
    "band best choice chosen_on competitor complete data_note difference diverged done ended failed few gain gain_std high "
    "lacking lost low mean measured merit metric missed missing not_significant outdated p_value pairs published published_as "
    "run run_ids score searched seeds settings stale std std_last10 studies study substitute tried units value verdict".split()
)

Figure = Annotated[SerializeAsAny[Shown], BeforeValidator(figure_of)]
Measured = Annotated[SerializeAsAny[Shown], BeforeValidator(table_of)]


def no_axis(name: str) -> str:
    """Why a name that tables have for a column of theirs cannot be that of an axis."""
    return (
        f"{name} cannot be an axis of tables and figures, which have a column of that name: rename the option if it is yours, "
        f"or name it with its method on the axis algorithm, as {{name: METHOD, {name}: VALUE}}."
    )


def _is_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(unknown_metric(name))
    return name


MetricName = Annotated[str, AfterValidator(_is_metric)]


class Note(Part):
    """A sentence beneath the table, where a cell's settings are all among the values of `when`."""

    when: dict[str, Annotated[list, BeforeValidator(as_list)]]
    say: str


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
        known = dict.fromkeys([*SETTINGS, *(info.context or {}).get("axes", ())])
        require_known("axis of the report", as_list(names), known)
        if taken := [no_axis(name) for name in as_list(names) if name in TABLE_COLUMNS]:
            raise ValueError(" ".join(taken))
        return names
