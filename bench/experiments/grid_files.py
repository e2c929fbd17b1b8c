"""The grid files that come with the harness, and the parts that all grids share; read, not checked."""

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "grids"
SHARED = Path(__file__).parent / "budgets.yaml"


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
        return parse(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error


def read_shared() -> dict:
    """Conditions and budgets of all grids."""
    return parse(SHARED.read_text())


def parse(text: str) -> Any:
    """The content of a YAML text; numbers like 1e-3 are numbers, which YAML 1.1 leaves as texts.

    Raises:
        yaml.YAMLError: if it is not YAML.
    """
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would silently take the last."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} stands there twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)
