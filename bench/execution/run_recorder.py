"""Writes what workers report into the store, run by run, whatever executes them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from bench.config.code_version import definitions_of, facts_of
from bench.execution.job import Job, base_of
from bench.execution.worker import WorkerReport
from bench.results import authors
from bench.results.artifacts import Folder
from bench.results.records import FINISHED, RoundRow, RunRecord
from bench.results.schema import SCHEMA
from bench.results.store import RAY_LOG, Store
from bench.results.tensorboard import write_events

if TYPE_CHECKING:
    from bench.execution.tracking import Tracker  # which knows Ray

RETRIES = 2  # of a run whose worker died; an error of the run itself would only come again
OUT_OF_MEMORY = "out of memory, with a whole GPU for itself"
OUT_OF_MEMORY_BESIDE = "out of memory, with a share of a GPU"
_DIED = "the worker process died"


class RunCallback(Protocol):
    """Is called while `run_jobs` runs: with lines for people, and with what happens to each job."""

    def on_message(self, text: str) -> None: ...
    def on_start(self, job: Job) -> None: ...
    def on_postponed(self, job: Job) -> None: ...
    def on_note(self, job: Job, note: str) -> None: ...
    def on_progress(self, job: Job, examples: float) -> None: ...  # trained on so far
    def on_end(self, job: Job, record: RunRecord) -> None: ...


class RunRecorder:
    """Keeps the rounds of the runs in progress, and writes them and their records.

    Attributes:
        rows: run id -> its rounds so far, of runs that have started and not ended.
    """

    def __init__(self, store: Store):
        self._store = store
        self.rows: dict[str, list[RoundRow]] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._code: dict[str, dict[str, Any]] = {}  # what records say of it
        self._started: dict[str, str] = {}

    def start(self, run_id: str, config: Mapping[str, Any], is_queued: bool = False) -> None:
        """A run begins, or begins once more; its record has the time of the first start. What its code is goes into the store
        now: it may be another one when the run ends.

        Args:
            is_queued: whether it only waits for a machine, until this is called again.
        """
        self.rows[run_id], self._configs[run_id] = [], dict(config)
        if not is_queued:
            self._started.setdefault(run_id, _now())
        self._code[run_id] = facts_of(config)
        for part, digest in self._code[run_id]["code"].items():
            self._store.write_code(digest, definitions_of(part))
        self._store.start(run_id, self._configs[run_id], self._code[run_id]["code"])

    def update(self, run_id: str, start: int, rows: list[RoundRow]) -> None:
        """Replaces the rounds of a run after the first `start` ones; nothing is written yet.

        Raises:
            RuntimeError: if rounds are missing before them, so that a record would have a gap.
        """
        if start > (known := len(self.rows[run_id])):
            raise RuntimeError(
                f"Run {run_id}: a report begins after round {start}, but only {known} rounds have arrived."
            )
        self.rows[run_id][start:] = rows

    def end(self, run_id: str, result: Mapping[str, Any], folder: str = "") -> RunRecord:
        """A run has ended: its rounds and its record are written.

        Args:
            result: goes into the record.
            folder: where its worker wrote states, if that is not the store.

        Returns:
            The record.
        """
        rows = self.rows.pop(run_id, [])
        usual = {"id": run_id, "schema": SCHEMA, "status": "failed", "reason": "", "summary": {}}
        versions = {**result.get("versions", {}), **_version_of_ray()}
        facts = {**self._code.get(run_id, {}), "started": self._started.get(run_id), "finished": _now()}
        record = cast(RunRecord, {**usual, **result, "rounds": len(rows), "versions": versions, **facts})
        if fault := self._store.fault_of(rows, record):  # in both is what methods and callbacks have returned
            said = [str(result.get("reason", "")), f"what it has measured could not be read again: {fault}"]
            kept = {key: result[key] for key in ("traceback", "host") if key in result}
            kept |= {"reason": "; ".join(filter(None, said)), "rounds": len(rows), "versions": versions}
            record = cast(RunRecord, {**usual, **kept, **facts})
            if self._store.fault_of(rows, record):
                rows, record["rounds"] = [], 0
        own = self._store.unfinished_folder(run_id)
        elsewhere = None if folder in ("", str(own)) else Folder(folder)
        if elsewhere:
            elsewhere.copy_to(own)
        if rows:
            self._write_events(run_id, own, rows, facts["started"])
        self._store.finish(run_id, rows, record)
        if own == self._store.run_folder(run_id) or record["status"] in FINISHED:  # else the earlier one counts
            authors.forget(self._store, run_id)
        if elsewhere and record["status"] in FINISHED:
            elsewhere.remove()
        return record

    def _write_events(self, run_id: str, folder: Path, rows: list[RoundRow], started: str | None) -> None:
        """Writes the rounds for TensorBoard; where tensorboardX is missing, `export --tensorboard` writes them elsewhere."""
        try:
            write_events(folder, self._configs[run_id], rows, started)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "tensorboardX":
                raise


class JobRecorder:
    """Writes what the workers of jobs report into the store, and says it: what every executor does with a `WorkerReport`.

    Attributes:
        runs: those in progress.
        callback: is told what happens.
    """

    def __init__(self, store: Store, callback: RunCallback, tracker: Tracker | None = None):
        self.store, self.runs = store, RunRecorder(store)
        self.callback, self._tracker = callback, tracker

    def start(self, job: Job) -> None:
        """A job begins, or begins again after its worker has died."""
        self.runs.start(job.id, job.config.canonical())
        self.callback.on_start(job)
        if self._tracker:
            self._tracker.started(job.id, job.config.canonical())

    def update(self, job: Job, report: WorkerReport, machine: Callable[[], str] = str) -> None:
        """A worker has reported; how its job ends is said by `end` or `postpone`.

        Args:
            machine: names the machine for people, where there are several; is called for a message only.
        """
        if report.note:
            self.callback.on_note(job, on_machine(report.note, machine()))
        self.runs.update(job.id, report.start, report.rows)
        if self._tracker:
            self._tracker.reported(job.id, report.rows)
        if report.rows and not report.is_last:
            self.store.append(job.id, report.rows)
            self.callback.on_progress(job, report.rows[-1].get("examples", 0))

    def postpone(self, job: Job) -> None:
        """A job that has begun is to be trained once more."""
        self.callback.on_postponed(job)

    def end(self, job: Job, result: Mapping[str, Any], machine: Callable[[], str] = str) -> None:
        """A job has ended.

        Args:
            result: goes into its record.
            machine: as in `update`.
        """
        if job.base:
            result = {**result, **self.store.base_fields(base_of(job.base))}
        record = self.runs.end(job.id, result, job.folder)
        self.callback.on_end(job, {**record, "reason": on_machine(record["reason"], machine())})
        if self._tracker:
            self._tracker.ended(job.id, failed=record["status"] == "failed")


def given_up(text: str, deaths: int, store: Store, subject: str) -> dict[str, str]:
    """The content of the record of a run that was given up, with the traceback of its error. If it had none, and its worker
    was killed, what Ray wrote goes to the results' log.

    Args:
        text: what Ray wrote of it.
        deaths: how often its worker died.
        subject: of the text, for the log.
    """
    reason = reason_of(text)
    if reason != _DIED:
        return {"reason": reason, "traceback": text}
    store.log(f"{subject}\n{text}")
    times = f"{deaths} time{'s' * (deaths > 1)}"
    return {"reason": f"{_DIED} {times} (killed, or out of memory); see {RAY_LOG} in the results directory"}


def reason_of(text: str) -> str:
    """The error at the end of a traceback, in one line; without any, the process was killed from outside."""
    has_traceback = re.search(r'^ +File "', text, re.MULTILINE)
    errors = re.findall(r"^(?:\w+\.)*(\w+: .+)$", text, re.MULTILINE) if has_traceback else []
    return errors[-1] if errors else _DIED


def on_machine(text: str, machine: str) -> str:
    """A text, if there is one, and the machine, if it has a name: "continues after round 3 (on node7)"."""
    return f"{text} (on {machine})" if text and machine else f"on {machine}" if machine else text


def _version_of_ray() -> dict[str, str]:
    """Of this environment, whether Ray executes a run or not."""
    try:
        return {"ray": version("ray")}
    except PackageNotFoundError:
        return {}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
