"""Trains stored runs again and compares the rounds: what a reviewer does with the results of somebody else."""

import functools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bench import references
from bench.config.resolve import resolve, trained_by
from bench.config.schema import RunConfig, run_id, settings_of
from bench.config.stale import changes, what_changed
from bench.determinism import make_deterministic
from bench.errors import ConfigError, in_short, named_in_short
from bench.execution import agreement
from bench.experiments.one_run import prepare
from bench.profiling import device_name, give_back_memory, keep_freed_memory, processor_name
from bench.results.equality import differences
from bench.results.metrics import ACCURACIES
from bench.results.records import Config, RoundRow, RunRecord
from bench.results.store import Store
from bench.results.verified import (
    CONFIRMED,
    DIFFERS,
    EARLIER_VERSION,
    EQUAL,
    FAILED_AGAIN,
    FIRST_EQUAL,
    FIRST_WITHIN,
    NOT_TRAINED,
    OTHER_IMAGES,
    UNDECIDED,
    UNEVALUATED,
    WITHIN_TOLERANCE,
)
from bench.simulation.checkpoints import on_host
from bench.simulation.run import Run
from datasets import DataError, Dataset, partition_files

_COMPARED = ("diagnostics", "client_accuracies")  # of a record, whose summary follows from its rounds
_LIBRARIES = ("torch", "numpy")  # whose version may move numbers
_PATIENCE = 4.0  # times --minutes; then a run that is slower than its first rounds were is compared as far as it is
_LEAST_PATIENCE = 20.0  # minutes
_AS_FAR = 0.5  # of the distance of a stored run: how far rounding must move it here, of which there is one draw


@dataclass(frozen=True)
class Limits:
    """How much of a run is trained again.

    Attributes:
        minutes: a run that would take longer here, as far as its first rounds show, is trained for these only.
        rounds: how many these are.
    """

    minutes: float = 5.0
    rounds: int = 3


WHOLE = Limits(minutes=math.inf)


@dataclass(frozen=True)
class Verdict:
    """What came out for one run.

    Attributes:
        result: one of `bench.results.verified.RESULTS`.
        says: the same with all differences, in one line.
        rounds, of: rounds that were compared, and that a run of the config has.
        numbers: the `tolerance` that was allowed and the largest `gap` of an accuracy, in [0, 1], where one was needed.
    """

    result: str
    says: str
    rounds: int = 0
    of: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def draw(run_ids: Sequence[str], number: int, seed: int) -> list[str]:
    """So many runs, all if there are no more; the same ones for the same seed, whatever the order."""
    ordered = sorted(run_ids)
    return ordered if number >= len(ordered) else sorted(random.Random(seed).sample(ordered, number))


class Verifier:
    """Trains runs of results directories again, one after another in this process. Nothing is written."""

    def __init__(self, stores: Iterable[Store], data_dir: Path | None, limits: Limits, tolerance: float):
        """
        Args:
            tolerance: largest difference of an accuracy, in [0, 1], where the processor, the device or a library is another.
        """
        keep_freed_memory()
        self._data_dir, self._limits, self._tolerance = data_dir, limits, tolerance
        # The last base that was trained: how, and its last state.
        self._base: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        # The last run that was trained to its end: how, and what came out.
        self._last: tuple[tuple[Any, ...], Run | None] = ((), None)
        for store in stores:
            for kept in partition_files.kept(store.folder):
                try:
                    partition_files.parse(f"{references.PARTITION}:{kept}")  # from now on this process knows it
                except ValueError as error:
                    store.damaged[kept] = str(error).removeprefix(str(kept)).strip(" .")

    def verify(self, store: Store, run: str, stops: Mapping[str, str]) -> Verdict:
        """Trains a run that has ended, and compares it with what is stored. Several copies of a run that follow each other are
        trained once, as far as they were trained alike.

        Args:
            stops: stopped run of a search -> why that cannot have stopped it there; "" if it can.
        """
        config, record, rows = store.config(run), store.record(run), store.rows(run)
        if config is None or record is None or not rows and record["status"] != "failed":
            return Verdict(NOT_TRAINED, "cannot be compared: it has no rounds")
        is_stopped = record["status"] == "stopped"
        try:
            if own := agreement.contradiction(record, rows, config) if rows else "":
                return Verdict(DIFFERS, f"DIFFERS: {own}", 0, len(rows))
            if is_stopped and (why := stops.get(run)):
                return Verdict(DIFFERS, f"DIFFERS: its record says that its search stopped it, but {why}", 0, len(rows))
            resolved, images = self._prepared(run, config)
            if found := agreement.other_images(record, images):
                return Verdict(OTHER_IMAGES, f"cannot be compared: {found}", 0, len(rows))
            with _as_recorded(record) as device:
                if record["status"] == "failed":
                    return self._failed(resolved, images, record, device)
                verdict = self._compared(store, resolved, images, record, rows, device)
        except _EarlierVersion as error:
            return Verdict(EARLIER_VERSION, f"cannot be compared: {error}", 0, len(rows))
        except (ConfigError, DataError) as error:
            return Verdict(NOT_TRAINED, f"cannot be trained here: {in_short(error)}", 0, len(rows))
        except Exception as error:  # of a method, or of a config that never was that of a run
            return Verdict(NOT_TRAINED, f"cannot be trained here: it ends with {named_in_short(error)}", 0, len(rows))
        if is_stopped and run not in stops and verdict.result in CONFIRMED:
            says = f"undecided: {verdict.says}, but no stored search that could have stopped it has proposed it"
            return replace(verdict, result=UNDECIDED, says=says)
        return verdict

    def _failed(self, config: RunConfig, images: Dataset, record: RunRecord, device: str) -> Verdict:
        """Whether a run that has failed by its record fails here, too, whatever engine that names."""
        said = f"its record says that it failed: {' '.join(record.get('reason', '').split())}"
        trained, as_here, of = trained_by(config), cast(RunRecord, {}), config.rounds
        try:
            run = self._make(config, images, as_here, device)
            if trained is None:
                _train(run, run.num_rounds, self._limits)
            else:
                self._start_from(trained, run, images, as_here, device)
        except (ConfigError, DataError):
            raise
        except Exception as error:
            return Verdict(FAILED_AGAIN, f"fails here, too: {named_in_short(error)} ({said})", 0, of)
        if run.finished:
            return Verdict(DIFFERS, f"DIFFERS: {said}, but it trains here to its end", len(run.rows), of)
        lasts = f"it takes over {self._limits.minutes:g} minutes here; --whole trains it"
        return Verdict(UNEVALUATED, f"not compared: {said}, and {lasts}", len(run.rows), of)

    def _prepared(self, run: str, config: Config) -> tuple[RunConfig, Dataset]:
        """Today's config of a run, and its images; raises what `verify` catches."""
        for key in ("dataset", "partition"):
            if references.is_path(config[key]):
                raise ConfigError(
                    [f"its {key} is a path, {config[key]!r}, which may lead to any file of this machine."]
                )
        settings = settings_of(config)
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
        self, store: Store, config: RunConfig, images: Dataset, record: RunRecord, rows: list[RoundRow], device: str
    ) -> Verdict:
        trained = trained_by(config) if "base_summary" in record else None
        how = (*_how(config, record, device), trained is None)
        last = self._last[1] if self._last[0] == how else None
        run = last if last and len(last.rows) == len(rows) else self._make(config, images, record, device)
        of = 1 if trained else run.num_rounds
        code = _code(store, record, config)
        if note := agreement.other_note(record, images):
            return Verdict(DIFFERS, f"DIFFERS: {note}{code}", 0, of)
        if found := agreement.other_partition(record, run) or agreement.wrong_end(record, rows, config, of):
            return Verdict(DIFFERS, f"DIFFERS in {found}{code}", 0, of)
        if run is last:
            pass
        elif trained is None:
            _train(run, len(rows), self._limits, rows)
        elif not self._start_from(trained, run, images, record, device):
            lasts = f"which takes over {self._limits.minutes:g} minutes; --whole trains it"
            return Verdict(UNEVALUATED, f"not compared: it starts from the end of {run_id(trained)}, {lasts}", 0, of)
        if run.finished:
            self._last = how, run
        by_rounding = functools.partial(self._moved_by_rounding, run, config, images, record, device)
        return self._judged(run, record, rows, code, device, of, by_rounding)

    def _judged(
        self,
        run: Run,
        record: RunRecord,
        rows: list[RoundRow],
        code: str,
        device: str,
        of: int,
        by_rounding: Callable[[], float],
    ) -> Verdict:
        """What a run that was trained here, or its first rounds, has in common with the stored one."""
        is_whole = run.finished and record["status"] != "stopped"
        there = rows if run.finished else rows[: len(run.rows)]
        known: dict[str, Any] = {"status": "done"}
        if is_whole:
            known |= {key: value for key, value in record.items() if key in ("status", *_COMPARED)}
        result = json.loads(json.dumps(run.result() if is_whole else known))
        here, ended = agreement.comparable(json.loads(json.dumps(run.rows)), there, result, known)
        difference = differences((there, {**known, "summary": {}}), (here, {**ended, "summary": {}}))
        is_early = not run.finished and len(there) == len(rows) and record["status"] != "stopped"
        if is_early and not difference:
            difference = f"the last round: {len(rows)} and a later one"
        unlike, gap = _unlike(record, device), agreement.Gap(difference, 0.0)
        is_rounding = not is_early and len(there) == len(here) and known["status"] == ended["status"]
        if unlike and is_rounding and difference not in ("", *_COMPARED):  # of equal rounds all follows that is equal
            clients = known.get("client_accuracies") or (), ended.get("client_accuracies") or ()
            gap = agreement.gap(there, here, clients, self._tolerance, agreement.one_image(run))
        if gap.may_be_rounding and "base_summary" not in record:
            stored, own = agreement.furthest(there, here), by_rounding()
            if own >= _AS_FAR * stored:
                says = (
                    f"undecided: {gap.too_far} (stored and now; {'; '.join(unlike)}), but rounding grows in this run: "
                    f"both engines here are up to {100 * own:.2g} points apart, the stored run up to {100 * stored:.2g}"
                )
                return Verdict(UNDECIDED, says + code, len(there), of, {"tolerance": self._tolerance, "gap": stored})
        if gap.too_far:
            # Some methods let rounding grow, and their records say so.
            reasons = "; ".join(["stored and now", *unlike, *(record.get("caveats", []) if unlike else [])])
            return Verdict(DIFFERS, f"DIFFERS in {gap.too_far} ({reasons}){code}", len(there), of)
        of = len(there) if is_whole else of
        count = f"all {of} rounds" if is_whole else f"the first {len(there)} of {of} rounds"
        if not any(row.keys() & ACCURACIES for row in there):
            says = (
                f"bytes and examples of {count} equal, but none of these has an accuracy; --whole trains it to its end"
            )
            return Verdict(UNEVALUATED, says + code, len(there), of)
        if not difference:
            return Verdict(EQUAL if is_whole else FIRST_EQUAL, f"equal, {count}{code}", len(there), of)
        points = f"accuracies of {count} within {100 * gap.largest:.2g} points, though not bit for bit"
        says = f"{points} ({'; '.join(unlike)}; first difference, stored and now: {difference}){code}"
        numbers = {"tolerance": self._tolerance, "gap": gap.largest}
        return Verdict(WITHIN_TOLERANCE if is_whole else FIRST_WITHIN, says, len(there), of, numbers)

    def _moved_by_rounding(self, run: Run, config: RunConfig, images: Dataset, record: RunRecord, device: str) -> float:
        """How far apart a run of here and the same on the other engine, which sums in another order, are in an accuracy; 0 for
        a model that only one engine can train."""
        other = "loop" if run.task.engine == "vectorised" else "vectorised"
        try:
            control = self._make(config, images, record | {"engine": other}, device)
        except ValueError:
            return 0.0
        while len(control.rows) < len(run.rows):
            control.step()
        return agreement.furthest(run.rows, control.rows)

    def _make(self, config: RunConfig, images: Dataset, record: RunRecord, device: str) -> Run:
        give_back_memory()
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
        how = _how(trained, record, device)
        if self._base[0] != how:
            first = self._make(trained, images, record, device)
            _train(first, first.num_rounds, self._limits)
            if not first.finished:
                return False
            self._base = how, on_host(first.state)
        run.start_from_base(self._base[1])
        return True


class _EarlierVersion(Exception):
    """A run of an earlier version of a part, whose numbers are others."""


def _how(config: RunConfig, record: RunRecord, device: str) -> tuple[Any, ...]:
    """A run, and what decides how sums of it are rounded where a record is trained again."""
    of_record = (record.get(key) for key in ("engine", "block", "tf32"))
    return run_id(config), device, torch.get_num_threads(), *of_record


def _code(store: Store, record: RunRecord, config: RunConfig) -> str:
    """ "; its code has changed since: ..." where the record says so, and what the record does not say."""
    changed = changes(record, config, store)
    said = f"; its code has changed since: {what_changed(changed, store)}" if changed else ""
    return said + agreement.unsaid(record)


def _train(run: Run, until: int, limits: Limits, stored: Sequence[RoundRow] = ()) -> None:
    """Trains so many rounds; only the first ones, if these take so long here that all would take too long.

    Args:
        stored: the rounds of its record.
    """
    begin, first = time.monotonic(), min(limits.rounds, until)
    patience = max(_LEAST_PATIENCE, _PATIENCE * limits.minutes)
    while not run.finished and len(run.rows) < until:
        done, minutes = len(run.rows), (time.monotonic() - begin) / 60
        if done == first and minutes * times_of_first(first, until, stored) > limits.minutes:
            return
        if done > first and minutes > patience:
            return
        run.step()


def times_of_first(first: int, until: int, stored: Sequence[RoundRow]) -> float:
    """How often all rounds take as long as the first ones: as often as they are more, unless the seconds of a record say less,
    as of rounds that train a classifier alone. What a record says cannot shorten what is compared."""
    known = [stored[number - 1].get("seconds", 0.0) for number in (first, until) if number <= len(stored)]
    by_seconds = known[1] / known[0] if len(known) == 2 and known[0] > 0 else math.inf
    return min(until / first, max(1.0, by_seconds))


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
