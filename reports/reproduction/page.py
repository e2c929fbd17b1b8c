"""The measured numbers as a part of a page: what they are, beside the published ones, and how to measure them again."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.files import write_file
from bench.published.lookup import KEY, keys_of, left_open, papers
from bench.published.tolerances import rule
from reports.formats.markdown import pipe_table
from reports.reproduction.counts import Count, count_tables
from reports.reproduction.measured import Measured
from reports.reproduction.planned import Plans
from reports.tables.layout import half_up
from reports.tables.names import Names

BEGIN, END = "<!-- reproduction: begin -->", "<!-- reproduction: end -->"
# Columns that only some tables need to tell numbers apart.
_OPTIONAL = ("n_clients", "participation", "model", "metric")


def render(measured: Sequence[Measured], plans: Plans) -> str:
    """What has been measured of every published table, and a line for each number, as Markdown."""
    counts = {paper: count_tables(measured, paper, plans) for paper in papers()}
    parts = [_summary(sum(found.numbers for tables in counts.values() for found in tables.values()), measured)]
    if measured:
        parts.append(pipe_table(_NUMBERS, [_of_number(one) for one in measured]))
    parts.append(pipe_table(_COUNTS, [line for paper, tables in counts.items() for line in _of_paper(paper, tables)]))
    if notes := [*_notes(measured)]:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def around(page: Path) -> tuple[str, str]:
    """What stands before and after the part of a page that is made, markers included.

    Raises:
        ValueError: if there is no such page, or it is not UTF-8, or it has not both markers once, in their order.
    """
    if not page.is_file():
        raise ValueError(f"There is no page {page}.")
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{page} is not a text in UTF-8: {error.reason} at byte {error.start}.") from error
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end or text.count(BEGIN) + text.count(END) > 2:
        raise ValueError(f"{page} must hold {BEGIN} and {END} once, in this order; the tables go between them.")
    return before + BEGIN, END + after


def write(page: Path, text: str) -> None:
    """Replaces the part of a page that is made; errors as in `around`."""
    write_file(page, f"\n\n{text}\n".join(around(page)))


_COUNTS = ("paper, table", "measured", "inside", "same winner", "same sign")
_NUMBERS = ("number", "published", "measured", "difference", "verdict", "seeds", "commit", "command")


def _summary(numbers: int, measured: Sequence[Measured]) -> str:
    """How many of so many published numbers have been measured; what several tables print counts once, but for the first of
    these counts and the last, and has an open budget if all of these tables leave it open."""
    runs = len({run for one in measured for run in one.runs})
    printed = defaultdict(list)
    for one in measured:
        printed[(*one.published.key[:1], *one.published.key[2:], str(one.published))].append(one)
    distinct = [first for first, *_ in printed.values()]
    found = Counter(one.verdict for one in distinct if one.verdict)
    verdicts = ", ".join(f"{found[name]} {name}" for name in ("inside", "near", "outside"))
    partly = sum(all(left_open(*one.published.key[:2]) for one in again) for again in printed.values())
    judged = f"Verdicts: {verdicts} the tolerance" if found else "None has a verdict yet"
    complete, several = sum(one.is_complete for one in distinct), "s" * (len(distinct) != 1)
    return (
        f"**{len(measured):,} of {numbers:,} published numbers have been measured at their own budget**, by {runs:,} "
        f"run{'s' * (runs != 1)}; {len(distinct):,} different number{several}, since one may stand in several tables. Of these "
        f"{len(distinct):,}, with all seeds and settings: {complete:,}; at a budget that the paper leaves partly open: "
        f"{partly:,}. {judged}. Still to be measured: {numbers - len(measured):,}."
    )


def _of_paper(paper: str, tables: dict[str, Count]) -> Iterator[tuple]:
    """A line per table, and one of all where there are several."""
    together = {"all": sum(tables.values(), Count())} if len(tables) > 1 else {}
    for table, found in (tables | together).items():
        shares = (
            (found.measured, found.numbers),
            (found.verdicts["inside"], found.verdicts.total()),
            (found.winners, found.rows),
            (found.signs, found.compared),
        )
        yield f"{_method(paper)}, {table}", *(f"{part} of {whole}" if whole else "" for part, whole in shares)


def _of_number(one: Measured) -> tuple[str, ...]:
    digits = one.published.digits
    measured, difference = "", ""
    if not math.isnan(one.mean):
        spread = "" if math.isnan(one.std) else f"±{half_up(one.std):.{digits}f}"
        measured = f"{half_up(one.mean):.{digits}f}{spread}"
        difference = f"{half_up(one.difference):+z.{digits}f}"
    measured += f" ({one.diverged} diverged)" if one.diverged else ""
    seeds = f"{one.seeds} of {one.planned_seeds}"
    if one.settings < one.planned_settings:
        seeds += f", {one.settings} of {one.planned_settings} settings"
    commits = ", ".join(re.sub(r"^(\w{10})\w+", r"\1", commit) for commit in one.commits)
    paper, table = one.published.key[:2]
    verdict = f"{one.verdict} ±{one.band:.{max(digits, 1)}f}" if one.verdict else _without_verdict(one)
    shown = (str(one.published), measured.strip(), difference, verdict, seeds, commits)
    return f"{_method(paper)}, {table}: {_name(one.published.key)}", *shown, f"`{one.command}`"


def _without_verdict(one: Measured) -> str:
    """Why a number has no verdict."""
    if not one.rule:
        return "none"
    lacking = {"settings": one.settings < one.planned_settings, "seeds": one.seeds < one.planned_seeds}
    if missing := " and ".join(what for what, lacks in lacking.items() if lacks):
        return f"none yet, {missing} are missing"
    return "none, a run has diverged" if one.diverged else "none"


def _name(key: tuple[str, ...]) -> str:
    """A published number in words: dataset, partition, method, and what its table needs besides."""
    paper, table, *_ = key
    others = [other for other in keys_of(paper) if other[:2] == (paper, table)]
    line = dict(zip(KEY, key, strict=True))
    needed = [column for column in _OPTIONAL if _tells_apart(column, others)]
    method = " ".join(filter(None, (_method(line["algorithm"]), line["variant"])))
    units = {"n_clients": " clients", "participation": " participation"}
    further = [line[column] + units.get(column, "") for column in needed]
    names = Names()
    axes = ("dataset", "partition") if method else ("dataset",)  # sizes of a dataset are those of no partition
    where = (names.value(axis, line[axis]).plain for axis in axes)
    return ", ".join(filter(None, [*where, method, *further]))


def _method(name: str) -> str:
    """The name of a method, and of the paper that is called after it."""
    return Names().value("algorithm", name).plain


def _tells_apart(column: str, keys: Sequence[tuple[str, ...]]) -> bool:
    """Whether some of the keys are alike but for a column."""
    place = KEY.index(column)
    return len({key[:place] + key[place + 1 :] for key in keys}) < len(keys)


def _notes(measured: Sequence[Measured]) -> Iterator[str]:
    """What verdicts mean, what papers leave open, and which models are taken for published ones."""
    for name in dict.fromkeys(one.rule for one in measured if one.rule):
        yield f"Inside ({_method(name)}): {rule(name).text}. The band is a proposal of this harness, not the paper's."
    tables: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)  # by paper and what it leaves open
    for paper, table in dict.fromkeys(one.published.key[:2] for one in measured):
        tables[paper, left_open(paper, table)][table] = True
    for (paper, open_facts), found in tables.items():
        if open_facts:
            yield f"{_method(paper)}, {_of_tables([*found])}: the paper leaves open {open_facts}; these are chosen here."
    model = KEY.index("model")
    for paper, own, published in dict.fromkeys(
        (one.published.key[0], one.model, one.published.key[model]) for one in measured if one.model
    ):
        yield f"{_method(paper)}: `{own}` is taken for the model of the published numbers, `{published}`."


def _of_tables(names: Sequence[str]) -> str:
    """ "Table 1", "Tables 2 and 13", "readme-seed0"."""
    *before, last = names
    numbered = all(name.isdigit() for name in names)
    of = f"Table{'s' * bool(before)} " if numbered else ""
    return f"{of}{', '.join(before)} and {last}" if before else f"{of}{last}"
