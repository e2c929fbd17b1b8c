"""Writes what workers report of their runs into the store."""

import time
from collections.abc import Mapping
from typing import Any

from bench.execution import ray_environment  # noqa: F401
from bench.results.artifacts import Folder
from bench.results.schema import SCHEMA
from bench.results.store import UNFINISHED, Store
from bench.results.tensorboard import write_events

import ray  # isort: skip


class RunRecorder:
    """The runs that are being played.

    Attributes:
        rows: run id -> its rounds so far.
    """

    def __init__(self, store: Store, facts: Mapping[str, Any]):
        """
        Args:
            facts: go into every record.
        """
        self._store, self._facts = store, facts
        self.rows: dict[str, list[dict]] = {}
        self._configs: dict[str, dict] = {}
        self._started: dict[str, str] = {}

    def has_started(self, run_id: str) -> bool:
        """Whether the run has ever been started."""
        return run_id in self._started

    def start(self, run_id: str, config: Mapping[str, Any]) -> None:
        """A run begins, or begins once more; the time that counts is the first."""
        self.rows[run_id], self._configs[run_id] = [], dict(config)
        self._started.setdefault(run_id, _now())
        self._store.start(run_id, self._configs[run_id])

    def take(self, run_id: str, first: int, rows: list[dict]) -> None:
        """Rounds of a run, of which the first so many stand; nothing is written yet."""
        self.rows[run_id][first:] = rows

    def write(self, run_id: str, rows: list[dict]) -> None:
        """Appends rounds to the file of a run that goes on."""
        self._store.append(run_id, rows)

    def end(self, run_id: str, result: Mapping[str, Any], folder: str = "") -> dict[str, Any]:
        """A run has ended: its rounds and its record are written.

        Args:
            result: what goes into the record.
            folder: where its worker wrote states, if that is not the store.

        Returns:
            The record.
        """
        rows = self.rows.pop(run_id, [])
        record = {"id": run_id, "schema": SCHEMA, "status": "failed", "reason": "", "summary": {}, **result}
        record["rounds"] = len(rows)
        record["versions"] = record.get("versions", {}) | {"ray": ray.__version__}
        record |= {**self._facts, "started": self._started.get(run_id), "finished": _now()}
        own = self._store.playing_folder(run_id)
        elsewhere = None if folder in ("", str(own)) else Folder(folder)
        if elsewhere:
            elsewhere.copy_to(own)
        if rows:
            write_events(own, self._configs[run_id], rows, record["started"])
        self._store.finish(run_id, rows, record)
        if elsewhere and record["status"] not in UNFINISHED:
            elsewhere.remove()
        return record


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
