"""Methods by name, one file each. To add a method: write its file; `registered` gives its class a name."""

import ast
import difflib
import functools
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from bench.errors import unknown

if TYPE_CHECKING:
    from algorithms.base import Algorithm

_Class = TypeVar("_Class", bound=type)
_DECORATED = re.compile(r"^((?:@.*\n)+)class (\w+)", re.MULTILINE)  # parsing whole files takes 40 times as long
_REGISTERING = re.compile(r"^@registered.*", re.MULTILINE)
_VERSION = re.compile(r"^    version = (\d+)(?:  # (.*))?$", re.MULTILINE)
_FOR_PEOPLE = ("title", "symbols")  # arguments of `registered` that are no options

REGISTRY: dict[str, str] = {}
"""Name of a method -> its module, class and the options that the name sets: "fedcat:FedCat(grouping=False)"."""

_RENAMED = {"mistakes": "validate", "remarks": "caveats", "findings": "diagnostics"}  # hooks: once -> now


def registered(
    name: str, *, title: str = "", symbols: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> Callable[[_Class], _Class]:
    """Registers a class of this folder as a method.

    All this is read from the files, so that a list of methods needs none of them imported: write constants, in one line.

    Args:
        name: of the method, on the command line and in grids. A class may have several.
        title: what tables and figures call it; see `title_of` for a method that does not say.
        symbols: option -> the symbol that tables print for it, as LaTeX sets it in formulas: {"num_clusters": "K"}.
        options: values of the class's options that are the defaults of this name.
    """
    return lambda method: method


def discover(folder: Path) -> dict[str, str]:
    """The methods in the files of a folder, as in `REGISTRY`.

    Raises:
        ValueError: if two classes have one name, or a name or an option is not written as a constant.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        for decorators, class_name in _DECORATED.findall(path.read_text(encoding="utf-8")):
            for line in decorators.splitlines():
                if line.startswith("@registered"):
                    name, given = _read(line, path)
                    options = ", ".join(f"{key}={value!r}" for key, value in given.items() if key not in _FOR_PEOPLE)
                    if name in found:
                        raise ValueError(f"Two classes are registered as {name!r}, in {path.name} and {found[name]}.")
                    found[name] = f"{path.stem}:{class_name}" + (f"({options})" if options else "")
    return found


def _read(line: str, path: Path) -> tuple[str, dict[str, Any]]:
    """The name and all other arguments of a line that registers a class."""
    try:
        call = ast.parse(line.removeprefix("@"), mode="eval").body
        assert isinstance(call, ast.Call)
        (name,) = [ast.literal_eval(argument) for argument in call.args]
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        assert isinstance(given.get("title", ""), str) and isinstance(given.get("symbols", {}), dict)
    except (SyntaxError, ValueError, AssertionError) as error:
        wanted = 'a name and options, all constants, in one line, as @registered("mine", title="Mine", mu=0.1)'
        raise ValueError(f"algorithms/{path.name}: got {line}, expected {wanted}.") from error
    return name, given


def load(name: str) -> "type[Algorithm]":
    """The class of a method. Imports torch.

    Raises:
        ValueError: if there is no method of that name, or its file cannot be imported, or its class has options but is no
            dataclass, or a hook by an earlier or a misspelt name, which nothing would call.
    """
    module, class_name, _ = _parts(_lookup(name))
    method = getattr(_imported(module), class_name)
    options = [key for key, kind in inspect.get_annotations(method).items() if "ClassVar" not in str(kind)]
    if options and "__dataclass_params__" not in vars(method):
        raise ValueError(
            f"{class_name} in algorithms/{module}.py is no dataclass, so that {', '.join(options)} would be no options: put "
            "@dataclass(frozen=True) between @registered(...) and the class."
        )
    if earlier := [f"{once} to {now}" for once, now in _RENAMED.items() if callable(getattr(method, once, None))]:
        raise ValueError(
            f"{class_name} in algorithms/{module}.py has hooks by earlier names: rename {', '.join(earlier)}."
        )
    if wrong := _misspelt_hooks(method):
        meant = ", ".join(f"{name} ({hook}?)" for name, hook in wrong.items())
        raise ValueError(
            f"{class_name} in algorithms/{module}.py has methods that nothing calls, with names almost like hooks: {meant}. "
            "Correct them, or begin the name of a helper with _."
        )
    return method


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__name__}.{module}")
    except Exception as error:  # whatever the code of a file raises
        path = str(_path_of(module))
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"algorithms/{module}.py" + (f", line {line}" if line else "")
        raise ValueError(f"{where}: cannot be imported: {type(error).__name__}: {error}.") from error


@functools.cache  # a grid loads each method for each of its cells
def _misspelt_hooks(method: type) -> dict[str, str]:
    """Public functions of a method that are no hooks -> the hook that each name resembles: the method would run without it."""
    own = {name for name, part in vars(method).items() if callable(part) and not name.startswith("_")}
    hooks = {name for kind in method.__mro__[1:] for name in dir(kind)}
    close = {name: difflib.get_close_matches(name, hooks, n=1, cutoff=0.8) for name in own - hooks}
    return {name: found[0] for name, found in close.items() if found}


def make(name: str, **options: Any) -> "Algorithm":
    """A method with these options; all others are the defaults of the name.

    Raises:
        ValueError: as `load`, or if an option does not hold.
    """
    return load(name)(**{**presets(name), **options})


def presets(name: str) -> dict[str, Any]:
    """The options that the name of a method sets."""
    return _parts(_lookup(name))[2]


def name_of(method: "Algorithm") -> str:
    """The name under which a method is registered, of several the first of those that set most of its options; the name
    of its class if there is none."""
    found = {}
    for name, line in REGISTRY.items():
        module, class_name, options = _parts(line)
        # Two files may have a class of one name; that of a method has been imported.
        registered = getattr(sys.modules.get(f"{__name__}.{module}"), class_name, None)
        if registered is type(method) and all(getattr(method, key) == own for key, own in options.items()):
            found[name] = len(options)
    return max(found, key=lambda name: found[name], default=type(method).__name__)


def describe(name: str) -> str:
    """First line of the docstring of a method's file, or the one that begins with the name and a colon where a class has
    several names; read without importing it.

    Raises:
        ValueError: if the file is no Python.
    """
    path = _file_of(name)
    try:
        first, *others = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")
    except SyntaxError as error:
        raise ValueError(f"algorithms/{path.name}, line {error.lineno}: {error.msg}.") from error
    own = [line.removeprefix(f"{name}: ") for line in others if line.startswith(f"{name}: ")]
    return own[0] if own else first


@functools.cache
def title_of(name: str) -> str:
    """What tables and figures call a method, read from its file: its `title`; without one, what stands before the colon in the
    first line of the file, where that has the letters of the name ("FedProx: a proximal term ..." for fedprox); else its name.
    """
    path = _file_of(name)
    text = path.read_text(encoding="utf-8")
    registered = dict(_read(line, path) for line in _REGISTERING.findall(text))
    if title := registered.get(name, {}).get("title"):
        return title
    head = text.lstrip().removeprefix('"""').partition("\n")[0].partition(":")[0]
    return head if _letters(head) == _letters(name) else name


def version_of(name: str) -> tuple[int, str]:
    """The version of a method, and the comment beside it on what the version before did, "" without one: read from its file, in
    its class or a class of that file that it extends."""
    text, class_name = _file_of(name).read_text(encoding="utf-8"), _parts(_lookup(name))[1]
    while found := re.search(rf"^class {class_name}\((\w+)\):\n((?:[ ].*\n|\n)*)", text, re.MULTILINE):
        if version := _VERSION.search(found[2]):
            return int(version[1]), version[2] or ""
        class_name = found[1]
    return 1, ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


@functools.cache
def symbols() -> dict[str, str]:
    """Option -> its symbol in formulas, of all methods that name one for their options.

    Raises:
        ValueError: if two files have different symbols for one option.
    """
    found: dict[str, str] = {}
    for path in dict.fromkeys(map(_file_of, REGISTRY)):
        for line in _REGISTERING.findall(path.read_text(encoding="utf-8")):
            for option, symbol in _read(line, path)[1].get("symbols", {}).items():
                if found.setdefault(option, symbol) != symbol:
                    raise ValueError(
                        f"algorithms/{path.name}: the symbol of {option} is {symbol}, but that of another method "
                        f"{found[option]}; tables have one column for both, so give them one symbol."
                    )
    return found


def _file_of(name: str) -> Path:
    """The file of a method, in one of the folders of this package."""
    return _path_of(_parts(_lookup(name))[0])


def _path_of(module: str) -> Path:
    return next(path for folder in __path__ if (path := Path(folder) / f"{module}.py").exists())


def _lookup(name: str) -> str:
    if name not in REGISTRY:
        raise ValueError(unknown("algorithm", name, REGISTRY))
    return REGISTRY[name]


@functools.cache
def _parts(line: str) -> tuple[str, str, dict[str, Any]]:
    """Module, class and options of an entry of the registry."""
    module, _, expression = line.partition(":")
    call = ast.parse(expression, mode="eval").body
    if not isinstance(call, ast.Call):
        return module, expression, {}
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    return module, ast.unparse(call.func), options


REGISTRY |= discover(Path(__file__).parent)
