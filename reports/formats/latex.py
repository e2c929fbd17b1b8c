"""A report as LaTeX: one float per metric, for any document with `\\usepackage{booktabs,graphicx}`, or a document of its own.

How wide a table is, is known to LaTeX alone. So it measures: a table that is wider than a column spans both, as a `table*`; one
that is wider than the text is scaled down to it; and one whose letters would then be too small is set sideways. Footnotes that
do not fit on the page of their table stand below the float, as those of tables that are set sideways.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from reports.tables.latex_text import escape
from reports.tables.layout import Cell, Row, Table
from reports.tables.names import Name
from reports.tables.report import Report
from reports.widths import Widths

_DASH = "–"
_SMALLEST = 0.75
"""By which a table is scaled at most: \\footnotesize is 8 points in a paper of 10, so that letters have at least 6."""
_LONGEST = 40  # letters of a grid in a label
_MOST_LINES = 45  # of a float; a page of LNCS has 57 lines of \\footnotesize
_RULE = 0.6  # lines that a rule between rows takes

# Each table has a page, as wide as the table is, but no less than 210 mm. article has no space between a caption and the table
# below it.
_DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,margin=12mm]{geometry}
\usepackage{booktabs,graphicx}
\pagestyle{empty}
\setlength{\belowcaptionskip}{4pt}
\makeatletter
\renewenvironment{table}{%%
  \clearpage
  \global\pdfpagewidth=\ifdim\dimexpr\wd\tablebox+24mm\relax>210mm \dimexpr\wd\tablebox+24mm\relax\else 210mm\fi
  \global\textwidth=\dimexpr\pdfpagewidth-24mm\relax
  \hsize=\textwidth \columnwidth=\textwidth \linewidth=\textwidth
  \def\@captype{table}}{\par\clearpage}
\renewenvironment{table*}{\table}{\endtable}
\makeatother
\begin{document}
%s\end{document}
"""


def render(report: Report, notes: str = "inside", widths: Widths | None = None) -> str:
    """One float per metric, or one of all, with footnotes, and one for each further table.

    Published value and difference are printed below the measured value. A cell without data is a dash, which a footnote
    explains: the name of its dataset in every column would make the table wider than the page. The label is that of the report,
    with a number from the second float on.

    Args:
        notes: where footnotes stand: "inside" the float, "below" it as a paragraph of the text, or, with "none", as comments.
        widths: into which tables must fit; None for those of the document that they are in.
    """
    column, text = (f"{width:g}in" for width in widths) if widths else (r"\columnwidth", r"\textwidth")
    return _render(report, notes, column, text)


def _render(report: Report, notes: str, column: str, text: str) -> str:
    floats = [*report.main, *report.secondary]
    several = {table.title for table in floats if sum(table.title == other.title for other in floats) > 1}
    texts = []
    for number, table in enumerate(floats, 1):
        of = f" ({table.heading})" if table.title in several else ""
        own = [*(report.notes if not table.title else ()), *_explained(table)]
        label = _label(report.name) + (f"-{number}" if number > 1 else "")
        caption = (table.title or report.title) + of
        first, *further = _parts(table)
        about = f". {report.facts}" if report.facts else ""
        inside = own if notes == "inside" else ()
        texts.append(_float(first, caption + about, label, () if further else inside, column, text))
        for part in further:
            notes_of = inside if part is further[-1] else ()
            texts.append(_float(part, f"{caption} (continued)", label, notes_of, column, text, continued=True))
        if own and notes == "below":
            texts[-1] += _below_float(own, label)
        texts[-1] += "".join(f"% {escape(note)}\n" for note in own if notes == "none")
    return "\n".join(texts)


def render_document(report: Report, notes: str = "inside", widths: Widths | None = None) -> str:
    """The same tables as a complete document for pdflatex; without widths, tables are as wide as they are."""
    return _DOCUMENT % (render(report, notes, widths) if widths else _render(report, notes, r"\maxdimen", r"\maxdimen"))


def _label(name: str) -> str:
    """ "tab:paper_table1", with the budget behind it unless the grid is whole, and a short digest of what it overrides."""
    found = re.fullmatch(r"([^@]*)@?([^+]*?)(\+.*?)?((?:-(?:best|last|last10))?(?:-paper)?)", name, flags=re.DOTALL)
    assert found  # the pattern fits every text
    grid, budget, overrides, ending = found.groups()
    parts = [grid] if len(grid) <= _LONGEST else [grid[:_LONGEST], _digest(grid)]
    parts += [budget] * (budget not in ("", "paper", "full")) + ([_digest(overrides)] if overrides else [])
    return "tab:" + re.sub(r"[^\w.-]", "-", "-".join(parts) + ending, flags=re.ASCII)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4]


def _parts(table: Table) -> Iterator[Table]:
    """The table in pieces of at most `_MOST_LINES`, because a float cannot span pages."""
    rows: list[Row] = []
    lines = 0.0
    for row in table.rows:
        of_row = 1 + len(_below(row)) + _RULE * (bool(rows) and _begins_block(row, rows[-1]))
        if rows and lines + of_row > _MOST_LINES:
            yield replace(table, rows=tuple(rows))
            rows, lines, of_row = [], 0, 1 + len(_below(row))
        rows.append(row)
        lines += of_row
    yield replace(table, rows=tuple(rows))


def _float(
    table: Table, caption: str, of: str, notes: Sequence[str], column: str, text: str, continued: bool = False
) -> str:
    """A table with caption and footnotes, none for those that stand elsewhere; LaTeX measures the table alone.

    Args:
        of: its label; where the table is continued, that of the part with which it begins.
        column, text: lengths of LaTeX into which a `table` and a `table*` must fit.
    """
    sentence = "is set sideways, because upright its letters would be too small"
    lines = [
        r"% Needs \usepackage{booktabs,graphicx}.",
        r"\ifdefined\tablebox\else\newsavebox{\tablebox}\fi",
        r"\begingroup\footnotesize\setlength{\tabcolsep}{2pt}%",
        rf"\sbox\tablebox{{\begin{{tabular}}{{{'l' * len(table.row_keys)}{'c' * len(table.columns)}}}",
        r"\toprule",
        *_head(table),
        r"\midrule",
        *_body(table),
        r"\bottomrule",
        r"\end{tabular}}%",
        rf"\def\tablefloat{{table}}\def\tablelimit{{{column}}}%",
        rf"\ifdim\wd\tablebox>\tablelimit\def\tablefloat{{table*}}\def\tablelimit{{{text}}}\fi",
        r"\def\tablebody{\centering\footnotesize" + r"\addtocounter{table}{-1}" * continued,
        rf"\caption{{{escape(caption)}}}",
        *([] if continued else [rf"\label{{{of}}}"]),
        r"\ifdim\wd\tablebox>\tablelimit\relax\resizebox{\tablelimit}{!}{\usebox{\tablebox}}\else\usebox{\tablebox}\fi}%",
        *_within(notes, of),
        rf"\ifdim{_SMALLEST}\wd\tablebox>\tablelimit",
        rf"\PackageWarningNoLine{{skewbench}}{{Table {of} {sentence}}}%",
        r"\ifdim\wd\tablebox>\textheight\sbox\tablebox{\resizebox{\textheight}{!}{\usebox{\tablebox}}}\fi",
        r"\ifdim\dimexpr\ht\tablebox+\dp\tablebox>.75\textwidth",
        r"\sbox\tablebox{\resizebox*{!}{.75\textwidth}{\usebox{\tablebox}}}\fi",
        r"\def\tablelimit{\textheight}%",
        r"\def\tableplaced{\rotatebox{90}{\begin{minipage}{\textheight}\tablebody\end{minipage}}}%",
        r"\else\def\tableplaced{\setbox0\vbox{\tablebody}\setbox2\vbox{\tablenotes}%",
        r"\ifdim\dimexpr\ht0+\dp0+\ht2+\dp2>\textheight\else\global\let\tablebelow\relax\fi",
        r"\unvbox0\ifx\tablebelow\relax\unvbox2 \fi}\fi",
        r"\begin{\tablefloat}\tableplaced\end{\tablefloat}\tablebelow",
        r"\endgroup",
        "",
    ]
    return "\n".join(lines)


def _head(table: Table) -> list[str]:
    """The headings: of several metrics, the names of the columns span those of the metrics; or one spans all columns."""
    rows = _latex(table.row_headings)
    above = table.blocks or ([(table.over, len(table.columns))] if table.over else [])
    if not above:
        return [_line([*rows, *_latex(table.titles)])]
    columns = map(escape, table.columns) if table.blocks else _latex(table.titles)
    spans, rules, first = [], [], len(rows) + 1
    for heading, count in above:
        spans.append(rf"\multicolumn{{{count}}}{{c}}{{{heading.latex}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return [_line([*[""] * len(rows), *spans]), "".join(rules), _line([*rows, *columns])]


def _within(notes: Sequence[str], of: str) -> list[str]:
    """Macros of the footnotes inside the float, and below it, for a table that is set sideways or leaves no room for them."""
    if not notes:
        return [r"\let\tablenotes\relax\let\tablebelow\relax"]
    below = rf"\def\tablebelow{{\par{{\footnotesize\sloppy\noindent Notes to Table~\ref{{{of}}}: \tableremarks}}}}%"
    paragraphs = (rf"{_breakable(note)}\par" for note in notes)
    inside = r"\def\tablenotes{\smallskip\noindent\parbox{\linewidth}{\footnotesize\sloppy\tableremarks}}%"
    return [r"\def\tableremarks{%", *paragraphs, "}%", inside, below]


def _below_float(notes: Sequence[str], label: str) -> str:
    """One paragraph, which names its table: LaTeX may set the float elsewhere."""
    sentences = (f"{_breakable(note.removesuffix('.'))}." for note in notes)
    return "\n".join(
        ["", rf"{{\footnotesize\sloppy\noindent Notes to Table~\ref{{{label}}}:", *sentences, r"\par}", "", ""]
    )


def _breakable(note: str) -> str:
    """A footnote, with line breaks allowed in names of budgets such as "paper+searcher=random"."""
    return re.sub(r"(?<=\w)\+(?=\w)", r"+\\allowbreak{}", escape(note))


def _explained(table: Table) -> list[str]:
    """The footnote of the dashes, if there are some."""
    missing = dict.fromkeys(cell.caveats[0].removeprefix("no data: ") for cell in table.cells if cell.without_data)
    return [f"{_DASH}: no data: {', '.join(missing)}."] if missing else []


def _begins_block(row: Row, before: Row) -> bool:
    """Whether a rule separates a row from the one before it: their outermost labels differ."""
    return len(row.labels) > 1 and before.labels[0] != row.labels[0]


def _body(table: Table) -> list[str]:
    """Rows, with a rule wherever the outermost label changes; outer labels are printed once per block."""
    lines: list[str] = []
    for before, row in zip((None, *table.rows), table.rows, strict=False):
        if before and _begins_block(row, before):
            lines.append(r"\midrule")
        elif before and len(row.labels) > 1 and any(cell and cell.published for cell in before.cells):
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
