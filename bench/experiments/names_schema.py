"""What a grid file may say about names, and about how the published table is arranged, checked."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from bench.config.parts import Part, one_of
from bench.config.schema import SETTINGS
from bench.errors import require_known
from bench.experiments.labels import ABSENT, HEADINGS, competitor
from bench.results.grids import LARGEST_MARKER, MARKERS


def _with_texts_as_keys(given: Any) -> Any:
    """YAML reads 100 as a number, but ids are texts."""
    if not isinstance(given, dict):
        return given
    return {
        key: {str(id): name for id, name in of.items()} if isinstance(of, dict) else of for key, of in given.items()
    }


OwnNames = Annotated[dict[str, dict[str, str]], BeforeValidator(_with_texts_as_keys)]
"""Axis -> id -> name. Of `axes`: axis -> its heading."""


class Style(Part):
    """How figures draw a method; what is left out is as usual.

    Attributes:
        colour: as #rrggbb.
        marker: of matplotlib, one of MARKERS.
        size: of the marker, in points.
    """

    colour: Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")] | None = None
    marker: Annotated[str, one_of("marker", MARKERS)] | None = None
    size: Annotated[float, Field(gt=0, le=LARGEST_MARKER)] | None = None

    @field_validator("colour")
    @classmethod
    def _in_small_letters(cls, colour: str | None) -> str | None:
        return colour and colour.lower()


class Printed(Part):
    """How the published table is arranged, which `report --style paper` repeats, where it is not as the report.

    An axis may be several of the report's that have one label together, "algorithm wrapper"; its ids are such values,
    "fedavg ccvr".

    Attributes:
        rows, columns: axes; none for those of the report.
        names: those of this table alone, and of its metrics (axis `metric`). Rows and columns stand in the order in which their
            axis names them.
        without: axis of the report -> its values that the published table does not have.
        over: a heading over all columns.
        best_other: heading of one column for the best of all that are not the paper's own methods; "" for a column of each.
        std: whether stds are printed; none for as in the paper's others.
        bold: what is bold in this table, as in `bench.published.printing`; none for what is in the paper's others.
        italics: whether cells that do not differ significantly from the best are in italics, as in the style check.
        where: what cells are of where their names do not say it, a clause of the caption at all budgets.
        caption: what the published caption says besides, in a sentence; left out at budgets other than the paper's.
    """

    rows: list[str] = []
    columns: str = ""
    names: OwnNames = {}
    without: dict[str, list[Any]] = {}
    over: str = ""
    best_other: str = ""
    std: bool | None = None
    bold: Literal["best", "own", "none"] | None = None
    italics: bool = False
    where: str = ""
    caption: str = ""

    def axes(self, rows: Sequence[str], columns: str) -> list[str]:
        """The axes of the published table, those of its rows first.

        Args:
            rows, columns: of the report.
        """
        return [*(self.rows or rows), self.columns or columns]


def check_axes(printed: Printed, rows: Sequence[str], columns: str, values: Mapping[str, Collection[Any]]) -> None:
    """Raises ValueError unless the published table has the axes of the report, each once, but for those with one value, and
    leaves out values that there are.

    Args:
        rows, columns: of the report.
        values: as in `check_names`.
    """
    own, shown = " ".join(printed.axes(rows, columns)).split(), [*rows, columns]
    missing = [axis for axis in shown if axis not in own and len({*map(str, values.get(axis, ()))}) != 1]
    if missing or len({*own}) < len(own) or {*own} - {*shown}:
        raise ValueError(
            f"printed must show the rows and columns of the report, each once ({', '.join(shown)}; those of one value may be "
            f"left out), but got {', '.join(own)}."
        )
    for axis, left_out in printed.without.items():
        require_known("axis in without", [axis], shown)
        known = [*dict.fromkeys(map(str, values.get(axis, ())))]
        if known:
            require_known(f"value of {axis} in without", [*map(str, left_out)], known)
        if known and {*known} == {*map(str, left_out)}:
            raise ValueError(f"without leaves out every {axis}, so that nothing is printed; keep one.")


def check_names(
    names: Mapping[str, Mapping[str, str]], axes: Sequence[str], values: Mapping[str, Collection[Any]]
) -> None:
    """Raises ValueError for names of what there is not, and for one name of two things.

    Args:
        axes: of the table.
        values: axis -> its values, as far as these are known; an axis without any may have all.
    """
    for axis, own in names.items():
        if axis == "metric" and axis not in axes:
            raise ValueError(
                "names has no axis 'metric'; names of metrics are of the published table: names in printed."
            )
        require_known("axis in names", [axis], [HEADINGS, *axes])
        known = [*axes] if axis == HEADINGS else [*_ids(axis, values)]
        if known:
            require_known(f"value of {axis} in names", [id for id in own if id != ABSENT or axis in SETTINGS], known)
        # What begins with a plus is read with the row above.
        told_apart = [name for name in own.values() if name and not name.startswith("+")]
        twice = [name for name in told_apart if told_apart.count(name) > 1]
        if twice:
            raise ValueError(f"names call two values of {axis} {twice[0]!r}; give each a name of its own.")


def _ids(axis: str, values: Mapping[str, Collection[Any]]) -> Iterator[str]:
    parts = [values.get(key, ()) for key in axis.split(" ")]
    return (str(competitor(found)) for found in itertools.product(*parts))
