"""Who trained the runs of a results directory: `authors.json`, where somebody has said so."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from bench.errors import StoreError
from bench.files import write_file
from bench.results.ids import is_run_id
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.json_schema import is_line, mismatch
from bench.results.store import Store

FILE = "authors.json"
_SHAPE = {"others?": is_line, "runs?": {str: is_line}}


class Authors(NamedTuple):
    """Who trained which runs.

    Attributes:
        runs: run id -> name.
        others: of all other runs of the directory; "" if that is not said.
    """

    runs: dict[str, str]
    others: str = ""

    def of(self, run_id: str) -> str:
        """Who trained a run; "" if that is not said."""
        return self.runs.get(run_id, self.others)


def read(store: Store) -> Authors:
    """Who trained the runs of a directory.

    Raises:
        StoreError: if the file does not say that.
    """
    path = store.folder / FILE
    try:
        written = read_bytes(path)
        content: Any = {} if written is None else parse(path, written)
    except Damaged as error:
        raise StoreError(f"{error}; remove it, or write it again.") from error
    if found := mismatch(content, _SHAPE) or ", ".join(key for key in content.get("runs", {}) if not is_run_id(key)):
        raise StoreError(
            f'{path} does not say who trained which runs ({found}); it is {{"others": "NAME"}}, for example.'
        )
    return Authors(dict(content.get("runs", {})), content.get("others", ""))


def text(authors: Authors) -> str:
    """The content of the file."""
    found = {"others": authors.others} if authors.others else {}
    return json.dumps({**found, "runs": dict(sorted(authors.runs.items()))}, indent=1, ensure_ascii=False) + "\n"


def add(store: Store, named: Mapping[str, str]) -> None:
    """Writes into a directory who trained some of its runs, where it does not say so yet."""
    said = read(store)
    if new := {run: name for run, name in named.items() if name != said.of(run)}:
        write_file(store.folder / FILE, text(Authors({**said.runs, **new}, said.others)))


def forget(store: Store, run_id: str) -> None:
    """A run counts that was trained in a directory: whoever trained it elsewhere before has not trained this one. A file that
    does not say who trained what stays as it is."""
    with suppress(StoreError):
        said = read(store)
        if run_id in said.runs:
            others = {run: name for run, name in said.runs.items() if run != run_id}
            write_file(store.folder / FILE, text(said._replace(runs=others)))
