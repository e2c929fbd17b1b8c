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
from bench.experiments.cost import method_of, with_templates, without_numbers
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


def footprint(config: RunConfig, retention: StateRetention, is_post_hoc: bool = False) -> Footprint | None:
    """What one run takes, a state of any of its rounds as one at the end of its stage; None where that is not known before (see
    `bench.experiments.cost.without_numbers`).

    Args:
        is_post_hoc: whether it starts from the last state of another run, and only deploys it.
    """
    described = without_numbers(config)
    if described is None:
        return None
    stages, deployed, local_models = _sizes(described)
    if is_post_hoc:
        return Footprint(deployed if retention.final != "none" else 0, 0, 0)
    last = {"none": 0, "deployed": stages[-1].deployed, "all": stages[-1].whole}[retention.final]
    on_the_way = sum(next((one.whole for one in stages if number <= one.round), 0) for number in retention.rounds)
    kept = last + on_the_way + len(retention.local_models) * local_models
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
    return {cell.id: footprint(cell.config, retention[cell.id], is_post_hoc=bool(training_of(cell))) for cell in cells}


def shortages(plan: Plan, storage: str | None, machines: Machines, store: Store) -> list[str]:
    """A sentence for each disk of this machine that has less free space than the runs of a plan need.

    Args:
        storage: as in `bench.experiments.execution_options.ExecutionOptions`.
    """
    known = [one for one in footprints(plan.todo, plan.retention).values() if one]
    if not known:
        return []
    needed = total(known, machines.at_once)
    # Elsewhere than in the results directory, a run has its kept states beside its checkpoint until it ends.
    beside = sum(sorted(one.kept for one in known)[-machines.at_once :]) if storage else 0
    what = "checkpoints and kept states" if beside else "checkpoints"
    places = [
        (store.folder, needed.kept, "kept states"),
        (storage or store.folder, needed.checkpoint + beside, f"{what} of {machines.at_once} at once"),
        (default_dir(), 0 if machines.is_cluster else needed.scratch, "client states during runs"),
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
    """Bytes of the states of one stage of a run at its end, with the states of as many clients as random cohorts reach.

    Attributes:
        round: in which it ends.
        whole, deployed: of a state in one file, with the states of clients, and with them only if what is deployed reads them.
        checkpoint: in a file, and one for each client's state.
        scratch: of client states in files that are there only during the run.
    """

    round: int
    whole: int
    deployed: int
    checkpoint: int
    scratch: int


@functools.cache
def _sizes(described: str) -> tuple[tuple[_Stage, ...], int, int]:
    """The stages of one kind of run; bytes of a file with what it deploys, a model or one per client, and of a file with the
    local models of a cohort."""
    (task, templates), algorithm = with_templates(described), method_of(described)
    last, one = templates[-1], {"params": task.initial_params(), "buffers": task.initial_buffers()}
    cohort = task.settings.cohort_size(task.population)
    # A state without a model of its own holds several, each as large as the task's.
    deployed, copies = {key: last.get(key, one[key]) for key in one}, task.population if algorithm.personal else 1
    stages = tuple(_stage(template, task.population, cohort, algorithm.deploy_reads_clients) for template in templates)
    return stages, _file_of(deployed, copies), _file_of(one, cohort)


def _stage(template: dict[str, Any], population: int, cohort: int, reads_clients: bool) -> _Stage:
    found = list(_clients(template))
    parts = [part for name, part in found if name != "round_only"]
    fresh = sum(_in_file(part["fresh"]) for part in parts)
    row = fresh // max(1, len(parts))  # in clusters there are several parts, of one kind
    reached = math.ceil(population * (1 - (1 - cohort / population) ** template["round"]))
    clients = max(reached, sum(len(part["rows"]) for part in parts))
    shared = _FILE + _in_file(rows.without_clients(template))
    whole = shared + fresh + clients * row
    # The states before and after a round have all rows but those of the cohort in common; others are there only within a round.
    state = max((tree.num_bytes(part["fresh"]) for part in parts), default=0)
    round_only = sum(len(part["rows"]) * tree.num_bytes(part["fresh"]) for name, part in found if name == "round_only")
    return _Stage(
        round=template["round"],
        whole=whole,
        deployed=whole if reads_clients else shared,
        checkpoint=whole + clients * _FILE * bool(row),
        scratch=max(0, (clients + cohort) * state - row_files.MEMORY_BYTES, round_only - row_files.MEMORY_BYTES),
    )


def _file_of(model: dict[str, Any], copies: int) -> int:
    """Bytes of a file with so many models, stacked."""
    return _FILE + _in_file(model) + (copies - 1) * tree.num_bytes(model)


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
