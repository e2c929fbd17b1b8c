"""A report as LaTeX: one float per metric, for any document with `\\usepackage{booktabs}`, or a document of its own.

A table that is wider than a column of a two-column paper spans both, as a `table*`, in smaller letters where it must.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from reports.tables.latex_text import escape
from reports.tables.layout import Cell, Row, Table
from reports.tables.names import Name
from reports.tables.report import Report

_DASH = "–"
# As wide as its widest table; without floats, because a float cannot span pages. article has no space between a caption and the
# table below it.
_DOCUMENT = r"""\documentclass{article}
\usepackage[paperwidth=%dmm,paperheight=297mm,margin=12mm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\setlength{\belowcaptionskip}{4pt}
\makeatletter
\renewenvironment{table}{\par\def\@captype{table}}{\par\bigskip}
\renewenvironment{table*}{\par\def\@captype{table}}{\par\bigskip}
\makeatother
\begin{document}
%s\end{document}
"""
_COLUMN = 22  # mm
_LETTER = 1.6  # mm
_TEXT_COLUMN, _TEXT_PAGE = 239, 504  # pt: 84 mm and 7 inches, of a paper with two columns
# Size of a table, which has \footnotesize before -> points of an em in Computer Modern, and those of \tabcolsep.
_SIZES = {
    "": (8.5, 2),
    r"\scriptsize": (7.97, 2),
    r"\scriptsize\setlength{\tabcolsep}{1pt}": (7.97, 1),
    r"\tiny\setlength{\tabcolsep}{1pt}": (6.81, 1),
}
_EMS = {
    letter: em
    for letters, em in (
        ("ijl.,:;!|'I", 0.28),
        ("frst()[]-– ", 0.39),
        ("0123456789acegoz↑↓†‡§", 0.5),
        ("bdhknpquvxyS", 0.55),
    )
    for letter in letters
}
"""Widths of letters, in em; all others have that of a capital."""
_WIDE, _BOLD = 0.78, 1.15


def render(report: Report, notes: str = "inside", page: float = _TEXT_PAGE) -> str:
    """One float per metric, or one of all, with footnotes, and one for each further table.

    Published value and difference are printed below the measured value. A cell without data is a dash, which a footnote
    explains: the name of its dataset in every column would make the table wider than the page. The label is that of the report,
    with a number from the second float on.

    Args:
        notes: where footnotes stand: "inside" the float, "below" it as a paragraph of the text, or, with "none", as comments.
        page: points into which the widest table must fit.
    """
    floats = [*report.main, *report.secondary]
    several = {table.title for table in floats if sum(table.title == other.title for other in floats) > 1}
    texts = []
    for number, table in enumerate(floats, 1):
        of = f" ({table.heading})" if table.title in several else ""
        own = [*(report.notes if not table.title else ()), *_explained(table)]
        label = _label(report.name) + (f"-{number}" if number > 1 else "")
        caption = (table.title or report.title) + of
        caption += f". {report.facts}" if report.facts else ""
        texts.append(_float(table, caption, label, own, notes, page))
    return "\n".join(texts)


def render_document(report: Report, notes: str = "inside") -> str:
    """The same tables as a complete document for pdflatex."""
    width = max(map(_width, (*report.main, *report.secondary)))
    return _DOCUMENT % (max(210, 30 + width), render(report, notes, page=math.inf))


def _label(name: str) -> str:
    """ "tab:paper_table1", with the budget behind it unless the grid is whole."""
    return "tab:" + re.sub(r"[^\w.-]", "-", re.sub("@(paper|full)", "", name, count=1), flags=re.ASCII)


def _width(table: Table) -> float:
    """Room for a table in mm: columns hold numbers with a published value, or long caveats."""
    columns = zip(*(row.cells for row in table.rows), strict=True)
    texts = ([", ".join([cell.measured, *cell.caveats]) for cell in cells if cell] for cells in columns)
    return _COLUMN * len(table.row_keys) + sum(max([_COLUMN, *(_LETTER * len(text) for text in of)]) for of in texts)


def _points(table: Table, size: float, gap: int) -> float:
    """How wide LaTeX sets a table, in points, as the letters of Computer Modern say.

    Args:
        size: points of an em, of the design size that LaTeX takes.
        gap: \\tabcolsep in points.
    """
    titles = map(escape, table.columns) if table.blocks else _latex(table.titles)
    rows = [[*map(_ems, (*_latex(table.row_headings), *titles))]]
    for row in table.rows:
        rows.append([*(_ems(name.latex) for name in table.labels(row)), *map(_widest, row.cells)])
    widths = [size * max(column) + 2 * gap for column in zip(*rows, strict=True)]
    first, beyond = len(table.row_keys), 0.0
    for heading, count in table.blocks:
        beyond += max(0, size * _ems(heading.latex) + 2 * gap - sum(widths[first : first + count]))
        first += count
    return sum(widths) + beyond


def _widest(cell: Cell | None) -> float:
    """The widest line of a cell, in em."""
    if cell is None or cell.without_data:
        return 0
    number = _ems(cell.latex or cell.measured) * (_BOLD if cell.best else 1)
    measured = number + _ems("".join(f", {caveat}" for caveat in cell.caveats))
    return max([measured, *(_ems(text) for text in (cell.gain, *cell.published))])


def _ems(latex: str) -> float:
    """The width of a text in em; a command stands for one wide letter."""
    return sum(_EMS.get(letter, _WIDE) for letter in re.sub(r"[\\${}_^]", "", re.sub(r"\\[A-Za-z]+", "M", latex)))


def _float(table: Table, caption: str, label: str, notes: Sequence[str], place: str, page: float) -> str:
    in_column = _points(table, *_SIZES[""]) <= _TEXT_COLUMN
    environment = "table" if in_column else "table*"
    fitting = (command for command, size in _SIZES.items() if in_column or _points(table, *size) <= page)
    smaller = next(fitting, [*_SIZES][-1])
    lines = [
        r"% Needs \usepackage{booktabs}.",
        rf"\begin{{{environment}}}",
        r"\centering\footnotesize\setlength{\tabcolsep}{2pt}",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{{label}}}",
        *filter(None, [smaller]),
        rf"\begin{{tabular}}{{{'l' * len(table.row_keys)}{'c' * len(table.columns)}}}",
        r"\toprule",
        *_head(table),
        r"\midrule",
        *_body(table),
        r"\bottomrule",
        r"\end{tabular}",
        *(_within(notes) if notes and place == "inside" else ()),
        rf"\end{{{environment}}}",
        *(_below_float(notes, label) if notes and place == "below" else ()),
        *(f"% {escape(note)}" for note in notes if place == "none"),
        "",
    ]
    return "\n".join(lines)


def _head(table: Table) -> list[str]:
    """The headings: of several metrics, the names of the columns span those of the metrics; or one spans all columns."""
    rows = _latex(table.row_headings)
    if not (table.blocks or table.over):
        return [_line([*rows, *_latex(table.titles)])]
    columns = map(escape, table.columns) if table.blocks else _latex(table.titles)
    spans, rules, first = [], [], len(rows) + 1
    for heading, count in table.blocks or [(table.over, len(table.columns))]:
        spans.append(rf"\multicolumn{{{count}}}{{c}}{{{heading.latex}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    above = _line([*[""] * len(rows), *spans])
    return [above, "".join(rules), _line([*rows, *columns])]


def _within(notes: Sequence[str]) -> list[str]:
    paragraphs = (rf"{escape(note)}\par" for note in notes)
    return [r"\par\smallskip", r"\parbox{\linewidth}{\footnotesize", *paragraphs, "}"]


def _below_float(notes: Sequence[str], label: str) -> list[str]:
    """One paragraph, which names its table: LaTeX may set the float elsewhere."""
    sentences = (f"{escape(note.removesuffix('.'))}." for note in notes)
    return ["", rf"{{\footnotesize\noindent Notes to Table~\ref{{{label}}}:", *sentences, r"\par}", ""]


def _explained(table: Table) -> list[str]:
    """The footnote of the dashes, if there are some."""
    cells = [cell for row in table.rows for cell in row.cells if cell and cell.without_data]
    missing = dict.fromkeys(cell.caveats[0].removeprefix("no data: ") for cell in cells)
    return [f"{_DASH}: no data: {', '.join(missing)}."] if missing else []


def _body(table: Table) -> list[str]:
    """Rows, with a rule wherever the outermost label changes; outer labels are printed once per block."""
    lines: list[str] = []
    for before, row in pairwise((None, *table.rows)):
        if before and len(row.labels) > 1:
            if before.labels[0] != row.labels[0]:
                lines.append(r"\midrule")
            elif any(cell and cell.published for cell in before.cells):
                lines.append(r"\addlinespace[2pt]")
        lines.append(_line([*(name.latex for name in table.new_labels(row, before)), *map(_measured, row.cells)]))
        lines += _below(row)
    return lines


def _below(row: Row) -> list[str]:
    """Lines below that of the measured values: gains, published values, differences."""
    lines, labels = [], [""] * len(row.labels)
    if any(cell and cell.gain for cell in row.cells):
        lines.append(_line([*labels, *map(_gain, row.cells)]))
    for part in (slice(0, 1), slice(1, None)):
        if any(cell and cell.published[part] for cell in row.cells):
            lines.append(_line([*labels, *(_small(cell, part) for cell in row.cells)]))
    return lines


def _latex(names: Iterable[Name]) -> list[str]:
    return [name.latex for name in names]


def _line(texts: list[str]) -> str:
    guard = "{}" if texts[0].startswith(("[", "*")) else ""  # else an argument of the preceding line break
    return guard + " & ".join(texts) + r" \\"


def _measured(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.without_data:
        return _DASH
    measured = cell.latex or escape(cell.measured)
    if cell.not_significant:
        measured = rf"\textit{{{measured}}}"
    if cell.best:
        measured = rf"\textbf{{{measured}}}"
    return ", ".join(filter(None, [measured, *map(escape, cell.caveats)]))


def _gain(cell: Cell | None) -> str:
    return rf"{{\scriptsize [{escape(cell.gain).replace('-', '$-$')}]}}" if cell and cell.gain else ""


def _small(cell: Cell | None, part: slice) -> str:
    """Part of a cell's published texts: the value, or difference and verdict; hyphens become minus signs."""
    if cell is None or not cell.published[part]:
        return ""
    texts = (escape(text).replace("-", "$-$") for text in cell.published[part])
    return rf"{{\scriptsize ({', '.join(texts)})}}"
