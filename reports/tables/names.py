"""What people call the settings of runs: the one rule that turns an id on an axis into its name.

Ids are what configs, exports and the command line have; names are what tables, pages and figures show. A name is defined beside
the thing: of a dataset in `datasets.info`, of a partition in its class, of a method and of its options where the method is
registered, of a model in `bench.models`. A grid may have names of its own. Values of an axis that would have one name are
told apart, image folders without their paths.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import algorithms
from bench import models
from bench.experiments.labels import HEADINGS, UNWRAPPED, competitor, values_of
from bench.results.grids import StoredGrid
from datasets import partitions
from datasets.info import INFO, folder_of, title_of
from reports.tables.latex_text import escape, formula

# Axes whose values need no "clients=".
_SAY_ENOUGH = ("algorithm", "base", "dataset", "metric", "model", "partition", "wrapper")
_HEADINGS = {"algorithm": "Method", "clients": "#Clients", "lr": "Learning rate", "lr_decay": "Learning rate decay"}
_AS_IT_IS = "base"  # of the axis `wrapper`: the method with nothing around it


class Name(NamedTuple):
    """One name: as plain text, and as LaTeX."""

    plain: str
    latex: str

    @classmethod
    def of(cls, text: str) -> "Name":
        """The name that is the same in LaTeX, but for special characters."""
        return cls(text, escape(text))

    @classmethod
    def join(cls, names: Iterable["Name"], between: str = ", ") -> "Name":
        """Several names as one; nothing in `between` is special to LaTeX."""
        names = list(names)
        return cls(between.join(name.plain for name in names), between.join(name.latex for name in names))


@dataclass(frozen=True)
class Names:
    """The names of one grid.

    Attributes:
        own: axis -> id -> name; these replace the names that are defined beside the things.
        titles: kind -> id -> name of what labs have brought, whose folders may be elsewhere.
        styles: method -> how figures draw it (see `bench.experiments.names_schema.Style`), of methods of labs and those of
            which the grid says so; {} for as usual.
    """

    own: Mapping[str, Mapping[str, Name]] = field(default_factory=dict)
    titles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    styles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of_grid(cls, grid: StoredGrid) -> "Names":
        """Those of an expanded grid, whose report may have names of its own; no two values of an axis have the same."""
        report = grid["report"]
        titles, of_labs, own = grid.get("titles", {}), grid.get("styles", {}), report.get("styles", {})
        methods = {**titles.get("algorithm", {}), **of_labs, **own}
        styles = {name: {**of_labs.get(name, {}), **own.get(name, {})} for name in methods}
        names = cls(titles=titles, styles=styles).with_own(report.get("names", {}))
        for key, values in _values(grid).items():
            names = names.disambiguated(key, values)
        return names

    def with_own(self, given: Mapping[str, Mapping[str, str]]) -> "Names":
        """The same with further names of a grid, which come first."""
        named = {key: {value: Name.of(text) for value, text in of.items()} for key, of in given.items()}
        return replace(self, own={**self.own, **{key: {**self.own.get(key, {}), **of} for key, of in named.items()}})

    def disambiguated(self, key: str, values: Iterable[str]) -> "Names":
        """The same, with further names for values of an axis that would have one name, or that of a dataset as a folder of
        images; names that the grid gives stay."""
        own, named = self.own.get(key, {}), {value: self.value(key, value) for value in values}
        counts, alike = Counter(name.plain for name in named.values()), defaultdict(list)
        for value, name in named.items():
            taken = key == "dataset" and folder_of(value) and name.plain.casefold() in _known_datasets()
            if value not in own and (taken or counts[name.plain] > 1):
                alike[name.plain].append(value)
        apart: dict[str, Name] = {}
        for group in alike.values():
            folders = [value for value in group if key == "dataset" and folder_of(value)]
            marks = zip(folders, _marks(folders), strict=True) if folders else zip(group, group, strict=True)
            apart |= {value: Name.join([named[value], Name.of(f"({mark})")], " ") for value, mark in marks}
        return replace(self, own={**self.own, key: {**own, **apart}}) if apart else self

    def heading(self, key: str) -> Name:
        """The name of an axis or an option, above a column of its values: "Method", "μ"; of several, that of the first."""
        if (found := self.own.get(HEADINGS, {}).get(key)) is not None:
            return found
        key = key.partition(" ")[0]
        return _symbol(key) or Name.of(_HEADINGS.get(key, in_words(key)))

    def value(self, key: str, value: str) -> Name:
        """The name of a value of an axis: "CIFAR-10" of `dataset`, "FedAvg" of `algorithm`, "+ CCVR" of `wrapper`."""
        if found := self.own.get(key, {}).get(value):
            return found
        if key in ("algorithm", "base"):
            return self._method(value)
        if key == "wrapper":
            return Name.of(_AS_IT_IS if value == UNWRAPPED else f"+ {self._method(value).plain}")
        if title := self.titles.get(key, {}).get(value):
            return Name.of(title)
        if key == "partition":
            return _partition(value)
        return Name.of({"dataset": title_of, "model": models.title_of}.get(key, str)(value))

    def title(self, key: str, value: str) -> Name:
        """The name of a value where nothing else says of what it is: "FedAvg", but "K=5" and "fraction=0.1"."""
        name = self.value(key, value)
        if key.partition(" ")[0] in _SAY_ENOUGH or value in self.own.get(key, {}):
            return name
        of = _symbol(key) or Name.of(key.replace("_", " "))
        return Name.join([of, name], "=")

    def together(self, keys: Sequence[str], values: Sequence[str]) -> Name:
        """The name of values of several axes: "CIFAR-10, Dir(0.1)", "FedAvg + CCVR"; nothing around a method needs no word."""
        if len(keys) == 1:
            return self.value(keys[0], values[0])
        named = {key: self.value(key, value) for key, value in zip(keys, values, strict=True)}
        around = named.pop("wrapper", None)
        bare = dict(zip(keys, values, strict=True)).get("wrapper") == UNWRAPPED
        name = Name.join(named.values())
        return name if around is None or bare else Name.join([name, around], " ")

    def on(self, substitute: str) -> str:
        """What a cell says whose dataset another one replaces: "on CIFAR-10"; "" without one."""
        return f"on {self.value('dataset', substitute).plain}" if substitute else ""

    def setting(self, values: Mapping[str, Any]) -> Name:
        """The name of values of axes in a sentence: "base" of `{wrapper: none}`, "fraction=0.1", "FedAvg + CCVR"."""
        keys, found = [*values], [str(value) for value in values.values()]
        return self.title(keys[0], found[0]) if len(keys) == 1 else self.together(keys, found)

    def with_combined(self, keys: Sequence[str], found: Iterable[Sequence[str]]) -> "Names":
        """The same, with the names of what is alike on several axes at once, whose id is that of
        `bench.experiments.labels.competitor`.

        Args:
            keys: the axes; they make one, "algorithm wrapper".
            found: the values of the axes, for each such id.
        """
        key = " ".join(keys)
        together = {str(competitor(values)): self.together(keys, values) for values in found}
        return replace(self, own={**self.own, key: {**together, **self.own.get(key, {})}})

    def option(self, name: str) -> Name:
        """The name of an option in a sentence: its symbol, "μ"; without one, the id that one types."""
        return _symbol(name) or Name.of(name)

    def choice(self, text: str) -> Name:
        """Chosen hyper-parameters, "mu=1, num_clusters=5", with the symbols of the options: "μ=1, K=5"."""
        parts = re.split(r"(?:^|(?<=, ))(\w+)(?==)", text)
        names = [self.option(part) if place % 2 else _kept(part) for place, part in enumerate(parts)]
        return Name.join(names, "")

    def _method(self, value: str) -> Name:
        """ "FedProx, μ=0.1" for "fedprox mu=0.1"."""
        name, *options = value.split(" ")
        title = algorithms.title_of(name) if name in algorithms.REGISTRY else self.titles.get("algorithm", {}).get(name)
        if title is None:
            return Name.of(value)
        return Name.join([Name.of(title), self.choice(", ".join(options))]) if options else Name.of(title)


def in_words(key: str) -> str:
    """An axis or an option without a name in words: "Number of clusters", "Train examples"."""
    return re.sub("^num_", "number of ", key).replace("_", " ").capitalize()


def axis_label(key: str) -> str:
    """An option as the label of an axis of a figure, with its formula as matplotlib sets it: "Number of clusters ($K$)"."""
    symbol = _symbol(key)
    words = _HEADINGS.get(key, in_words(key))
    return words if symbol is None else symbol.latex if symbol.plain == _greek(key) else f"{words} ({symbol.latex})"


def _values(grid: StoredGrid) -> dict[str, dict[str, None]]:
    """Axis -> ids of a grid's table, for the axes whose ids have names, and of datasets also those that replace others."""
    report = grid["report"]
    found: dict[str, dict[str, None]] = defaultdict(dict)
    axes = {*report.get("rows", ()), report.get("columns")} & {*_SAY_ENOUGH} - {"dataset"}
    for cell in grid.get("cells", ()):
        found["dataset"] |= dict.fromkeys(filter(None, (cell["dataset"], cell["substitute"])))
        for key, value in values_of(cell, axes).items():
            if value is not None:
                found[key][str(value)] = None
    return found


def _known_datasets() -> set[str]:
    """What readers take for a dataset."""
    return {name.casefold() for id, info in INFO.items() for name in (id, info.title)}


def _marks(folders: Sequence[str]) -> list[str]:
    """What stands behind the common name of image folders: the nearest folder above them that differs between all, or else
    numbers, but never a path."""
    paths = [path for folder in folders if (path := folder_of(folder))]
    above = ([part for part in path.parts[-2::-1] if part != path.anchor] for path in paths)
    levels = ([*level] for level in zip(*above, strict=False) if len({*level}) == len(folders))
    return next(levels, [str(number) for number in range(1, len(folders) + 1)])


def _partition(value: str) -> Name:
    try:
        plain, latex = partitions.parse(value).for_people
    except ValueError:  # of another version, or none at all
        return Name.of(value)
    return Name(plain, latex or escape(plain))


def _symbol(option: str) -> Name | None:
    """The symbol of an option: the one that its method names, or the Greek letter that it is called after."""
    if symbol := algorithms.symbols().get(option):
        return Name(_greek(symbol.removeprefix("\\")) or symbol, formula(symbol))
    letter = _greek(option)
    return Name(letter, escape(letter)) if letter else None


def _greek(name: str) -> str:
    """The letter of that name, "μ" for "mu"; "" for another word."""
    full = {"eps": "epsilon", "lambda": "lamda"}.get(name, name)
    try:
        return unicodedata.lookup(f"GREEK SMALL LETTER {full}")
    except KeyError:
        return ""


def _kept(text: str) -> Name:
    """Text between options, with the space at its end."""
    return Name(text, escape(text) + " " * text.endswith(" "))
