"""What a kind of figures is."""

from typing import TYPE_CHECKING, Any, ClassVar

from bench.hooks import require_returned
from bench.measurements.specs import Shown
from bench.results.grids import StoredGrid
from bench.results.store import Store
from reports.tables.records import Records
from reports.widths import FIGURES, Widths

if TYPE_CHECKING:
    import matplotlib.figure


class Figure(Shown):
    """A figure as a grid lists it: its keys are the fields of the class, as pydantic has them.

    A kind has `collect` and `draw`, or `drawings`. One that measures something on runs that are done has also `probes` and
    `measure`, and `state_of` unless that is about the models of the cohort after a round. Whoever needs torch or matplotlib
    imports it inside these: where a grid is read, and where only tables are printed, neither is.
    """

    needed: ClassVar[tuple[str, ...]] = ("collect", "draw")

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        if "drawings" in vars(cls) and "needed" not in vars(cls):
            cls.needed = ()  # only `drawings` asks for them

    def collect(self, grid: StoredGrid, records: Records, store: Store, value: str | None = None) -> Any:
        """The numbers of the figure; None or something empty if there is nothing to draw yet.

        Args:
            grid: expanded grid, see `bench.results.grids.StoredGrid`.
            records: run id -> record of the runs that have ended.
            store: holds their rounds and probes (`self.results`).
            value: `last`, `best` or `last10`; None is the grid's own.
        """
        raise NotImplementedError

    def draw(self, found: Any, widths: Widths = FIGURES) -> "matplotlib.figure.Figure":
        """The picture of what `collect` has found.

        Args:
            widths: of the figure; one of a single panel is as wide as a column.
        """
        raise NotImplementedError

    def drawings(
        self,
        grid: StoredGrid,
        records: Records,
        store: Store,
        value: str | None = None,
        widths: Widths = FIGURES,
    ) -> "dict[str, matplotlib.figure.Figure]":
        """Metric -> picture: one, of the grid's own metric. Arguments as of `collect` and `draw`."""
        found = self.collect(grid, records, store, value)
        return {grid["report"]["metric"]: self.draw(found, widths)} if found else {}

    def pictures(self, *arguments: Any) -> "dict[str, matplotlib.figure.Figure]":
        """`drawings`, which are seen to be pictures.

        Raises:
            HookError: if they are something else.
        """
        from matplotlib.figure import Figure as Picture

        found = self.drawings(*arguments)
        require_returned(self.drawings, found, isinstance(found, dict), "a dict of figures", "return {metric: figure}")
        hook = self.draw if type(self).drawings is Figure.drawings else self.drawings
        for drawn in found.values():
            require_returned(hook, drawn, isinstance(drawn, Picture), "a matplotlib Figure", "return figure")
        return found
