"""Rounds of a method in each of several groups of clients. Where it is faster, the clients of all groups train at once."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from algorithms.shared import tree
from algorithms.shared.base import Algorithm, State
from algorithms.shared.returned import update_from
from algorithms.shared.rounds import RoundBased, step_after
from algorithms.shared.types import ClientOutputs, Cohort, Task


def step_groups(base: Algorithm, tasks: Mapping[str, Task], state: State) -> State:
    """The state after one more round in every group.

    Args:
        base: trains in each group.
        tasks: name of a group -> the task of its clients. They are parts of one task; their models may differ.
        state: has "round", "costs", and "models": name of a group -> state of the base.
    """
    before = state["models"]
    known = _stepped_at_once(base, tasks, before)
    models = {name: known[name] if name in known else base.step(task, before[name]) for name, task in tasks.items()}
    spent = state["costs"]
    for name, model in models.items():
        spent = {key: spent[key] + model["costs"][key] - before[name]["costs"][key] for key in spent}
    return {**state, "round": state["round"] + 1, "models": models, "costs": spent}


class _Part(NamedTuple):
    """A group in a round."""

    task: Task
    state: State
    cohort: Cohort


def _stepped_at_once(base: Algorithm, tasks: Mapping[str, Task], states: Mapping[str, State]) -> dict[str, State]:
    """The states after a round of the groups whose clients train at once: of several groups with one model, those that have
    participants."""
    if not isinstance(base, RoundBased) or not _is_plain(base):
        return {}
    parts = {
        name: _Part(task, states[name], base.sample(task, states[name]))
        for name, task in tasks.items()
        if task.trains_models_at_once
    }
    left = [name for name, part in parts.items() if len(part.cohort.ids)]
    after: dict[str, State] = {}
    while left:
        together = [name for name in left if tasks[name].model == tasks[left[0]].model]
        left = [name for name in left if name not in together]
        if len(together) > 1:
            outputs = _local_training(base, [parts[name] for name in together])
            after |= {name: step_after(base, *parts[name], of) for name, of in zip(together, outputs, strict=True)}
    return after


def _is_plain(base: RoundBased) -> bool:
    """Whether a round is one local training of a sampled cohort, and what the server makes of it."""
    hooks = ("step", "run_round", "map_clients")
    return all(getattr(type(base), hook) is getattr(RoundBased, hook) for hook in hooks)


def _local_training(base: RoundBased, parts: list[_Part]) -> list[ClientOutputs]:
    """What local training returns on the cohort of each group, leaves [k, ...] of its k clients."""
    sizes = [len(part.cohort.ids) for part in parts]
    received = [
        tree.map(lambda leaf, size=size: leaf.expand(size, *leaf.shape), base.received(part.state))
        for part, size in zip(parts, sizes, strict=True)
    ]
    whole = replace(parts[0].task, members=None)
    outputs = whole.map_clients(
        functools.partial(update_from, base.local_update),
        whole.cohort(torch.cat([part.task.global_ids(part.cohort.ids) for part in parts])),
        round=parts[0].state["round"],
        **tree.concatenate(received),
        client=tree.concatenate([base.cohort_states(part.task, part.cohort, part.state) for part in parts]),
        own_params=True,
    )
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [tree.row(outputs, slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
