"""The part of docs/methods.md that follows from the files of methods; `python -m tests.support.methods_page` writes it anew.

A block for each file: its paper, its names, their formulas, their options with defaults, what they cost, and what differs from
the paper.
"""

import dataclasses
import functools
import html
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import algorithms
from algorithms import tree
from algorithms.shared.wrapper import Wrapper
from bench.config.methods import defaults_of
from bench.config.resolve import resolve, wrappers
from bench.experiments import cost
from bench.experiments.bundling import papers_of
from bench.files import write_file
from tests.support.manual import ROOT
from tests.support.pairs import NEEDED, refusal

PAGE = ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"

# Of a run whose cost is shown: the model and the rounds of FedConcat's Table 1, with fewer clients.
SETTING = {
    "dataset": "cifar10",
    "model": "simple-cnn",
    "partition": "iid",
    "clients": 10,
    "rounds": 50,
    "local_epochs": 10,
}


def current() -> str:
    """The page, with the part between its markers made anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}"


def render() -> str:
    files = [list(names) for _, names in groupby(_names(), lambda name: algorithms.REGISTRY[name].path)]
    files.sort(key=lambda names: algorithms.title_of(names[0]).casefold())
    shared: dict[type, dict[str, None]] = {}
    for name in _names():
        for owner, keys in _from_elsewhere(name).items():
            shared.setdefault(owner, {}).update(dict.fromkeys(keys))
    parts = [
        "## All methods",
        _BLOCKS,
        without_paper(),
        *(_file(names) for names in files),
        "## Options of several methods",
        *(_shared(owner, keys) for owner, keys in shared.items()),
        "## Which methods go together",
        _PAIRS,
        _pairs(),
    ]
    return "\n\n".join(parts)


def without_paper() -> str:
    """Which methods were written without their paper, in one place."""
    found = ", ".join(f"`{name}`" for name in _names() if algorithms.is_without_paper(name))
    return (
        "Of these methods the text of the paper was not at hand. They follow public code, abstracts, or what others say, and "
        f"each says so in its file: {found}."
    )


def _names() -> list[str]:
    """The methods that come with skewbench, without those of a folder that is in use."""
    return [name for name, entry in algorithms.REGISTRY.items() if entry.lab is None]


# Blocks

_BLOCKS = "Formulas unfold at a click, with the symbols that options are about."


def _file(names: list[str]) -> str:
    """The methods of one file: the first with all options, the others with what is new."""
    first, *others = names
    lines = [f"### {algorithms.title_of(first)}"]
    lines += [re.sub(r"(https://\S+[^\s.])", r"<\1>", paper) for paper in papers_of(first)]
    above: set[type] = set()
    for name in names:
        new = [kind for kind in _kinds(name) if kind not in above]
        lines.append(_method(name, defaults_of(first) if name != first else {}, new))
        above.update(new)
    return "\n\n".join(lines)


def _kinds(name: str) -> list[type]:
    """The class of a method, and those of its file that it extends."""
    method = algorithms.load(name)
    return [kind for kind in method.__mro__ if kind.__module__ == method.__module__]


def _method(name: str, shown: Mapping[str, Any], kinds: list[type]) -> str:
    """A method in a sentence, its options but for those that are shown already, its cost, and what these classes say."""
    head = f"{algorithms.title_of(name)}: "
    about = algorithms.describe(name).removeprefix(head)
    options = {key: value for key, value in defaults_of(name).items() if (key, value) not in shown.items()}
    owners = _from_elsewhere(name)
    own = [key for key in options if not any(key in keys for keys in owners.values())]
    meanings = {key: "" if key in shown else _meaning(algorithms.load(name), key) for key in own}
    lines = [f"`{name}`: {about[:1].upper()}{about[1:]}", "", *_formulas(kinds), *_options(meanings, options)]
    for owner, keys in owners.items():
        if found := [key for key in keys if key in options]:
            see = f"see [{_heading(owner).lower()}](#{_heading(owner).lower().replace(' ', '-')})."
            lines += _options(dict.fromkeys(found, see), options)
    lines.append(f"- Cost: {_cost(name)}.")
    lines += [f"- {part}" for kind in kinds for part in _differences(kind)]
    return "\n".join(lines)


def _options(meanings: Mapping[str, str], defaults: Mapping[str, Any]) -> Iterator[str]:
    """A line for each option, or for several of one meaning."""
    for meaning, keys in groupby(meanings, meanings.__getitem__):
        names = ", ".join(f"`{key}` ({_written(defaults[key])})" if key in defaults else f"`{key}`" for key in keys)
        yield f"- {names}: {meaning}" if meaning else f"- {names}"


def _shared(owner: type, keys: Iterable[str]) -> str:
    about = html.escape(" ".join(inspect.getdoc(owner).split("\n\n")[0].split()), quote=False)
    options = _options({key: _meaning(owner, key) for key in keys}, {})
    differences = (f"- {part}" for part in _differences(owner))
    return "\n".join([f"### {_heading(owner)}", "", about, "", *_formulas([owner], 1), *options, *differences])


def _from_elsewhere(name: str) -> dict[type, list[str]]:
    """Class -> options of a method that it describes, for classes that several methods extend; `base` goes without saying."""
    found: dict[type, list[str]] = {}
    own = {entry.module for entry in algorithms.REGISTRY.values()}
    for key in defaults_of(name):
        method = algorithms.load(name)
        owner = next((kind for kind in method.__mro__ if key in _attributes(kind)), method)
        if owner.__module__ not in own and owner is not Wrapper:
            found.setdefault(owner, []).append(key)
    return found


def _heading(owner: type) -> str:
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", owner.__name__)
    return f"Options of {words.lower()}"


# What docstrings say

_BULLETS = ("Differs from ", "Cost beside ")  # how paragraphs begin that are points of a block


def _meaning(method: type, option: str) -> str:
    """What the docstring of a class says of an option, in its first sentence."""
    text = next(filter(None, (_attributes(kind).get(option) for kind in method.__mro__)), "")
    return re.split(r"(?<=[^.][.]) (?=[A-Z])", text)[0]


@functools.cache
def _attributes(kind: type) -> dict[str, str]:
    """Option -> what the docstring of a class says of it, but for references to another class."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[2]
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {
        key: " ".join(about.split())
        for keys, about in entries
        for key in keys.split(", ")
        if not about.startswith("see `")
    }


def _formulas(kinds: Iterable[type], start: int = 0) -> Iterator[str]:
    """What classes compute, folded, from this paragraph on; HTML, in which no sign is Markdown's."""
    parts = [
        part
        for kind in reversed([*kinds])  # what others extend comes first
        for part in _about(kind).split("\n\n")
        if part.strip() and not part.startswith(_BULLETS)
    ]
    if parts := parts[start:]:
        yield "<details><summary>Formulas</summary>"
        for part in parts:
            text = html.escape(part, quote=False)
            if all(line.startswith("    ") for line in part.splitlines()):
                yield f"<pre>{textwrap.dedent(text)}</pre>"
            else:
                prose = re.sub(r"`([^`]+)`", r"<code>\1</code>", " ".join(text.split()))
                yield f"<p>{prose}</p>"
        yield from ("</details>", "")


def _differences(kind: type) -> Iterator[str]:
    """The paragraphs of a class on costs beside those that are counted, and on what differs from the paper or its code."""
    for part in re.findall(rf"^(?:{'|'.join(_BULLETS)}).*(?:\n(?!Differs|\n).+)*", _about(kind), re.MULTILINE):
        yield " ".join(part.split())


def _about(kind: type) -> str:
    """The docstring of a class, but for its attributes."""
    return inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[0]


def _written(default: Any) -> str:
    """A default as one types it."""
    if dataclasses.is_dataclass(default):
        return algorithms.name_of(default)
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return f"{default:g}".replace("e-0", "e-") if isinstance(default, float) else str(default)


# Costs


def _cost(name: str) -> str:
    """What a run exchanges, computes and keeps, beside one of FedAvg."""
    exchanged, trained, kept, bytes_bound, examples_bound = _measured(name)
    usual, of_all, *_ = _measured("fedavg")
    share, work = _times(exchanged / usual), _times(trained / of_all)
    sent, seen = f"{'at most ' * bytes_bound}{share}× bytes", f"{'at most ' * examples_bound}{work}× examples"
    parts = ["as FedAvg" if share == work == "1" else f"{sent}, {seen}"]
    if kept is not None and kept > 100:  # bytes; fewer are some numbers
        parts.append(f"each client keeps {_times(kept / (usual / 2 / SETTING['rounds']))}× a model")
    return "; ".join(parts)


@functools.cache
def _measured(name: str) -> tuple[float, float, int | None, bool, bool]:
    given = {**SETTING, "algorithm": name} | ({"partition": "none", "clients": 1} if name == "centralized" else {})
    config = resolve(given)
    _, (*_, last) = cost.with_templates(cost.without_numbers(config))
    kept = tree.num_bytes(last["clients"]["fresh"]) if "clients" in last else None
    examples_bound = algorithms.make(name).workload_is_bound
    return cost.bytes_per_client(config), cost.examples_to_train(config), kept, cost.is_bound(config), examples_bound


def _times(ratio: float) -> str:
    return f"{ratio:,.2f}".rstrip("0").rstrip(".") if ratio < 10 else f"{ratio:,.0f}"


# Pairs

_PAIRS = """A wrapper goes around a base: `--algorithm moon --set wrapper=feddisco`, or `--algorithm feddisco --set base=moon`.

- "yes": the pair trains, and both have an effect on what is deployed (`tests/algorithms/test_pairs.py`).
- An option: the pair needs it.
- "no": the pair is refused before a run begins, with the reason."""


def _pairs() -> str:
    columns: dict[tuple[str, ...], list[str]] = {}
    bases = _names()
    for wrapper in wrappers():
        if wrapper in bases:
            columns.setdefault(tuple(_outcome(wrapper, base) for base in bases), []).append(wrapper)
    rows: dict[tuple[str, ...], list[str]] = {}
    for base, *row in zip(bases, *columns, strict=True):
        rows.setdefault(tuple(row), []).append(base)
    head = ["base", *map(_codes, columns.values())]
    lines = [head, ["---"] * len(head), *([_codes(alike), *row] for row, alike in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _outcome(wrapper: str, base: str) -> str:
    if needed := NEEDED.get((wrapper, base)):
        return " ".join(f"`{key}={value}`" for key, value in needed.items())
    return "no" if refusal(wrapper, base) else "yes"


def _codes(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    write_file(PAGE, current())
