"""Two ways to run the same client code: one client after another, or many at once.

Both get the same batches and return the same trees to rounding. The loop visits batches at their exact lengths and runs
any model. The vectorised engine pads clients to a common number of steps and batches to a common size, and traces the
client code once for all of them with `torch.func.vmap`; padding is masked, and clients of similar length share a block.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from algorithms.shared import tree
from algorithms.shared.tree import Tree
from algorithms.shared.types import BatchIndex, ClientOutputs, ClientView, OnClient
from bench.hooks import place_of
from bench.models.base import Model
from bench.simulation.client import ClientData, bind
from bench.simulation.untouched import left_as_given
from datasets.federation import Federation

# A client joins a block if it has at least this share of the block's largest number of steps. Less padding costs more
# blocks, one after another: at dir-0.1 with 100 clients 0.75 leaves a sixth of the rows empty, 0.5 a third.
_LEAST_FILL = 0.75

# On a GPU, as many batches of one client train in the time in which a step is launched, however many clients it has. On an H200
# (docs/gpu.md) these were 65 where kernels are launched one by one, by the paces of 10 and 160 clients, and few where a block
# is replayed. Of what is between, only this was measured.
_BATCHES_PER_LAUNCH = 20

LARGEST_STACK = 10**9  # bytes of clients' results that the loop holds at once where their means are enough


class Clients(Protocol):
    """What an engine needs of a `bench.simulation.task.Task`, which says what each of these is."""

    @property
    def model(self) -> Model: ...
    @property
    def federation(self) -> Federation: ...
    @property
    def max_clients_per_vmap(self) -> int | None: ...
    @property
    def graphs(self) -> "BlockRunner | None": ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def data_of(self, client: int) -> ClientData: ...
    def batch_indices(self, client: int, round: int) -> tuple[Tensor, dict[str, Tensor], list[int]]: ...
    def generator_for(self, purpose: str, *ids: int) -> torch.Generator: ...


def run_loop(
    task: Clients, fn: OnClient, clients: list[int], shared: dict[str, Any], per_client: dict[str, Tree]
) -> ClientOutputs:
    """One client after another; see `Task.map_clients`."""
    stacked: Any = None
    planned = [task.batch_indices(client, shared["round"]) for client in clients]
    drawn = [
        _loss_keys(task, client, shared["round"], len(sizes))
        for client, (_, _, sizes) in zip(clients, planned, strict=True)
    ]
    all_rows, all_keys = _moved([rows for rows, _, _ in planned], task.device), _moved(drawn, task.device)
    all_draws = {key: _moved([draws[key] for _, draws, _ in planned], task.device) for key in planned[0][1]}
    for position, client in enumerate(clients):
        rows, keys, sizes = all_rows[position], all_keys[position], planned[position][2]
        parts = {key: leaves[position].split(sizes) for key, leaves in all_draws.items()}
        plan = [
            BatchIndex(batch, None, {key: part[step] for key, part in parts.items()}, len(batch), keys[step])
            for step, batch in enumerate(rows.split(sizes))
        ]
        given = {**shared, **tree.row(per_client, position)}
        model = bind(task.model, given["buffers"], task.generator_for("dropout", shared["round"], client))
        with left_as_given(given, functools.partial(_named, fn)):
            result = fn(task.data_of(client), plan, ClientView(model=model, **given))
        outcome = ClientOutputs(result, model.buffers)
        if stacked is None:
            stacked = tree.map(lambda leaf: leaf.new_empty((len(clients), *leaf.shape)), outcome)
        tree.put_row(stacked, position, outcome)
        del result, outcome, model, given  # while the next client trains, only the stack holds what this one returned
    return stacked


def run_vectorised(
    task: Clients, fn: OnClient, clients: list[int], shared: dict[str, Any], per_client: dict[str, Tree]
) -> ClientOutputs:
    """Blocks of clients at once; see `Task.map_clients`.

    Raises:
        ValueError: if the model cannot be run this way.
    """
    refuse_loop_only(task.model)
    run = task.graphs.run if task.graphs else run_block
    order, outcomes = [], []
    for block in blocks_of(task, clients, shared["round"], per_client):
        outcomes.append(run(task, fn, block, shared))
        order += block.positions
    return in_order(order, outcomes, task.device)


class Block(NamedTuple):
    """Clients that train at once.

    Attributes:
        positions: of the clients among those of the round.
        given: what each of them gets that others do not, leaves [clients, ...].
        least: the fewest real rows of any of them in each step.
    """

    positions: list[int]
    given: dict[str, Tree]
    least: list[int]


class BlockRunner(Protocol):
    """Runs a function on all clients of a block, as `run_block` does.

    Attributes:
        notes: what the user should know, a clause each; who tells it takes it away.
    """

    notes: list[str]

    def forget(self) -> bool: ...
    def run(self, task: Clients, fn: OnClient, block: Block, shared: dict[str, Any]) -> ClientOutputs: ...


def run_block(task: Clients, fn: OnClient, block: Block, shared: dict[str, Any]) -> ClientOutputs:
    """fn on all clients of a block at once.

    Args:
        shared: what all clients of the round get.
    """

    def run_one(given: dict[str, Tree]) -> ClientOutputs:
        given = {**shared, **given}
        padded = given.pop("padded")
        draws = {key: leaf.unbind(0) for key, leaf in padded["draws"].items()}
        keys = given.pop("keys").unbind(0)
        plan = [
            BatchIndex(rows, mask, {key: parts[step] for key, parts in draws.items()}, block.least[step], keys[step])
            for step, (rows, mask) in enumerate(zip(padded["rows"].unbind(0), padded["mask"].unbind(0), strict=True))
        ]
        data = ClientData(task.federation, given.pop("noise", None), task.dtype)
        model = bind(task.model, given["buffers"])
        with left_as_given(given, functools.partial(_named, fn)):  # dicts and what all clients share
            result = fn(data, plan, ClientView(model=model, **given))
        return ClientOutputs(result, model.buffers)

    with left_as_given(
        block.given, functools.partial(_named, fn)
    ):  # tensors that hide the axis of clients count no changes
        return torch.func.vmap(run_one)(block.given)


def blocks_of(task: Clients, clients: list[int], round: int, per_client: dict[str, Tree]) -> Iterator[Block]:
    """The clients of a round, block by block, with all that they need on the device."""
    planned = [task.batch_indices(client, round) for client in clients]
    divide = _cheapest_blocks if task.device.type == "cuda" else _blocks
    for block in divide([len(sizes) for _, _, sizes in planned], task.max_clients_per_vmap):
        given = tree.row(per_client, torch.tensor(block).to(task.device))  # the host waits once, not once a leaf
        padded, least = _pad([planned[position] for position in block])
        given["padded"] = tree.map(lambda leaf: leaf.to(task.device), padded)
        keys = [_loss_keys(task, clients[position], round, len(planned[position][2])) for position in block]
        given["keys"] = pad_sequence(keys, batch_first=True).to(task.device)
        levels = [task.data_of(clients[position]).noise_level for position in block]
        if noise := [level for level in levels if level is not None]:
            given["noise"] = torch.stack(noise)
        yield Block(block, given, least)


def in_order(order: list[int], outcomes: list[ClientOutputs], device: torch.device) -> ClientOutputs:
    """What blocks returned, as one tree whose rows are in the order of the cohort.

    Args:
        order: the positions of the clients of all blocks, one block after another.
        outcomes: of each block, leaves [clients, ...], on the device.
    """
    if len(outcomes) == 1 and order == sorted(order):
        return outcomes[0]
    restore = torch.tensor(order).argsort().to(device)
    return tree.map(lambda *parts: torch.cat(parts)[restore], *outcomes)


def _named(fn: OnClient) -> str:
    return f"{place_of(fn)},"


ENGINES = {"loop": run_loop, "vectorised": run_vectorised}


@functools.cache
def warm_up(engine: str) -> None:
    """What an engine does once in a process, done before a clock runs: at its first gradient torch.func imports a compiler,
    which takes seconds."""
    if engine == "vectorised":
        torch.func.grad(torch.sum)(torch.zeros(1))


def refuse_loop_only(model) -> None:
    """Raises ValueError if a model can only be run by the loop engine."""
    if model.loop_only:
        raise ValueError(
            f"The vectorised engine cannot run {type(model).__name__}, which {model.loop_only}; use the engine loop."
        )


def padding_share(sizes: list[list[int]]) -> float:
    """Share of the batch rows computed by the vectorised engine that hold no example, in [0, 1).

    Args:
        sizes: of the batches of each client of a cohort, at least one client (see `Settings.passes`).
    """
    blocks = [[sizes[position] for position in block] for block in _blocks([len(batches) for batches in sizes])]
    computed = sum(len(block) * math.prod(_extent(block)) for block in blocks)
    return 1 - sum(map(sum, sizes)) / computed


def _blocks(num_steps: list[int], largest: int | None = None) -> list[list[int]]:
    """Positions of clients, longest first, cut where padding would exceed the limit or a block would be too large."""
    order = sorted(range(len(num_steps)), key=lambda position: -num_steps[position])
    blocks: list[list[int]] = []
    for position in order:
        full = blocks and largest is not None and len(blocks[-1]) >= largest
        if not blocks or full or num_steps[position] < _LEAST_FILL * num_steps[blocks[-1][0]]:
            blocks.append([])
        blocks[-1].append(position)
    return blocks


def _cheapest_blocks(num_steps: list[int], largest: int | None = None) -> list[list[int]]:
    """Positions of clients, longest first, cut such that a GPU is done first: a step of a block of n clients takes as long as
    _BATCHES_PER_LAUNCH + n batches."""
    order = sorted(range(len(num_steps)), key=lambda position: -num_steps[position])
    steps = torch.tensor([num_steps[position] for position in order], dtype=torch.double)
    costs, cuts = torch.zeros(len(order) + 1, dtype=torch.double), [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):  # the least cost of the first `end` clients, and where their last block begins
        first = max(0, end - (largest or end))
        found = costs[first:end] + steps[first:end] * (_BATCHES_PER_LAUNCH + end - torch.arange(first, end))
        costs[end], best = found.min(0)
        cuts[end] = first + int(best)
    blocks: list[list[int]] = []
    end = len(order)
    while end:
        blocks.insert(0, order[cuts[end] : end])
        end = cuts[end]
    return blocks


def _loss_keys(task: Clients, client: int, round: int, count: int) -> Tensor:
    """The keys [count] of a client's batches in a round, on the host."""
    return torch.empty(count, dtype=torch.long).random_(generator=task.generator_for("loss", round, client))


def _moved(leaves: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Tensors of the host on a device, in one copy."""
    if device.type == "cpu":
        return leaves
    return torch.cat([*leaves]).to(device).split([len(leaf) for leaf in leaves])


def _extent(sizes: list[list[int]]) -> tuple[int, int]:
    """Steps and rows per step that hold the batches of every client of a block."""
    return max(map(len, sizes)), max(map(max, sizes))


def _pad(planned: list[tuple[Tensor, dict[str, Tensor], list[int]]]) -> tuple[dict[str, Tree], list[int]]:
    """Index plans of several clients with a common shape, padded by row 0, on the host: boolean indices wait for a GPU.

    Returns:
        Leaves [clients, steps, rows of the largest batch], and the fewest real rows of any client in each step.
    """
    steps, width = _extent([sizes for _, _, sizes in planned])
    mask = torch.zeros(len(planned), steps, width, dtype=torch.bool)
    for position, (_, _, sizes) in enumerate(planned):
        mask[position, : len(sizes)] = torch.arange(width) < torch.tensor(sizes)[:, None]

    def spread(leaves: list[Tensor]) -> Tensor:
        # Boolean assignment fills row by row, which is the order of the concatenated plans.
        padded = torch.zeros(mask.shape, dtype=leaves[0].dtype)
        padded[mask] = torch.cat(leaves)
        return padded

    draws = {key: spread([draws[key] for _, draws, _ in planned]) for key in planned[0][1]}
    least = [min(step) for step in itertools.zip_longest(*(sizes for _, _, sizes in planned), fillvalue=0)]
    return {"rows": spread([rows for rows, _, _ in planned]), "mask": mask, "draws": draws}, least
