"""Code as it was before somebody changed some of its definitions."""

import copy

from bench.config.code_version import definitions_of
from bench.results.ids import hash_of
from bench.results.store import Store


def earlier(store: Store, part: str, file: str, *names: str) -> str:
    """Stores a part of the code in which definitions of a file were others than today, and returns its hash."""
    content = copy.deepcopy(definitions_of(part))
    for name in names:
        assert name in content[file]
        content[file][name] = "0" * 12
    store.write_code(hash_of(content), content)
    return hash_of(content)
