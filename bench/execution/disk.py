"""Disk space that runs take, computed before they start and without their images."""

import functools
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from algorithms.shared import client_states as rows
from algorithms.shared import row_files, tree
from bench.config.schema import RunConfig
from bench.execution.resources import Machines
from bench.experiments.cells import Cell
from bench.experiments.cost import method_of, outlined, without_numbers
from bench.experiments.planning import Plan, training_of
from bench.results.store import Store
from bench.simulation.retention import StateRetention
from datasets.cache import default_dir

_FILE, _TENSOR = 1300, 275  # bytes of a file beside its numbers: once, and for each tensor, as torch.save writes them


class Footprint(NamedTuple):
    """Bytes on disk.

    Attributes:
        kept: states that stay.
        checkpoint: of a run that has not ended.
        scratch: client states during a run that memory is not to hold, beside the decoded datasets.
    """

    kept: int
    checkpoint: int
    scratch: int


def footprint(config: RunConfig, retention: StateRetention, takes_over: bool = False) -> Footprint | None:
    """What one run takes; None where that is not known before (see `bench.experiments.cost.without_numbers`).

    Args:
        takes_over: whether it starts from the last state of another run, and only deploys it.
    """
    described = without_numbers(config)
    if described is None:
        return None
    sizes = _sizes(described)
    if takes_over:
        return Footprint(sizes.deployed if retention.final != "none" else 0, 0, 0)
    stages = sizes.stages
    last = {"none": 0, "deployed": stages[-1].file(whole=sizes.reads_clients), "all": stages[-1].file()}
    rounds = [next((stage for stage in stages if number <= stage.round), None) for number in retention.rounds]
    on_the_way = sum(stage.file(number) for stage, number in zip(rounds, retention.rounds, strict=True) if stage)
    kept = last[retention.final] + on_the_way + len(retention.local_models) * sizes.local_models
    return Footprint(kept, max(stage.checkpoint for stage in stages), max(stage.scratch for stage in stages))


def total(footprints: Iterable[Footprint], at_once: int) -> Footprint:
    """What runs take together, if at most `at_once` run at the same time, and these are the largest ones."""
    kept, *temporary = zip(*footprints, strict=True)
    return Footprint(sum(kept), *(sum(sorted(sizes)[-at_once:]) for sizes in temporary))


def footprints(cells: Iterable[Cell], retention: Mapping[str, StateRetention]) -> dict[str, Footprint | None]:
    """Run id -> what the run takes.

    Args:
        retention: run id -> which states the run keeps.
    """
    return {cell.id: footprint(cell.config, retention[cell.id], takes_over=bool(training_of(cell))) for cell in cells}


def shortages(plan: Plan, storage: str | None, machines: Machines, store: Store) -> list[str]:
    """A sentence for each disk of this machine that has less free space than the runs of a plan need.

    Args:
        storage: as in `bench.experiments.spec.ExecutionOptions`.
    """
    known = [one for one in footprints(plan.todo, plan.retention).values() if one]
    if not known:
        return []
    needed = total(known, machines.at_once)
    # A run that ends lies in a storage, beside its checkpoint, until it is fetched.
    ending = sum(sorted(one.kept for one in known)[-machines.at_once :]) if storage else 0
    places = [
        (store.folder, needed.kept, "kept states"),
        (storage or store.folder, needed.checkpoint + ending, f"checkpoints of {machines.at_once} at once"),
        (default_dir(), 0 if machines.address else needed.scratch, "client states during runs"),
    ]
    by_disk: dict[int, list] = {}
    for place, size, what in places:
        if size and "://" not in str(place):
            path = Path(place).absolute()
            there = next(folder for folder in (path, *path.parents) if folder.exists())
            by_disk.setdefault(os.stat(there).st_dev, []).append((there, size, what))
    return [sentence for parts in by_disk.values() if (sentence := _shortage(parts))]


def _shortage(parts: list[tuple[Path, int, str]]) -> str:
    """What is lacking on one disk; "" if nothing is."""
    there, needed = parts[0][0], sum(size for _, size, _ in parts)
    free = shutil.disk_usage(there).free
    if needed <= free:
        return ""
    listed = ", ".join(f"{what} {in_words(size)}" for _, size, what in parts)
    return (
        f"These runs need about {in_words(needed)} on the disk of {there} ({listed}), but {in_words(free)} are free there. "
        "A full disk stops them, and the same command continues; fewer at once (--max-concurrent) and --keep-state none "
        "need less."
    )


def in_words(size: int) -> str:
    """Bytes as people read them: "1,271.0 GB", "3.5 MB" (of 10^9 and 10^6 bytes)."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


class _Stage(NamedTuple):
    """Sizes of the states of one stage of a run.

    Attributes:
        round: in which it ends.
        population, cohort: number of clients, and of those that take part in a round.
        shared: bytes of a state in a file, without client states.
        fresh: of all that says what new clients have.
        row: of one client's state.
        rows: clients that have one in any case.
        state: of one client's state during the run, in memory or in files.
        held: of all states that are there only within a round.
    """

    round: int
    population: int
    cohort: int
    shared: int
    fresh: int
    row: int
    rows: int
    state: int
    held: int

    def participants(self, round: int) -> float:
        """Clients that have taken part after so many rounds, as expected of random cohorts."""
        return max(self.rows, self.population * (1 - (1 - self.cohort / self.population) ** round))

    def file(self, round: int | None = None, whole: bool = True) -> int:
        """A state in one file, with client states if it is whole; by default at the end of the stage."""
        clients = self.fresh + self.participants(round or self.round) * self.row if whole else 0
        return math.ceil(_FILE + self.shared + clients)

    @property
    def checkpoint(self) -> int:
        """In a file, and one for each client's state."""
        files = self.participants(self.round) * (_FILE + self.row) if self.row else 0
        return math.ceil(_FILE + self.shared + self.fresh + files)

    @property
    def scratch(self) -> int:
        """Of client states in files that are there only during the run. The states before and after a round have all rows but
        those of the cohort in common."""
        largest = max((self.participants(self.round) + self.cohort) * self.state, self.held)
        return math.ceil(max(0, largest - row_files.MEMORY_BYTES))


class _Sizes(NamedTuple):
    """Of one kind of run.

    Attributes:
        stages: of the run, the last one ends with it.
        reads_clients: whether what is deployed includes client states.
        deployed: bytes of a file with the model, or the clients' models, that it deploys.
        local_models: of a file with those of a cohort.
    """

    stages: tuple[_Stage, ...]
    reads_clients: bool
    deployed: int
    local_models: int


@functools.cache
def _sizes(described: str) -> _Sizes:
    (task, outlines), algorithm = outlined(described), method_of(described)
    last, one = outlines[-1], {"params": task.initial_params(), "buffers": task.initial_buffers()}
    cohort = task.settings.cohort_size(task.population)
    # A state without a model of its own holds several, each as large as the task's.
    deployed, copies = {key: last.get(key, one[key]) for key in one}, task.population if algorithm.personal else 1
    return _Sizes(
        tuple(_stage(outline, task.population, cohort) for outline in outlines),
        algorithm.deploy_reads_clients,
        _FILE + _in_file(deployed) + (copies - 1) * tree.num_bytes(deployed),
        _FILE + _in_file(one) + (cohort - 1) * tree.num_bytes(one),
    )


def _stage(outline: dict[str, Any], population: int, cohort: int) -> _Stage:
    found = list(_clients(outline))
    parts = [part for name, part in found if name != "round_only"]
    fresh = sum(_in_file(part["fresh"]) for part in parts)
    return _Stage(
        round=outline["round"],
        population=population,
        cohort=cohort,
        shared=_in_file(rows.without_clients(outline)),
        fresh=fresh,
        row=fresh // max(1, len(parts)),  # in clusters there are several parts, of one kind
        rows=sum(len(part["rows"]) for part in parts),
        state=max((tree.num_bytes(part["fresh"]) for part in parts), default=0),
        held=sum(len(part["rows"]) * tree.num_bytes(part["fresh"]) for name, part in found if name == "round_only"),
    )


def _clients(state: Any, name: str = "") -> Iterator[tuple[str, dict]]:
    """All client states in a part of a state, and what each is called."""
    if isinstance(state, dict):
        if rows.are_client_rows(state):
            yield name, state
        else:
            for key, part in state.items():
                yield from _clients(part, key)


def _in_file(content: Any) -> int:
    """Bytes that a state adds to a file."""
    if isinstance(content, dict):
        return sum(map(_in_file, content.values()))
    return content.nbytes + _TENSOR if isinstance(content, Tensor) else 0
