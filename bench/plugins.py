"""The folders of labs, whose methods, models, data, callbacks, figures, search spaces, grids and published numbers are used
beside those of this project.

A folder is used because somebody has named it: by `--plugins`, by the variable `SKEWBENCH_PLUGINS` (several are separated as in
PATH), by `plugins = ["."]` under `[tool.skewbench]` in a `pyproject.toml` of the working directory or above, or as an
installed package with the entry point `skewbench.plugins`. A stored result never names one.

    mylab/
      algorithms/fedmine.py   models/vit.py   figures/drift.py   search_spaces/fedmine.yaml   grids/table2.yaml
      published/fedmine.csv
"""

import functools
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from bench.errors import ConfigError
from bench.files import from_home

VARIABLE = "SKEWBENCH_PLUGINS"
PARTS = (
    "algorithms",
    "models",
    "datasets",
    "partitions",
    "transforms",
    "callbacks",
    "figures",
    "search_spaces",
    "grids",
    "published",
)
SENT = "skewbench_plugins"  # the package in which the workers of a cluster get the folders
_GROUP = "skewbench.plugins"


def use(folders: Iterable[Path | str]) -> None:
    """Uses these folders, too, in this process and in those that it starts.

    Raises:
        ConfigError: if one of them is none.
    """
    named = [from_home(folder).absolute() for folder in folders]
    if mistakes := [mistake for folder in named if (mistake := _mistake(folder, "--plugins"))]:
        raise ConfigError(mistakes)
    inherited = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    os.environ[VARIABLE] = os.pathsep.join(map(str, dict.fromkeys([*named, *inherited])))


def folders() -> tuple[Path, ...]:
    """The folders that are used, absolute, each once.

    Raises:
        ConfigError: if somebody has named a folder that is none.
    """
    try:
        working_dir = os.getcwd()
    except FileNotFoundError:  # it was removed
        working_dir = "/"
    return _folders(os.environ.get(VARIABLE, ""), working_dir)


@functools.cache
def _folders(variable: str, working_dir: str) -> tuple[Path, ...]:
    if sent := find_spec(SENT):  # on another machine only what was sent is that of the command
        return tuple(
            sorted(path for place in sent.submodule_search_locations or () for path in Path(place).glob("*/*"))
        )
    named = [(from_home(folder), VARIABLE) for folder in variable.split(os.pathsep) if folder]
    named += [*_of_project(Path(working_dir)), *_installed()]
    found = {(Path(working_dir) / folder).resolve(): by for folder, by in reversed(named)}
    if mistakes := [mistake for folder, by in found.items() if (mistake := _mistake(folder, by))]:
        raise ConfigError(mistakes)
    return tuple(reversed(found))


def _of_project(working_dir: Path) -> Iterator[tuple[Path, str]]:
    """The folders that the nearest `pyproject.toml` names that has something to say about this project, and is this user's or
    root's."""
    for above in (working_dir, *working_dir.parents):
        path = above / "pyproject.toml"
        try:
            if path.stat().st_uid not in (0, os.getuid()):
                continue  # in a folder that several share, somebody else's would choose what runs here
            tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue  # other programs read it, too, and say what is wrong with it
        own = tools.get("skewbench") if isinstance(tools, dict) else None
        if own is None:
            continue
        named = own.get("plugins", []) if isinstance(own, dict) else None
        if not (isinstance(named, list) and all(isinstance(folder, str) for folder in named)):
            raise ConfigError(
                [f'{path}: plugins under [tool.skewbench] must be a list of folders, as plugins = ["."].']
            )
        yield from ((above / folder, str(path)) for folder in named)
        return


def _installed() -> Iterator[tuple[Path, str]]:
    """The folders of installed packages."""
    for entry in entry_points(group=_GROUP):
        spec = find_spec(entry.value)
        if spec and spec.submodule_search_locations:
            yield Path(spec.submodule_search_locations[0]), f"the entry point {entry.name}"


def _mistake(folder: Path, by: str) -> str:
    """Why a folder cannot be one of these; "" if it can."""
    if os.pathsep in str(folder):
        return (
            f"{folder}, which {by} names, has {os.pathsep!r} in its path, which separates folders; rename or link it."
        )
    if not folder.is_dir():
        return f"There is no folder {folder}, which {by} names; make it, or name another one."
    if not any((folder / part).is_dir() for part in PARTS):
        return f"{folder}, which {by} names, has none of the folders {', '.join(PARTS)}; make the one that you need."
    return ""


def hint() -> str:
    """A sentence for names that nobody knows, where no folder of a lab is used; "" where one is."""
    return "" if folders() else " No folder of your own is in use: --plugins DIR, or SKEWBENCH_PLUGINS, names one."


def copy_to(target: Path) -> Path | None:
    """Copies the code of all folders into a package that workers of a cluster can import.

    Returns:
        The folder of the package; None if no folder is used.
    """
    package = target / SENT
    for number, folder in enumerate(folders()):
        for part in PARTS:
            if (folder / part).is_dir():
                ignored = _all_but_code if part == "datasets" else shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(folder / part, package / f"{number:02d}" / folder.name / part, ignore=ignored)
    return package if package.is_dir() else None


def _all_but_code(folder: str, names: list[str]) -> list[str]:
    """What is not sent of a folder of datasets, in which images may lie, too."""
    return [name for name in names if not name.endswith(".py")]
