"""What an experiment is: a grid with its changes, and how hyper-parameters are chosen."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import algorithms
from bench.config.schema import DEFAULT_VALIDATION_SHARE
from bench.errors import ConfigError, unknown
from bench.experiments import cells as grid_cells
from bench.experiments.grid_schema import FULL, PAPER, GridSpec
from bench.experiments.layout_data import resolved
from bench.files import file_name
from datasets.own_data import canonical_setting

VALIDATION = "validation"
SEARCHERS = ("grid", "random", "optuna")
SCHEDULERS = ("none", "asha")
TUNED, DEFAULTS = RULESETS = ("tuned", "defaults")
STUDIES, SAMPLES = 3, 5  # of the ruleset "tuned": studies of a cell, and configurations of a study
ALL = "own,training"  # the spaces of methods that are compared: every method has one, also without options of its own
OWN = "own"  # the name that means the space of the method itself
SETS = "sets"  # the name that means the tuning sets of the grid
_LONGEST_LABEL = 64  # characters
_OF_METHOD = re.compile(r"([\w-]+)=(.+\.ya?ml)")


@dataclass(frozen=True)
class TuningOptions:
    """How hyper-parameters are searched: command-line values, which `validate` checks.

    Attributes:
        searcher, scheduler: of SEARCHERS and SCHEDULERS.
        samples: largest number of configurations; None for all of a grid.
        space: names of spaces or files, with commas; OWN and SETS are such names, too. METHOD=FILE.yaml puts a space in place
            of the own one of a method.
        metric: one of ACCURACIES after "validation_"; None for the metric by which the method is usually judged.
        validation_share: share of each class of each client that is set aside.
        search_seeds: seeds on which configurations are compared; None for those of the experiment.
        compares: whether the searches are for a comparison of methods. Then every method gets the same number of
            configurations, no search learns from another one, axes of the table are not searched, and no figures are drawn.
        studies: seeds of each study, where a cell is searched several times: a study compares configurations on a seed that no
            study has, and trains its choice with its own. () for one search, whose choice is trained with all seeds.
    """

    searcher: str = "grid"
    scheduler: str = "none"
    samples: int | None = None
    space: str = OWN
    metric: str | None = None
    validation_share: float = DEFAULT_VALIDATION_SHARE
    search_seeds: tuple[int, ...] | None = None
    compares: bool = False
    studies: tuple[tuple[int, ...], ...] = ()

    def study_of(self, seed: int) -> tuple[int, ...]:
        """The seeds of the study that has a seed; () without studies."""
        return next((study for study in self.studies if seed in study), ())

    def search_seed_of(self, study: tuple[int, ...]) -> int:
        """The seed on which a study compares configurations: its choice is trained on other partitions, from other weights."""
        return max(map(max, self.studies)) + 1 + self.studies.index(study)

    def place(self, cell: grid_cells.Cell, layout: Mapping[str, Any]) -> str:
        """Identifies what is searched at once: the key of a table cell, with the first seed of the study if there are several.

        Args:
            layout: of the report.
        """
        study = self.study_of(cell.config.seed)
        return f"{cell.key(layout)} study {study[0]}" if study else cell.key(layout)

    @property
    def spaces(self) -> list[str]:
        """The names in `space`; where these are only spaces of methods, the usual ones."""
        names = [part for part in self._parts if not _OF_METHOD.fullmatch(part)]
        return names or (ALL if self.compares else OWN).split(",")

    @property
    def spaces_of_methods(self) -> dict[str, str]:
        """Method -> the file that is searched in place of its own space."""
        found = (_OF_METHOD.fullmatch(part) for part in self._parts)
        return {match[1]: match[2] for match in found if match}

    @property
    def _parts(self) -> list[str]:
        return [part.strip() for part in self.space.split(",")]

    @property
    def label_parts(self) -> dict[str, Any]:
        """The part of a budget's name that says how it was tuned: every option that differs from its usual value. `samples`
        is left out, so that a longer search replaces the choice of a shorter one."""
        searcher = self.searcher + ("" if self.scheduler == "none" else f"-{self.scheduler}")
        usual = TuningOptions(space=ALL) if self.compares else TuningOptions()
        others = {key: getattr(self, key) for key in ("space", "metric", "validation_share")}
        own = {key: value for key, value in others.items() if value != getattr(usual, key)}
        if "space" in own:  # files by their names, never by their paths
            of_methods = [f"{method}={Path(file).name}" for method, file in self.spaces_of_methods.items()]
            own["space"] = ",".join([*(Path(part).name for part in self.spaces), *of_methods])
        if self.studies:
            counts = {"studies": (len(self.studies), STUDIES), "samples": (self.samples, SAMPLES)}
            return {"ruleset": TUNED} | {key: value for key, (value, rule) in counts.items() if value != rule} | own
        seeds = {} if self.search_seeds is None else {"search_seeds": ",".join(map(str, sorted(self.search_seeds)))}
        return {"tuned": VALIDATION, "searcher": searcher} | own | seeds

    def validate(self) -> None:
        """Raises ConfigError with every option that is wrong by itself."""
        mistakes = []
        if self.searcher not in SEARCHERS:
            mistakes.append(unknown("searcher", self.searcher, SEARCHERS))
        if self.scheduler not in SCHEDULERS:
            mistakes.append(unknown("scheduler", self.scheduler, SCHEDULERS))
        if not 0 < self.validation_share < 1:
            mistakes.append(f"--validation-share must lie between 0 and 1, but got {self.validation_share:g}.")
        if not all(self.spaces):
            mistakes.append(f"--space needs names of spaces with commas between them, but got {self.space!r}.")
        mistakes += [
            unknown("method of --space", method, algorithms.REGISTRY)
            for method in self.spaces_of_methods
            if method not in algorithms.REGISTRY
        ]
        if self.spaces_of_methods and OWN not in self.spaces:
            mistakes.append(
                f"--space METHOD=FILE takes the place of the method's own space, which {self.space} does not search; add {OWN}."
            )
        if self.samples is not None and self.samples < 1:
            mistakes.append(f"--samples must be at least 1, but got {self.samples}.")
        if self.searcher in SEARCHERS and self.searcher != "grid" and self.samples is None:
            mistakes.append(f"--searcher {self.searcher} needs --samples, the number of configurations to try.")
        if self.compares and self.searcher == "grid" and self.spaces != [SETS]:
            mistakes.append(
                "The grids of methods have different numbers of points; so that each method gets as many configurations, take "
                f"--searcher random or optuna, or the tuning sets of the grid, --space {SETS}."
            )
        if mistakes:
            raise ConfigError(mistakes)


def by_study(seeds: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Seeds of so many studies: the first has these, and each as many others that no other has."""
    return tuple(tuple(seed + number * (max(seeds) + 1) for seed in seeds) for number in range(count))


# How a grid chooses that names sets to be chosen on validation data: all points, compared on one seed.
PROTOCOL = TuningOptions(space=SETS, search_seeds=(0,), compares=True)


@dataclass(frozen=True)
class ExperimentSpec:
    """Which runs an experiment has: a grid with its changes, and how hyper-parameters are chosen.

    Attributes:
        budget: "" is the usual one of the grid.
        only: restricts the cells; setting -> values.
        overrides: settings and method options that win over grid and budget.
        seeds: replaces the grid's seeds, or None.
        substitutes: dataset without images -> dataset that replaces it.
        tuning: how hyper-parameters are chosen on validation data; None runs the grid's tuning sets, among whose points the
            table chooses on the split of its runs, as published.
        ruleset: one of RULESETS where one was asked for; of "tuned", `tuning` has its studies.
        stored_as: its name in a store that has it under one of `earlier_labels`; "" for `label` of today.
    """

    grid: GridSpec
    budget: str = ""
    only: Mapping[str, list] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None
    substitutes: Mapping[str, str] = field(default_factory=dict)
    tuning: TuningOptions | None = None
    ruleset: str = ""
    stored_as: str = ""

    def __post_init__(self) -> None:
        # Neither a stored grid nor the name of a file has the path of a user's data.
        overrides = {key: canonical_setting(key, value) for key, value in self.overrides.items()}
        only = {key: [canonical_setting(key, value) for value in values] for key, values in self.only.items()}
        substitutes = {key: canonical_setting("dataset", value) for key, value in self.substitutes.items()}
        object.__setattr__(
            self,
            "grid",
            self.grid.model_copy(update={"report": resolved(self.grid.report, self.grid.axes, self.grid.settings)}),
        )
        object.__setattr__(self, "budget", self.budget or self.grid.usual_budget)
        object.__setattr__(self, "substitutes", substitutes)
        object.__setattr__(self, "overrides", overrides)
        object.__setattr__(self, "only", only)

    @property
    def budget_label(self) -> str:
        """Name of the budget in the store and in reports, with what was overridden and how it was tuned, unless the grid itself
        says so."""
        return self.label.removeprefix(f"{self.grid.stored_name}@")

    @property
    def label(self) -> str:
        """Name of the experiment in the store: the longest file of its tables, "<label>-standalone.tex", has at most 80
        characters, unless the name of the grid is long itself."""
        least = len(f"{self.budget}+~12345678")  # of a name that is cut
        budget = file_name(self._described(self.budget), max(least, _LONGEST_LABEL - len(self.grid.stored_name)))
        return self.stored_as or f"{self.grid.stored_name}@{budget}"

    @property
    def earlier_labels(self) -> list[str]:
        """Names that earlier versions gave it: `label` before it is cut, and the same of when the budget `full` was called
        `paper`."""
        held = self.grid.budgets
        renamed = self.budget == FULL and held.get(FULL) == held.get(PAPER)  # else it is one of the grid's own
        budgets = [self.budget, *([PAPER] if renamed else [])]
        return [f"{self.grid.stored_name}@{self._described(budget)}" for budget in budgets]

    def _described(self, budget: str) -> str:
        as_published = self.tuning == PROTOCOL and self.grid.is_searched(budget)
        tuned = self.tuning.label_parts if self.tuning and not as_published else {}
        rules = {"ruleset": self.ruleset} if self.ruleset else {}
        return grid_cells.budget_label(budget, {**self.overrides, **rules, **tuned})

    @property
    def all_seeds(self) -> list[int]:
        """Seeds of the grid at the budget, then those that replace them: the order of a table counts both. With studies, those
        of all studies."""
        if self.tuning and self.tuning.studies:
            return [seed for study in self.tuning.studies for seed in study]
        own = self.grid.seeds_at(self.budget)
        return [*own, *(seed for seed in self.seeds or () if seed not in own)]
