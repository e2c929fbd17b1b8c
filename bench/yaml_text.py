"""YAML as grids and search spaces are written: numbers like 1e-3 are numbers, a key stands once."""

import re
from typing import Any

import yaml


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
