"""The grid files that come with the harness, and the parts that all grids share; read, not checked."""

from pathlib import Path

import yaml

from bench.files import parse_yaml

FOLDER = Path(__file__).parents[1] / "grids"
SHARED = Path(__file__).parents[1] / "budgets.yaml"


def names() -> list[str]:
    """Names of the grids."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(name: str) -> Path:
    """The file of a grid: of that name, or the YAML file itself; it need not exist."""
    return Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"


def read(name: str) -> object:
    """The content of a grid file.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not YAML.
    """
    path = find(name)
    try:
        return parse_yaml(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error


def read_shared() -> dict:
    """Conditions and budgets of all grids."""
    return parse_yaml(SHARED.read_text())
