"""A report as Markdown; the terminal shows it too."""

import re
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from reports.tables.layout import Cell, Table
from reports.tables.report import Report

_SPECIAL = r"([\\`*|<]|(?<=\])\()"  # "](" would make a link, or show an image, of text of others


def render(report: Report) -> str:
    """Title, who is first on a board, one table per metric (with its name if there are several) or one of all, further ones
    with titles, and a list of footnotes."""
    parts = [f"# {escape(report.title)}", *[_sentence(report.first)] * bool(report.first)]
    for table in report.main:
        if len(report.main) > 1:
            parts.append(f"## {escape(table.heading)}")
        parts.append(_table(table))
    for table in report.secondary:
        of = f" ({table.heading})" if table.metric and len(report.tables) > 1 else ""
        parts += [f"## {escape(table.title + of)}", _table(table)]
    parts += [_sentence(report.facts)] * bool(report.facts)
    parts += ["\n".join(f"- {_sentence(note)}" for note in report.notes)] * bool(report.notes)
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    header = [escape(name.plain) for name in (*table.row_headings, *table.titles)]
    above = (None, *table.rows) if table.merged else (None,) * len(table.rows)
    labels = [table.new_labels(row, before) for row, before in zip(table.rows, above, strict=False)]
    body = [
        [*(escape(name.plain) for name in names), *map(_cell, row.cells)]
        for names, row in zip(labels, table.rows, strict=True)
    ]
    return pipe_table(header, body)


def pipe_table(header: Sequence[str], lines: Iterable[Sequence]) -> str:
    """A table of texts, in which what is special to Markdown has been escaped."""
    return tabulate(lines, header, tablefmt="pipe", stralign="left", disable_numparse=True)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    italics, bold = "_" * cell.not_significant, "**" * cell.best
    measured = f"{bold}{italics}{escape(cell.measured)}{italics}{bold}"
    gain = f" [{cell.gain}]" if cell.gain else ""
    text = ", ".join(filter(None, [measured + gain, *map(escape, cell.caveats)]))
    return f"{text} ({', '.join(cell.published)})" if cell.published else text


def _sentence(text: str) -> str:
    """`escape`, but for what stands between two backticks: Markdown shows it as code, and a terminal as it is."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if number % 2 else re.sub(_SPECIAL, r"\\\1", part) for number, part in enumerate(parts))


def escape(text: str) -> str:
    """Text in one line with Markdown's special characters and | escaped."""
    return re.sub(_SPECIAL, r"\\\1", " ".join(text.split()))
