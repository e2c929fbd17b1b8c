"""A report as LaTeX: one `table*` per metric, for any document with `\\usepackage{booktabs}`, or a document of its own.

The float spans both columns of a two-column paper; eight methods with published values fit into its width.
"""

from itertools import pairwise

from reports.formats.latex_text import escape
from reports.tables.layout import Cell, Row, Table
from reports.tables.report import Report

_DASH = "–"
# As wide as its widest table; without floats, because a float cannot span pages.
_DOCUMENT = r"""\documentclass{article}
\usepackage[paperwidth=%dmm,paperheight=297mm,margin=12mm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\makeatletter
\renewenvironment{table*}{\par\def\@captype{table}}{\par\bigskip}
\makeatother
\begin{document}
%s\end{document}
"""
_COLUMN = 22  # mm


def render(report: Report) -> str:
    """One float per metric, or one of all, with footnotes, and one for each further table.

    Published value and difference are printed below the measured value. A cell without data is a dash, which a footnote
    explains: the name of its dataset in every column would make the table wider than the page.
    """
    floats = [*report.main, *report.secondary]
    several = {table.title for table in floats if sum(table.title == other.title for other in floats) > 1}
    texts = []
    for table in floats:
        of = f" ({table.heading})" if table.title in several else ""
        notes = report.notes if not table.title else ()
        texts.append(_float(table, (table.title or report.title) + of, notes))
    return "\n".join(texts)


def render_document(report: Report) -> str:
    """The same tables as a complete document for pdflatex."""
    width = max(map(_width, (*report.main, *report.secondary)))
    return _DOCUMENT % (max(210, 30 + width), render(report))


def _width(table: Table) -> float:
    """Room for a table in mm: columns hold numbers with a published value, or long caveats, whose letters take 1.6 mm."""
    columns = zip(*(row.cells for row in table.rows), strict=True)
    texts = ([", ".join([cell.measured, *cell.caveats]) for cell in cells if cell] for cells in columns)
    return _COLUMN * len(table.row_keys) + sum(max([_COLUMN, *(1.6 * len(text) for text in of)]) for of in texts)


def _float(table: Table, caption: str, notes: tuple[str, ...]) -> str:
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{2pt}",
        rf"\caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.row_keys)}{'c' * len(table.columns)}}}",
        r"\toprule",
        *_head(table),
        r"\midrule",
        *_body(table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *_below((*notes, *_explained(table))),
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _head(table: Table) -> list[str]:
    """The headings: of several metrics, the names of the columns span those of the metrics."""
    if not table.blocks:
        return [_line([*map(escape, (*table.row_keys, *table.titles))])]
    spans, rules, first = [], [], len(table.row_keys) + 1
    for heading, count in table.blocks:
        spans.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(heading)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    above = _line([*[""] * len(table.row_keys), *spans])
    return [above, "".join(rules), _line([*map(escape, (*table.row_keys, *table.columns))])]


def _below(notes: tuple[str, ...]) -> list[str]:
    if not notes:
        return []
    lines = (rf"{escape(note)}\par" for note in notes)
    return [r"\par\smallskip", r"\parbox{\linewidth}{\footnotesize", *lines, "}"]


def _explained(table: Table) -> list[str]:
    """The footnote of the dashes, if there are some."""
    cells = [cell for row in table.rows for cell in row.cells if cell and cell.without_data]
    missing = dict.fromkeys(cell.caveats[0].removeprefix("no data: ") for cell in cells)
    return [f"{_DASH}: no data: {', '.join(missing)}."] if missing else []


def _body(rows: tuple[Row, ...]) -> list[str]:
    """Rows, with a rule wherever the outermost label changes; that label is printed once per block."""
    lines = []
    for before, row in pairwise((None, *rows)):
        opens_block = before is None or len(row.labels) == 1 or before.labels[0] != row.labels[0]
        if opens_block and before is not None and len(row.labels) > 1:
            lines.append(r"\midrule")
        labels = [escape(label) for label in row.labels]
        if not opens_block:
            labels[0] = ""
            if any(cell and cell.published for cell in before.cells):
                lines.append(r"\addlinespace[2pt]")
        lines.append(_line([*labels, *map(_measured, row.cells)]))
        if any(cell and cell.gain for cell in row.cells):
            lines.append(_line([*[""] * len(labels), *map(_gain, row.cells)]))
        for part in (slice(0, 1), slice(1, None)):
            if any(cell and cell.published[part] for cell in row.cells):
                lines.append(_line([*[""] * len(labels), *(_small(cell, part) for cell in row.cells)]))
    return lines


def _line(texts: list[str]) -> str:
    guard = "{}" if texts[0].startswith(("[", "*")) else ""  # else an argument of the preceding line break
    return guard + " & ".join(texts) + r" \\"


def _measured(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.without_data:
        return _DASH
    measured = escape(cell.measured)
    if cell.best or cell.not_significant:
        measured = rf"\text{'bf' if cell.best else 'it'}{{{measured}}}"
    return ", ".join(filter(None, [measured, *map(escape, cell.caveats)]))


def _gain(cell: Cell | None) -> str:
    return rf"{{\scriptsize [{escape(cell.gain).replace('-', '$-$')}]}}" if cell and cell.gain else ""


def _small(cell: Cell | None, part: slice) -> str:
    """Part of a cell's published texts: the value, or difference and verdict; hyphens become minus signs."""
    if cell is None or not cell.published[part]:
        return ""
    texts = (escape(text).replace("-", "$-$") for text in cell.published[part])
    return rf"{{\scriptsize ({', '.join(texts)})}}"
