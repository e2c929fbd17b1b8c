"""From an experiment to its plan in one call, as the command line makes it step by step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench.experiments import images, planning, selection
from bench.experiments.execution_options import ExecutionOptions
from bench.experiments.spec import ExperimentSpec
from bench.results.store import Store


@dataclass(frozen=True)
class Experiment:
    """What the command line has read, an experiment and how its runs are executed; and what searches have chosen for it."""

    spec: ExperimentSpec
    options: ExecutionOptions = field(default_factory=ExecutionOptions)
    chosen: Mapping = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.spec.label

    def but(self, **changes) -> "Experiment":
        """The same with other fields of the spec or of the options."""
        own = {key: value for key, value in changes.items() if hasattr(self.spec, key)}
        others = {key: value for key, value in changes.items() if key not in own}
        return replace(self, spec=replace(self.spec, **own), options=replace(self.options, **others))

    def images(self) -> images.Images:
        """The images of the selected cells."""
        return images.locate(self.spec, selection.select_cells(self.spec).selected, self.options.data_dir)

    def plan(self, store: Store) -> planning.Plan:
        """The runs that are left."""
        spec, options = self.spec, self.options
        planning.check_name(spec, store)
        cells = selection.select_cells(spec)
        found = images.locate(spec, cells.selected, options.data_dir)
        cells = selection.fit_to_images(cells, spec, found)
        planning.check_engine(options.engine, cells.selected)
        if self.chosen:
            cells = selection.with_chosen(cells, spec, self.chosen)
        return planning.make_plan(cells, spec.grid, options, found, store)

    def retention(self, cell, store: Store, is_base: bool = False):
        return planning.retention_of(cell, self.spec.grid, self.options, store, is_base)

    def store_grid(self, plan: planning.Plan, store: Store) -> int | None:
        return planning.store_grid(self.spec, plan, store)
