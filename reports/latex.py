"""A report as LaTeX: one `table*` per metric, to be read by any document with `\\usepackage{booktabs}`.

The float spans both columns of a two-column paper; eight methods with published values fit into its width.
"""

from itertools import pairwise

from reports.layout import Cell, Row, Table
from reports.report import Report

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def render(report: Report) -> str:
    """One float per metric; published value and difference stand below the measured one."""
    return "\n".join(_float(table, report) for table in report.tables)


def escape(text: str) -> str:
    """Text in which no character has a meaning to LaTeX."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def _float(table: Table, report: Report) -> str:
    caption = report.title if len(report.tables) == 1 else f"{report.title} ({table.metric})"
    header = [escape(name) for name in (*table.row_keys, *table.titles)]
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{2pt}",
        rf"\caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.row_keys)}{'c' * len(table.columns)}}}",
        r"\toprule",
        _line(header),
        r"\midrule",
        *_body(table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip",
        r"\parbox{\linewidth}{\footnotesize",
        *(rf"{escape(note)}\par" for note in report.notes),
        "}",
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


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
        lines.append(_line([*labels, *map(_measured, row.cells)]))
        if any(cell and cell.gain for cell in row.cells):
            lines.append(_line([*[""] * len(labels), *map(_gain, row.cells)]))
        for part in (slice(0, 1), slice(1, None)):
            if any(cell and cell.published[part] for cell in row.cells):
                lines.append(_line([*[""] * len(labels), *(_small(cell, part) for cell in row.cells)]))
    return lines


def _line(texts: list[str]) -> str:
    return " & ".join(texts) + r" \\"


def _measured(cell: Cell | None) -> str:
    if cell is None:
        return ""
    measured = escape(cell.measured)
    if cell.best:
        measured = rf"\textbf{{{measured}}}"
    return ", ".join(filter(None, [measured, *map(escape, cell.remarks)]))


def _gain(cell: Cell | None) -> str:
    return rf"{{\scriptsize [{escape(cell.gain).replace('-', '$-$')}]}}" if cell and cell.gain else ""


def _small(cell: Cell | None, part: slice) -> str:
    """Part of what is published: the value itself or what the comparison says, minus signs as such."""
    if cell is None or not cell.published[part]:
        return ""
    texts = (escape(text).replace("-", "$-$") for text in cell.published[part])
    return rf"{{\scriptsize ({', '.join(texts)})}}"
