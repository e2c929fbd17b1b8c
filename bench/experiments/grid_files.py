"""Grids by name or file, and the parts that all of them share; read, not checked."""

from pathlib import Path

from bench.files import parse_yaml, read_yaml
from bench.registry import Registry

REGISTRY = Registry("grid")
"""Name of a grid -> its file."""
SHARED = Path(__file__).parents[1] / "budgets.yaml"


def names() -> list[str]:
    """Names of the grids."""
    return sorted(REGISTRY)


def find(name: str) -> Path:
    """The file of a grid: of that name, or the YAML file itself, which need not exist.

    Raises:
        ValueError: if there is no grid of that name.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    base, _, version = name.rpartition(" v")
    if base in REGISTRY and version.isdecimal():
        raise ValueError(
            f"{name!r} names stored results; the grid that is run or described is {base!r}, in today's version."
        )
    return REGISTRY.find(name).path


def is_ours(name: str) -> bool:
    """Whether a grid is one that comes with the harness."""
    return name in REGISTRY and REGISTRY[name].lab is None


def read(name: str) -> dict:
    """The content of a grid file.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if there is none of that name, or it is not YAML, no mapping, no regular file, or cannot be a grid because
            of its size.
    """
    path = find(name)
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping with axes and settings.")
    return content


def version_of(name: str) -> int:
    """The version that a named grid has now, its own or that of the grid that it extends; 1 if there is none of that name."""
    seen = []  # grids in a circle have none
    while name in names() and name not in seen:
        content = read(name)
        if "version" in content or "extends" not in content:
            return content.get("version", 1)
        seen.append(name)
        name = content["extends"]
    return 1


def read_shared() -> dict:
    """Conditions and budgets of all grids."""
    return parse_yaml(SHARED.read_text())
