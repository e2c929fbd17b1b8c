"""How wide tables and figures may be: those of a paper whose widths are known, or one width."""

import re
from typing import NamedTuple

_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # unit -> inches; points of TeX
_LEAST, _MOST = 2.0, 20.0


class Widths(NamedTuple):
    """Widths of a column and of the whole text, in inches; equal where the text has one column."""

    column: float
    text: float


FIGURES = Widths(3.4, 7.0)
"""Of figures where no others are asked for."""
TEMPLATES = {
    "acl": Widths(3.03, 6.3),  # 7.7 and 16 cm
    "cvpr": Widths(3.28, 6.875),
    "icml": Widths(3.25, 6.75),
    "ieee": Widths(3.487, 7.14),  # IEEEtran: 252 and 516 pt
    "lncs": Widths(4.803, 4.803),  # 12.2 cm
    "neurips": Widths(5.5, 5.5),
}
"""Template of a conference or publisher -> its widths, as its style file sets them."""


def read(text: str) -> Widths:
    """The widths of a text such as "5.5in", "84mm", "8.4 cm" or "252pt".

    Raises:
        ValueError: if it is no length, or not between 2 and 20 inches.
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(in|cm|mm|pt)\s*", text)
    width = float(found[1]) * _INCHES[found[2]] if found else 0.0
    if not _LEAST <= width <= _MOST:
        raise ValueError(
            f"A width must be a number with in, cm, mm or pt, from {_LEAST:g} to {_MOST:g} inches, such as 5.5in, but got "
            f"{text!r}."
        )
    return Widths(width, width)
