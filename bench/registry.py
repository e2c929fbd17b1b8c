"""What there is by name: methods, models, datasets, partitions, transforms, callbacks, figures, search spaces, grids and
numbers of papers, each in a file of its own.

They lie in this project and in the folders of labs (see `bench.plugins`), and are the same in both. A decorator says what a
Python file holds, and is read without importing the file, so that lists and tables do not wait for torch:

    @registered("fedmine", title="FedMine", symbols={"strength": "s"}, strength=0.1)

A YAML file is a search space or a grid of its name, a CSV file holds the numbers of a paper of its name.
"""

import ast
import functools
import importlib
import re
import sys
import traceback
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from bench import plugins, versions
from bench.errors import ConfigError, HookError, unknown

_Thing = TypeVar("_Thing", bound=Callable[..., Any])
# 40 times as fast as parsing.
_DECORATED = re.compile(r"^((?:@.*\n(?:[ \t)\]}#].*\n|\n)*)+)(class|def) (\w+)", re.MULTILINE)
_NAME = re.compile(r"\w([\w.-]*\w)?")  # it stands in options of the command and in names of files
_LONGEST_NAME = 100  # of a thing whose name is part of a key in records
# Arguments of a decorator that are no options.
FOR_PEOPLE = {
    "title": str,
    "latex": str,
    "description": str,
    "symbols": dict,
    "aliases": tuple,
    "style": dict,
    "percent": tuple,
    "more_is_better": tuple,
    "less_is_better": tuple,
}

_WRITTEN = {str: "a text", dict: 'a dict, as {"key": "text"}', tuple: 'a tuple of texts, as ("text",)'}


class Kind(NamedTuple):
    """A kind of things with names.

    Attributes:
        folder: where they lie in a lab's folder.
        package: where they lie in this project; modules of labs are imported as parts of it.
        decorator: which registers them; "" for files that are no Python.
        suffix: of their files.
    """

    folder: str
    package: str
    decorator: str = ""
    suffix: str = ".py"


KINDS = {
    "algorithm": Kind("algorithms", "algorithms", "registered"),
    "model": Kind("models", "bench.models", "registered_model"),
    "dataset": Kind("datasets", "datasets.loaders", "registered_dataset"),
    "partition": Kind("partitions", "datasets.partitions", "registered_partition"),
    "transform": Kind("transforms", "datasets.transforms", "registered_transform"),
    "callback": Kind("callbacks", "bench.callbacks", "registered_callback"),
    "figure": Kind("figures", "reports.figures", "registered_figure"),
    "space": Kind("search_spaces", "search_spaces", suffix=".yaml"),
    "grid": Kind("grids", "bench.grids", suffix=".yaml"),
    "paper": Kind("published", "bench.published", suffix=".csv"),
}


@dataclass(frozen=True, eq=False)
class Entry:
    """One thing.

    Attributes:
        module: in which it is; "" for a file that is no Python.
        target: name of its class or function; "" likewise.
        given: all arguments of its decorator but the name.
        lab: the folder of the lab that brings it; None if it comes with this project.
        is_class: whether it is a class.
    """

    kind: str
    name: str
    path: Path
    module: str
    target: str
    given: Mapping[str, Any]
    lab: Path | None
    is_class: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of its decorator that are not for people."""
        return {key: value for key, value in self.given.items() if key not in FOR_PEOPLE}

    @property
    def place(self) -> str:
        """Its file, for people: "bench/models/mlp.py", "mylab/models/tiny.py"."""
        return _place(self.path, self.kind, self.lab)

    @property
    def description(self) -> str:
        """What its decorator says, or else the first line of the docstring of its class or function, read without importing its
        file."""
        if "description" in self.given:
            return str(self.given["description"])
        try:
            source = ast.parse(self.path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError) as error:  # ValueError: a NUL in it
            raise ValueError(f"{self.place}: cannot be parsed: {error}.") from error
        found = next(
            node
            for node in source.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == self.target
        )
        return (ast.get_docstring(found) or "").partition("\n")[0]

    def load(self) -> Any:
        """Its class or function.

        Raises:
            ValueError: if its file cannot be imported.
        """
        return getattr(self._imported(), self.target)

    @property
    def loaded(self) -> Any:
        """Its class or function if its file has been imported; None else."""
        return getattr(sys.modules.get(self.module), self.target, None)

    def _imported(self) -> ModuleType:
        try:
            return importlib.import_module(self.module)
        except (Exception, SystemExit) as error:  # whatever the code of a file raises, and where it ends the program
            raise ValueError(f"{self.place_of(error)}: cannot be imported: {_said(error)}.") from error

    def failure(self, error: Exception) -> str:
        """What its function has raised, as a sentence: "load in mylab/datasets/pollen.py failed in line 9: ..."; of a HookError
        its own."""
        if isinstance(error, HookError):
            return str(error)
        line = self._line_of(error)
        where = f" in line {line}" if line else ""
        return f"{self.target} in {self.place} failed{where}: {_said(error)}."

    def place_of(self, error: BaseException) -> str:
        """Its file, with the line that an error has passed, if it has one: "mylab/models/tiny.py, line 9"."""
        line = error.lineno if isinstance(error, SyntaxError) else self._line_of(error)
        return self.place + (f", line {line}" if line else "")

    def has_raised(self, error: BaseException) -> bool:
        """Whether an error was raised in its file, or in what this has called."""
        return self._line_of(error) is not None

    def _line_of(self, error: BaseException) -> int | None:
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == str(self.path)]
        return lines[-1] if lines else None


class Registry(Mapping[str, Entry]):
    """All things of a kind, by name, those of this project first."""

    def __init__(self, kind: str):
        self.kind = kind

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> ValuesView[Entry]:
        return self._entries.values()  # without looking for folders again for each name

    def items(self) -> ItemsView[str, Entry]:
        return self._entries.items()  # likewise

    def find(self, name: str) -> Entry:
        """The thing of a name, or of an alias.

        Raises:
            ValueError: if there is none.
        """
        if found := self._entries.get(name) or self._entries.get(self.aliases.get(name, "")):
            return found
        raise ValueError(unknown(self.kind, name, [*self, *self.aliases]) + hint(self.kind))

    def named_in(self, text: object) -> Entry | None:
        """The thing with whose name a text such as "hospital-0.7" begins, that of the longest name; None if there is none."""
        found = [name for name in self if isinstance(text, str) and (text == name or text.startswith(f"{name}-"))]
        return self[max(found, key=len)] if found else None

    def version_of(self, name: str) -> versions.Version:
        """The version of a thing, as its decorator, its class or one that it extends says it, read from the files; 1 if none
        does.

        Raises:
            ValueError: if there is no such thing.
        """
        entry = self.find(name)
        if type(given := entry.given.get("version")) is int:
            return given, ""
        return versions.version_of(f"{entry.module}.{entry.target}", {one.module: one.path for one in self.values()})

    @property
    def aliases(self) -> dict[str, str]:
        """Second names, and the name of each."""
        return {alias: entry.name for entry in self._entries.values() for alias in entry.given.get("aliases", ())}

    @property
    def _entries(self) -> dict[str, Entry]:
        return _entries(self.kind, plugins.folders())


def registered(name: str, **given: Any) -> Callable[[_Thing], _Thing]:
    """Gives a class or function of this file a name; of those of `KINDS` that are Python files, each has its own one.

    All this is read from the file without running it: write constants.

    Args:
        name: on the command line and in grids. A class may have several.
        given: `title`, what tables and figures call it; `latex`, the title of a partition as a formula; `description`, one line
            for lists, if that is not the first one of the docstring; `symbols`, option -> the symbol that tables print for it,
            as LaTeX sets it in formulas ({"num_clusters": "K"}); `aliases`, a tuple of second names; `style`, how figures draw
            a method ({"colour": "#bd1f01", "marker": "D", "size": 5}); `percent`, `more_is_better` and `less_is_better`, names
            of metrics of a callback ("*accuracy" for all that end so) that are shares of 1, which tables print in percent, and
            of which tables mark the best; all others are options, the defaults of this name.
    """
    return lambda thing: thing


registered_model = registered_dataset = registered_partition = registered_transform = registered
registered_callback = registered_figure = registered


def held_by(lab: Path) -> list[str]:
    """What the folder of a lab holds, in words: "2 algorithms", "1 grid".

    Raises:
        ConfigError: with all that is wrong in the folders of labs.
    """
    counts = {kind: sum(entry.lab == lab for entry in Registry(kind).values()) for kind in KINDS}
    return [f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count]


def hint(kind: str) -> str:
    """Sentences for a name of this kind that nobody knows: that no folder of a lab is used, or which of its classes have no
    decorator; "" for nothing."""
    return plugins.hint() or "".join(f" {sentence}" for lab in plugins.folders() for sentence in undecorated(kind, lab))


def undecorated(kind: str, lab: Path) -> Iterator[str]:
    """A sentence for each file in the folder of a lab that has a class and registers nothing of this kind."""
    spec, used = KINDS[kind], {entry.path for entry in Registry(kind).values()}
    for path in sorted((lab / spec.folder).glob("*.py")) if spec.decorator else ():
        found = re.search(r"^class (\w+)\(", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found and path not in used:
            yield f"{_place(path, kind, lab)} has the class {found[1]}, without @{spec.decorator}(...)."


def place_of(file: str) -> str:
    """The file of a lab that is imported as this one, "mylab/models/vit.py" for "bench/models/vit.py"; others as they are."""
    for kind, spec in KINDS.items():
        for entry in Registry(kind).values():
            if entry.lab and f"{spec.package.replace('.', '/')}/{entry.path.name}" == file:
                return entry.place
    return file


def forget() -> None:
    """Reads the files again when they are next needed."""
    _entries.cache_clear()


@functools.cache
def _entries(kind: str, labs: tuple[Path, ...]) -> dict[str, Entry]:
    """All things of a kind.

    Raises:
        ConfigError: with all that is wrong in the files: two things of one name, two files of one name, which would hide each
            other, and names or options that are no constants.
    """
    spec, mistakes = KINDS[kind], list[str]()
    found: dict[str, Entry] = {}
    own = _home(spec.package)
    folders: list[tuple[Path, Path | None]] = [(own, None), *((lab / spec.folder, lab) for lab in labs)]
    reserved = _exported(own / "__init__.py") if spec.decorator else ()
    stems = {path.parent.name: path.parent for path in own.glob("*/__init__.py")}
    for folder, lab in folders:
        for path in sorted(folder.glob(f"*{spec.suffix}")):
            if lab and path.stem in reserved:
                mistakes.append(f"{path}: {path.stem} is a name in {spec.package}; rename your file.")
                continue
            if path.stem != "__init__" and (other := stems.setdefault(path.stem, path)) != path:
                mistakes.append(f"There are two files {path.name}, {other} and {path}; rename yours.")
                continue
            try:
                for entry in _read(kind, path, lab):
                    if (other := found.setdefault(entry.name, entry)) is not entry:
                        mistakes.append(
                            f"Two things are registered as {entry.name!r}, in {other.place} and {entry.place}; rename one."
                        )
            except ValueError as error:
                mistakes.append(str(error))
    names = dict(found)
    for entry in found.values():
        for alias in entry.given.get("aliases", ()):
            if (other := names.setdefault(alias, entry)) is not entry:
                mistakes.append(f"{alias!r}, an alias in {entry.place}, is a name in {other.place}; rename one.")
    if mistakes:
        raise ConfigError(mistakes)
    if spec.decorator and (spec.package in sys.modules or any(folder.is_dir() for folder, lab in folders if lab)):
        # Modules in these folders are parts of the package, beside its own; without any, its import can wait.
        importlib.import_module(spec.package).__path__ = [str(folder) for folder, _ in folders]
        importlib.invalidate_caches()
    return found


def _exported(path: Path) -> list[str]:
    """The names in `__all__` of a file: a module of one would hide what the package has under it."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return [name for value in found for name in ast.literal_eval(value)]


def _home(package: str) -> Path:
    """The folder of a package of this project; on a cluster each lies in a folder of its own. Imports nothing."""
    root, *inner = package.split(".")
    spec = find_spec(root)
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]).joinpath(*inner)


def _read(kind: str, path: Path, lab: Path | None) -> Iterator[Entry]:
    """The things in a file."""
    decorator = KINDS[kind].decorator
    if not decorator:
        yield Entry(kind, path.stem, path, "", "", {}, lab)
        return
    module = f"{KINDS[kind].package}.{path.stem}"
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{_place(path, kind, lab)} is no text in UTF-8 ({error}).") from error
    for decorators, made_as, target in _DECORATED.findall(source):
        for text in re.findall(rf"^@{decorator}\b(?:.*\n)(?:[ \t)\]}}].*\n)*", decorators, re.MULTILINE):
            name, given = _arguments(text.strip(), _place(path, kind, lab), decorator)
            yield Entry(kind, name, path, module, target, given, lab, made_as == "class")


def _arguments(text: str, place: str, decorator: str) -> tuple[str, dict[str, Any]]:
    """The name and all other arguments of a decorator."""
    try:
        call = ast.parse(text.removeprefix("@"), mode="eval").body
        assert isinstance(call, ast.Call)
        (name,) = [ast.literal_eval(argument) for argument in call.args]
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        assert isinstance(name, str)
    except (SyntaxError, ValueError, AssertionError) as error:
        wanted = 'a name and options, all constants, as @registered("mine", title="Mine", mu=0.1)'
        raise ValueError(f"{place}: got {text}, expected {wanted}.") from error
    for key, kind in FOR_PEOPLE.items():
        if key in given and not isinstance(given[key], kind):
            raise ValueError(f"{place}: {key} of {name} must be {_WRITTEN[kind]}, but got {given[key]!r}.")
    if not all(isinstance(text, str) for pair in given.get("symbols", {}).items() for text in pair):
        raise ValueError(f"{place}: symbols of {name} must be texts by option, but got {given['symbols']!r}.")
    names = [str(text) for text in (name, *given.get("aliases", ()))]
    odd = [text for text in names if not _NAME.fullmatch(text) or len(text) > _LONGEST_NAME]
    if decorator == "registered_callback" and (name == "method" or not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name)):
        raise ValueError(
            f"{place}: the name of a callback stands before those of its metrics, so it has at most 60 letters, digits, _ . - "
            f"and is not method, but got {name!r}."
        )
    if odd:
        raise ValueError(
            f"{place}: a name has at most {_LONGEST_NAME} letters, digits, and between them - _ and ., but got {odd[0]!r}."
        )
    return name, given


def _said(error: BaseException) -> str:
    """An error within a sentence."""
    return f"{type(error).__name__}: {error}".removesuffix(".")


def _place(path: Path, kind: str, lab: Path | None) -> str:
    spec = KINDS[kind]
    return f"{lab.name}/{spec.folder}/{path.name}" if lab else f"{spec.package.replace('.', '/')}/{path.name}"
