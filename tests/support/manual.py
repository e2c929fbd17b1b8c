"""The README and the manual as pages, blocks and commands, and what each command must be."""

import importlib.util
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import click
import typer

import search_spaces
from bench import plugins, worker
from bench.cli import options as given
from bench.cli.app import app
from bench.errors import ConfigError
from bench.experiments import selection
from bench.experiments.cells import Cell, select
from bench.experiments.expansion import Refused, expand
from bench.experiments.grid_loading import load_grid, single
from bench.gpu_check import main as gpu_check
from bench.speed import main as speed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "reports"]  # those follow from records
REFUSED = (
    AssertionError,
    ValueError,
    click.UsageError,
    typer.BadParameter.__base__,
)  # what `check` raises; typer has a click of its own
_BENCH = typer.main.get_command(app)
COMMANDS = [name for name, command in _BENCH.commands.items() if not hasattr(command, "commands")]
_OTHERS = (
    "git clone",
    "cd",
    "python3 -m venv",
    "python -m pip install uv",
    "export SKEWBENCH_PLUGINS=",
)  # to get the code, what installs packages, and a variable that is read
_EXPANDED: dict[str, tuple[list[Cell], list[Refused]]] = {}


class Block(NamedTuple):
    """A fenced block of a page; `needs` is what it needs beside this repository, "" for nothing."""

    page: Path
    language: str
    needs: str
    text: str


def blocks(language: str | None = None) -> list[Block]:
    """All fenced blocks, or those of a language."""
    found = [
        Block(page, kind, needs or "", text)
        for page in PAGES
        for kind, needs, text in re.findall(
            r'^ *```(\w*)(?: title="needs ([^"]+)")?\n(.*?)^ *```$', page.read_text(), re.DOTALL | re.MULTILINE
        )
    ]
    return [block for block in found if language in (None, block.language)]


def named_files() -> dict[str, str]:
    """Files that the manual shows: name in the first line -> content."""
    return {re.match(r"# ([\w.-]+):", block.text).group(1): block.text for block in blocks("yaml")}


def inline_code(page: Path) -> list[str]:
    """Code within the sentences of a page, on one line each."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r"\s+", " ", code).replace("\\|", "|") for code in re.findall(r"`([^`]+)`", text)]


def commands(block: Block) -> list[list[str]]:
    """The commands of a block as words, without what is the shell's: comments, variables, pipes, the background."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.needs:  # for machines that are not there: of each line the command that is ours, or Ray's
        starts = [re.search(r"(?:python -m bench|ray (?!get-auth)|ray get-auth).*", line) for line in lines]
        lines = [re.sub(r'"\$\{@.*?\}"|\d?> ?\S+|&$', "", found.group()) for found in starts if found]
        lines = [re.sub(r"\$\{?SLURM_\w+(:-\d+)?\}?", "1", line) for line in lines]
    words = [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]
    return [words for words in words if words]


def check(words: list[str]) -> None:
    """Raises if a command is wrong: its program, its options, its files, its grid, cells and settings."""
    match [words[0].removeprefix(".venv/bin/"), *words[1:]]:
        case ["python", "-m", "bench", *arguments]:
            check_bench(arguments)
        case ["python", "-m", "bench.speed", *arguments]:
            check_bench(["speed", *arguments])
        case ["python", "-m", "bench.gpu_check", *arguments]:
            gpu_check._parser().parse_args(arguments)
        case ["python", "-m", "bench.worker", *arguments]:
            worker._parser().parse_args(arguments)
        case ["python", "-m", "pytest", *arguments]:
            _check_pytest(arguments)
        case ["python", "-m", module] if module.startswith("tests."):
            assert '__name__ == "__main__"' in Path(importlib.util.find_spec(module).origin).read_text(), module
        case ["make", target]:
            assert (
                target in re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1).split()
            )
        case ["uv", "pip", "compile", "-q", *arguments]:
            assert f"uv pip compile {' '.join(arguments)}\n" in (ROOT / "requirements.lock").read_text()[:300]
        case ["uv", "pip", "install", *arguments]:
            assert arguments[-2:] == ["-r", "requirements.lock"] and "--require-hashes" in arguments
        case ["uv", "tool", "install", "."] | ["pipx", "install", "."]:  # tests/test_install.py does that
            pass
        case ["ray", name, *arguments]:
            from ray.scripts.scripts import cli

            cli.commands[name].make_context(name, arguments)
        case others:
            assert " ".join(others).startswith(_OTHERS), f"who checks {shlex.join(words)}?"


def check_bench(arguments: list[str]) -> dict:
    """Raises if `python -m bench` would refuse these arguments; returns the options. Names in capitals stand for anything."""
    with without_plugins(arguments) as rest:
        return _check(rest)


@contextmanager
def without_plugins(arguments: list[str]) -> Iterator[list[str]]:
    """The arguments without --plugins, whose folder is in use meanwhile."""
    arguments = given.plugins_first(arguments)
    if arguments[0] != "--plugins":
        yield arguments
        return
    folder = ROOT / arguments[1]
    with mock.patch.dict(os.environ, {plugins.VARIABLE: str(folder)} if folder.is_dir() else {}):
        yield arguments[2:]


def _check(arguments: list[str]) -> dict:
    command, rest = _BENCH, arguments
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"{rest[:1]} is none of {', '.join(command.commands)}"
        command, rest = command.commands[rest[0]], rest[1:]
    if arguments[0] == "speed":
        return vars(speed._parser("speed").parse_args(rest))
    options = command.make_context(arguments[0], list(rest)).params
    if not any(re.fullmatch(r"[A-Z]+(\.\w+)?", str(value)) for value in options.values()):
        _check_meaning(arguments[0], options)
    return options


def _check_meaning(command: str, options: dict) -> None:
    """Whether the grid, or the setting, has the cells and takes the settings that options name."""
    grid = options.get("grid")
    if command in ("report", "export") and grid and not grid.endswith(".yaml"):
        grid = given.stored_name(grid, None)[0]
    if not (grid or options.get("algorithm")):
        return
    assert cells_of(grid, options)
    for name in (options.get("space") or "own").split(","):
        assert name == "own" or search_spaces.load(name.rpartition("=")[2])


def cells_of(grid: str | None, options: dict) -> list[Cell]:
    """The cells of a grid, or of a setting without one, that the options of a command name."""
    seeds = given.read_seeds(options.get("seeds"))
    if grid:
        spec = load_grid(grid)
    else:
        spec = single({key: options[key] for key in ("algorithm", "dataset", "partition")}, seeds or [0])
    replaced = dict(pair.split("=") for pair in options.get("substitute") or [])
    overrides = given.read_set(options.get("set_"))
    budget, here = options.get("budget") or spec.usual_budget, (*plugins.folders(), os.getcwd())
    key = repr((spec, budget, overrides, seeds, replaced, here))
    if key not in _EXPANDED:  # most commands choose a few cells of a grid that another one has expanded
        refused: list[Refused] = []
        substituted = {"missing": replaced, "substitutes": replaced}
        cells = expand(spec, budget, overrides=overrides, seeds=seeds, refused=refused, **substituted)
        _EXPANDED[key] = cells, refused
    (cells, refused), only = _EXPANDED[key], given.read_only(options.get("only"))
    if mistakes := [line for point in refused if selection._is_needed(point, only, spec) for line in point.mistakes]:
        raise ConfigError(mistakes)
    return select(cells, only, refused)


def _check_pytest(arguments: list[str]) -> None:
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    known = {marker.partition(":")[0] for marker in markers} | {"not", "and"}
    values = iter(arguments)
    for value in values:
        if value == "-m":
            assert set(next(values).split()) <= known
        elif value in ("-k", "-n", "--dist"):
            assert next(values)
        else:
            assert (ROOT / value).exists(), value


def option_names() -> set[str]:
    """Every option of every command."""
    own = {name for command in _all_commands(_BENCH) for parameter in command.params for name in parameter.opts}
    return own.union(speed._parser("speed")._option_string_actions, gpu_check._parser()._option_string_actions)


def options_of(command: str) -> list[str]:
    """Long names of the options of a command, but for help."""
    if command == "speed":
        return [
            name for name in speed._parser("speed")._option_string_actions if name.startswith("--") and name != "--help"
        ]
    return [name for parameter in _BENCH.commands[command].params for name in parameter.opts if name.startswith("--")]


def _all_commands(command) -> Iterator:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _all_commands(inner)


def table(page: Path, heading: str) -> list[list[str]]:
    """Cells of the rows of the table whose first column has this heading."""
    rows = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows.group(1).splitlines()]


def codes(text: str) -> list[str]:
    """Everything in backticks."""
    return re.findall(r"`([^`]+)`", text)


def headings(page: Path) -> set[str]:
    """Anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
