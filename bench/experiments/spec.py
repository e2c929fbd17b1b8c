"""What was asked for: a grid with its changes, and how hyper-parameters are chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.config.schema import DEFAULT_VALIDATION_SHARE
from bench.errors import ConfigError, unknown
from bench.experiments import cells as grid_cells
from bench.experiments.grid_schema import GridSpec
from bench.simulation.retention import Final

VALIDATION = "validation"
SEARCHERS = ("grid", "random", "optuna")
SCHEDULERS = ("none", "asha")
ALL = "own,training"  # what methods that are compared search: with an option of their own or without
OWN = "own"  # among the names of spaces: that of the method itself


@dataclass(frozen=True)
class TuningOptions:
    """By which options hyper-parameters are searched; in words that people gave, so that nothing of it need be right.

    Attributes:
        searcher, scheduler: of SEARCHERS and SCHEDULERS.
        samples: configurations that are tried, at most; None for all of a grid.
        space: names of spaces or files, with commas.
        metric: one of METRICS after "validation_"; None for what the method is usually judged by.
        validation_share: of each class of each client.
        compares: whether methods are compared by it. Then each must get as many configurations as the others: nothing is
            learned from other searches, and what the table shows is not searched. There are many searches, and no figures.
    """

    searcher: str = "grid"
    scheduler: str = "none"
    samples: int | None = None
    space: str = OWN
    metric: str | None = None
    validation_share: float = DEFAULT_VALIDATION_SHARE
    compares: bool = False

    @property
    def words(self) -> dict[str, Any]:
        """What the name of a budget says about it, as of `--set`: all that makes another table of it, but for `samples`: what a
        longer search chooses takes the place of what a shorter one has chosen."""
        searcher = self.searcher + ("" if self.scheduler == "none" else f"-{self.scheduler}")
        usual = TuningOptions(space=ALL) if self.compares else TuningOptions()
        others = {key: getattr(self, key) for key in ("space", "metric", "validation_share")}
        own = {key: value for key, value in others.items() if value != getattr(usual, key)}
        return {"tuned": VALIDATION, "searcher": searcher} | own

    def validate(self) -> None:
        """Raises ConfigError with what is wrong whatever is searched."""
        mistakes = [
            unknown(kind, value, known)
            for kind, value, known in (
                ("searcher", self.searcher, SEARCHERS),
                ("scheduler", self.scheduler, SCHEDULERS),
            )
            if value not in known
        ]
        if not 0 < self.validation_share < 1:
            mistakes.append(f"--validation-share must lie between 0 and 1, but got {self.validation_share:g}.")
        if not all(part.strip() for part in self.space.split(",")):
            mistakes.append(f"--space needs names of spaces with commas between them, but got {self.space!r}.")
        if self.samples is not None and self.samples < 1:
            mistakes.append(f"--samples must be at least 1, but got {self.samples}.")
        if self.searcher in SEARCHERS and self.searcher != "grid" and self.samples is None:
            mistakes.append(f"--searcher {self.searcher} needs --samples, the number of configurations to try.")
        if self.compares and self.searcher == "grid":
            mistakes.append(
                "The grids of methods have different numbers of points; so that each method gets as many configurations, take "
                "--searcher random or optuna."
            )
        if mistakes:
            raise ConfigError(mistakes)


@dataclass(frozen=True)
class Request:
    """What `run` was asked for.

    Attributes:
        only: restricts the cells; setting -> values.
        overrides: settings and method options that win over grid and budget.
        seeds: replaces the grid's seeds, or None.
        substitutes: dataset without images -> dataset that stands in.
        rerun: play finished runs again; each takes the place of the earlier one when it has finished, and the earlier
            results go to `superseded`. Killed in between, the earlier results stand, and the same command goes on.
        keep: how much of each run's last state is kept, at least.
        checkpoint_seconds: least time between checkpoints of an unfinished run.
        engine: on which runs are played, "auto" for the faster one; numbers agree up to rounding, so it is not part of a run's
            id.
        storage: where workers write checkpoints and states, a shared path or a URI; None for the results directory.
        track: which service is told of every round, one of `bench.execution.tracking.KINDS`; None for none.
        tuning: how hyper-parameters are chosen on validation data; None plays the grid's tuning sets, among whose points the
            table chooses on the split of its runs, as published.
        chosen: what was chosen in that way, place of the table -> as `bench.tuning.select.described` has it; none yet if empty.
    """

    grid: GridSpec
    budget: str
    only: Mapping[str, list]
    overrides: Mapping[str, Any]
    seeds: list[int] | None
    substitutes: Mapping[str, str]
    data_dir: Path | None
    rerun: bool = False
    keep: Final = "deployed"
    checkpoint_seconds: float = 60.0
    engine: str = "auto"
    storage: str | None = None
    track: str | None = None
    tuning: "TuningOptions | None" = None
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def budget_label(self) -> str:
        """Name of the budget in the store and in reports, with what was overridden and how it was tuned."""
        return grid_cells.budget_label(self.budget, self.overrides | (self.tuning.words if self.tuning else {}))

    @property
    def label(self) -> str:
        """Its name in the store."""
        return f"{self.grid.name}@{self.budget_label}"
