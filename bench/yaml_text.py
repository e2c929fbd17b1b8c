"""YAML of grids and search spaces: 1e-3 is a number, and a duplicate key is an error."""

import re
from typing import Any

import yaml


def parse(text: str) -> Any:
    """The content of a YAML text; reads 1e-3 as a number, unlike YAML 1.1, where it is a string.

    Raises:
        yaml.YAMLError: if it is not YAML, or a mapping has a key twice.
    """
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys of a mapping, whose last value PyYAML would take silently."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)
