"""How each paper prints the numbers of its tables, for `report --style paper`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Printing:
    """How a table prints its numbers in percent; costs are rounded as everywhere, see `reports.tables.layout.with_std`.

    Attributes:
        digits: decimals of means and stds.
        percent: whether each of them has a percent sign.
        between: what stands between mean and std.
        std: whether stds are printed.
        gains: whether a gain over the base stands behind, with an arrow.
        bold: the "best" of those that compete; of the paper's "own" methods all that no other is ahead of, else the best of
            the others; or "none".
        italics: whether cells that do not differ significantly from the best are in italics.
    """

    digits: int = 1
    percent: bool = False
    between: str = "±"
    std: bool = True
    gains: bool = False
    bold: Literal["best", "own", "none"] = "best"
    italics: bool = False

    def about_bold(self, own: Sequence[str]) -> str:
        """What bold means; "" where it is the best.

        Args:
            own: names of the paper's own methods.
        """
        if self.bold != "own" or not own:
            return ""
        return f"bold: {' and '.join(own)} where not behind the best other method, else that one"


PRINTING = {
    "fedconcat": Printing(percent=True, bold="own"),
    "ccvr": Printing(digits=2, gains=True, bold="none"),
    "fedcat": Printing(digits=2, std=False),
    "fedcollab": Printing(digits=2, between=" ± "),
    "fedvls": Printing(digits=2, std=False),
}
"""Paper, as `bench.published.lookup` calls it -> how it prints."""


def printed_of(grid: Mapping[str, Any]) -> Mapping[str, Any]:
    """How an expanded grid says that the published table is arranged, see `bench.experiments.names_schema.Printed`; {} if it
    is as the report."""
    return grid["report"].get("printed", {})


def printing_of(grid: Mapping[str, Any]) -> Printing:
    """How the published table is printed that an expanded grid reproduces; one decimal and the best in bold for a grid of one's
    own."""
    reproduces, printed = grid["reproduces"], printed_of(grid)
    printing = PRINTING.get(reproduces["paper"], Printing()) if reproduces else Printing()
    return replace(
        printing, **{key: printed[key] for key in ("bold", "std", "italics") if printed.get(key) is not None}
    )
