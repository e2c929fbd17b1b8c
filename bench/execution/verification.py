"""Trains stored runs again and compares the rounds: what a reviewer does with the results of somebody else."""

import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import references
from bench.config.resolve import resolve, trained_by
from bench.config.schema import RunConfig, run_id
from bench.config.stale import changes, what_changed
from bench.determinism import make_deterministic
from bench.errors import ConfigError
from bench.experiments.one_run import prepare
from bench.profiling import device_name, processor_name
from bench.results.equality import differences, same
from bench.results.metrics import ACCURACIES, summarise
from bench.results.records import Config, RoundRow, RunRecord
from bench.results.store import Store
from bench.results.verified import (
    DIFFERS,
    EARLIER_VERSION,
    EQUAL,
    NOT_TRAINED,
    OTHER_IMAGES,
    UNEVALUATED,
    WITHIN_TOLERANCE,
)
from bench.simulation.checkpoints import on_host
from bench.simulation.run import Run
from datasets import DataError, Dataset, partition_files, skew

_COUNTED = ("round", "bytes_down", "bytes_up", "examples")  # equal on every processor
_COMPARED = ("diagnostics", "client_accuracies")  # of a record, whose summary follows from its rounds
_LIBRARIES = ("torch", "numpy")  # whose version may move numbers
_PATIENCE = 4.0  # times --minutes; then a run that is slower here than its record says is compared as far as it is
_LEAST_PATIENCE = 20.0  # minutes


@dataclass(frozen=True)
class Limits:
    """How much of a run is trained again.

    Attributes:
        minutes: a run whose record says that it took longer is trained for its first rounds only.
        rounds: how many these are.
    """

    minutes: float = 5.0
    rounds: int = 3

    @property
    def deadline(self) -> float:
        """Until when a run may be trained that begins now, by `time.monotonic`."""
        return time.monotonic() + 60 * max(_LEAST_PATIENCE, _PATIENCE * self.minutes)


WHOLE = Limits(minutes=math.inf)


@dataclass(frozen=True)
class Verdict:
    """What came out for one run.

    Attributes:
        result: one of `bench.results.verified.RESULTS`.
        says: the same with all differences, in one line.
        rounds, of: rounds that were compared, and that are stored.
    """

    result: str
    says: str
    rounds: int = 0
    of: int = 0


def draw(run_ids: Sequence[str], number: int, seed: int) -> list[str]:
    """So many runs, all if there are no more; the same ones for the same seed, whatever the order."""
    ordered = sorted(run_ids)
    return ordered if number >= len(ordered) else sorted(random.Random(seed).sample(ordered, number))


class Verifier:
    """Trains runs of a results directory again, one after another in this process. Nothing is written."""

    def __init__(self, store: Store, data_dir: Path | None, limits: Limits, tolerance: float):
        """
        Args:
            tolerance: largest difference of an accuracy, in [0, 1], where the processor, the device or a library is another.
        """
        self._store, self._data_dir, self._limits, self._tolerance = store, data_dir, limits, tolerance
        self._base: tuple[str, dict[str, Any]] = ("", {})  # the last one that was trained: its id, its last state
        for kept in sorted((store.folder / partition_files.FOLDER).glob("[!.]*.npz")):
            try:
                partition_files.parse(f"{references.PARTITION}:{kept}")  # from now on this process knows it
            except ValueError as error:
                store.damaged[kept] = str(error).removeprefix(str(kept)).strip(" .")

    def verify(self, run: str) -> Verdict:
        """Trains a run that has ended, and compares it with what is stored."""
        config, record, rows = self._store.config(run), self._store.record(run), self._store.rows(run)
        if config is None or record is None or not rows:
            return Verdict(NOT_TRAINED, "cannot be compared: it has no rounds")
        if own := _contradiction(record, rows):
            return Verdict(DIFFERS, f"DIFFERS: {own}", 0, len(rows))
        try:
            resolved, images = self._prepared(run, config)
            if found := _other_images(record, images):
                return Verdict(OTHER_IMAGES, f"cannot be compared: {found}", 0, len(rows))
            with _as_recorded(record) as device:
                return self._compared(resolved, images, record, rows, device)
        except _EarlierVersion as error:
            return Verdict(EARLIER_VERSION, f"cannot be compared: {error}", 0, len(rows))
        except (ConfigError, DataError) as error:
            return Verdict(NOT_TRAINED, f"cannot be trained here: {' '.join(str(error).split())}", 0, len(rows))
        except Exception as error:  # of a method, or of a config that never was that of a run
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return Verdict(NOT_TRAINED, f"cannot be trained here: it ends with {said}", 0, len(rows))

    def _prepared(self, run: str, config: Config) -> tuple[RunConfig, Dataset]:
        """Today's config of a run, and its images; raises what `verify` catches."""
        for key, is_path in (("dataset", references.is_dataset), ("partition", references.is_partition)):
            if is_path(config[key]) and references.read(config[key]) is None:
                raise ConfigError(
                    [f"its {key} is a path, {config[key]!r}, which may lead to any file of this machine."]
                )
        settings = {key: value for key, value in config.items() if key != "versions"}
        resolved = resolve(settings, facts=None)
        if resolved.versions != config["versions"]:
            then, now = config["versions"], resolved.versions
            parts = [part for part in dict.fromkeys([*then, *now]) if then.get(part) != now.get(part)]
            named = (f"version {then.get(part, 'none')} of the {part}, now {now.get(part, 'none')}" for part in parts)
            raise _EarlierVersion("; ".join(named))
        if run_id(resolved) != run:
            raise ConfigError(["its config is read as that of another run by this version of the program."])
        return prepare(settings, self._data_dir)

    def _compared(
        self, config: RunConfig, images: Dataset, record: RunRecord, rows: list[RoundRow], device: str
    ) -> Verdict:
        run = self._make(config, images, record, device)
        if found := _other_partition(record, run):
            return Verdict(DIFFERS, f"DIFFERS in {found}{self._code(record, config)}", 0, len(rows))
        trained = trained_by(config) if "base_summary" in record else None
        if trained is None:
            limits = self._limits
            is_long = _minutes(rows) > limits.minutes
            _train(run, min(len(rows), limits.rounds) if is_long else len(rows), limits.deadline)
        elif not self._start_from(trained, run, images, record, device):
            return Verdict(
                UNEVALUATED,
                f"not compared: it starts from the end of {run_id(trained)}, which takes over {self._limits.minutes:g} "
                "minutes; --whole trains it",
                0,
                len(rows),
            )
        there = rows if run.finished else rows[: len(run.rows)]
        here = _restricted(json.loads(json.dumps(run.rows)), rows)
        known: dict[str, Any] = {"status": "done"}
        ended: dict[str, Any] = {"status": "done"}
        count = (
            f"all {len(rows)} rounds" if len(there) == len(rows) else f"the first {len(there)} of {len(rows)} rounds"
        )
        if run.finished and record["status"] != "stopped":
            known = {key: value for key, value in record.items() if key in ("status", *_COMPARED)}
            ended = _restricted(json.loads(json.dumps(run.result())), known)
        difference = differences((there, known), (here, ended))
        if not difference and len(there) == len(rows) and not run.finished and record["status"] != "stopped":
            difference = f"the last round: {len(rows)} and a later one"
        return self._judged(difference, there, here, count, len(rows), record, config, device)

    def _judged(
        self,
        difference: str,
        there: Sequence[RoundRow],
        here: Sequence[Mapping[str, Any]],
        count: str,
        of: int,
        record: RunRecord,
        config: RunConfig,
        device: str,
    ) -> Verdict:
        """The verdict on rounds there and here, whose first difference is known; "" for equal ones."""
        code, done = self._code(record, config), len(there)
        unlike, largest = _unlike(record, device), _largest_gap(there, here)
        is_near = not difference or bool(unlike and largest is not None and largest <= self._tolerance)
        if is_near and not any(row.keys() & ACCURACIES for row in there):
            says = (
                f"bytes and examples of {count} equal, but none of these has an accuracy; --whole trains it to its end"
            )
            return Verdict(UNEVALUATED, says + code, done, of)
        if not difference:
            return Verdict(EQUAL, f"equal, {count}{code}", done, of)
        if is_near:
            points = f"accuracies of {count} within {100 * (largest or 0):.2g} points, though not bit for bit"
            says = f"{points} ({'; '.join(unlike)}; first difference, stored and now: {difference}){code}"
            return Verdict(WITHIN_TOLERANCE, says, done, of)
        # Some methods let rounding grow, and their records say so.
        reasons = "; ".join(["stored and now", *unlike, *(record.get("caveats", []) if unlike else [])])
        return Verdict(DIFFERS, f"DIFFERS in {difference} ({reasons}){code}", done, of)

    def _make(self, config: RunConfig, images: Dataset, record: RunRecord, device: str) -> Run:
        return Run(
            config,
            images,
            device=device,
            engine=record.get("engine", "auto"),
            max_clients_per_vmap=record.get("block"),
            data_dir=self._data_dir,
        )

    def _start_from(self, trained: RunConfig, run: Run, images: Dataset, record: RunRecord, device: str) -> bool:
        """Starts a run of a post-hoc method from the end of its base, which is trained first; False if that takes too long."""
        base = run_id(trained)
        if self._base[0] != base:
            stored = self._store.record(base)
            seconds = record.get("base_seconds") or (stored and stored.get("seconds")) or 0.0
            if seconds > 60 * self._limits.minutes:
                return False
            first = self._make(trained, images, record, device)
            _train(first, first.num_rounds, self._limits.deadline)
            if not first.finished:
                return False
            self._base = base, on_host(first.state)
        run.start_from_base(self._base[1])
        return True

    def _code(self, record: RunRecord, config: RunConfig) -> str:
        """ "; its code has changed since: ..." where the record says so."""
        changed = changes(record, config)
        return f"; its code has changed since: {what_changed(changed, self._store)}" if changed else ""


class _EarlierVersion(Exception):
    """A run of an earlier version of a part, whose numbers are others."""


def _contradiction(record: RunRecord, rows: Sequence[RoundRow]) -> str:
    """What a record says that does not follow from its own rounds; "" if all does."""
    follows = summarise(rows)
    for key, scores in record["summary"].items():
        for name, value in dict(scores).items():  # type: ignore[call-overload]
            if name not in ACCURACIES:  # whether less of a metric of a lab is better, only its folder knows
                continue
            found = follows.get(key, {}).get(name)  # type: ignore[attr-defined]
            if (key, found, value) == (
                "last10_std",
                None,
                0.0,
            ):  # of a single round: records of earlier versions have one
                continue
            if found is None or not math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-12):
                return f"its record has {value} as {key} {name}, but its rounds {found}"
    return ""


def _other_images(record: RunRecord, images: Dataset) -> str:
    there = record.get("data", {}).get("digest")
    if there in (None, images.digest):
        return ""
    return f"its images of {images.name} have the digest {there}, those here {images.digest}"


def _other_partition(record: RunRecord, run: Run) -> str:
    """In what the partition of a record is another one than that of the run here."""
    federation = run.task.federation
    there, here = record.get("partition_digest"), federation.digest
    if there not in (None, here):
        return f"the partition: its digest is {there}, that of the one dealt here {here}"
    dealt = skew.measure(federation.label_counts.numpy())._asdict()
    for name, value in record.get("skew", {}).items():
        if name in dealt and not math.isclose(dealt[name], value, rel_tol=1e-6, abs_tol=1e-9):
            return f"the partition: its {name} is {value}, that of the one dealt here {dealt[name]}"
    return ""


def _minutes(rows: Sequence[RoundRow]) -> float:
    return rows[-1].get("seconds", 0.0) / 60


def _train(run: Run, until: int, deadline: float) -> None:
    """Trains rounds, at least one, and no more after the deadline."""
    while not run.finished and len(run.rows) < until and (not run.rows or time.monotonic() < deadline):
        run.step()


def _restricted(now: Any, stored: Any) -> Any:
    """What a version of today has measured, without what an earlier one did not know."""
    if isinstance(now, Mapping) and isinstance(stored, Mapping):
        return {key: _restricted(now[key], stored[key]) for key in stored if key in now}
    if isinstance(now, list) and isinstance(stored, list) and len(now) <= len(stored):
        return [_restricted(*pair) for pair in zip(now, stored, strict=False)]
    return now


def _unlike(record: RunRecord, device: str) -> list[str]:
    """In what the machine of a record differs from this one; where that is nothing, numbers must be equal bit for bit."""
    versions = {"torch": str(torch.__version__), "numpy": np.__version__}
    found = [
        f"{library} {then} there, {versions[library]} here"
        for library in _LIBRARIES
        if (then := record.get("versions", {}).get(library)) not in (None, versions[library])
    ]
    here = device_name(torch.device(device))
    if record.get("device", here) != here:
        return [*found, f"device {record['device']} there, {here} here"]
    if here == "cpu" and (then := record.get("processor")) != processor_name():
        found.append(f"processor {then} there, {processor_name()} here" if then else "the record names no processor")
    return found


def _largest_gap(there: Sequence[RoundRow], here: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest difference of an accuracy; None where something differs that no processor changes."""
    if len(there) != len(here):
        return None
    gaps = [0.0]
    for stored, now in zip(there, here, strict=True):
        before: Mapping[str, Any] = stored
        if not all(same(before.get(key), now.get(key)) for key in _COUNTED):
            return None
        for key in before.keys() & ACCURACIES:
            if key not in now:
                return None
            gaps.append(abs(before[key] - now[key]))
    return max(gaps)


@contextmanager
def _as_recorded(record: RunRecord) -> Iterator[str]:
    """As many threads as a record says, and its kind of device where this machine has one: "cpu" or "cuda"."""
    threads = torch.get_num_threads()
    device = "cuda" if record.get("device", "cpu") != "cpu" and torch.cuda.is_available() else "cpu"
    if device == "cuda":
        make_deterministic(record.get("tf32", False))
    torch.set_num_threads(max(1, min(record.get("threads", 1), 1024)))
    try:
        yield device
    finally:
        torch.set_num_threads(threads)
