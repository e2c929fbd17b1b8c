"""Finished parts of an analysis on disk, so that the same command goes on where it stopped.

    analyses/<name>.json    settings, images, and every finished part: its number or the file of its model
             <key>.pt       models

A part is named by the hash of everything it depends on: with another setting or other images it is another part.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from algorithms.tree import Tree
from bench.files import write_file
from bench.results.artifacts import DamagedState, Folder, on_host
from bench.results.json_files import Damaged, parse, read_bytes
from bench.results.shapes import is_text, mismatch
from bench.results.store import Store


class Parts:
    """The parts of one analysis in a results directory.

    Attributes:
        path: the JSON file.
    """

    def __init__(self, results_dir: Path, name: str, facts: Mapping, made: Mapping, on_message: Callable[[str], None]):
        """Opens them.

        Args:
            name: of the JSON file.
            facts: stand at its top: settings and images.
            made: goes to every part that is computed now: versions, commit.
            on_message: is told of each of them.

        Raises:
            StoreError: if it cannot be written.
        """
        self.path = Path(results_dir) / "analyses" / f"{name}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._facts, self._made, self._on_message = facts, made, on_message
        self._parts = self._read()

    def number(self, name: str, of: Mapping[str, Any], compute: Callable[[], float]) -> float | None:
        """A number, computed unless it is there; None if it is not finite.

        Args:
            name: for people.
            of: everything the number depends on; JSON values.
        """
        key = _key(of)
        if key not in self._parts:
            value = compute()
            value = value if math.isfinite(value) else None
            self._finish(key, name, of, {"value": value})
            self._on_message(f"{name}: {'not finite' if value is None else format(value, '.4f')}")
        return self._parts[key]["value"]

    def model(self, name: str, of: Mapping[str, Any], train: Callable[[], Tree]) -> Tree:
        """A tree of tensors, trained unless it is there; arguments as in `number`."""
        key = _key(of)
        path = self.path.with_name(f"{key}.pt")
        state = self._stored(path)
        if state is None:
            begin = time.perf_counter()
            Folder(path.parent).save(path.name, on_host(train()))
            seconds = time.perf_counter() - begin
            self._finish(key, name, of, {"file": path.name, "seconds": seconds})
            self._on_message(f"{name}: trained ({seconds:.1f} s)")
            state = self._stored(path)
        return state

    def _finish(self, key: str, name: str, of: Mapping, result: Mapping) -> None:
        self._parts[key] = {"name": name, **result, "of": of, **self._made}
        write_file(self.path, json.dumps({**self._facts, "parts": self._parts}, indent=1) + "\n")

    def _stored(self, path: Path) -> Tree | None:
        """A model, None if there is none; one that is damaged is set aside."""
        try:
            return Folder(path.parent).load(path.name, torch.device("cpu"))
        except FileNotFoundError:
            return None
        except DamagedState as error:
            self._set_aside(path, str(error))
            return None

    def _read(self) -> dict:
        try:
            content = read_bytes(self.path)
            if content is None:
                return {}
            parts = parse(self.path, content)
            if mismatch(parts, {"parts": {str: {"name": is_text}}}):
                raise Damaged(self.path, "does not hold what it should")
        except Damaged as error:
            self._set_aside(self.path, f"{error}.")
            return {}
        return parts["parts"]

    def _set_aside(self, path: Path, sentence: str) -> None:
        Store(self.path.parents[1]).set_aside(path)
        self._on_message(f"{sentence} It is in superseded/ now, and what was in it is computed again.")


def _key(of: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
